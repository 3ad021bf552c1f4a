//! The mix beside the plain load: large payloads, keys, a watched table, and deliveries that fail for good.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use postgres::Client;
use uuid::Uuid;

use crate::chaos::Scene;
use crate::random::Random;
use crate::receiver::{Answer, Receiver, Request};

const PAUSE: Duration = Duration::from_millis(50);
const PATH: &str = "/mix";
const ROWS: usize = 100;

const SCHEMA: &str = "
    CREATE TABLE mixed (id int PRIMARY KEY, changes int NOT NULL);
    INSERT INTO mixed SELECT n, 0 FROM generate_series(1, 100) AS n;
    SELECT webhook_watch('mixed', 'chaos.mix.row', '{update}')";
/// 96 kB that no compression makes smaller.
const LARGE: &str = "(SELECT jsonb_build_object('text', string_agg(md5(random()::text), '')) FROM generate_series(1, 3000))";

pub struct Mix {
    receiver: Receiver,
    stopped: Arc<AtomicBool>,
    client: JoinHandle<Emitted>,
}

/// The mix when it is over.
pub struct Mixed {
    receiver: Receiver,
    emitted: Emitted,
}

#[derive(Default)]
struct Emitted {
    /// All but those that a newer event may supersede.
    events: HashSet<Uuid>,
    changes: usize,
}

impl Mix {
    pub fn begin(scene: &Scene, seed: u64) -> Mix {
        let receiver = Receiver::start();
        scene.database.execute(SCHEMA);
        let options = "event_types => '{chaos.mix.*}', policy => 'persistent'";
        (scene.database).add_endpoint_with("mix", &receiver.url(PATH), options);
        receiver.respond("/refused", |_, _| Answer::status(404));
        let options = "event_types => '{chaos.refused}', policy => 'fast'";
        (scene.database).add_endpoint_with("refused", &receiver.url("/refused"), options);
        let stopped = Arc::<AtomicBool>::default();
        let until = Arc::clone(&stopped);
        let (mut session, random) = (scene.connect(), Random::seeded(seed));
        let client = thread::spawn(move || emit_until(&mut session, random, &until));
        Mix {
            receiver,
            stopped,
            client,
        }
    }

    pub fn stop(self) -> Mixed {
        self.stopped.store(true, Ordering::SeqCst);
        Mixed {
            receiver: self.receiver,
            emitted: self.client.join().expect("the client goes on"),
        }
    }
}

impl Mixed {
    /// When all is settled.
    #[track_caller]
    pub fn assert_arrived(&self) {
        let emitted = &self.emitted;
        let requests = self.receiver.requests();
        let arrived: HashSet<Uuid> = requests.iter().map(Request::event_id).collect();
        let lost = emitted.events.difference(&arrived).count();
        assert_eq!(lost, 0, "of {} of the mix", emitted.events.len());
        let is_change = |request: &&Request| request.json()["type"] == "chaos.mix.row.updated";
        let changes = requests.iter().filter(is_change);
        let changes: HashSet<Uuid> = changes.map(Request::event_id).collect();
        assert_eq!(changes.len(), emitted.changes, "of a watched table");
    }
}

fn emit_until(session: &mut Client, mut random: Random, stopped: &AtomicBool) -> Emitted {
    let mut emitted = Emitted::default();
    while !stopped.load(Ordering::SeqCst) {
        let (key, row) = (random.below(5), 1 + random.below(ROWS));
        let call = match random.below(20) {
            0 => format!("'chaos.mix.large', {LARGE}"),
            1 => "'chaos.refused'".to_owned(),
            2..=8 => format!("'chaos.mix.ordered', ordering_key => 'key {key}'"),
            _ => {
                let rest = format!(
                    "SELECT webhook_emit('chaos.mix.latest', coalesce_key => 'key {key}');
                     UPDATE mixed SET changes = changes + 1 WHERE id = {row}"
                );
                session.batch_execute(&rest).expect("it can be written");
                emitted.changes += 1;
                thread::sleep(PAUSE);
                continue;
            }
        };
        let row = session.query_one(&format!("SELECT webhook_emit({call})"), &[]);
        emitted
            .events
            .insert(row.expect("it can be emitted").get(0));
        thread::sleep(PAUSE);
    }
    emitted
}
