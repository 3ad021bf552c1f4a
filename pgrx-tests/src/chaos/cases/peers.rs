//! Receivers that misbehave, beside one that does not.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::receiver::Answer;
use crate::{RawReceiver, Receiver};

/// One endpoint answers with errors for a while, another is reached at a port that resets and then at none; the third is well.
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
    let good = scene.receiver.url("/2");
    let set = |url: &str| {
        let url = format!("SELECT webhook_set_endpoint('n2', '{url}')");
        scene.database.execute(&url);
    };
    let resetting = RawReceiver::resetting();
    set(&resetting.url());
    scene.wait_for_requests(20);
    let cutting = RawReceiver::answering(b"HTTP/1.1 200 OK\r\nContent-Le");
    set(&cutting.url());
    scene.wait_for_requests(20);
    set(&Receiver::closed_url());
    scene.wait_for_requests(20);
    set(&good);
    scene.mend();
    stage.reconcile(scene);
}
