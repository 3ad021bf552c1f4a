//! `webhook_why()` where there is nothing to deliver: no endpoint for it, no event, no worker; and what it never tells.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::story::{Story, assert_not_told, assert_told, database, told, why};
use webhook_e2e::{Answer, Cluster, Receiver, database, worker};

#[test]
fn endpoints_without_a_delivery_say_why_those_that_come_nearest_first() {
    let mut story = Story::begin();
    story.run(
        "SELECT webhook_remove_endpoint('shop');
         SELECT webhook_set_endpoint('acme/alien', 'http://127.0.0.1:1/', '{order.*}');
         SELECT webhook_set_endpoint('acme/both', 'http://127.0.0.1:1/', '{invoice.*}');
         SELECT webhook_set_endpoint('other', 'http://127.0.0.1:1/', '{invoice.paid, refund.*}');
         SELECT webhook_set_endpoint('late', 'http://127.0.0.1:1/', '{order.created}');
         UPDATE webhook.endpoint SET created_at = now() + interval '1 h' WHERE name = 'late'",
    );
    let event: Uuid = (story.client)
        .query_one(
            "SELECT webhook_emit('order.created', tenant => 'rival')",
            &[],
        )
        .unwrap()
        .get(0);
    story.run("DELETE FROM webhook.delivery");
    let (told, late) = (story.told(event), story.time("1 h"));
    assert!(
        told[0].contains("is of type order.created, of tenant \"rival\", and"),
        "{}",
        told[0]
    );
    assert_eq!(
        told[1..],
        [
            "It matched no endpoint, so there is nothing to deliver.".to_owned(),
            format!("Endpoint \"late\" has no delivery of it: it was added at {late}, after the event."),
            "Endpoint \"acme/alien\" has no delivery of it: it serves only tenant \"acme\", and the event is of tenant \"rival\".".to_owned(),
            "Endpoint \"other\" has no delivery of it: its event types are invoice.paid, refund.*.".to_owned(),
            "Endpoint \"acme/both\" has no delivery of it: it serves only tenant \"acme\", and the event is of tenant \"rival\"; its event types are invoice.*.".to_owned(),
        ]
    );

    let without_tenant = story.emit();
    assert_told(
        &story.told(without_tenant),
        "Endpoint \"acme/alien\" has no delivery of it: it serves only tenant \"acme\", and the event has none.",
    );
}

#[test]
fn an_endpoint_that_matches_and_has_no_delivery_says_what_may_have_happened() {
    let mut story = Story::begin();
    story.run(
        "SELECT webhook_set_endpoint('queue', 'http://127.0.0.1:1/', '{order.*}', policy => 'job')",
    );
    let event = story.emit();
    story.run("DELETE FROM webhook.delivery");
    story.attempt(
        event,
        1,
        "attempt, verdict, error, finished_at",
        "1, 'retry', 'HTTP 500', now()",
    );
    let (told, now) = (story.told(event), story.time("0"));
    assert_eq!(
        told[1..],
        [
            "Endpoint \"queue\" has no delivery of it: the event matches its event types (order.*) now, but its policy \"job\" keeps no row of what was sent (keep_sent = false).".to_owned(),
            "Endpoint \"shop\" has no delivery of it: the event matches its event types (*) now, but they, its filter or its tenant were changed since, others were chosen by name, or the delivery was removed.".to_owned(),
            format!("  Attempt 1 ended at {now}, after 35 ms: HTTP 500."),
        ]
    );
}

#[test]
fn the_star_does_not_stand_for_our_own_events() {
    let mut story = Story::begin();
    let event = Uuid::from_u128(1);
    story.run(&format!(
        "INSERT INTO webhook.event (id, event_type, payload, created_at)
         VALUES ('{event}', 'webhook.endpoint.opened', '{{}}', now())"
    ));
    let told = story.told(event);
    assert_eq!(
        told[1..],
        [
            "It matched no endpoint, so there is nothing to deliver.",
            "Endpoint \"shop\" has no delivery of it: its event types are *, and * leaves out webhook.*, the extension's own events.",
        ]
    );
}

