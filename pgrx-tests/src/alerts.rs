//! Causes of alerts, and all places where they arrive: a listener, the log, endpoints for our own events.

use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::database::Database;
use crate::engine;
use crate::receiver::{Answer, Receiver};
use crate::wait;

pub fn database() -> Database {
    Cluster::shared().database("alerts")
}

/// Warns at the second failure, opens at the third, retries and probes in an hour, unless the test changes it.
#[track_caller]
pub fn add_policy(database: &Database, name: &str, changes: &str) {
    database.add_guarding_policy(name, 3, changes);
}

/// An endpoint for events of the type that is its name, under a policy that is called like it.
#[track_caller]
pub fn add_endpoint(
    database: &Database,
    receiver: &Receiver,
    name: &str,
    policy: &str,
    options: &str,
) {
    add_policy(database, name, policy);
    let url = receiver.url(&format!("/{name}"));
    let options = format!("'{{{name}}}', policy => '{name}'{options}");
    database.add_endpoint_with(name, &url, &options);
}

/// An endpoint for our own events.
#[track_caller]
pub fn subscribe(database: &Database, receiver: &Receiver, name: &str, types: &str, options: &str) {
    let url = receiver.url(&format!("/{name}"));
    let options = format!("'{{{types}}}', policy => 'fast'{options}");
    database.add_endpoint_with(name, &url, &options);
}

/// Answers every request to the endpoint so, from now on.
pub fn answer(receiver: &Receiver, name: &str, status: u16) {
    receiver.respond(&format!("/{name}"), move |_, _| Answer::status(status));
}

#[track_caller]
pub fn emit(database: &Database, name: &str, count: i32) {
    database.execute(&format!(
        "SELECT webhook_emit('{name}') FROM generate_series(1, {count})"
    ));
}

/// Emits events that the endpoint answers so, and waits until its deliveries have been tried.
#[track_caller]
pub fn try_with(database: &Database, receiver: &Receiver, name: &str, status: u16, count: i32) {
    answer(receiver, name, status);
    let before = receiver.requests_to(&format!("/{name}")).len();
    emit(database, name, count);
    receiver.wait_for_requests_to(&format!("/{name}"), before + count as usize);
    database.wait_until(&format!(
        "SELECT in_flight = 0 FROM webhook.endpoint_status WHERE endpoint = '{name}'"
    ));
}

#[track_caller]
pub fn wait_for_state(database: &Database, name: &str, state: &str) {
    database.wait_until(&format!(
        "SELECT state = '{state}' FROM webhook.endpoint_status WHERE endpoint = '{name}'"
    ));
}

/// Waits until there is nothing to tell and nothing to send: no alert comes any more.
#[track_caller]
pub fn wait_for_silence(database: &Database) {
    database.wait_until(
        "SELECT NOT EXISTS (SELECT FROM webhook.alert)
            AND NOT EXISTS (SELECT FROM webhook.delivery_queue q LEFT JOIN webhook.breaker b USING (endpoint_id)
                            WHERE q.status = 'SENDING' OR webhook.is_ready(q, b.retries_before) AND q.next_attempt_at > now())
            AND NOT EXISTS (SELECT FROM webhook.delivery_queue q
                            WHERE webhook.awaits_its_time(q) AND q.next_attempt_at < now() + interval '1 min'
                            AND NOT EXISTS (SELECT FROM webhook.endpoint_status s JOIN webhook.endpoint e
                                            ON s.endpoint = webhook.address(e.tenant, e.name)
                                            WHERE e.id = q.endpoint_id AND s.state IN ('OPEN', 'PAUSED', 'DISABLED')))",
    );
}

/// Somebody who listens on webhook_alert.
pub struct Listener {
    client: Client,
    heard: Vec<String>,
}

const ABOUT_METRICS: &str = "webhook.metric.";
const BELL: &str = "the test has heard enough";

impl Listener {
    #[track_caller]
    pub fn new(database: &Database) -> Listener {
        let mut client = database.connect();
        client.batch_execute("LISTEN webhook_alert").unwrap();
        Listener {
            client,
            heard: Vec::new(),
        }
    }

