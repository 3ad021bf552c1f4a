//! People at work: they pause, resume, reset, rotate, hurry and lock, while endpoints fail at random and the worker
//! is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::chaos::Stage;
use crate::chaos::cases::models::Models;
use crate::chaos::scene::{Scene, Sender};
use crate::receiver::Answer;

pub fn at_random(stage: &mut Stage) {
    const KILLS: usize = 2;
    let mut scene = stage.scene(Sender::Worker);
    scene.database.execute(
        "UPDATE webhook.policy
         SET failure_threshold = 3, cooldown = '200 ms', max_cooldown = '1 s', initial_delay = '100 ms'
         WHERE name = 'persistent'",
    );
    // A third of the answers is an error, and asks for a repetition.
    let refused = Arc::new(AtomicUsize::new(0));
    for path in ["/0", "/1"] {
        let (refused, seed) = (Arc::clone(&refused), stage.seed as usize);
        scene.receiver.respond(path, move |_, number| {
            if (number.wrapping_mul(2_654_435_761) ^ seed) % 100 < 33 {
                refused.fetch_add(1, Ordering::SeqCst);
                return Answer::status(503);
            }
            Answer::status(200)
        });
    }
    let models = Models::begin(&scene, stage.seed);
    scene.begin_load();
    for _ in 0..KILLS {
        for _ in 0..(scene.size() / 20) {
            operate(&mut scene);
        }
        scene.kill_sender();
    }
    for _ in 0..(scene.size() / 20) {
        operate(&mut scene);
    }
    scene.clients.stop();
    // From here on all is well.
    for path in ["/0", "/1"] {
        scene.receiver.respond(path, |_, _| Answer::status(200));
    }
    scene.database.resume_all();
    scene.wait_until_settled();
    models.assert_kept(&scene);
    scene.allow_repetition(refused.load(Ordering::SeqCst));
    stage.reconcile(scene);
}

/// One call, for one of the endpoints.
fn operate(scene: &mut Scene) {
    let endpoint = format!("n{}", scene.random.below(3));
    let in_flight = 1 + scene.random.below(40);
    let call = match scene.random.below(8) {
        0 => format!("SELECT webhook_pause('{endpoint}')"),
        1 | 2 => format!("SELECT webhook_resume('{endpoint}')"),
        3 => format!("SELECT webhook_reset_breaker('{endpoint}')"),
        4 => format!("SELECT webhook_rotate_secret('{endpoint}')"),
        5 => format!("SELECT * FROM webhook_set_endpoint('{endpoint}', max_in_flight => {in_flight})"),
        6 => "UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'".to_owned(),
        _ => "BEGIN; SELECT FROM webhook.delivery_queue LIMIT 20 FOR UPDATE; SELECT pg_sleep(0.05); COMMIT".to_owned(),
    };
    let done = scene.connect().batch_execute(&call);
    // A statement that updates moving rows loses to the worker now and then, and is tried again.
    if let Err(error) = done {
        let code = error.code().map(|code| code.code().to_owned());
        let is_passing = matches!(code.as_deref(), Some("40001" | "40P01" | "55P03"));
        assert!(is_passing, "{call}: {error:?}");
    }
    scene.wait_for_commits(2);
}