#[test]
fn of_many_endpoints_and_patterns_only_the_first_are_told() {
    let mut story = Story::begin();
    story.run(
        "INSERT INTO webhook.endpoint (name, url, event_types)
         SELECT to_char(n, '000'), 'http://127.0.0.1:1/', ARRAY(SELECT 'type.' || t FROM generate_series(1, 12) t)
         FROM generate_series(1, 25) n",
    );
    let event = story.emit();
    let told = story.told(event);
    let others: Vec<_> = (told.iter())
        .filter(|told| told.contains("has no delivery of it: "))
        .collect();
    assert_eq!(others.len(), 20);
    assert_eq!(
        others[19],
        "Endpoint \" 020\" has no delivery of it: its event types are type.1, type.2, type.3, type.4, type.5, type.6, type.7, type.8, type.9, type.10 and 2 more."
    );
    assert_eq!(
        told.last().unwrap(),
        "5 more endpoints have no delivery of it."
    );
}

#[test]
fn an_event_without_any_endpoint_says_how_to_add_one() {
    let mut story = Story::begin();
    story.run("SELECT webhook_remove_endpoint('shop')");
    let event = story.emit();
    let told = story.told(event);
    assert_eq!(
        told[1..],
        [
            "There are no endpoints. SELECT * FROM webhook_set_endpoint('name', 'https://..') adds one, for the events that are emitted after it."
        ]
    );
}

#[test]
fn an_event_that_is_not_there_says_what_may_have_become_of_it() {
    let database = database();
    let begin = "There is no event ";
    let rolled_back = {
        let mut client = database.connect();
        let mut transaction = client.transaction().unwrap();
        database::emit(&mut transaction, "order.created", json!({}))
    };
    let told = why(&database, rolled_back);
    assert_eq!(told.len(), 2);
    assert!(
        told[0].starts_with(&format!("{begin}{rolled_back} here: ")),
        "{}",
        told[0]
    );
    for reason in [
        "never emitted",
        "rolled back",
        "webhook.retention_sent",
        "keep_sent = false",
        "webhook_discard()",
    ] {
        assert!(told[0].contains(reason), "{}", told[0]);
    }
    let seconds = (rolled_back.get_timestamp().expect("it has a time"))
        .to_unix()
        .0;
    let emitted_at: String = database.query_one_value(&format!(
        "SELECT to_char(to_timestamp({seconds}) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')"
    ));
    let begin = format!("If webhook_emit() made this id, then at {emitted_at}");
    assert!(told[1].starts_with(&begin), "{}", told[1]);

    let foreign = Uuid::from_u128(0x9c5b94b1_35ad_49bb_b118_8e8fc24abf80);
    assert_eq!(
        why(&database, foreign)[1],
        "Check the id: webhook_emit() did not make it, for its own are UUIDs of version 7."
    );
    let unknown: String = database.query_one_value("SELECT webhook_why(NULL) LIMIT 1");
    assert!(unknown.starts_with("There is no event NULL here: "));
}

#[test]
fn an_event_that_was_deleted_leaves_its_deliveries_to_be_explained() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET tenant = 'acme'");
    let event: Uuid = (story.client)
        .query_one(
            "SELECT webhook_emit('order.created', tenant => 'acme')",
            &[],
        )
        .unwrap()
        .get(0);
    story.run("DELETE FROM webhook.event");
    let told = story.told(event);
    assert_eq!(
        told,
        [
            format!(
                "Event {event} is gone from webhook.event and cannot be sent any more; its deliveries are still here."
            ),
            "Endpoint \"shop\": the event matches *.".to_owned(),
            "  It is PENDING, not tried yet.".to_owned(),
            "  It fails when it is due, because there is nothing to send.".to_owned(),
        ]
    );
    story.run("UPDATE webhook.delivery SET status = 'CANCELLED', last_error = 'cancelled', completed_at = now()");
    assert_not_told(&story.told(event), "webhook_resend");
}