    /// All alerts about endpoints so far; alerts about metrics come when their time comes. Waits for alerts that are
    /// still to be told.
    #[track_caller]
    pub fn texts(&mut self, database: &Database) -> &[String] {
        database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.alert)");
        // Notifications come in the order of their commits.
        database.execute(&format!("NOTIFY webhook_alert, '{BELL}'"));
        loop {
            let mut notifications = self.client.notifications();
            let mut notifications = notifications.timeout_iter(wait::DEADLINE);
            let next = notifications.next().unwrap();
            match next.expect("the bell is heard in time").payload() {
                BELL => return &self.heard,
                payload if payload.contains(ABOUT_METRICS) => {}
                payload => self.heard.push(payload.to_owned()),
            }
        }
    }

    #[track_caller]
    pub fn alerts(&mut self, database: &Database) -> Vec<Value> {
        let parse = |text: &String| serde_json::from_str(text).unwrap();
        self.texts(database).iter().map(parse).collect()
    }

    /// The kinds of alerts about an endpoint, in the order of their telling.
    #[track_caller]
    pub fn kinds(&mut self, database: &Database, name: &str) -> Vec<String> {
        let id: i32 = database.query_one_value(&format!(
            "SELECT id FROM webhook.endpoint WHERE name = '{name}'"
        ));
        (self.alerts(database).iter())
            .filter(|alert| alert["endpoint_id"] == id)
            .map(|alert| kind(&alert["type"]))
            .collect()
    }
}

/// The last part of an alert's type.
pub fn kind(event_type: &Value) -> String {
    let name = event_type.as_str().expect("the type is a text");
    let short = name
        .strip_prefix("webhook.endpoint.")
        .or(name.strip_prefix("webhook.delivery."));
    short.unwrap_or(name).to_owned()
}

/// Alerts about endpoints that an endpoint for our own events got: the kinds, in the order of arrival.
pub fn received(receiver: &Receiver, name: &str) -> Vec<String> {
    let requests = receiver.requests_to(&format!("/{name}"));
    let kinds = requests.iter().map(|r| kind(&r.json()["type"]));
    kinds.filter(|k| !k.starts_with(ABOUT_METRICS)).collect()
}

/// The worker's warnings about an endpoint, each with the line after it.
fn logged(cluster: &Cluster, name: &str) -> Vec<(String, String)> {
    let log = cluster.log();
    let lines: Vec<&str> = log.lines().collect();
    let about = format!("WARNING:  webhook endpoint \"{name}\" of database \"");
    (lines.iter().enumerate())
        .filter(|(_, line)| line.contains(&about))
        .map(|(number, line)| {
            let said = line.split_once(&about).unwrap().1;
            let said = said.split_once("\": ").unwrap().1.to_owned();
            let next = lines.get(number + 1).unwrap_or(&"").to_string();
            (said, next)
        })
        .collect()
}

/// The same, when there are so many: alerts are logged after the commit.
#[track_caller]
pub fn wait_for_logged(cluster: &Cluster, name: &str, count: usize) -> Vec<(String, String)> {
    wait::until(&format!("{count} warnings about {name}"), || {
        let lines = logged(cluster, name);
        if lines.len() == count {
            Ok(lines)
        } else {
            Err(lines)
        }
    })
}

#[track_caller]
pub fn own_events(database: &Database) -> i64 {
    database.query_one_value(
        "SELECT count(*) FROM webhook.event WHERE event_type LIKE 'webhook.%' AND event_type NOT LIKE 'webhook.metric.%'",
    )
}

pub fn sorted(mut kinds: Vec<String>) -> Vec<String> {
    kinds.sort();
    kinds
}

/// Tells the alerts that there are, and returns those for the log.
#[track_caller]
pub fn tell(client: &mut Client, page: i32) -> Vec<(String, String)> {
    let rows = engine::query(
        client,
        "SELECT message, coalesce(hint, '') FROM webhook.raise_alerts($1)",
        &[&page],
    );
    (rows.iter())
        .map(|row| {
            let message: Option<String> = row.get(0);
            (message.expect("there is a message"), row.get(1))
        })
        .collect()
}
