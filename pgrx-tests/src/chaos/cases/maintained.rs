//! Maintenance of our tables under load, and a transaction that somebody forgot.

use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};
use crate::wait;

pub fn rewritten(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    let commands: Vec<String> = scene.database.query_one_value(
        "SELECT array_agg(format(command, c.relname, coalesce(i.indexrelid::regclass::text, '')) ORDER BY c.relname, command)
         FROM pg_class c LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary,
              unnest('{VACUUM FULL webhook.%1$I,REINDEX TABLE webhook.%1$I,CLUSTER webhook.%1$I USING %2$s}'::text[]) AS command
         WHERE c.relnamespace = 'webhook'::regnamespace AND c.relkind = 'r'
           AND (i.indexrelid IS NOT NULL OR command NOT LIKE 'CLUSTER%')",
    );
    let commands = commands
        .iter()
        .map(|command| command.replace("USING webhook.", "USING "));
    run_each(stage, &mut scene, commands.collect());
    stage.reconcile(scene);
}

pub fn ddl(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    let commands = [
        "BEGIN; DROP EXTENSION webhook CASCADE; ROLLBACK",
        "CREATE INDEX extra ON webhook.delivery_history (duration_ms); DROP INDEX webhook.extra",
        "ALTER TABLE webhook.delivery_history ALTER COLUMN duration_ms SET STATISTICS 50",
        "ALTER TABLE webhook.delivery_queue SET (fillfactor = 40)",
        "CREATE SCHEMA other; DROP SCHEMA other",
        "CREATE TABLE busy (a int); SELECT webhook_watch('busy', 'busy'); DROP TABLE busy",
        "ANALYZE",
        "ALTER EXTENSION webhook UPDATE",
    ];
    run_each(stage, &mut scene, commands.map(str::to_owned).to_vec());
    stage.reconcile(scene);
}

/// The session or the server dies before DROP EXTENSION is committed: the extension and all of its rows stay.
pub fn dropped(stage: &mut Stage) {
    const DEATHS: usize = 4;
    let mut scene = stage.scene(Sender::Worker);
    scene.begin_load();
    for death in 0..DEATHS {
        let more = 1 + scene.random.below(scene.size() / DEATHS);
        scene.wait_for_requests(more);
        scene.disturb();
        scene.lose_sender();
        // The last one is killed while it drops.
        let mut session = match death {
            3 => scene.connect(),
            _ => drop_uncommitted(&scene),
        };
        let pid: i32 = session
            .query_one("SELECT pg_backend_pid()", &[])
            .expect("the session is open")
            .get(0);
        match death {
            0 => scene.crash_by(pid),
            1 => {
                scene.cluster.kill_immediately();
                scene.cluster.start_server();
            }
            2 => {
                scene.cluster.lose_postmaster();
                scene.cluster.start_server();
            }
            _ => thread::scope(|scope| {
                scope.spawn(move || session.batch_execute(DROP));
                wait_for_first_lock(&scene, pid);
                scene.crash_by(pid);
            }),
        }
        scene.mend();
    }
    scene.wait_for_requests(scene.size() / DEATHS);
    stage.reconcile(scene);
}

const DROP: &str = "BEGIN; DROP EXTENSION webhook CASCADE";

/// Returns the session whose transaction has dropped it. It may lose a deadlock to the emitters.
fn drop_uncommitted(scene: &Scene) -> Client {
    wait::until("the extension to be dropped", || {
        let mut session = scene.connect();
        session.batch_execute(DROP).map(|()| session)
    })
}

/// Or for its end: a deadlock with the emitters may end it.
fn wait_for_first_lock(scene: &Scene, pid: i32) {
    let mut session = scene.maintenance();
    let is_dropping = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND mode = 'AccessExclusiveLock')
                           OR NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active')";
    wait::until_true("DROP EXTENSION to have begun", || {
        let row = session.query_one(is_dropping, &[&pid]);
        row.expect("the server runs").get(0)
    });
}

/// Runs each command, in an order that the seed chooses; in a test only five of them.
fn run_each(stage: &Stage, scene: &mut Scene, mut commands: Vec<String>) {
    const IN_A_TEST: usize = 5;
    scene.begin_load();
    scene.random.shuffle(&mut commands);
    if !stage.is_long() {
        commands.truncate(IN_A_TEST);
    }
    let more = scene.size() / commands.len();
    for command in &commands {
        scene.wait_for_requests(more.max(5));
        scene.disturb();
        run_until_done(scene, command);
        scene.mend();
    }
    scene.wait_for_requests(10);
}

/// The command may lose a deadlock or a lock to the emitters and the worker, and is repeated then.
fn run_until_done(scene: &Scene, command: &str) {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        let Err(error) = scene.database.connect().batch_execute(command) else {
            return;
        };
        let code = error.code().map(|code| code.code().to_owned());
        let is_passing = matches!(code.as_deref(), Some("40P01" | "55P03"));
        assert!(is_passing, "{command}: {error:?}");
    }
    panic!("{command}: lost {TRIES} times");
}

/// Five minutes, in a run that has the time.
const SNAPSHOT: Duration = Duration::from_secs(300);

pub fn snapshot(stage: &mut Stage) {
    let begun = Instant::now();
    let mut scene = stage.scene(Sender::Worker);
    let mut person = scene.database.connect();
    person
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM webhook.event")
        .expect("a snapshot is free");
    scene.mend();
    scene.begin_load();
    scene.wait_for_requests(scene.size());
    if stage.is_long() {
        thread::sleep(SNAPSHOT.saturating_sub(begun.elapsed()));
    }
    person.batch_execute("COMMIT").expect("it only read");
    stage.reconcile(scene);
}
