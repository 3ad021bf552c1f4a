//! SIGKILL of a sender at each point of a delivery's life.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use uuid::Uuid;

use crate::chaos::Stage;
use crate::chaos::gate::Gate;
use crate::chaos::scene::{Scene, Sender};
use crate::receiver::{Receiver, ids};
use crate::wait;

pub fn worker_before_claim(stage: &mut Stage) {
    before_claim(stage, Sender::Worker);
}
pub fn relay_before_claim(stage: &mut Stage) {
    before_claim(stage, Sender::Relay);
}
fn before_claim(stage: &mut Stage, sender: Sender) {
    let mut scene = warm(stage, sender);
    let before = scene.receiver.request_count();
    Gate::Claim.close(&scene.database);
    let event = emit_some(&mut scene);
    let session = Gate::Claim.wait_for_sender(&scene.database);
    assert_eq!(
        scene.receiver.request_count(),
        before,
        "sent before the commit"
    );
    scene.kill_sender_before_gate(session);
    scene.nothing_was_in_flight();
    drop(scene.connect());
    scene.database.wait_for_status(event, "PENDING");
    Gate::Claim.open(&scene.database);
    scene.wait_until_settled();
    // A claim is an attempt from its commit on.
    let most: i32 = (scene.database).query_one_value("SELECT max(attempts) FROM webhook.delivery");
    assert_eq!(most, 1, "the claim was committed");
    stage.reconcile(scene);
}

pub fn worker_before_wire(stage: &mut Stage) {
    before_wire(stage, Sender::Worker);
}
pub fn relay_before_wire(stage: &mut Stage) {
    before_wire(stage, Sender::Relay);
}
/// Claims are committed, and no request has a connection.
fn before_wire(stage: &mut Stage, sender: Sender) {
    let mut scene = warm(stage, sender);
    let full = FullBacklog::listen();
    scene.database.execute(&format!(
        "SELECT webhook_set_endpoint('n0', 'http://127.0.0.1:{}/0')",
        full.port
    ));
    emit_some(&mut scene);
    scene
        .database
        .wait_until("SELECT EXISTS (SELECT FROM webhook.delivery_queue WHERE status = 'SENDING')");
    scene.kill_sender();
    let port = full.port;
    drop(full);
    let instead = wait::until("the port", || {
        std::panic::catch_unwind(|| Receiver::start_on(port)).map_err(drop)
    });
    // Events that have arrived here count as well.
    stage.reconcile_with(scene, &[instead]);
}

pub fn worker_on_wire(stage: &mut Stage) {
    on_wire(stage, Sender::Worker);
}
pub fn relay_on_wire(stage: &mut Stage) {
    on_wire(stage, Sender::Relay);
}
fn on_wire(stage: &mut Stage, sender: Sender) {
    let mut scene = warm(stage, sender);
    scene.receiver.hold("/0");
    let before = scene.receiver.request_count();
    emit_some(&mut scene);
    scene.receiver.wait_for_requests(before + 1);
    scene.kill_sender();
    scene.receiver.release("/0");
    stage.reconcile(scene);
}

pub fn worker_after_answer(stage: &mut Stage) {
    after_answer(stage, Sender::Worker);
}
pub fn relay_after_answer(stage: &mut Stage) {
    after_answer(stage, Sender::Relay);
}
/// The answer is there, and the sender is busy with another claim, so that it cannot settle.
fn after_answer(stage: &mut Stage, sender: Sender) {
    let mut scene = warm(stage, sender);
    scene.receiver.hold("/0");
    let before = scene.receiver.request_count();
    emit_some(&mut scene);
    scene.receiver.wait_for_requests(before + 1);
    Gate::Claim.close(&scene.database);
    scene.emit_to(1);
    let session = Gate::Claim.wait_for_sender(&scene.database);
    scene.receiver.release("/0");
    scene.receiver.wait_until_answered("/0");
    let answered = ids(&scene.receiver.requests()[before..]);
    for event in &answered {
        let status = scene.database.delivery_status(*event);
        assert_eq!(status.as_deref(), Some("SENDING"), "it was settled");
    }
    scene.kill_sender_before_gate(session);
    open(&scene, Gate::Claim);
    scene.wait_until_settled();
    for event in answered {
        assert_eq!(requests_of(&scene, event), 2, "requests of {event}");
    }
    stage.reconcile(scene);
}

