//! The plans of the worker's calls are made while the queue is empty, and have to serve a full one.

use postgres::Client;
use webhook_e2e::engine::claim_statement;
use webhook_e2e::{Cluster, Database};

const QUEUED: i64 = 20_000;
const BATCH: i64 = 100;

/// Entries of an index that one call of the worker may read, whatever is queued: some for each row that it handles.
const READS: i64 = 10 * BATCH;

#[test]
fn a_plan_made_for_an_empty_queue_serves_one_endpoint_with_a_backlog() {
    let cluster = Cluster::unattended();
    let database = cluster.database("backlog");
    let mut client = planned_while_empty(&database, 1);
    let emit = "SELECT webhook_emit('type.1', expires_at => now() + interval '1 h') FROM generate_series(1, $1)";
    client.execute(emit, &[&(QUEUED as i32)]).unwrap();
    every_call_reads_little(&mut client);
}

#[test]
fn a_plan_made_for_an_empty_queue_serves_many_endpoints() {
    let cluster = Cluster::unattended();
    let database = cluster.database("many");
    let mut client = planned_while_empty(&database, 2_000);
    let emit = "SELECT webhook_emit('type.' || 1 + n % 2000) FROM generate_series(1, $1) n";
    client.execute(emit, &[&(QUEUED as i32)]).unwrap();
    every_call_reads_little(&mut client);
}

#[test]
fn a_plan_made_for_an_empty_queue_serves_a_breaker_with_a_backlog_behind_it() {
    let cluster = Cluster::unattended();
    let database = cluster.database("behind");
    let mut client = planned_while_empty(&database, 1);
    client
        .execute(
            "SELECT webhook_emit('type.1') FROM generate_series(1, $1)",
            &[&(QUEUED as i32)],
        )
        .unwrap();
    // The retries are behind all deliveries that have never been tried.
    client.batch_execute(&claim(3)).unwrap();
    let open = "
        SELECT webhook.release_lost(array_agg(event_id), array_agg(endpoint_id)) FROM webhook.delivery_queue WHERE status = 'SENDING';
        UPDATE webhook.delivery_queue SET next_attempt_at = now() + interval '1 h' WHERE wait_reason = 'retry';
        INSERT INTO webhook.breaker (endpoint_id, state, trips, opened_at, probe_at) VALUES (1, 'OPEN', 1, now(), now());";
    client.batch_execute(open).unwrap();
    every_call_reads_little(&mut client);
}

#[test]
fn upkeep_planned_for_an_empty_queue_serves_a_backlog_beside_removed_and_paused_endpoints() {
    const REMOVED: i32 = 50;
    let cluster = Cluster::builder().setting("webhook.enabled = off").start();
    let database = cluster.database("upkeep");
    let mut client = database.connect();
    let add = "INSERT INTO webhook.endpoint (name, url, event_types, paused_at)
        SELECT n::text, 'http://127.0.0.1:1/', ARRAY['type.' || n], now() FROM generate_series(1, $1) n";
    client.execute(add, &[&(2 * REMOVED)]).unwrap();
    client
        .execute(
            "SELECT count(webhook_remove_endpoint(n::text)) FROM generate_series(2, $1) n",
            &[&REMOVED],
        )
        .unwrap();
    let vacuum = "VACUUM ANALYZE webhook.delivery_queue, webhook.dead_letter, webhook.endpoint, webhook.event";
    client.batch_execute(vacuum).unwrap();
    client.batch_execute("SET ROLE webhook_owner").unwrap();
    for _ in 0..10 {
        UPKEEP
            .iter()
            .for_each(|call| client.batch_execute(call).unwrap());
    }
    database.execute(&format!(
        "SELECT count(*) FROM webhook_emit_many('type.1', array_fill('{{}}'::jsonb, ARRAY[{QUEUED}]));
         UPDATE webhook.delivery SET next_attempt_at = 'infinity' WHERE event_id IN (SELECT id FROM webhook.event LIMIT 1000)"
    ));
    for call in UPKEEP {
        let before = index_reads(&mut client);
        client.batch_execute(call).unwrap();
        let reads = index_reads(&mut client) - before;
        // Deliveries are counted up to a limit; nothing is read for each endpoint.
        assert!(reads < QUEUED, "{call} has read {reads} index entries");
    }
}

