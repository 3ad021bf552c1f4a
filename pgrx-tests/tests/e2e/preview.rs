//! A preview is the request that is sent.

use std::collections::BTreeMap;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use postgres::Row;
use serde_json::{Value, json};
use uuid::Uuid;
use webhook_e2e::verifier::verify_signature;
use webhook_e2e::{Answer, Cluster, Database, Receiver, Request};

fn database() -> Database {
    Cluster::shared().database("preview")
}

/// Headers that depend on the second in which they are sent.
const OF_THE_MOMENT: [&str; 3] = [
    "webhook-timestamp",
    "webhook-signature",
    "x-webhook-signature",
];

struct Preview {
    url: String,
    headers: BTreeMap<String, String>,
    body: String,
}

impl From<Row> for Preview {
    fn from(row: Row) -> Self {
        let Value::Object(headers) = row.get("headers") else {
            panic!("the headers are no object");
        };
        let text = |value: Value| value.as_str().expect("headers are strings").to_owned();
        Preview {
            url: row.get("url"),
            headers: (headers.into_iter())
                .map(|(name, value)| (name, text(value)))
                .collect(),
            body: row.get("body"),
        }
    }
}

#[track_caller]
fn preview(database: &Database, event: Uuid, endpoint: &str) -> Preview {
    let sql = "SELECT * FROM webhook_preview($1, $2)";
    let row = database.connect().query_one(sql, &[&event, &endpoint]);
    row.unwrap_or_else(|error| panic!("{error:?}")).into()
}

/// All headers that arrived; one that came twice has its values joined, as HTTP reads them.
fn headers_of(request: &Request) -> BTreeMap<String, String> {
    let mut headers = BTreeMap::<String, String>::new();
    for (name, value) in &request.headers {
        let value = value.to_str().unwrap();
        (headers.entry(name.to_string()))
            .and_modify(|values| *values += &format!(", {value}"))
            .or_insert(value.to_owned());
    }
    headers
}

#[track_caller]
fn assert_same(preview: &Preview, request: &Request, receiver: &Receiver) {
    let lasting = |mut headers: BTreeMap<String, String>| {
        for name in OF_THE_MOMENT {
            let removed = headers.remove(name);
            assert!(removed.is_some(), "there is no {name}");
        }
        headers
    };
    assert_eq!(preview.url, receiver.url(&request.path));
    assert_eq!(
        lasting(preview.headers.clone()),
        lasting(headers_of(request))
    );
    assert_eq!(preview.body.as_bytes(), request.body);
}

/// Whether a receiver that got the preview would accept it.
#[track_caller]
fn verify(secret: &str, preview: &Preview, request: &Request) -> Result<(), String> {
    let mut previewed = request.clone();
    previewed.body = preview.body.clone().into();
    previewed.headers = HeaderMap::new();
    for (name, value) in &preview.headers {
        let name = HeaderName::try_from(name).unwrap();
        (previewed.headers).insert(name, HeaderValue::try_from(value).unwrap());
    }
    verify_signature(secret, &previewed)
}

#[test]
fn a_preview_is_what_the_receiver_then_gets() {
    let (database, receiver) = (database(), Receiver::start());
    let secret = database.add_endpoint_with(
        "shop",
        &receiver.url("/hooks?shop=7"),
        r#"headers => '{"Authorization": "Bearer t0ken", "X-Key": "one", "x-key": "two"}'"#,
    );
    let other = database.query_one_value::<String>("SELECT webhook.new_secret()");
    database.execute(&format!(
        "INSERT INTO webhook.secret (endpoint_id, secret) SELECT id, '{other}' FROM webhook.endpoint"
    ));
    database.pause_all();
    let event: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.created', '{\"name\": \"Zoë\", \"n\": 12345678901234567890.10}')",
    );
    let preview = preview(&database, event, "shop");
    assert_eq!(receiver.request_count(), 0);

    database.resume_all();
    let request = receiver.wait_for_event(event);
    assert_same(&preview, &request, &receiver);
    assert_eq!(preview.headers["x-key"], "one, two");
    assert_eq!(preview.headers["authorization"], "Bearer t0ken");
    for secret in [&secret, &other] {
        assert_eq!(verify(secret, &preview, &request), Ok(()));
    }
    assert_eq!(
        preview.headers["webhook-signature"],
        preview.headers["x-webhook-signature"]
    );
}

#[test]
fn a_previewed_body_that_was_tampered_with_is_refused() {
    let (database, receiver) = (database(), Receiver::start());
    let secret = database.add_endpoint("shop", &receiver.url("/"));
    let event = database.emit("order.created", json!({"total": 9.5}));
    let request = receiver.wait_for_event(event);
    let mut preview = preview(&database, event, "shop");
    preview.body = preview.body.replace("9.5", "9.6");
    let refused = verify(&secret, &preview, &request).unwrap_err();
    assert!(refused.contains("No matching signature"), "{refused}");
}

