//! Receivers that misbehave, beside receivers that do not.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::chaos::Stage;
use crate::chaos::scene::{MAX_IN_FLIGHT, Scene, Sender};
use crate::raw_receiver::reset_when_closed;
use crate::receiver::Answer;
use crate::tls_terminator::TlsTerminator;
use crate::{RawReceiver, Receiver, TcpProxy, wait};

/// One endpoint answers with errors for a while, another is reached at a port that resets and then at none; the third
/// is well.
pub fn faults(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    let refusals = AtomicUsize::new(scene.size() / 10);
    let codes = [429, 500, 503, 408];
    scene.receiver.respond("/1", move |_, number| {
        let left = refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match left {
            Ok(_) => Answer::status(codes[number % codes.len()]),
            Err(_) => Answer::status(200),
        }
    });
    // A request that was answered with an error is repeated on purpose.
    scene.allow_repetition(scene.size() / 10);
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    let resetting = RawReceiver::resetting();
    scene.direct("n2", &resetting.url());
    scene.wait_for_requests(20);
    let cutting = RawReceiver::answering(b"HTTP/1.1 200 OK\r\nContent-Le");
    scene.direct("n2", &cutting.url());
    scene.wait_for_requests(20);
    scene.direct("n2", &Receiver::closed_url());
    scene.wait_for_requests(20);
    end_well(stage, scene);
}

/// As far as a receiver gets before it resets the connection: nothing, a part of the request, all of it, and ever
/// more of an answer. It is no success, so that the event has to come again.
const PHASES: [(usize, &[u8]); 6] = [
    (0, b""),
    (10, b""),
    (MOST, b""),
    (MOST, b"HTTP/1.1 5"),
    (MOST, b"HTTP/1.1 503 Busy\r\nContent-Le"),
    (
        MOST,
        b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nbusy",
    ),
];
/// More than a request has.
const MOST: usize = 1 << 16;

pub fn resets(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    let rude = RawReceiver::meeting(|mut stream, number| {
        let (heard, said) = PHASES[number % PHASES.len()];
        reset_when_closed(&stream);
        read_some(&mut stream, heard);
        let _ = stream.write_all(said);
    });
    scene.direct("n2", &rude.url());
    wait_for_requests_of(&rude, 2 * PHASES.len());
    end_well(stage, scene);
}

/// Reads without waiting for more than has come at once.
fn read_some(stream: &mut TcpStream, most: usize) {
    if most > 0 {
        let _ = stream.read(&mut vec![0; most]);
    }
}

/// Receivers that talk without an end: interim answers, and bodies.
pub fn floods(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    let interim = RawReceiver::doing(|stream| pour(stream, b"HTTP/1.1 100 Continue\r\n\r\n"));
    scene.direct("n2", &interim.url());
    wait_for_requests_of(&interim, 10);
    let endless = RawReceiver::doing(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 503 Busy\r\n\r\n");
        pour(stream, &[b'x'; 4096]);
    });
    scene.direct("n2", &endless.url());
    wait_for_requests_of(&endless, 10);
    end_well(stage, scene);
}

/// Writes until nobody listens.
fn pour(stream: &mut TcpStream, bytes: &[u8]) {
    const MOST: usize = 64 << 20;
    let _ = (0..MOST / bytes.len()).try_for_each(|_| stream.write_all(bytes));
}

/// Nothing passes any more, and neither side is told.
pub fn half_open(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    let proxy = TcpProxy::to(scene.receiver.port());
    scene.database.execute(
        "SELECT webhook_copy_policy('persistent', 'impatient');
         UPDATE webhook.policy SET timeout = '1 s', connect_timeout = '1 s' WHERE name = 'impatient';
         SELECT webhook_set_endpoint('n2', policy => 'impatient')",
    );
    scene.direct("n2", &behind(&proxy));
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    proxy.swallow();
    // Requests have arrived already, and their answers are lost.
    scene.allow_repetition(MAX_IN_FLIGHT);
    scene
        .database
        .wait_until("SELECT count(*) >= 5 FROM webhook.attempt WHERE reason = 'timeout'");
    (scene.database).execute("SELECT webhook_set_endpoint('n2', policy => 'persistent')");
    proxy.stop_swallowing();
    end_well(stage, scene);
}

