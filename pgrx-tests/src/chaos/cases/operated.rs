//! People at work: they pause, resume, reset, rotate, hurry and lock, while endpoints fail at random and the worker
//! is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::chaos::Stage;
use crate::chaos::cases::models::{Kill, Models};
use crate::chaos::scene::{Scene, Sender};
use crate::random::Random;
use crate::receiver::Answer;

pub fn at_random(stage: &mut Stage) {
    const KILLS: usize = 2;
    let mut scene = stage.scene(Sender::Worker);
    // A third of the answers is an error, and asks for a repetition; three in a row are common, and open a breaker.
    let refused = Arc::new(AtomicUsize::new(0));
    for path in ["/0", "/1"] {
        let (refused, seed) = (Arc::clone(&refused), stage.seed.wrapping_mul(1_000_000));
        scene.receiver.respond(path, move |_, number| {
            if Random::seeded(seed.wrapping_add(number as u64)).chance(33) {
                refused.fetch_add(1, Ordering::SeqCst);
                return Answer::status(503);
            }
            Answer::status(200)
        });
    }
    let models = Models::begin(&scene, stage.seed);
    scene.begin_load();
    let mut kills = Vec::new();
    for _ in 0..KILLS {
        for _ in 0..(scene.size() / 20) {
            operate(&mut scene);
        }
        kills.push(Kill::by(|| scene.kill_sender()));
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
    models.assert_kept(&scene, &kills);
    scene.allow_repetition(refused.load(Ordering::SeqCst));
    stage.reconcile(scene);
}

/// One call, for one of the endpoints. Nobody hurries the retries of `retried`, nor changes how much `guarded` may have in flight:
/// the models count on these.
fn operate(scene: &mut Scene) {
    let endpoint = scene.random.one_of(&["n0", "n1", "n2", "guarded"]);
    let bounded = scene.random.one_of(&["n0", "n1", "n2"]);
    let in_flight = 1 + scene.random.below(40);
    let call = match scene.random.below(10) {
        0 => format!("SELECT webhook_pause('{endpoint}')"),
        1 | 2 => format!("SELECT webhook_resume('{endpoint}')"),
        3 => format!("SELECT webhook_reset_breaker('{endpoint}')"),
        4 => format!("SELECT webhook_rotate_secret('{endpoint}')"),
        5 => format!("SELECT * FROM webhook_set_endpoint('{bounded}', max_in_flight => {in_flight})"),
        6 => "UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING' AND event_type <> 'model.retried'".to_owned(),
        7 => "SELECT webhook_pause('retried')".to_owned(),
        8 => "UPDATE webhook.endpoint SET paused_at = NULL WHERE name = 'retried'".to_owned(),
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
