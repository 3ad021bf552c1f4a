//! `webhook_why()` where there is nothing to deliver: no endpoint for it, no event, no worker; and secrets that it
//! never tells.

use serde_json::json;
use uuid::Uuid;
use webhook_e2e::story::{Story, assert_not_told, assert_told, database, told, why};
use webhook_e2e::{Answer, Cluster, Receiver, database, wait, worker};

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
    let emit = "SELECT webhook_emit('order.created', tenant => 'rival')";
    let event: Uuid = story.client.query_one(emit, &[]).unwrap().get(0);
    story.run("DELETE FROM webhook.delivery");
    let told = story.told(event);
    let added_at = story.time("1 h");
    assert_eq!(told.len(), 6, "{told:#?}");
    for (sentence, facts) in [
        (0, &["order.created", "of tenant \"rival\""][..]),
        (1, &["matched no endpoint"]),
        (2, &["\"late\"", &added_at, "CALL webhook_backfill('late'"]),
        (
            3,
            &[
                "\"acme/alien\"",
                "only tenant \"acme\"",
                "is of tenant \"rival\"",
            ],
        ),
        (4, &["\"other\"", "event types are invoice.paid, refund.*"]),
        (
            5,
            &[
                "\"acme/both\"",
                "only tenant \"acme\"",
                "event types are invoice.*",
            ],
        ),
    ] {
        assert_told(&told[sentence..=sentence], facts);
    }

    let alien = story.told("acme/alien");
    assert_told(
        &alien,
        &[
            "\"acme/alien\" is ACTIVE",
            "serves tenant \"acme\"",
            "order.*",
        ],
    );

    let without_tenant = story.emit();
    assert_told(
        &story.told(without_tenant),
        &["\"acme/alien\"", "the event has none"],
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
    let columns = "attempt, verdict, error, finished_at";
    story.attempt(event, 1, columns, "1, 'retry', 'HTTP 500', now()");
    let (told, now) = (story.told(event), story.time("0"));
    assert_told(
        &told,
        &[
            "\"queue\" has no delivery",
            "order.*",
            "\"job\"",
            "keep_sent = false",
        ],
    );
    assert_told(
        &told,
        &["\"shop\" has no delivery", "changed since", "removed"],
    );
    assert_told(&told, &["Attempt 1 ", &now, "HTTP 500"]);
    assert_not_told(&told, "matched no endpoint");
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
    assert_told(&told, &["matched no endpoint"]);
    assert_told(
        &told,
        &["\"shop\"", "event types are *", "leaves out webhook.*"],
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
    let others: Vec<String> = (told.iter())
        .filter(|told| told.contains("has no delivery of it: "))
        .cloned()
        .collect();
    assert_eq!(others.len(), 20);
    assert_told(&others[19..], &["\" 020\"", "type.10 and 2 more"]);
    assert_not_told(&others, "type.11");
    assert_told(&told[told.len() - 1..], &["5 more endpoints"]);
}

#[test]
fn an_event_without_any_endpoint_says_how_to_add_one() {
    let mut story = Story::begin();
    story.run("SELECT webhook_remove_endpoint('shop')");
    let event = story.emit();
    let told = story.told(event);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert_told(
        &told,
        &["no endpoints", "webhook_set_endpoint", "webhook_backfill"],
    );
}

#[test]
fn an_event_that_is_not_there_says_what_may_have_become_of_it() {
    let database = database();
    let rolled_back = {
        let mut client = database.connect();
        let mut transaction = client.transaction().unwrap();
        database::emit(&mut transaction, "order.created", json!({}))
    };
    let seconds = (rolled_back.get_timestamp().expect("it has a time"))
        .to_unix()
        .0;
    let emitted_at: String = database.query_one_value(&format!(
        "SELECT to_char(to_timestamp({seconds}) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')"
    ));
    let told = why(&database, rolled_back);
    let facts = [
        &*rolled_back.to_string(),
        "no event",
        "never emitted",
        "rolled back",
        "webhook.retention_sent",
        "keep_sent = false",
        "webhook_discard()",
    ];
    assert_told(&told, &facts);
    assert_told(&told, &["webhook_emit()", &emitted_at]);

    let foreign = Uuid::from_u128(0x9c5b94b1_35ad_49bb_b118_8e8fc24abf80);
    let told = why(&database, foreign);
    assert_told(&told, &["webhook_emit() did not make it", "version 7"]);
    // Somebody's names are UUIDs: where there is no such event, it is the endpoint that is meant.
    database.add_endpoint(&foreign.to_string(), &Receiver::closed_url());
    let named = format!("Endpoint \"{foreign}\" is ACTIVE");
    assert_told(&why(&database, foreign), &[&named]);
}

#[test]
fn what_is_neither_an_event_nor_an_endpoint_is_an_error_with_a_hint() {
    let database = database();
    database.add_endpoint("shipping", &Receiver::closed_url());
    for (about, facts) in [
        (
            "shiping",
            &["shipping", "id of an event", "newest event"][..],
        ),
        ("01a1e332-..", &["id of an event"]),
        ("", &["id of an event"]),
    ] {
        let refusal = database.refusal(&format!("SELECT webhook_why('{about}')"));
        assert_eq!(refusal.code().code(), "42704", "{about}");
        assert!(refusal.message().contains(about), "{refusal}");
        let hint = refusal.hint().unwrap_or_default().to_owned();
        assert_told(&[hint], facts);
    }
}

#[test]
fn an_event_that_was_deleted_leaves_its_deliveries_to_be_explained() {
    let mut story = Story::begin();
    story.run("UPDATE webhook.endpoint SET tenant = 'acme'");
    let emit = "SELECT webhook_emit('order.created', tenant => 'acme')";
    let event: Uuid = story.client.query_one(emit, &[]).unwrap().get(0);
    story.run("DELETE FROM webhook.event");
    let told = story.told(event);
    assert_told(&told, &[&event.to_string(), "gone", "cannot be sent"]);
    assert_told(&told, &["shop\"", "matches *"]);
    assert_told(&told, &["PENDING", "not tried yet"]);
    assert_told(&told, &["fails when it is due", "nothing to send"]);
    assert_not_told(&told, "CANCELLED");
    story.run("UPDATE webhook.delivery SET status = 'CANCELLED', reason = 'cancelled', last_error = 'cancelled', completed_at = now()");
    assert_not_told(&story.told(event), "webhook_replay");
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
    assert_told(&told, &["redacted at", "cannot be sent"]);
    assert_not_told(&told, "webhook_replay");
}

#[test]
fn a_server_that_does_not_preload_the_library_says_so() {
    let cluster = Cluster::builder().without_preload().start();
    let database = cluster.plain_database("unloaded");
    database.execute("CREATE EXTENSION webhook");
    let event = database.emit("order.created", json!({}));
    let facts = [
        "Nothing is delivered",
        "shared_preload_libraries",
        "restart",
    ];
    assert_told(&why(&database, event), &facts);
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
    served.add_endpoint("shop", &Receiver::closed_url());
    let event = served.emit("order.created", json!({}));
    let disabled = [
        "Nothing is delivered",
        "webhook.enabled",
        "pg_reload_conf()",
    ];
    assert_told(&why(&served, event), &disabled);
    assert_told(&why(&served, "shop"), &disabled);

    // Both take turns: one of them has no worker, now this one and now that.
    let other = cluster.database("other");
    let waiting = other.emit("order.created", json!({}));
    let told = wait::until("a database to say that it has no worker", || {
        let told = [why(&served, event), why(&other, waiting)];
        let without = |told: &Vec<String>| told.iter().any(|line| line.contains("no worker"));
        told.clone().into_iter().find(without).ok_or(told)
    });
    let facts = ["no worker", "max_worker_processes", "webhook_status()"];
    assert_told(&told, &facts);
    drop(other);
    worker::pid(&served);

    cluster.configure("webhook.enabled = on\ndefault_transaction_read_only = on");
    cluster.reload();
    served.wait_until("SELECT state = 'held' FROM webhook_status()");
    let told = why(&served, event);
    assert_told(&told, &["held", "default_transaction_read_only"]);
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
        let of_event = told(&mut client, event).join("\n");
        let of_endpoint = told(&mut client, "shop").join("\n");
        client.batch_execute("ROLLBACK").unwrap();
        assert!(of_event.contains("HTTP 500"), "{state}: {of_event}");
        assert!(of_endpoint.contains("\"shop\""), "{state}: {of_endpoint}");
        let credentials = ["t0ken", "hunter2", "127.0.0.1", "http://", secret.as_str()];
        for credential in credentials {
            assert!(!of_event.contains(credential), "{state}: {of_event}");
            assert!(!of_endpoint.contains(credential), "{state}: {of_endpoint}");
        }
    }
}
