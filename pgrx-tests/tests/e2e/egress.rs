//! A request goes to its endpoint and nowhere else.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::{Answer, Cluster, Database, RawReceiver, Receiver};

/// How the only attempt ended: the status, and the code of the failure.
#[track_caller]
fn ending(database: &Database, event: Uuid) -> (Option<i32>, Option<String>) {
    database.wait_for_status(event, "FAILED");
    let row = database.connect().query_one(
        "SELECT status_code, reason FROM webhook.attempt WHERE event_id = $1",
        &[&event],
    );
    let row = row.unwrap_or_else(|error| panic!("{error:?}"));
    (row.get(0), row.get(1))
}

#[test]
fn a_redirect_is_the_end_of_it_wherever_it_points() {
    let database = Cluster::shared().database("redirected");
    let (receiver, elsewhere) = (Receiver::start(), RawReceiver::answering(b""));
    // The guard would refuse the first, with a kind of its own, and let the others pass.
    for (name, location) in [
        ("metadata", "http://169.254.169.254/latest/".to_owned()),
        ("plain", elsewhere.url()),
        ("relative", "/elsewhere".to_owned()),
    ] {
        for status in [301, 302, 303, 307, 308] {
            let name = format!("{name}_{status}");
            let (path, location) = (format!("/{name}"), location.clone());
            receiver.respond(&path, move |_, _| {
                Answer::status(status).header("location", &location)
            });
            let options = format!("event_types => '{{{name}}}', policy => 'fast'");
            database.add_endpoint_with(&name, &receiver.url(&path), &options);
            let event = database.emit(&name, json!({}));
            let answered = (Some(status.into()), Some("status".to_owned()));
            assert_eq!(ending(&database, event), answered, "{name}");
            assert_eq!(receiver.requests_to(&path).len(), 1, "{name}");
        }
    }
    assert_eq!(receiver.requests_to("/elsewhere").len(), 0);
    assert_eq!(elsewhere.connection_count(), 0);
}

#[test]
fn a_proxy_in_the_environment_of_the_server_is_not_used() {
    const VARIABLES: [&str; 6] = [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ];
    let proxy = RawReceiver::answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let cluster = VARIABLES.iter().fold(Cluster::builder(), |cluster, name| {
        cluster.variable(name, &proxy.url())
    });
    let cluster = cluster.variable("no_proxy", "").start();
    let database = cluster.database("direct");
    // A process of the server has them.
    database.execute("CREATE TABLE seen (value text)");
    let printenv = format!("printenv {}", VARIABLES.join(" "));
    database.execute(&format!("COPY seen FROM PROGRAM '{printenv}'"));
    let seen: Vec<String> = database.query_one_value("SELECT array_agg(value) FROM seen");
    assert_eq!(seen, VARIABLES.map(|_| proxy.url()));

    let plain = Receiver::start();
    database.add_endpoint_with("plain", &plain.url("/"), "event_types => '{plain}'");
    let event = database.emit("plain", json!({}));
    database.wait_for_status(event, "SENT");
    assert_eq!(plain.request_count(), 1);

    // It speaks no TLS; that it is dialled is enough.
    let secure = RawReceiver::answering(b"");
    let url = format!("https://{}/", secure.authority());
    database.execute(
        "INSERT INTO webhook.policy (name, max_attempts, connect_timeout) VALUES ('once', 1, '1 s')",
    );
    database.add_endpoint_with(
        "secure",
        &url,
        "event_types => '{secure}', policy => 'once'",
    );
    let event = database.emit("secure", json!({}));
    database.wait_for_status(event, "FAILED");
    assert_eq!(secure.connection_count(), 1);
    assert_eq!(proxy.connection_count(), 0);
}
