//! Idempotency keys: of the emits with one key, one counts.

use std::thread;

use postgres::{Client, GenericClient, IsolationLevel};
use serde_json::json;
use uuid::Uuid;
use webhook_e2e::database::refusal;
use webhook_e2e::random::Random;
use webhook_e2e::{Cluster, Database, Receiver};

fn database() -> Database {
    let database = Cluster::shared().database("idempotency");
    database.execute(
        "INSERT INTO webhook.endpoint (name, url, paused_at) VALUES ('paused', 'http://127.0.0.1/', now())",
    );
    database
}

fn emit(client: &mut impl GenericClient, key: &str) -> Uuid {
    client
        .query_one(
            "SELECT webhook_emit('order.created', idempotency_key => $1)",
            &[&key],
        )
        .unwrap_or_else(|error| panic!("could not emit with key {key}: {error:?}"))
        .get(0)
}

fn events(database: &Database) -> i64 {
    let counts: (i64, i64) = {
        let row = database.connect().query_one(
            "SELECT (SELECT count(*) FROM webhook.event), (SELECT count(*) FROM webhook.delivery)",
            &[],
        );
        let row = row.unwrap();
        (row.get(0), row.get(1))
    };
    assert_eq!(counts.0, counts.1, "an event without its delivery");
    counts.0
}

/// A session that emits with a key that another one holds, and waits for it.
fn emit_and_wait<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    database: &'scope Database,
    key: &'static str,
) -> thread::ScopedJoinHandle<'scope, Uuid> {
    let waiting = scope.spawn(move || emit(&mut database.connect(), key));
    database.wait_until(
        "SELECT count(*) = 1 FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%idempotency_key%'",
    );
    waiting
}

#[test]
fn a_repeated_key_returns_the_first_event_and_emits_nothing() {
    let (database, receiver) = (Cluster::shared().database("repeated"), Receiver::start());
    database.add_endpoint("all", &receiver.url("/"));
    let mut session = database.connect();
    let first = emit(&mut session, "order-7");
    receiver.wait_for_event(first);
    for _ in 0..3 {
        assert_eq!(emit(&mut session, "order-7"), first);
    }
    // The arguments of a repetition do not matter, but have to be valid.
    let other: Uuid = database.query_one_value(
        "SELECT webhook_emit('order.paid', '{\"a\": 1}', idempotency_key => 'order-7')",
    );
    assert_eq!(other, first);

    let marker = database.emit("marker", json!({}));
    receiver.wait_for_event(marker);
    assert_eq!(receiver.request_count(), 2);
    let stored: String = database.query_one_value(&format!(
        "SELECT idempotency_key FROM webhook.event WHERE id = '{first}'"
    ));
    assert_eq!(stored, "order-7");
}

#[test]
fn a_key_counts_for_its_tenant() {
    let database = database();
    let emit = |tenant: &str| -> Uuid {
        database.query_one_value(&format!(
            "SELECT webhook_emit('order.created', idempotency_key => 'k', tenant => {tenant})"
        ))
    };
    let ids = ["NULL", "'acme'", "'globex'"].map(emit);
    assert_eq!(["NULL", "'acme'", "'globex'"].map(emit), ids);
    assert_eq!(events(&database), 3);
}

#[test]
fn a_key_repeated_within_a_transaction_counts_once() {
    let database = database();
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let first = emit(&mut transaction, "k");
    assert_eq!(emit(&mut transaction, "k"), first);
    transaction.commit().unwrap();
    let ids: Vec<Uuid> = database.query_one_value(
        "SELECT array_agg(webhook_emit('order.created', idempotency_key => 'l')) FROM generate_series(1, 3)",
    );
    assert_eq!(ids, [ids[0]; 3]);
    assert_eq!(events(&database), 2);
}

#[test]
fn the_second_of_two_waits_for_the_commit_of_the_first_and_returns_its_event() {
    let database = database();
    let mut session = database.connect();
    let mut first = session.transaction().unwrap();
    let event = emit(&mut first, "k");
    thread::scope(|scope| {
        let second = emit_and_wait(scope, &database, "k");
        first.commit().unwrap();
        assert_eq!(second.join().unwrap(), event);
    });
    assert_eq!(events(&database), 1);
}