pub fn worker_before_settle(stage: &mut Stage) {
    before_settle(stage, Sender::Worker);
}
pub fn relay_before_settle(stage: &mut Stage) {
    before_settle(stage, Sender::Relay);
}
fn before_settle(stage: &mut Stage, sender: Sender) {
    let mut scene = warm(stage, sender);
    Gate::Settle.close(&scene.database);
    let event = scene.emit();
    let session = Gate::Settle.wait_for_sender(&scene.database);
    // The sender stands before the gate, and claims none of these.
    emit_some(&mut scene);
    scene.kill_sender_before_gate(session);
    scene.nothing_was_in_flight();
    scene.allow_repetition(1);
    drop(scene.connect());
    scene.database.wait_for_status(event, "SENDING");
    Gate::Settle.open(&scene.database);
    scene.wait_until_settled();
    assert_eq!(
        requests_of(&scene, event),
        2,
        "the settlement was committed"
    );
    stage.reconcile(scene);
}

pub fn worker_after_settle(stage: &mut Stage) {
    after_settle(stage, Sender::Worker);
}
pub fn relay_after_settle(stage: &mut Stage) {
    after_settle(stage, Sender::Relay);
}
fn after_settle(stage: &mut Stage, sender: Sender) {
    let mut scene = warm(stage, sender);
    let event = emit_some(&mut scene);
    scene.database.wait_for_status(event, "SENT");
    scene
        .database
        .wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    scene.kill_sender();
    scene.nothing_was_in_flight();
    emit_some(&mut scene);
    stage.reconcile(scene);
}

pub fn worker_under_load(stage: &mut Stage) {
    under_load(stage, Sender::Worker, 3);
}
pub fn relay_under_load(stage: &mut Stage) {
    let kills = (stage.size / 30).min(5);
    under_load(stage, Sender::Relay, kills);
}
fn under_load(stage: &mut Stage, sender: Sender, kills: usize) {
    let mut scene = stage.scene(sender);
    scene.begin_load();
    for _ in 0..kills {
        let more = 1 + scene.random.below(scene.size() / kills);
        scene.wait_for_commits(more);
        scene.kill_sender();
        scene.wait_for_requests(scene.size() / kills);
    }
    stage.reconcile(scene);
}

/// A scene in which one event has been delivered.
fn warm(stage: &mut Stage, sender: Sender) -> Scene {
    let mut scene = stage.scene(sender);
    let event = scene.emit();
    scene.database.wait_for_status(event, "SENT");
    scene
}

/// Returns the last of them.
fn emit_some(scene: &mut Scene) -> Uuid {
    for _ in 0..scene.random.below(10) {
        scene.emit();
    }
    scene.emit()
}

fn requests_of(scene: &Scene, event: Uuid) -> usize {
    let requests = scene.receiver.requests();
    let of_event = requests.iter().filter(|r| r.event_id() == event);
    of_event.count()
}

/// The server may still be starting.
fn open(scene: &Scene, gate: Gate) {
    drop(scene.connect());
    gate.open(&scene.database);
}

/// A port whose connections are never accepted: clients wait.
struct FullBacklog {
    port: u16,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl FullBacklog {
    fn listen() -> FullBacklog {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        // SAFETY: the socket is open; to listen again changes its backlog.
        let result = unsafe { libc::listen(listener.as_raw_fd(), 0) };
        assert_eq!(result, 0, "a backlog can be changed");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let patience = Duration::from_millis(200);
        let connect = || TcpStream::connect_timeout(&address, patience).ok();
        let waiting = std::iter::from_fn(connect).take(100).collect();
        FullBacklog {
            port,
            _listener: listener,
            _waiting: waiting,
        }
    }
}
