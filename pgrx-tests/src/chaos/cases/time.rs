//! A wall clock that jumps.

use std::io::Write;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};
use crate::clock::Clock;
use crate::host::relay_program;
use crate::raw_receiver::RawReceiver;
use crate::relay::Relay;
use crate::wait;

const HOUR: i64 = 3600;

/// Forward and back, under load.
pub fn jumps(stage: &mut Stage) {
    let clock = Clock::make();
    let mut scene = scene(stage, &clock);
    for steps in [[2 * HOUR, 2 * HOUR - 3], [-HOUR, 24 * HOUR], [0, HOUR]] {
        scene.begin_load();
        for step in steps {
            scene.wait_for_requests(scene.size() / 6);
            scene.strike();
            clock.set(step);
        }
        scene.wait_for_requests(scene.size() / 6);
        scene.clients.stop();
        scene.wait_until_settled();
    }
    stage.reconcile(scene);
}

/// A relay whose clock is not the database's, and jumps.
pub fn skewed_relay(stage: &mut Stage) {
    let clock = Clock::make();
    let mut scene = stage.scene(Sender::Relay);
    let relay = scene.relay.take().expect("a relay delivers");
    relay.terminate();
    relay.wait();
    clock.set(2 * HOUR);
    let mut program = Relay::program(&relay_program());
    clock.of_command(&mut program);
    let connection = scene
        .cluster
        .address(scene.cluster.port(), scene.database.name());
    scene.relay = Some(Relay::start_as(program, &connection, &[]));
    scene.begin_load();
    for step in [-HOUR, 24 * HOUR, 0] {
        scene.wait_for_requests(scene.size() / 3);
        scene.strike();
        clock.set(step);
    }
    scene.wait_for_requests(scene.size() / 3);
    stage.reconcile(scene);
}

fn scene(stage: &mut Stage, clock: &Clock) -> Scene {
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        clock.of(builder).setting("webhook.poll_interval = '1 s'")
    });
    scene.forget_order();
    scene
}

/// One endpoint gets so many requests in a second, the other so many at a time.
const RATE: usize = 20;
const AT_ONCE: usize = 3;
/// Requests of a second may arrive within less where the machine is busy.
const LATENESS: Duration = Duration::from_millis(500);

/// Forward, so that deliveries of the next hour are due at once, and back. The rate and the number in flight are those of the
/// receivers, whose clock does not jump.
pub fn floods(stage: &mut Stage) {
    let clock = Clock::make();
    let mut scene = scene(stage, &clock);
    let (limited, bounded) = (Slow::start(Duration::ZERO), Slow::start(LATENESS / 10));
    for (name, url, limit) in [
        (
            "limited",
            limited.receiver.url(),
            format!("rate_limit => {RATE}"),
        ),
        (
            "bounded",
            bounded.receiver.url(),
            format!("max_in_flight => {AT_ONCE}"),
        ),
    ] {
        let options = format!("event_types => '{{flood.{name}}}', policy => 'persistent', {limit}");
        scene.database.add_endpoint_with(name, &url, &options);
    }
    let mut emitted = 0;
    let mut emit = |scene: &Scene, count: usize, later: &str| {
        emitted += count;
        scene.database.execute(&format!(
            "SELECT webhook_emit('flood.' || name, deliver_at => now() + '{later}'::interval)
             FROM unnest('{{limited, bounded}}'::text[]) AS name, generate_series(1, {count})"
        ));
    };
    scene.begin_load();
    emit(&scene, 3 * RATE, "1 h");
    scene.wait_for_requests(scene.size() / 6);
    assert_eq!(limited.count() + bounded.count(), 0, "none is due");

    scene.strike();
    clock.set(2 * HOUR);
    // A full bucket goes out at once, and then some more tokens.
    limited.wait_for(RATE + RATE / 2);
    scene.strike();
    clock.set(-HOUR);
    emit(&scene, 2 * RATE, "0 s");
    limited.wait_for(3 * RATE);
    scene.strike();
    clock.set(3 * HOUR);
    for slow in [&limited, &bounded] {
        slow.wait_for(5 * RATE);
    }
    scene.clients.stop();
    scene.wait_until_settled();
    scene
        .database
        .wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    assert_eq!(
        (limited.count(), bounded.count()),
        (emitted, emitted),
        "each once"
    );
    let at_once = bounded.most_at_once();
    assert!((2..=AT_ONCE).contains(&at_once), "{at_once} in flight");
    limited.assert_rate();
    stage.reconcile(scene);
}

/// A receiver that takes its time, and notes when requests were there.
struct Slow {
    receiver: RawReceiver,
    requests: Arc<Mutex<Vec<Served>>>,
}

#[derive(Clone, Copy)]
struct Served {
    arrived: Instant,
    answered: Option<Instant>,
}

impl Slow {
    fn start(pause: Duration) -> Slow {
        let requests = Arc::<Mutex<Vec<Served>>>::default();
        let served = Arc::clone(&requests);
        let receiver = RawReceiver::doing(move |stream| {
            let place = {
                let mut served = served.lock().unwrap();
                served.push(Served {
                    arrived: Instant::now(),
                    answered: None,
                });
                served.len() - 1
            };
            thread::sleep(pause);
            // From then on the sender may begin another.
            served.lock().unwrap()[place].answered = Some(Instant::now());
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = stream.shutdown(Shutdown::Write);
        });
        Slow { receiver, requests }
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    #[track_caller]
    fn wait_for(&self, count: usize) {
        let awaited = format!("{count} requests at their rate");
        wait::until(&awaited, || match self.count() {
            seen if seen >= count => Ok(()),
            seen => Err(seen),
        });
    }

    fn most_at_once(&self) -> usize {
        let requests = self.requests.lock().unwrap();
        let at = |moment: Instant| {
            let is_there = |served: &&Served| {
                served.arrived <= moment && served.answered.is_none_or(|answered| answered > moment)
            };
            requests.iter().filter(is_there).count()
        };
        let counts = requests.iter().map(|served| at(served.arrived));
        counts.max().unwrap_or(0)
    }

    /// A second's worth at once, and no more in any time than the rate.
    #[track_caller]
    fn assert_rate(&self) {
        let mut arrivals: Vec<Instant> = {
            let requests = self.requests.lock().unwrap();
            requests.iter().map(|served| served.arrived).collect()
        };
        arrivals.sort_unstable();
        for (first, begin) in arrivals.iter().enumerate() {
            for (count, end) in (1..).zip(&arrivals[first..]) {
                let time = *end - *begin;
                let most = RATE as f64 * (1.0 + (time + LATENESS).as_secs_f64());
                assert!(f64::from(count) <= most, "{count} requests in {time:?}");
            }
        }
    }
}