#[test]
fn the_second_of_two_waits_for_the_rollback_of_the_first_and_emits() {
    let database = database();
    let mut session = database.connect();
    let mut first = session.transaction().unwrap();
    let rolled_back = emit(&mut first, "k");
    thread::scope(|scope| {
        let second = emit_and_wait(scope, &database, "k");
        first.rollback().unwrap();
        let event = second.join().unwrap();
        assert_ne!(event, rolled_back);
        assert_eq!(emit(&mut database.connect(), "k"), event);
    });
    assert_eq!(events(&database), 1);
}

#[test]
fn the_rollback_of_a_savepoint_frees_the_key() {
    let database = database();
    let mut session = database.connect();
    let mut transaction = session.transaction().unwrap();
    let mut savepoint = transaction.transaction().unwrap();
    let dropped = emit(&mut savepoint, "k");
    savepoint.rollback().unwrap();
    let kept = emit(&mut transaction, "k");
    transaction.commit().unwrap();
    assert_ne!(kept, dropped);
    assert_eq!(emit(&mut session, "k"), kept);
}

#[test]
fn a_refused_event_does_not_take_the_key() {
    let database = database();
    let refusal = database.refusal(
        "SELECT webhook_emit('order.created', to_jsonb(repeat('x', 2000000)), idempotency_key => 'k')",
    );
    assert_eq!(refusal.code().code(), "54000");
    emit(&mut database.connect(), "k");
    assert_eq!(events(&database), 1);
}

#[test]
fn repeatable_read_is_told_that_it_cannot_see_the_first_event() {
    let database = database();
    let mut session = database.connect();
    let mut late = (session.build_transaction())
        .isolation_level(IsolationLevel::RepeatableRead)
        .start()
        .unwrap();
    late.execute("SELECT FROM webhook.event", &[]).unwrap();
    let first = emit(&mut database.connect(), "k");
    let refusal = refusal(
        &mut late,
        "SELECT webhook_emit('order.created', idempotency_key => 'k')",
    );
    assert_eq!(refusal.code().code(), "40001");
    late.rollback().unwrap();

    // The transaction that is run again sees it.
    let mut again = (session.build_transaction())
        .isolation_level(IsolationLevel::RepeatableRead)
        .start()
        .unwrap();
    assert_eq!(emit(&mut again, "k"), first);
    again.commit().unwrap();
    assert_eq!(events(&database), 1);
}

#[test]
fn different_keys_are_no_conflict_in_serializable() {
    let database = database();
    let (mut one, mut other) = (database.connect(), database.connect());
    let serializable = |session: &mut Client| {
        session
            .batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
            .unwrap();
    };
    serializable(&mut one);
    serializable(&mut other);
    emit(&mut one, "a");
    emit(&mut other, "b");
    emit(&mut one, "c");
    emit(&mut other, "d");
    one.batch_execute("COMMIT").unwrap();
    other.batch_execute("COMMIT").unwrap();
    assert_eq!(events(&database), 4);
}

#[test]
fn of_many_at_the_same_time_one_emits() {
    const SESSIONS: usize = 8;
    const KEYS: usize = 40;
    let database = database();
    let seen: Vec<Vec<Uuid>> = thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|_| {
                scope.spawn(|| {
                    let mut session = database.connect();
                    (0..KEYS)
                        .map(|number| emit(&mut session, &format!("key {number}")))
                        .collect()
                })
            })
            .collect();
        (sessions.into_iter())
            .map(|session| session.join().unwrap())
            .collect()
    });
    for ids in &seen {
        assert_eq!(ids, &seen[0]);
    }
    assert_eq!(events(&database), KEYS as i64);
}

/// Sets the clock of all keys back by a day and more.
fn let_the_window_pass(client: &mut impl GenericClient) {
    let set_back = "UPDATE webhook.idempotency SET created_at = created_at - interval '25 h'";
    client.batch_execute(set_back).unwrap();
}