/// Connections that are closed while nobody uses them. The next request finds one of them, and costs no attempt.
pub fn stale(stage: &mut Stage) {
    const TIMES: usize = 3;
    let mut scene = stage.scene(Sender::Worker);
    let proxy = TcpProxy::to(scene.receiver.port());
    scene.direct("n2", &behind(&proxy));
    for _ in 0..TIMES {
        scene.begin_load();
        scene.wait_for_requests(scene.size() / TIMES);
        scene.clients.stop();
        scene.wait_until_settled();
        proxy.cut();
    }
    scene.begin_load();
    scene.mend();
    scene.wait_for_requests(scene.size() / TIMES);
    let failed: i64 = (scene.database).query_one_value("SELECT count(*) FROM webhook.attempt");
    assert_eq!(failed, 0, "stale connections have cost attempts");
    stage.reconcile(scene);
}

/// TLS handshakes that take a second, break off, or never end. The other endpoints get their events at the same time.
pub fn slow_handshakes(stage: &mut Stage) {
    const SLOW: Duration = Duration::from_millis(250);
    const CUTS: usize = 5;
    let mut scene = stage.scene(Sender::Worker);
    let terminator = TlsTerminator::to(scene.receiver.port());
    let authorities = scene.cluster.data_directory().join("receivers.pem");
    fs::write(authorities, terminator.certificate()).expect("the directory is ours");
    scene.execute_anywhere("ALTER SYSTEM SET webhook.ca_file = 'receivers.pem'");
    scene.database.execute(
        "SELECT webhook_copy_policy('persistent', 'impatient');
         UPDATE webhook.policy SET connect_timeout = '2 s' WHERE name = 'impatient';
         SELECT webhook_set_endpoint('n2', policy => 'impatient')",
    );
    let proxy = TcpProxy::to(terminator.port());
    scene.direct("n2", &format!("https://127.0.0.1:{}/2", proxy.port()));
    scene.begin_load();
    scene.receiver.wait_for_requests_to("/2", 1);

    proxy.delay(SLOW);
    for _ in 0..CUTS {
        // Handshakes break off, and requests that have arrived get no answer.
        scene.allow_repetition(MAX_IN_FLIGHT);
        proxy.cut();
        let arrived = scene.receiver.requests_to("/2").len();
        scene.receiver.wait_for_requests_to("/2", arrived + 1);
    }
    proxy.delay(Duration::ZERO);
    proxy.cut();
    proxy.swallow();
    // Requests have arrived already, and their answers are lost.
    scene.allow_repetition(MAX_IN_FLIGHT);
    let others = scene.receiver.requests_to("/0").len();
    scene
        .database
        .wait_until("SELECT count(*) >= 3 FROM webhook.attempt WHERE reason = 'timeout'");
    assert!(
        scene.receiver.requests_to("/0").len() > others,
        "others waited for a handshake"
    );
    proxy.stop_swallowing();
    proxy.cut();
    scene.mend();
    let arrived = scene.receiver.requests_to("/2").len();
    scene.receiver.wait_for_requests_to("/2", arrived + 1);
    stage.reconcile(scene);
}

fn behind(proxy: &TcpProxy) -> String {
    format!("http://127.0.0.1:{}/2", proxy.port())
}

fn wait_for_requests_of(receiver: &RawReceiver, count: usize) {
    wait::until("requests", || match receiver.request_count() {
        now if now >= count => Ok(()),
        now => Err(now),
    });
}

/// From now on the endpoint is reached at its own port.
fn end_well(stage: &mut Stage, mut scene: Scene) {
    scene.direct("n2", &scene.receiver.url("/2"));
    scene.mend();
    scene.wait_for_requests(20);
    stage.reconcile(scene);
}
