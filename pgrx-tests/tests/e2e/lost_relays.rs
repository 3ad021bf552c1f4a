//! Three relays serve two shares, and are killed and cut off at random: nothing is lost, only requests that were in flight are
//! repeated, and the order of each key stays.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;
use webhook_e2e::random::Random;
use webhook_e2e::{Cluster, Database, Receiver, Relay, TcpProxy, wait};

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");

const RELAYS: usize = 3;
const ENDPOINTS: usize = 40;
const KEYS_OF_ENDPOINT: usize = 10;
const EVENTS: usize = 50_000;
const MAX_IN_FLIGHT: usize = 200;

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

    /// Says what it did.
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
    Relay::start(PROGRAM, &connection, &["--max-in-flight", &most])
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
fn emit(database: &Database, receiver: &Receiver) {
    database.execute(
        "SELECT webhook_copy_policy('fast', 'persistent');
         UPDATE webhook.policy SET max_attempts = 1000 WHERE name = 'persistent'",
    );
    for endpoint in 0..ENDPOINTS {
        let options = format!("event_types => ARRAY['order.n{endpoint}'], policy => 'persistent'");
        let url = receiver.url(&format!("/{endpoint}"));
        database.add_endpoint_with(&format!("n{endpoint}"), &url, &options);
    }
    let of_key = EVENTS / ENDPOINTS / KEYS_OF_ENDPOINT;
    database.execute(&format!(
        "SELECT webhook_emit_many('order.n' || endpoint,
                                  array_agg(jsonb_build_object('key', key, 'number', number) ORDER BY number, key),
                                  CASE endpoint % 2 WHEN 0 THEN array_agg(key::text ORDER BY number, key) END)
         FROM generate_series(1, {of_key}) AS number, generate_series(1, {KEYS_OF_ENDPOINT}) AS key,
              generate_series(0, {ENDPOINTS} - 1) AS endpoint
         GROUP BY endpoint"
    ));
}

#[test]
fn fifty_thousand_events_arrive_through_relays_that_are_killed_and_cut_off() {
    let cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 0")
        .setting("webhook.senders = 2")
        .setting("fsync = off")
        .start();
    let database = cluster.database("fire");
    let receiver = Receiver::start();
    emit(&database, &receiver);
    let mut places: Vec<Place> = (0..RELAYS)
        .map(|number| Place::fill(&cluster, &database, number))
        .collect();

    let mut random = Random::seeded(13);
    let mut disturbances = Vec::new();
    let mut next = 0;
    loop {
        next += 3_000 + random.below(3_000);
        if next >= EVENTS {
            break;
        }
        wait::until_within(Duration::from_secs(60), "more requests", || {
            let seen = receiver.request_count();
            (seen >= next)
                .then_some(())
                .ok_or((seen, disturbances.clone()))
        });
        places.iter_mut().for_each(Place::mend);
        let place = serving(&database, &mut random);
        let did = places[place].disturb(&mut random);
        disturbances.push(format!("{did} {place} at {next}"));
    }
    wait::until_within(Duration::from_secs(60), "all to be settled", || {
        let queued: i64 = database.query_one_value("SELECT count(*) FROM webhook.delivery_queue");
        (queued == 0).then_some(()).ok_or(queued)
    });

    let sent = "SELECT count(*) FROM webhook.delivery WHERE status = 'SENT'";
    assert_eq!(database.query_one_value::<i64>(sent), EVENTS as i64);
    let requests = receiver.requests();
    let mut arrived: HashMap<Uuid, usize> = HashMap::new();
    let mut last: HashMap<(String, u64), u64> = HashMap::new();
    for request in &requests {
        *arrived.entry(request.event_id()).or_default() += 1;
        let endpoint: usize = request.path[1..].parse().expect("its path is a number");
        if endpoint.is_multiple_of(2) {
            let body = request.json();
            let number = |name: &str| body["data"][name].as_u64().expect("it is a number");
            let last = last
                .entry((request.path.clone(), number("key")))
                .or_default();
            let number = number("number");
            assert!(
                number == *last || number == *last + 1,
                "{number} after {last} in {}; {disturbances:#?}",
                request.path
            );
            *last = number;
        }
    }
    assert_eq!(arrived.len(), EVENTS, "an event has not arrived");
    let repeated = requests.len() - EVENTS;
    assert!(
        repeated <= disturbances.len() * MAX_IN_FLIGHT,
        "{repeated} requests were repeated; {disturbances:#?}"
    );
}