#[test]
fn after_the_window_the_key_stands_for_a_new_event() {
    let database = database();
    let mut session = database.connect();
    let first = emit(&mut session, "k");
    // Not committed, so that nobody removes it meanwhile.
    let mut transaction = session.transaction().unwrap();
    let_the_window_pass(&mut transaction);
    let second = emit(&mut transaction, "k");
    transaction.commit().unwrap();
    assert_ne!(first, second);
    assert_eq!(emit(&mut session, "k"), second);
    assert_eq!(events(&database), 2);
}

/// With a key whose window is over, and a session that keeps it from being removed.
fn with_old_key(test: impl FnOnce(&Database, Uuid)) {
    let database = database();
    let event = emit(&mut database.connect(), "k");
    let mut keeper = database.connect();
    let mut keeping = keeper.transaction().unwrap();
    (keeping.execute("SELECT FROM webhook.idempotency FOR KEY SHARE", &[])).unwrap();
    let_the_window_pass(&mut database.connect());
    test(&database, event);
}

#[test]
fn of_two_that_find_a_key_past_its_window_the_second_waits_for_the_commit_of_the_first() {
    with_old_key(|database, old| {
        let mut session = database.connect();
        let mut first = session.transaction().unwrap();
        let event = emit(&mut first, "k");
        assert_ne!(event, old);
        thread::scope(|scope| {
            let second = emit_and_wait(scope, database, "k");
            first.commit().unwrap();
            assert_eq!(second.join().unwrap(), event);
        });
        assert_eq!(events(database), 2);
    });
}

#[test]
fn of_two_that_find_a_key_past_its_window_the_second_waits_for_the_rollback_of_the_first() {
    with_old_key(|database, old| {
        let mut session = database.connect();
        let mut first = session.transaction().unwrap();
        let rolled_back = emit(&mut first, "k");
        thread::scope(|scope| {
            let second = emit_and_wait(scope, database, "k");
            first.rollback().unwrap();
            let event = second.join().unwrap();
            assert!(event != rolled_back && event != old);
        });
        assert_eq!(events(database), 2);
    });
}

#[test]
fn the_window_is_set_per_database() {
    let database = database();
    let name = database.name();
    let age = "UPDATE webhook.idempotency SET created_at = created_at - interval '2 h'";
    let first = emit(&mut database.connect(), "k");
    database.execute(age);
    assert_eq!(emit(&mut database.connect(), "k"), first);
    database.execute(&format!(
        "ALTER DATABASE {name} SET webhook.idempotency_window = '1 h'"
    ));
    assert_ne!(emit(&mut database.connect(), "k"), first);

    let refusal = database.refusal("SET webhook.idempotency_window = 0");
    assert_eq!(refusal.code().code(), "22023");
    let role = format!("{name}_emitter");
    database.execute(&format!("CREATE ROLE {role}"));
    let mut session = database.connect();
    (session.batch_execute(&format!("SET SESSION AUTHORIZATION {role}"))).unwrap();
    let setting = refusal_of(&mut session, "SET webhook.idempotency_window = '1 s'");
    assert_eq!(setting, "42501");
}

fn refusal_of(client: &mut Client, sql: &str) -> String {
    refusal(client, sql).code().code().to_owned()
}

#[test]
fn keys_are_removed_when_their_window_is_over() {
    let database = database();
    let mut session = database.connect();
    for number in 0..500 {
        emit(&mut session, &format!("old {number}"));
    }
    let_the_window_pass(&mut session);
    let young = emit(&mut session, "young");
    database.wait_until("SELECT count(*) = 1 FROM webhook.idempotency");
    assert_eq!(emit(&mut session, "young"), young);
    // The events have their own retention.
    assert_eq!(events(&database), 501);
}

