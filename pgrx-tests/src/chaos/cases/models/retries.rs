//! A retry comes no earlier than its policy says, whatever happens to the sender; unless the sender was killed before the
//! failure was settled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::chaos::cases::models::Kill;
use crate::chaos::scene::{MAX_CLAIMED, Scene};
use crate::receiver::{Answer, Receiver};

pub const PATH: &str = "/retried";

/// Without a breaker: one that closes makes retries due at once, and so does a person who resumes its endpoint.
const POLICY: &str = "
    SELECT webhook_copy_policy('persistent', 'doubling');
    UPDATE webhook.policy
    SET backoff = 'exponential', initial_delay = '150 ms', factor = 2, max_delay = '1 s', jitter_down = 0.2, jitter_up = 0,
        failure_threshold = 0
    WHERE name = 'doubling'";

/// The least that this policy allows between so many attempts and the next.
fn shortest_delay(attempts: usize) -> Duration {
    let doubled = Duration::from_millis(150) * 2_u32.pow(attempts.min(10) as u32 - 1);
    doubled.min(Duration::from_secs(1)).mul_f64(0.8)
}

struct Answered {
    arrived: Instant,
    at: Instant,
    status: u16,
}

/// The answers to each event, by the receiver's clock.
#[derive(Clone, Default)]
pub struct Retries(Arc<Mutex<HashMap<Uuid, Vec<Answered>>>>);

impl Retries {
    pub fn begin(scene: &Scene, receiver: &Receiver) -> Retries {
        scene.database.execute(POLICY);
        let retries = Retries::default();
        let answers = retries.clone();
        // Up to three failures of an event, by its id.
        receiver.respond(PATH, move |request, _| {
            let event = request.event_id();
            let mut answers = answers.0.lock().unwrap();
            let answers = answers.entry(event).or_default();
            let is_failure = answers.len() < (event.as_u128() % 4) as usize;
            let status = if is_failure { 503 } else { 200 };
            answers.push(Answered {
                arrived: request.arrived,
                at: Instant::now(),
                status,
            });
            Answer::status(status)
        });
        retries
    }

    #[track_caller]
    pub fn assert_kept(&self, kills: &[Kill]) {
        let answers = self.0.lock().unwrap();
        let (mut retries, mut early) = (0, 0);
        for (event, answers) in answers.iter() {
            for (place, pair) in answers.windows(2).enumerate() {
                let (failed, retried) = (&pair[0], &pair[1]);
                let delay = retried.arrived.saturating_duration_since(failed.at);
                // Claims of a killed sender are attempts too, so there were at least as many.
                let least = shortest_delay(place + 1);
                retries += 1;
                if failed.status == 503 && delay >= least {
                    continue;
                }
                early += 1;
                assert!(
                    (kills.iter()).any(|kill| kill.overlaps(failed.arrived, retried.arrived)),
                    "event {event} came again {delay:?} after answer {} of attempt {}, and not {least:?}",
                    failed.status,
                    place + 1
                );
            }
        }
        assert!(retries > 0, "nothing was retried");
        let lost = kills.len() * MAX_CLAIMED;
        assert!(early <= lost, "{early} retries came early");
    }
}