/// Statements that a sender calls now and then, with the arguments of removed endpoints that are long gone.
const UPKEEP: [&str; 5] = [
    "SELECT webhook.end_orphans(0, 100)",
    "UPDATE webhook.removed_endpoint SET ended_at = now() - interval '1 year';
     BEGIN; SELECT webhook.forget_removed_endpoints(0, 100); ROLLBACK",
    "SELECT webhook.expire_waiting(100)",
    "SELECT webhook.check_metrics()",
    "SELECT * FROM webhook.survey()",
];

/// Ordered, by ten keys, and coalesced, each by a key of its own.
const EMIT_WITH_KEYS: &str = "
    SELECT webhook_emit('type.1', ordering_key => (n % 10)::text, coalesce_key => n::text) FROM generate_series(1, $1) n";

#[test]
fn a_plan_made_for_an_empty_queue_serves_a_backlog_with_keys() {
    let cluster = Cluster::unattended();
    let database = cluster.database("keys");
    let mut client = planned_while_empty(&database, 1);
    // Statements about keys are planned with the first of them.
    client.execute(EMIT_WITH_KEYS, &[&2]).unwrap();
    client.batch_execute(&claim(BATCH as i32)).unwrap();
    client
        .batch_execute("DELETE FROM webhook.delivery")
        .unwrap();
    client.execute(EMIT_WITH_KEYS, &[&(QUEUED as i32)]).unwrap();
    every_call_reads_little(&mut client);
}

#[test]
fn the_search_for_a_probe_does_not_go_through_all_that_wait_for_their_turn() {
    let cluster = Cluster::unattended();
    let database = cluster.database("turns");
    let mut client = planned_while_empty(&database, 1);
    client.execute(EMIT_WITH_KEYS, &[&(QUEUED as i32)]).unwrap();
    // The deliveries in turn wait for their retry, behind all deliveries that have never been met.
    client.batch_execute(&claim(10)).unwrap();
    let open = "
        SELECT webhook.release_lost(array_agg(event_id), array_agg(endpoint_id)) FROM webhook.delivery_queue WHERE status = 'SENDING';
        UPDATE webhook.delivery_queue SET next_attempt_at = now() + interval '1 h' WHERE wait_reason = 'retry';
        INSERT INTO webhook.breaker (endpoint_id, state, trips, opened_at, probe_at) VALUES (1, 'OPEN', 1, now(), now());";
    client.batch_execute(open).unwrap();
    let before = index_reads(&mut client);
    client.batch_execute(&claim(BATCH as i32)).unwrap();
    let reads = index_reads(&mut client) - before;
    assert!(reads < QUEUED / 2, "{reads} index entries");

    // Call by call it gets there.
    let mut probing = false;
    for _ in 0..QUEUED / BATCH {
        client.batch_execute(&claim(BATCH as i32)).unwrap();
        let state = "SELECT state = 'HALF_OPEN' FROM webhook.breaker";
        probing = client.query_one(state, &[]).unwrap().get(0);
        if probing {
            break;
        }
    }
    assert!(probing);
}

