//! All disasters.

mod copied;
mod disk;
mod endpoints;
mod failover;
mod hanging;
mod killed;
mod locked;
mod maintained;
mod models;
mod named;
mod operated;
mod peers;
mod power;
mod prepared;
mod relays;
mod settings;
mod shaken;
mod short;
mod stopped;
mod time;
mod upgraded;

use crate::chaos::Case;

const fn case(
    name: &'static str,
    asserts: &'static str,
    run: fn(&mut crate::chaos::Stage),
) -> Case {
    Case { name, asserts, run }
}

/// In the order of the page.
pub const CASES: &[Case] = &[
    case(
        "worker killed before its claim commits",
        "nothing was sent before the kill; the claim costs no attempt; nothing is repeated",
        killed::worker_before_claim,
    ),
    case(
        "worker killed before it has connected",
        "",
        killed::worker_before_wire,
    ),
    case(
        "worker killed while a request is on the wire",
        "",
        killed::worker_on_wire,
    ),
    case(
        "worker killed after the answer",
        "each answered request is repeated once",
        killed::worker_after_answer,
    ),
    case(
        "worker killed before its settlement commits",
        "the request that was to be settled is repeated, and no other",
        killed::worker_before_settle,
    ),
    case(
        "worker killed after its settlement",
        "nothing is repeated",
        killed::worker_after_settle,
    ),
    case("worker killed under load", "", killed::worker_under_load),
    case(
        "relay killed before its claim commits",
        "nothing was sent before the kill; the claim costs no attempt; nothing is repeated",
        killed::relay_before_claim,
    ),
    case(
        "relay killed before it has connected",
        "",
        killed::relay_before_wire,
    ),
    case(
        "relay killed while a request is on the wire",
        "",
        killed::relay_on_wire,
    ),
    case(
        "relay killed after the answer",
        "each answered request is repeated once",
        killed::relay_after_answer,
    ),
    case(
        "relay killed before its settlement commits",
        "the request that was to be settled is repeated, and no other",
        killed::relay_before_settle,
    ),
    case(
        "relay killed after its settlement",
        "nothing is repeated",
        killed::relay_after_settle,
    ),
    case("relay killed under load", "", killed::relay_under_load),
    case(
        "worker terminated under load",
        "nothing is repeated",
        stopped::worker,
    ),
    case(
        "relay terminated under load",
        "nothing is repeated",
        stopped::relay,
    ),
    case(
        "launcher terminated under load",
        "nothing is repeated",
        stopped::launcher,
    ),
    case("fast stop under load", "nothing is repeated", stopped::fast),
    case(
        "fast stop with receivers, a name, a lock and a standby that hang",
        "the server has stopped within 6 s",
        hanging::fast_stop,
    ),
    case("immediate stop under load", "", stopped::immediate),
    case("crash by another backend under load", "", stopped::crash),
    case("postmaster killed under load", "", stopped::postmaster),
    case(
        "power lost under load, pages torn",
        "what was not synced is gone, and pages that changed since a checkpoint are half written; the server has fsync on",
        power::lost,
    ),
    case(
        "each table locked in turn",
        "nothing is repeated",
        locked::each_table,
    ),
    case(
        "history, attempts, dead letters, alerts or breakers locked",
        "requests go out while the lock is held",
        locked::outcomes,
    ),
    case(
        "VACUUM FULL, REINDEX and CLUSTER under load",
        "each command succeeds; nothing is repeated",
        maintained::rewritten,
    ),
    case(
        "DDL under load",
        "each command succeeds; nothing is repeated",
        maintained::ddl,
    ),
    case(
        "crash in DROP EXTENSION",
        "the extension and its rows are as before",
        maintained::dropped,
    ),
    case(
        "a snapshot held for five minutes under load",
        "nothing is repeated",
        maintained::snapshot,
    ),
    case(
        "prepared transactions",
        "a prepared event is sent after COMMIT PREPARED alone, across a crash",
        prepared::across_a_crash,
    ),
    case(
        "each hostile setting of a database",
        "each event arrives under it; the list is made from pg_settings",
        settings::each,
    ),
    case(
        "each hostile setting of a session that emits",
        "an event and a row of a watched table arrive, with the same payload under each; what its setting alone refuses does not",
        settings::of_a_session,
    ),
    case(
        "each hostile setting of a role that emits",
        "an event and a row of a watched table arrive, with the same payload under each; what its setting alone refuses does not",
        settings::of_a_role,
    ),
    case(
        "thirty hostile settings at once",
        "each event arrives under them; metrics still alert; the worker complains of nothing",
        settings::many_for_a_worker,
    ),
    case(
        "thirty hostile settings at once, with a relay",
        "each event arrives under them; metrics still alert; the relay complains of nothing",
        settings::many_for_a_relay,
    ),
    case(
        "worker processes exhausted",
        "databases take turns",
        short::worker_processes,
    ),
    case(
        "connections exhausted",
        "nothing is repeated",
        short::connections,
    ),
    case(
        "open files exhausted",
        "trouble of our own costs no attempt; nothing is repeated",
        short::open_files,
    ),
    case(
        "memory exhausted",
        "the worker goes on; nothing is repeated",
        short::memory,
    ),
    case("data disk full under load", "", disk::of_data),
    case("WAL disk full under load", "", disk::of_wal),
    case(
        "primary lost, standby promoted, pg_rewind, and back",
        "the standby is synchronous",
        failover::there_and_back,
    ),
    case(
        "logical subscriber",
        "the subscriber sends nothing",
        copied::subscriber,
    ),
    case(
        "pg_upgrade to 17",
        "the new server goes on with queue, dead letters and endpoints",
        upgraded::to_17,
    ),
    case(
        "pg_upgrade to 18",
        "the new server goes on with queue, dead letters and endpoints",
        upgraded::to_18,
    ),
    case(
        "upgrade of the extension in the middle of faults",
        "the upgrade that a crash interrupts leaves nothing; the next one succeeds",
        upgraded::during_faults,
    ),
    case(
        "receivers that reset, hang up and refuse",
        "",
        peers::faults,
    ),
    case(
        "a receiver that resets at every phase",
        "nothing is repeated where it arrived",
        peers::resets,
    ),
    case(
        "interim answers and bodies without an end",
        "nothing is repeated where it arrived",
        peers::floods,
    ),
    case("half-open connections to a receiver", "", peers::half_open),
    case(
        "stale keep-alive connections",
        "they cost no attempt; nothing is repeated",
        peers::stale,
    ),
    case(
        "TLS handshakes that are slow, break off or hang",
        "other endpoints get theirs at the same time",
        peers::slow_handshakes,
    ),
    case(
        "names that hang, lie and change",
        "the guard blocks each lie; nothing is repeated",
        named::hang_and_lie,
    ),
    case(
        "1,000 endpoints down at once",
        "others get theirs",
        endpoints::down,
    ),
    case(
        "relay cut off from its database",
        "",
        shaken::relay_connection,
    ),
    case(
        "slow link between relay and database",
        "nothing is repeated",
        shaken::slow_link,
    ),
    case(
        "three relays killed and cut off at random",
        "",
        relays::lost,
    ),
    case(
        "models under kills and operators' calls",
        "one event for each idempotency key; the latest of each coalescing key; no retry before its time; an open breaker lets one probe at a time through; requests are the attempts that were counted, but for claims of killed senders",
        operated::at_random,
    ),
    case(
        "wall clock set forward and back",
        "nothing is repeated",
        time::jumps,
    ),
    case(
        "wall clock that makes a backlog due at once",
        "requests in flight and in a second are as many as the endpoint bears, by the receiver's clock; nothing is repeated",
        time::floods,
    ),
    case(
        "relay whose clock is wrong and jumps",
        "nothing is repeated",
        time::skewed_relay,
    ),
];
