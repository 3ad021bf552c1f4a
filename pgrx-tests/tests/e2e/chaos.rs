//! The cases of the scoreboard, each with one seed and few events: `make chaos` runs them with many.

use std::collections::HashSet;

use webhook_e2e::chaos;

const SIZE: usize = 60;
/// Ten thousand events, of which relays that are lost have enough in hand.
const LARGE_SIZE: usize = 200;

macro_rules! cases {
    ($($test:ident: $name:literal $(=> $size:expr)?),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                let size = [$($size,)? SIZE][0];
                chaos::run(chaos::named($name), 1, size);
            }
        )*

        #[test]
        fn every_case_is_a_test() {
            let tested = HashSet::from([$($name),*]);
            let cases = chaos::CASES.iter().map(|case| case.name);
            assert_eq!(cases.collect::<HashSet<_>>(), tested);
        }
    };
}

cases! {
    worker_before_claim: "worker killed before its claim commits",
    worker_before_wire: "worker killed before it has connected",
    worker_on_wire: "worker killed while a request is on the wire",
    worker_after_answer: "worker killed after the answer",
    worker_before_settlement: "worker killed before its settlement commits",
    worker_after_settlement: "worker killed after its settlement",
    worker_under_load: "worker killed under load",
    relay_before_claim: "relay killed before its claim commits",
    relay_before_wire: "relay killed before it has connected",
    relay_on_wire: "relay killed while a request is on the wire",
    relay_after_answer: "relay killed after the answer",
    relay_before_settlement: "relay killed before its settlement commits",
    relay_after_settlement: "relay killed after its settlement",
    relay_under_load: "relay killed under load",
    worker_terminated: "worker terminated under load",
    relay_terminated: "relay terminated under load",
    launcher_terminated: "launcher terminated under load",
    fast_stop: "fast stop under load",
    immediate_stop: "immediate stop under load",
    crash_by_a_backend: "crash by another backend under load",
    postmaster_killed: "postmaster killed under load",
    tables_locked: "each table locked in turn",
    outcomes_locked: "history, attempts, dead letters, alerts or breakers locked",
    rewritten: "VACUUM FULL, REINDEX and CLUSTER under load",
    ddl: "DDL under load",
    snapshot_held: "a snapshot held for five minutes under load",
    prepared_transactions: "prepared transactions",
    hostile_settings: "each hostile setting of a database",
    hostile_settings_of_a_session: "each hostile setting of a session that emits",
    hostile_settings_of_a_role: "each hostile setting of a role that emits",
    many_hostile_settings: "thirty hostile settings at once",
    hostile_settings_of_a_relay: "thirty hostile settings at once, with a relay",
    worker_processes_exhausted: "worker processes exhausted",
    connections_exhausted: "connections exhausted",
    open_files_exhausted: "open files exhausted",
    memory_exhausted: "memory exhausted",
    full_data_disk: "data disk full under load",
    full_wal_disk: "WAL disk full under load",
    failover: "primary lost, standby promoted, pg_rewind, and back",
    logical_subscriber: "logical subscriber",
    upgrade_to_17: "pg_upgrade to 17",
    upgrade_to_18: "pg_upgrade to 18",
    resets_at_every_phase: "a receiver that resets at every phase",
    floods: "interim answers and bodies without an end",
    half_open_connections: "half-open connections to a receiver",
    stale_connections: "stale keep-alive connections",
    names: "names that hang, lie and change",
    slow_link: "slow link between relay and database",
    faulty_receivers: "receivers that reset, hang up and refuse",
    endpoints_down: "1,000 endpoints down at once",
    relay_cut_off: "relay cut off from its database",
    lost_relays: "three relays killed and cut off at random" => LARGE_SIZE,
    models: "models under kills and operators' calls",
    clock_jumps: "wall clock set forward and back",
    clock_floods: "wall clock that makes a backlog due at once",
}
