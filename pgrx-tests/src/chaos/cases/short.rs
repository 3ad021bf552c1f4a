//! Resources that run out.

use postgres::{Client, NoTls};

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::receiver::Receiver;
use crate::worker;

/// Nobody can connect any more; clients and the sender are there already. A worker that ends then comes back all the same.
pub fn connections(stage: &mut Stage) {
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder
            .setting("max_connections = 15")
            .setting("superuser_reserved_connections = 0")
    });
    scene.begin_load();
    scene.wait_for_requests(10);
    let mut terminator = scene.connect();
    let pid = scene.worker_pid();
    let config = scene.cluster.config("postgres");
    let taken: Vec<Client> = std::iter::from_fn(|| config.connect(NoTls).ok()).collect();
    assert!(!taken.is_empty(), "there was no connection to take");
    scene.disturb();
    terminator
        .query_one("SELECT pg_terminate_backend($1)", &[&pid])
        .expect("it is a superuser's right");
    scene.mend();
    scene.wait_for_requests(scene.size() / 3);
    drop(taken);
    worker::successor(&scene.database, pid);
    stage.reconcile(scene);
}

/// Places for two processes beside the server's own launcher: ours and one worker, for three databases.
pub fn worker_processes(stage: &mut Stage) {
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder.setting("max_worker_processes = 3")
    });
    let others = [
        scene.cluster.database("other"),
        scene.cluster.database("other"),
    ];
    let receiver = Receiver::start();
    for other in &others {
        other.add_endpoint("orders", &receiver.url("/orders"));
    }
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 2);
    for other in &others {
        let event = other.emit("order.created", serde_json::json!({}));
        other.wait_for_status(event, "SENT");
    }
    scene.mend();
    scene.wait_for_requests(scene.size() / 2);
    stage.reconcile(scene);
}
