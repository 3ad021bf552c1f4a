//! Somebody's exclusive lock on a table of ours.

use std::thread;
use std::time::Duration;

use crate::chaos::Stage;
use crate::chaos::scene::Sender;

/// Longer than a sender waits for a lock.
const HELD: Duration = Duration::from_millis(600);

pub fn each_table(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    let tables: Vec<String> = scene.database.query_one_value(
        "SELECT array_agg(relname::text ORDER BY relname) FROM pg_class
         WHERE relnamespace = 'webhook'::regnamespace AND relkind IN ('r', 'p')",
    );
    scene.begin_load();
    let mut order = tables;
    scene.random.shuffle(&mut order);
    // With one seed some of them, with many all.
    let some = order.len().min(scene.size() / 50);
    for table in &order[..some] {
        scene.wait_for_requests(10);
        scene.disturb();
        lock(&scene.database, table, || thread::sleep(HELD));
        scene.mend();
    }
    scene.wait_for_requests(10);
    stage.reconcile(scene);
}

pub fn outcomes(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    scene.begin_load();
    for table in [
        "delivery_history",
        "attempt",
        "dead_letter",
        "alert",
        "breaker",
    ] {
        scene.wait_for_requests(10);
        let more = scene.size() / 5;
        lock(&scene.database, table, || scene.wait_for_requests(more));
    }
    scene.mend();
    scene.wait_for_requests(10);
    stage.reconcile(scene);
}

fn lock(database: &crate::Database, table: &str, meanwhile: impl FnOnce()) {
    let mut person = database.connect();
    let lock = format!("BEGIN; LOCK TABLE webhook.{table} IN ACCESS EXCLUSIVE MODE");
    person.batch_execute(&lock).expect("the lock is granted");
    meanwhile();
    person
        .batch_execute("ROLLBACK")
        .expect("the lock is given back");
}
