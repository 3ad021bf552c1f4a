//! The cases of the scoreboard, each with one seed and few events: `make chaos` runs them with many.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use webhook_e2e::chaos::{self, Case, Outcome, Scene, Sender, Stage};

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
    fast_stop_whatever_hangs: "fast stop with receivers, a name, a lock and a standby that hang",
    immediate_stop: "immediate stop under load",
    crash_by_a_backend: "crash by another backend under load",
    postmaster_killed: "postmaster killed under load",
    power_lost: "power lost under load, pages torn",
    tables_locked: "each table locked in turn",
    outcomes_locked: "history, attempts, dead letters, alerts or breakers locked",
    rewritten: "VACUUM FULL, REINDEX and CLUSTER under load",
    ddl: "DDL under load",
    crash_in_drop_extension: "crash in DROP EXTENSION",
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
    upgrade_during_faults: "upgrade of the extension in the middle of faults",
    resets_at_every_phase: "a receiver that resets at every phase",
    floods: "interim answers and bodies without an end",
    half_open_connections: "half-open connections to a receiver",
    stale_connections: "stale keep-alive connections",
    slow_handshakes: "TLS handshakes that are slow, break off or hang",
    names: "names that hang, lie and change",
    slow_link: "slow link between relay and database",
    faulty_receivers: "receivers that reset, hang up and refuse",
    endpoints_down: "1,000 endpoints down at once",
    relay_cut_off: "relay cut off from its database",
    lost_relays: "three relays killed and cut off at random" => LARGE_SIZE,
    models: "models under kills and operators' calls",
    clock_jumps: "wall clock set forward and back",
    skewed_relay: "relay whose clock is wrong and jumps",
    clock_floods: "wall clock that makes a backlog due at once",
}

/// Somebody deletes a delivery before it is claimed.
static LOSING: Case = Case {
    name: "losing",
    asserts: "",
    run: |stage| {
        let scene = deliver_one_of_two(stage);
        stage.reconcile(scene);
    },
};

/// The same, and the case fails before its reconciliation.
static FAILING: Case = Case {
    name: "failing",
    asserts: "",
    run: |stage| {
        let _scene = deliver_one_of_two(stage);
        panic!("on purpose");
    },
};

fn deliver_one_of_two(stage: &mut Stage) -> Scene {
    let mut scene = stage.scene(Sender::Worker);
    let event = scene.emit();
    scene.database.wait_for_status(event, "SENT");
    scene.database.pause_all();
    scene.emit();
    scene.database.execute("DELETE FROM webhook.delivery_queue");
    scene
}

#[test]
fn a_case_that_fails_shows_what_it_has_lost() {
    for (case, seeds, why) in [
        (&LOSING, 2, "committed events did not arrive"),
        (&FAILING, 1, "on purpose"),
    ] {
        let mut outcome = Outcome::of(case);
        for seed in 1..=seeds {
            let failure = outcome.run(seed as u64, SIZE).expect_err("it fails");
            assert!(failure.contains(why), "{failure}");
        }
        let page = chaos::markdown(&[outcome], 1, "15");
        let row = format!(
            "| **FAILED with seed 1:** {} |  | {seeds} | {} | 0 | {seeds} | 0 / 0 |",
            case.name,
            2 * seeds
        );
        assert!(page.contains(&row), "{page}");
        let total = format!("{} events committed, {seeds} lost, 0 requests", 2 * seeds);
        assert!(page.contains(&total), "{page}");
    }
}

#[test]
fn the_page_is_of_these_cases_and_all_have_passed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reliability.md");
    let page = fs::read_to_string(page).expect("there is docs/reliability.md");
    let again = "make chaos writes docs/reliability.md otherwise by now";
    let (seeds, server) = chaos::written_by(&page).expect(again);
    let head = chaos::head(seeds, server);
    let table = page.strip_prefix(&head).expect(again);

    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').map(str::trim).skip(1).take(2).collect());
    let cases = chaos::CASES
        .iter()
        .map(|case| vec![case.name, case.asserts]);
    assert_eq!(cells.collect::<Vec<Vec<_>>>(), cases.collect::<Vec<_>>());
    assert!(!page.contains("FAILED"), "{table}");
    let wide = head
        .lines()
        .filter(|line| !line.starts_with('|') && line.chars().count() >= 110);
    assert_eq!(wide.collect::<Vec<_>>(), Vec::<&str>::new());
}
