//! Two-phase commit: a prepared transaction is neither committed nor rolled back, and survives a crash so.

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::database::emit;

pub fn across_a_crash(stage: &mut Stage) {
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder.setting("max_prepared_transactions = 20")
    });
    scene.begin_load();
    let count = 10;
    let mut prepared = Vec::new();
    let mut session = scene.connect();
    for number in 0..count {
        session.batch_execute("BEGIN").expect("it begins");
        prepared.push(emit(&mut session, "chaos.n0", serde_json::json!({})));
        let prepare = format!("PREPARE TRANSACTION 'chaos{number}'");
        session.batch_execute(&prepare).expect("there is room");
    }
    drop(session);
    scene.wait_for_requests(10);
    scene.strike();
    scene.lose_sender();
    scene.cluster.kill_immediately();
    scene.cluster.start_server();
    scene.wait_for_requests(10);
    let seen = scene.receiver.requests();
    let early = seen
        .iter()
        .filter(|request| prepared.contains(&request.event_id()));
    assert_eq!(early.count(), 0, "sent before COMMIT PREPARED");
    let mut session = scene.connect();
    for (number, event) in prepared.into_iter().enumerate() {
        let is_kept = scene.random.chance(60);
        let word = if is_kept { "COMMIT" } else { "ROLLBACK" };
        let end = format!("{word} PREPARED 'chaos{number}'");
        session.batch_execute(&end).expect("it was prepared");
        let mut ledger = scene.clients.ledger.lock().unwrap();
        match is_kept {
            true => ledger.committed.insert(event),
            false => ledger.rolled_back.insert(event),
        };
    }
    stage.reconcile(scene);
}