#[test]
fn retries_are_brought_forward_past_all_that_wait_for_their_turn() {
    let cluster = Cluster::unattended();
    let database = cluster.database("forward");
    let mut client = planned_while_empty(&database, 1);
    client.execute(EMIT_WITH_KEYS, &[&(QUEUED as i32)]).unwrap();
    client.batch_execute(&claim(10)).unwrap();
    let close = "
        SELECT webhook.release_lost(array_agg(event_id), array_agg(endpoint_id)) FROM webhook.delivery_queue WHERE status = 'SENDING';
        UPDATE webhook.delivery_queue SET next_attempt_at = now() + interval '1 h' WHERE wait_reason = 'retry';
        UPDATE webhook.delivery_queue SET waits_for = event_id WHERE wait_reason = 'new';
        INSERT INTO webhook.breaker (endpoint_id, retries_before) VALUES (1, now());
        VACUUM webhook.delivery_queue;";
    for statement in close.split_inclusive(';') {
        client.batch_execute(statement).unwrap();
    }
    every_call_reads_little(&mut client);
}

#[test]
fn an_emit_planned_without_endpoints_serves_many() {
    const ENDPOINTS: i32 = 2_000;
    let cluster = Cluster::builder().setting("webhook.enabled = off").start();
    let database = cluster.database("endpoints");
    let mut client = database.connect();
    // Known to be empty, where a sequential scan costs nothing.
    client
        .batch_execute("VACUUM ANALYZE webhook.endpoint")
        .unwrap();
    let emits = "SELECT webhook_emit('type.' || n) FROM generate_series(1, $1) n;";
    let many = "SELECT webhook_emit_many(array_agg('type.' || n), array_agg('1'::jsonb)) FROM generate_series(1, $1) n";
    for _ in 0..10 {
        client.execute(emits, &[&2]).unwrap();
        client.execute(many, &[&2]).unwrap();
    }
    let add = "INSERT INTO webhook.endpoint (name, url, event_types, filter)
        SELECT n::text, 'http://127.0.0.1:1/', ARRAY['type.' || n], CASE WHEN n % 2 = 0 THEN '$.data != 0'::jsonpath END
        FROM generate_series(1, $1) n";
    client.execute(add, &[&ENDPOINTS]).unwrap();
    let before = endpoints_read(&mut client);
    client.execute(emits, &[&50]).unwrap();
    client.execute(many, &[&50]).unwrap();
    let named = "SELECT webhook_emit('type.7', endpoints => '{7}')";
    client.batch_execute(named).unwrap();
    let read = endpoints_read(&mut client) - before;
    assert!(read < 10 * 50, "{read} endpoints were read");
    let queued: i64 = client
        .query_one("SELECT count(*) FROM webhook.delivery_queue", &[])
        .unwrap()
        .get(0);
    assert_eq!(queued, 50 + 50 - 25 + 1, "an object is no number");
}

/// How many endpoints were read so far, by index or not.
fn endpoints_read(client: &mut Client) -> i64 {
    for statement in [
        "SELECT pg_stat_force_next_flush()",
        "SELECT pg_stat_clear_snapshot()",
    ] {
        client.batch_execute(statement).unwrap();
    }
    let read = "SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables WHERE relid = 'webhook.endpoint'::regclass";
    client.query_one(read, &[]).unwrap().get(0)
}

/// A session that has made its plans for a queue that it knows to be empty.
fn planned_while_empty(database: &Database, endpoints: i32) -> Client {
    let mut client = database.connect();
    let add = "INSERT INTO webhook.endpoint (name, url, event_types)
        SELECT n::text, 'http://127.0.0.1:1/', ARRAY['type.' || n] FROM generate_series(1, $1) n";
    client.execute(add, &[&endpoints]).unwrap();
    client.batch_execute("SET ROLE webhook_owner").unwrap();
    client
        .batch_execute("VACUUM ANALYZE webhook.delivery_queue, webhook.event, webhook.endpoint")
        .unwrap();
    for _ in 0..10 {
        client.batch_execute(AGENDA).unwrap();
        client.batch_execute(EXPIRE).unwrap();
        client.batch_execute(&claim(BATCH as i32)).unwrap();
        client.batch_execute(SETTLE).unwrap();
    }
    client
}

const AGENDA: &str =
    "SELECT d.* FROM webhook.agenda(0, 100) a, webhook.due(a.endpoint_ids, a.positions) d";
