//! Three relays serve two shares, and are killed and cut off at random: the order of each key stays.

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::chaos::Stage;
use crate::chaos::scene::{MAX_IN_FLIGHT, Scene, Sender};
use crate::cluster::Cluster;
use crate::database::Database;
use crate::host::relay_program;
use crate::random::Random;
use crate::relay::Relay;
use crate::tcp_proxy::TcpProxy;
use crate::wait;

const RELAYS: usize = 3;
const ENDPOINTS: usize = 40;
const KEYS_OF_ENDPOINT: usize = 10;
/// Events of each key, for a size of 1,000: 50,000 together.
const EVENTS_OF_KEY: usize = 125;
/// Between two disturbances there are as many requests, and up to twice as many.
const PAUSE: usize = 3_000;

/// A relay behind a proxy of its own.
struct Place<'a> {
    cluster: &'a Cluster,
    database: &'a Database,
    number: usize,
    proxy: TcpProxy,
    relay: Relay,
    is_cut_off: bool,
}

impl<'a> Place<'a> {
    fn fill(cluster: &'a Cluster, database: &'a Database, number: usize) -> Place<'a> {
        let proxy = TcpProxy::start(cluster);
        Place {
            cluster,
            database,
            number,
            relay: start(cluster, database, &proxy, number),
            proxy,
            is_cut_off: false,
        }
    }

    /// Returns the name of the disturbance.
    fn disturb(&mut self, random: &mut Random) -> &'static str {
        match random.below(5) {
            0 => {
                self.relay.signal(libc::SIGKILL);
                self.relay.wait();
                self.relay = start(self.cluster, self.database, &self.proxy, self.number);
                "killed"
            }
            1 => {
                self.proxy.cut();
                "disconnected"
            }
            2 => {
                self.proxy.lose_next_answer();
                "left without an answer"
            }
            _ => {
                // Only the server finds its end of the connection closed.
                self.proxy.swallow();
                self.proxy.close_at_server();
                self.is_cut_off = true;
                "cut off"
            }
        }
    }

    fn mend(&mut self) {
        if std::mem::take(&mut self.is_cut_off) {
            self.proxy.stop_swallowing();
            self.proxy.cut();
        }
    }
}

/// Its sessions are named after its place.
fn start(cluster: &Cluster, database: &Database, proxy: &TcpProxy, place: usize) -> Relay {
    let address = cluster.address(proxy.port(), database.name());
    let connection = format!("{address} application_name={place}");
    let most = MAX_IN_FLIGHT.to_string();
    Relay::start(&relay_program(), &connection, &["--max-in-flight", &most])
}

/// A place whose relay serves a share.
fn serving(database: &Database, random: &mut Random) -> usize {
    let serving: Vec<String> = wait::until("a relay that serves", || {
        let serving = "SELECT array_agg(DISTINCT a.application_name ORDER BY a.application_name)
                       FROM webhook.share h JOIN webhook.sender s ON s.id = h.sender_id JOIN pg_stat_activity a USING (pid)";
        database.query_one_value::<Option<_>>(serving).ok_or("none")
    });
    serving[random.below(serving.len())]
        .parse()
        .expect("it is the number of a place")
}

/// Every second endpoint gets its events under ordering keys, numbered from 1.
fn emit(scene: &mut Scene) -> usize {
    for endpoint in 0..ENDPOINTS {
        let options = format!("event_types => '{{chaos.order{endpoint}}}', policy => 'persistent'");
        let url = scene.receiver.url(&format!("/order/{endpoint}"));
        (scene.database).add_endpoint_with(&format!("order{endpoint}"), &url, &options);
    }
    let of_key = (EVENTS_OF_KEY * scene.size() / 1000).max(1);
    let emit = format!(
        "SELECT webhook_emit_many('chaos.order' || endpoint,
                                  array_agg(jsonb_build_object('key', CASE endpoint % 2 WHEN 0 THEN key::text END, 'number', number) ORDER BY number, key),
                                  CASE endpoint % 2 WHEN 0 THEN array_agg(key::text ORDER BY number, key) END)
         FROM generate_series(1, {of_key}) AS number, generate_series(1, {KEYS_OF_ENDPOINT}) AS key,
              generate_series(0, {ENDPOINTS} - 1) AS endpoint
         GROUP BY endpoint"
    );
    let rows = scene.database.connect().query(&emit, &[]);
    let rows = rows.expect("they are emitted");
    let ids = rows.iter().map(|row| row.get::<_, Uuid>(0));
    scene.note_committed(ids);
    rows.len()
}

pub fn lost(stage: &mut Stage) {
    // The worker leaves delivery to relays; two of them serve.
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder
            .setting("webhook.max_in_flight = 0")
            .setting("webhook.senders = 2")
    });
    let events = emit(&mut scene);
    let mut random = Random::seeded(stage.seed);
    let (mut disturbances, mut struck) = (Vec::new(), Vec::new());
    {
        let mut places: Vec<Place> = (0..RELAYS)
            .map(|number| Place::fill(&scene.cluster, &scene.database, number))
            .collect();
        // A dozen times in fifty thousand requests; in a test three times or four.
        let pause = match stage.is_long() {
            true => PAUSE,
            false => events / 5,
        };
        let mut next = 0;
        loop {
            next += pause + random.below(pause);
            if next >= events {
                break;
            }
            wait::until_within(Duration::from_secs(60), "more requests", || {
                let seen = scene.receiver.request_count();
                (seen >= next)
                    .then_some(())
                    .ok_or((seen, disturbances.clone()))
            });
            places.iter_mut().for_each(Place::mend);
            let place = serving(&scene.database, &mut random);
            struck.push(Instant::now());
            let did = places[place].disturb(&mut random);
            disturbances.push(format!("{did} {place} at {next}"));
        }
        scene.wait_until_settled();
    }
    for moment in struck {
        scene.lose_sender();
        scene.strike_at(moment);
    }
    stage.reconcile(scene);
}