#[test]
fn keys_that_are_not_valid_are_refused() {
    let database = database();
    for key in ["''", "repeat('k', 201)"] {
        let refusal = database.refusal(&format!(
            "SELECT webhook_emit('a', idempotency_key => {key})"
        ));
        assert_eq!(refusal.code().code(), "22023", "{key}");
        assert!(refusal.hint().is_some());
    }
    database.execute("SELECT webhook_emit('a', idempotency_key => repeat('ü', 200))");
    assert_eq!(events(&database), 1);
}

// many at once

fn emit_many(client: &mut impl GenericClient, keys: &[Option<&str>]) -> Vec<Uuid> {
    let sql = "SELECT webhook_emit_many('order.created', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, cardinality($1::text[])) n),
                                        idempotency_keys => $1)";
    let rows = client.query(sql, &[&keys]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[test]
fn of_many_each_key_stands_for_its_first_event() {
    let database = database();
    let mut session = database.connect();
    let earlier = emit(&mut session, "b");
    let ids = emit_many(
        &mut session,
        &[Some("c"), Some("b"), None, Some("a"), Some("c"), None],
    );
    assert_eq!((ids[1], ids[4]), (earlier, ids[0]));
    let mut distinct = ids.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 5);
    assert_eq!(events(&database), 5);
    let payloads: Vec<i32> = database.query_one_value(
        "SELECT array_agg(payload::int ORDER BY id) FROM webhook.event WHERE jsonb_typeof(payload) = 'number'",
    );
    assert_eq!(payloads, [1, 3, 4, 6]);

    // Again, by each way.
    assert_eq!(
        emit_many(&mut session, &[Some("a"), Some("c")]),
        [ids[3], ids[0]]
    );
    assert_eq!(emit(&mut session, "a"), ids[3]);
    assert_eq!(events(&database), 5);
    let_the_window_pass(&mut session);
    let again = emit_many(&mut session, &[Some("a"), Some("new"), Some("c")]);
    assert!(again.iter().all(|id| !ids.contains(id)));
    assert_eq!(events(&database), 8);
}

#[test]
fn the_second_of_two_with_many_keys_waits_for_the_first() {
    let database = database();
    let mut session = database.connect();
    let mut first = session.transaction().unwrap();
    let ids = emit_many(&mut first, &[Some("b"), Some("a")]);
    thread::scope(|scope| {
        let second =
            scope.spawn(|| emit_many(&mut database.connect(), &[Some("a"), Some("c"), Some("b")]));
        database.wait_until(
            "SELECT count(*) = 1 FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%emit_many%'",
        );
        first.commit().unwrap();
        let others = second.join().unwrap();
        assert_eq!((others[0], others[2]), (ids[1], ids[0]));
    });
    assert_eq!(events(&database), 3);
}

#[test]
fn many_keys_in_any_order_do_not_deadlock() {
    const KEYS: usize = 200;
    const SESSIONS: u64 = 4;
    let database = database();
    let keys: Vec<String> = (0..KEYS).map(|n| n.to_string()).collect();
    for past_their_window in [false, true] {
        if past_their_window {
            let_the_window_pass(&mut database.connect());
        }
        let before = events(&database);
        let seen: Vec<Vec<Uuid>> = thread::scope(|scope| {
            let emitting = |seed| {
                let (database, mut keys) = (&database, keys.clone());
                scope.spawn(move || {
                    Random::seeded(seed).shuffle(&mut keys);
                    let given: Vec<Option<&str>> =
                        keys.iter().map(|key| Some(key.as_str())).collect();
                    let ids = emit_many(&mut database.connect(), &given);
                    let mut ids: Vec<(String, Uuid)> = keys.into_iter().zip(ids).collect();
                    ids.sort();
                    ids.into_iter().map(|(_, id)| id).collect()
                })
            };
            let sessions: Vec<_> = (1..=SESSIONS).map(emitting).collect();
            sessions
                .into_iter()
                .map(|session| session.join().unwrap())
                .collect()
        });
        assert!(
            seen.iter().all(|ids| *ids == seen[0]),
            "all got the same events"
        );
        assert_eq!(events(&database) - before, KEYS as i64);
    }
}