const EXPIRE: &str = "SELECT webhook.expire_overdue(100)";
const SETTLE: &str = "SELECT webhook.settle(
        array_agg(event_id), array_agg(endpoint_id), array_agg(claim_seq), array_agg(500), array_agg(NULL::text),
        array_agg(NULL::text), array_agg(NULL::text), array_agg(NULL::float8), array_agg(1), array_agg(1e12::float8))
    FROM webhook.delivery_queue WHERE status = 'SENDING' HAVING count(*) > 0";

fn claim(most: i32) -> String {
    claim_statement("1", most)
}

fn every_call_reads_little(client: &mut Client) {
    for call in [AGENDA, EXPIRE, &claim(BATCH as i32)] {
        let before = index_reads(client);
        client.batch_execute(call).unwrap();
        let reads = index_reads(client) - before;
        assert!(reads < READS, "{call} has read {reads} index entries");
    }
    // The test itself reads the queue by a sequential scan here.
    let before = index_reads(client);
    client.batch_execute(SETTLE).unwrap();
    let reads = index_reads(client) - before;
    assert!(reads < READS, "settle has read {reads} index entries");
}

fn index_reads(client: &mut Client) -> i64 {
    client
        .batch_execute("SELECT pg_stat_force_next_flush()")
        .unwrap();
    client
        .batch_execute("SELECT pg_stat_clear_snapshot()")
        .unwrap();
    let reads =
        "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = 'webhook'";
    client.query_one(reads, &[]).unwrap().get(0)
}

#[test]
fn a_look_at_a_long_queue_reads_no_more_than_it_counts() {
    const COUNTED: i64 = 10_000;
    const LONG: i64 = 4 * COUNTED;
    let cluster = Cluster::builder().setting("webhook.enabled = off").start();
    let database = cluster.database("status");
    let mut client = database.connect();
    let look = "SELECT queued, due, more, oldest_due > interval '0' FROM webhook_status()";
    client.batch_execute(look).unwrap();
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url, event_types)
         VALUES ('due', 'http://127.0.0.1:9/', '{{type.now}}'), ('later', 'http://127.0.0.1:9/', '{{type.later}}');
         SELECT count(*) FROM webhook_emit_many('type.later', array_fill('{{}}'::jsonb, ARRAY[{LONG}]), deliver_at => now() + interval '1 day');
         SELECT count(*) FROM webhook_emit_many('type.now', array_fill('{{}}'::jsonb, ARRAY[{COUNTED} - 1]))"
    ));
    // Exactly as many are due as are counted; other queued deliveries are not looked through for them.
    let seen = client.query_one(look, &[]).unwrap();
    let seen: (i64, i64, bool, bool) = (seen.get(0), seen.get(1), seen.get(2), seen.get(3));
    assert_eq!(seen, (COUNTED, COUNTED - 1, true, true));
    let reads_little = |client: &mut Client, call: &str| {
        let before = index_reads(client);
        client.batch_execute(call).unwrap();
        let reads = index_reads(client) - before;
        assert!(reads < 5 * COUNTED, "{call} has read {reads} index entries");
    };
    reads_little(&mut client, look);
    let look_at_endpoints = "SELECT queued, kept_back, failed, more FROM webhook.endpoint_status WHERE endpoint = 'later'";
    database.execute("VACUUM ANALYZE webhook.delivery_queue");
    reads_little(&mut client, look_at_endpoints);
    let seen = client.query_one(look_at_endpoints, &[]).unwrap();
    assert_eq!((seen.get(0), seen.get(3)), (COUNTED, true));
    reads_little(&mut client, "SELECT webhook.unsent()");

    database.execute("DELETE FROM webhook.delivery WHERE event_type = 'type.later'");
    let seen = client.query_one(look, &[]).unwrap();
    let seen: (i64, i64, bool) = (seen.get(0), seen.get(1), seen.get(2));
    assert_eq!(seen, (COUNTED - 1, COUNTED - 1, false));
}
