//! Resources that run out.

use postgres::{Client, NoTls};
use uuid::Uuid;

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::receiver::{Answer, Receiver};
use crate::{wait, worker};

/// Nobody can connect any more; clients and the sender are there already. A worker that ends then comes back all the
/// same.
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

/// Each request needs a connection of its own, and the worker may open no more files.
pub fn open_files(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    for path in ["/0", "/1", "/2"] {
        let closing = Answer::status(200).header("connection", "close");
        scene.receiver.respond(path, move |_, _| closing.clone());
    }
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    let pid = scene.worker_pid();
    scene.disturb();
    let open = worker::open_files(pid);
    let free = (0..).find(|number| !open.contains(number));
    worker::limit_open_files(pid, free.expect("numbers have no end"));
    // Requests pile up, and each has a file.
    scene.receiver.hold("/0");
    scene.database.wait_until(
        "SELECT EXISTS (SELECT FROM webhook.delivery_queue WHERE reason = 'local' AND attempts = 0)",
    );
    worker::limit_open_files(pid, 1024);
    scene.receiver.release("/0");
    scene.mend();
    scene.wait_for_requests(scene.size() / 3);
    assert_eq!(scene.worker_pid(), pid, "the worker has ended");
    stage.reconcile(scene);
}

/// Payloads of a megabyte, and no memory for them.
pub fn memory(stage: &mut Stage) {
    const LARGE: usize = 40;
    const ROOM: usize = 8 << 20;
    let mut scene = stage.scene(Sender::Worker);
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    let pid = scene.worker_pid();
    scene.disturb();
    worker::limit_memory(pid, &(worker::writable_memory(pid) + ROOM).to_string());
    let emit = format!(
        "SELECT webhook_emit('chaos.n0', jsonb_build_object('x', repeat('x', 1000000))) FROM generate_series(1, {LARGE})"
    );
    let rows = scene.connect().query(&emit, &[]);
    let events = rows.expect("they are small enough").into_iter();
    let mut ledger = scene.clients.ledger.lock().unwrap();
    ledger
        .committed
        .extend(events.map(|row| row.get::<_, Uuid>(0)));
    drop(ledger);
    wait::until_true("a worker that is short of memory", || {
        scene.cluster.log().contains("is short of memory")
    });
    worker::limit_memory(pid, "unlimited");
    scene.mend();
    scene.wait_for_requests(scene.size() / 3);
    assert_eq!(scene.worker_pid(), pid, "the worker has ended");
    stage.reconcile(scene);
}
