//! Maintenance of our tables under load, and a transaction that somebody forgot.

use std::thread;
use std::time::{Duration, Instant};

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};

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