#[test]
fn a_redacted_event_says_that_nothing_is_sent_any_more() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/", |_, _| Answer::status(500));
    database.add_endpoint("shop", &receiver.url("/"));
    let event = database.emit("order.created", json!({"name": "Zoë"}));
    database.wait_for_status(event, "FAILED");
    database.execute(&format!("SELECT webhook_redact('{event}')"));
    let told = why(&database, event);
    assert!(
        told[1].starts_with("Its payload was redacted at ")
            && told[1].ends_with("; it cannot be sent any more."),
        "{told:#?}"
    );
    assert_not_told(&told, "webhook_replay");
}

#[test]
fn a_server_that_does_not_preload_the_library_says_so() {
    let cluster = Cluster::builder().without_preload().start();
    let database = cluster.plain_database("unloaded");
    database.execute("CREATE EXTENSION webhook");
    let event = database.emit("order.created", json!({}));
    assert_eq!(
        why(&database, event)[1],
        "Nothing is delivered: the library is not preloaded; add webhook to shared_preload_libraries in postgresql.conf and restart the server."
    );
}

#[test]
fn a_server_that_delivers_nothing_says_so() {
    let mut cluster = Cluster::builder()
        .setting("webhook.enabled = off")
        .setting("max_worker_processes = 3")
        .start();
    let served = cluster.database("served");
    worker::pid(&served);
    served.wait_until("SELECT state = 'disabled' FROM webhook_status()");
    let event = served.emit("order.created", json!({}));
    assert_eq!(
        why(&served, event)[1],
        "Nothing is delivered now: webhook.enabled is off. Set it to on in postgresql.conf, then SELECT pg_reload_conf()."
    );

    let unserved = cluster.database("unserved");
    unserved.wait_until("SELECT reason IS NOT NULL FROM webhook_status()");
    let waiting = unserved.emit("order.created", json!({}));
    assert_eq!(
        why(&unserved, waiting)[1],
        "Nothing is delivered now: there is no worker (no background worker is free; raise max_worker_processes and restart the server). SELECT * FROM webhook_status() shows more."
    );

    cluster.configure("webhook.enabled = on\ndefault_transaction_read_only = on");
    cluster.reload();
    served.wait_until("SELECT state = 'held' FROM webhook_status()");
    assert_eq!(
        why(&served, event)[1],
        "Delivery is held: default_transaction_read_only is on."
    );
}

#[test]
fn nothing_that_is_told_contains_a_credential() {
    let (database, receiver) = (database(), Receiver::start());
    receiver.respond("/t0ken", |request, _| {
        let echo = format!("{} {:?}", request.path, request.headers);
        Answer::status(500).body(echo)
    });
    let secret = database.add_endpoint_with(
        "shop",
        &receiver.url("/t0ken"),
        r#"policy => 'fast', headers => '{"X-Key": "hunter2"}', metadata => '{"note": "hunter2"}'"#,
    );
    let closed = Receiver::closed_url();
    database.add_endpoint("closed", &format!("{closed}t0ken"));
    database.add_endpoint("unknown host", "http://t0ken.invalid/");
    database.execute("UPDATE webhook.policy SET initial_delay = '1 h' WHERE name = 'fast'");
    let event = database.emit("order.created", json!({"card": "hunter2"}));
    database.wait_until("SELECT count(*) = 3 FROM webhook.attempt");

    let mut client = database.connect();
    for state in [
        "UPDATE webhook.endpoint SET paused_at = now()",
        "UPDATE webhook.endpoint SET disabled_at = now(), disabled_reason = 'gone'",
        "UPDATE webhook.endpoint SET origin = 'elsewhere'",
        "DELETE FROM webhook.delivery",
        "DELETE FROM webhook.event",
        "DELETE FROM webhook.endpoint",
        "SELECT",
    ] {
        client.batch_execute(&format!("BEGIN; {state}")).unwrap();
        let told = told(&mut client, event).join("\n");
        client.batch_execute("ROLLBACK").unwrap();
        assert!(told.contains("HTTP 500"), "{state}: {told}");
        let credentials = ["t0ken", "hunter2", "127.0.0.1", "http://", secret.as_str()];
        for credential in credentials {
            assert!(!told.contains(credential), "{state}: {told}");
        }
    }
}
