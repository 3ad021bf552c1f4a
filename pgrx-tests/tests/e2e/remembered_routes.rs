//! A session remembers who wants an event, and forgets when that changes.

use serde_json::json;
use webhook_e2e::database::{emit, refusal};
use webhook_e2e::{Cluster, copies};

use super::emitting::{add_paused_endpoint, database};

/// The endpoints that get an event which this session emits now, after it has emitted others like it.
#[track_caller]
fn reached(session: &mut impl postgres::GenericClient) -> Vec<String> {
    let event = emit(session, "order.created", json!({}));
    let endpoints =
        "SELECT coalesce(array_agg(e.name ORDER BY e.name), '{}') FROM webhook.delivery d
                     JOIN webhook.endpoint e ON e.id = d.endpoint_id WHERE d.event_id = $1";
    session.query_one(endpoints, &[&event]).unwrap().get(0)
}

#[test]
fn a_session_that_has_emitted_knows_what_others_change() {
    let database = database();
    let mut session = database.connect();
    assert_eq!(reached(&mut session), NO_NAMES);
    assert_eq!(reached(&mut session), NO_NAMES);
    let changes: [(&str, &[&str]); 9] = [
        ("INSERT INTO webhook.endpoint (name, url) VALUES ('a', 'http://127.0.0.1/')", &["a"]),
        ("INSERT INTO webhook.endpoint (name, url) VALUES ('b', 'http://127.0.0.1/')", &["a", "b"]),
        ("UPDATE webhook.endpoint SET event_types = '{invoice.*}' WHERE name = 'a'", &["b"]),
        ("UPDATE webhook.endpoint SET event_types = '{order.*}' WHERE name = 'a'", &["a", "b"]),
        ("UPDATE webhook.endpoint SET filter = '$.data.x == 1' WHERE name = 'b'", &["a"]),
        ("UPDATE webhook.endpoint SET filter = NULL", &["a", "b"]),
        ("UPDATE webhook.endpoint SET tenant = 'acme' WHERE name = 'b'", &["a"]),
        ("DELETE FROM webhook.endpoint WHERE name = 'a'", &[]),
        (
            "SET session_replication_role = replica;
             INSERT INTO webhook.endpoint (name, url, origin) VALUES ('c', 'http://127.0.0.1/', 'elsewhere')",
            &["c"],
        ),
    ];
    for (change, expected) in changes {
        database.execute(change);
        assert_eq!(reached(&mut session), expected, "{change}");
        assert_eq!(reached(&mut session), expected, "{change}, again");
    }

    // Also in the middle of a transaction, which sees commits of others.
    let mut transaction = session.transaction().unwrap();
    assert_eq!(reached(&mut transaction), ["c"]);
    database.execute("UPDATE webhook.endpoint SET name = 'd', tenant = NULL WHERE name = 'b'");
    assert_eq!(reached(&mut transaction), ["c", "d"]);
}

const NO_NAMES: [&str; 0] = [];

#[test]
fn a_session_that_has_emitted_knows_of_other_policies() {
    let database = database();
    database.execute(
        "SELECT webhook_copy_policy('standard', 'own'); UPDATE webhook.policy SET max_attempts = 3 WHERE name = 'own';
         INSERT INTO webhook.endpoint (name, url, policy, paused_at) VALUES ('a', 'http://127.0.0.1/', 'own', now())",
    );
    let mut session = database.connect();
    let mut attempts = || {
        let event = emit(&mut session, "order.created", json!({}));
        database.query_one_value::<i32>(&format!(
            "SELECT max_attempts FROM webhook.delivery WHERE event_id = '{event}'"
        ))
    };
    assert_eq!([attempts(), attempts()], [3, 3]);
    database.execute("UPDATE webhook.policy SET max_attempts = 5 WHERE name = 'own'");
    assert_eq!(attempts(), 5);
}

#[test]
fn a_session_forgets_what_it_has_rolled_back() {
    let database = database();
    database.execute("INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('a', 'http://127.0.0.1/', now())");
    let add = "INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('b', 'http://127.0.0.1/', now())";
    let mut session = database.connect();
    assert_eq!(reached(&mut session), ["a"]);

    let mut transaction = session.transaction().unwrap();
    transaction.batch_execute(add).unwrap();
    assert_eq!(reached(&mut transaction), ["a", "b"]);
    transaction.rollback().unwrap();
    assert_eq!(reached(&mut session), ["a"]);

    let mut transaction = session.transaction().unwrap();
    let mut savepoint = transaction.transaction().unwrap();
    savepoint.batch_execute(add).unwrap();
    assert_eq!(reached(&mut savepoint), ["a", "b"]);
    savepoint.rollback().unwrap();
    assert_eq!(reached(&mut transaction), ["a"]);
    transaction.commit().unwrap();
    assert_eq!(reached(&mut session), ["a"]);
}

/// The statement emits after it has changed the endpoints, and before their triggers are called.
#[test]
fn a_session_forgets_what_a_failed_statement_has_seen() {
    let database = database();
    database.execute(
        "INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('a', 'http://127.0.0.1/', now())",
    );
    let fails = "WITH gone AS (DELETE FROM webhook.endpoint RETURNING id)
                 SELECT webhook_emit('order.created'), 1 / (id - id) FROM gone";
    let mut session = database.connect();
    refusal(&mut session, fails);
    assert_eq!(reached(&mut session), ["a"]);

    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let mut savepoint = transaction.transaction().unwrap();
    refusal(&mut savepoint, fails);
    savepoint.rollback().unwrap();
    assert_eq!(reached(&mut transaction), ["a"]);
}

#[test]
fn a_session_that_has_emitted_knows_what_logical_replication_brings() {
    let cluster = Cluster::builder().setting("wal_level = logical").start();
    let (publisher, subscriber) = (
        cluster.database("publisher"),
        cluster.database("subscriber"),
    );
    copies::subscribe(&cluster, &publisher, &subscriber, "webhook.endpoint");
    let mut session = subscriber.connect();
    assert_eq!(reached(&mut session), NO_NAMES);
    // The second is applied when the first is committed and every session has been told.
    for name in ["a", "b"] {
        add_paused_endpoint(&publisher, name, None, &["*"]);
    }
    subscriber.wait_until("SELECT EXISTS (SELECT FROM webhook.endpoint WHERE name = 'b')");
    assert!(reached(&mut session).contains(&"a".to_string()));
    copies::unsubscribe(&subscriber);
}

#[test]
fn an_old_snapshot_is_remembered_by_nobody() {
    let database = database();
    let mut session = database.connect();
    let mut transaction = (session.build_transaction())
        .isolation_level(postgres::IsolationLevel::RepeatableRead)
        .start()
        .unwrap();
    assert_eq!(reached(&mut transaction), NO_NAMES);
    database.execute("INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('a', 'http://127.0.0.1/', now())");
    assert_eq!(reached(&mut transaction), NO_NAMES);
    transaction.commit().unwrap();
    assert_eq!(reached(&mut session), ["a"]);
}

#[test]
fn an_empty_tenant_is_refused_by_a_session_that_has_emitted_without_one() {
    let database = database();
    add_paused_endpoint(&database, "a", None, &["*"]);
    let mut session = database.connect();
    for _ in 0..2 {
        assert_eq!(reached(&mut session), ["a"]);
    }
    let refused = refusal(
        &mut session,
        "SELECT webhook_emit('order.created', tenant => '')",
    );
    assert_eq!(refused.code().code(), "22023", "{refused:?}");
}