#[test]
fn a_preview_counts_the_earlier_attempts() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, number| {
        Answer::status(if number == 1 { 503 } else { 200 })
    });
    database.execute("UPDATE webhook.policy SET initial_delay = '1 h' WHERE name = 'fast'");
    database.add_endpoint("shop", &receiver.url("/"));
    let event = database.emit("order.created", json!({}));
    database.wait_until(
        "SELECT count(*) = 1 FROM webhook.delivery WHERE attempts = 1 AND status = 'PENDING'",
    );
    let second = preview(&database, event, "shop");
    assert_eq!(second.headers["x-webhook-retry"], "1");

    receiver.hold("/");
    database.execute("UPDATE webhook.delivery SET next_attempt_at = now()");
    let requests = receiver.wait_for_requests(2);
    assert_same(&second, &requests[1], &receiver);
    assert_eq!(database.delivery_status(event).as_deref(), Some("SENDING"));
    assert_same(&preview(&database, event, "shop"), &requests[1], &receiver);

    // Sent again, it would be from the start.
    receiver.release("/");
    database.wait_for_status(event, "SENT");
    let third = preview(&database, event, "shop");
    database.execute("UPDATE webhook.delivery SET status = 'PENDING'");
    assert_same(&third, &receiver.wait_for_requests(3)[2], &receiver);
}

#[test]
fn an_endpoint_that_did_not_match_can_be_previewed_and_gets_nothing() {
    let (database, receiver) = (database(), Receiver::start());
    let url = receiver.url("/");
    database.add_endpoint_with("other", &url, "event_types => '{invoice.*}'");
    let event = database.emit("order.created", json!({"id": 1}));
    let preview = preview(&database, event, "other");
    assert_eq!(preview.url, url);
    assert!(preview.body.contains(r#""type":"order.created""#));
    assert_eq!(preview.headers["x-webhook-retry"], "0");
    assert_eq!(database.delivery_status(event), None);
}

#[test]
fn an_endpoint_without_a_secret_gets_the_one_that_it_keeps() {
    let (database, receiver) = (database(), Receiver::start());
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('plain', '{}', now())",
        receiver.url("/")
    ));
    let event = database.emit("order.created", json!({}));
    let preview = preview(&database, event, "plain");
    database.resume_all();
    let request = receiver.wait_for_event(event);
    let secret: String = database.query_one_value("SELECT secret FROM webhook.secret");
    assert_eq!(verify(&secret, &preview, &request), Ok(()));
    assert_eq!(verify_signature(&secret, &request), Ok(()));
}

#[test]
fn what_does_not_exist_cannot_be_previewed() {
    let database = database();
    database.add_endpoint("shop", "http://127.0.0.1/");
    let event = database.emit("order.created", json!({}));
    let unknown = Uuid::from_u128(7);
    for (arguments, message, hint) in [
        (
            format!("'{event}', 'shpo'"),
            "endpoint \"shpo\" does not exist".to_owned(),
            "Did you mean \"shop\"?".to_owned(),
        ),
        (
            format!("'{unknown}', 'shop'"),
            format!("event {unknown} does not exist"),
            format!("SELECT webhook_why('{unknown}') says what may have become of it."),
        ),
    ] {
        let refusal = database.refusal(&format!("SELECT webhook_preview({arguments})"));
        assert_eq!(refusal.code().code(), "42704");
        assert_eq!(refusal.message(), message);
        assert_eq!(refusal.hint(), Some(&*hint));
    }
    let refusal = database.refusal("SELECT webhook_preview(NULL, 'shop')");
    assert_eq!(refusal.code().code(), "42704");
}

#[test]
fn what_cannot_be_sent_is_refused_without_showing_it() {
    let database = database();
    database.add_endpoint("shop", "http://127.0.0.1/");
    // As a dump could bring it that was restored without triggers.
    database.execute(
        "ALTER TABLE webhook.secret DISABLE TRIGGER check_secret; UPDATE webhook.secret SET secret = 'hidden'",
    );
    let event = database.emit("order.created", json!({}));
    let refusal = database.refusal(&format!("SELECT webhook_preview('{event}', 'shop')"));
    assert_eq!(refusal.code().code(), "55000");
    assert!(refusal.hint().is_some());
    assert!(!format!("{refusal:?}").contains("hidden"), "{refusal:?}");
}

#[test]
fn a_redacted_event_cannot_be_previewed() {
    let database = database();
    database.add_endpoint("shop", "http://127.0.0.1/");
    let event = database.emit("order.created", json!({}));
    database.execute(&format!("SELECT webhook_redact('{event}')"));
    let refusal = database.refusal(&format!("SELECT webhook_preview('{event}', 'shop')"));
    assert_eq!(refusal.code().code(), "55000");
    assert_eq!(refusal.message(), format!("event {event} was redacted"));
}
