//! Resources that run out.

use postgres::{Client, NoTls};

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
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
