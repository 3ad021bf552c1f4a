//! The pace of retention, and its cost.

use postgres::Client;
use webhook_e2e::{Cluster, Receiver};

use super::retention::{
    cluster_that_keeps_everything, database, keep_as_by_default, past, wait_until,
};

#[test]
fn a_flow_of_one_kind_keeps_no_other_from_going() {
    const STEP: usize = 10;
    let cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    let mut client = database.connect();
    client
        .batch_execute(&format!(
            "SET webhook.retention_sent = '7d';
             SET webhook.retention_failed = '30d';
             SELECT past('SENT', '8 days') FROM generate_series(1, {STEP} + 1);
             SELECT past('FAILED', '40 days'), past_event('9 days');
             INSERT INTO webhook.idempotency (tenant, key, event_id, created_at)
             VALUES ('', 'old', webhook.new_id(), now() - interval '2 days')"
        ))
        .unwrap();
    let step = format!("SELECT more, behind FROM webhook.expire({STEP}, NULL, NULL, NULL, NULL)");
    let left = "SELECT (SELECT count(*) FROM webhook.delivery_history), (SELECT count(*) FROM webhook.dead_letter),
                       (SELECT count(*) FROM webhook.idempotency)";
    let mut expire = || {
        let said = client.query_one(&step, &[]).unwrap();
        let left = client.query_one(left, &[]).unwrap();
        let counts: (i64, i64, i64) = (left.get(0), left.get(1), left.get(2));
        (said.get::<_, bool>(0), said.get::<_, bool>(1), counts)
    };
    assert_eq!(expire(), (true, true, (1, 0, 0)));
    assert_eq!(expire(), (false, false, (0, 0, 0)));
}

#[test]
fn old_events_that_are_needed_make_retention_look_on_but_not_hurry() {
    let cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    let mut client = database.connect();
    client
        .batch_execute(
            "SET webhook.retention_sent = '7d';
             SELECT past('FAILED', '8 days') FROM generate_series(1, 20)",
        )
        .unwrap();
    let step = "SELECT more, behind FROM webhook.expire(10, NULL, NULL, NULL, NULL)";
    let said = client.query_one(step, &[]).unwrap();
    assert_eq!((said.get(0), said.get(1)), (true, false));
}

/// A first step takes 200 rows, and the rows that it leaves make the next ones larger and closer together: the time
/// from one to the next is four times that of a step, and not twenty times. Each is slow, so that it outlasts
/// whatever else keeps the machine busy.
#[test]
fn retention_that_is_behind_removes_more_in_a_step_and_rests_less() {
    const EXPIRED: i64 = 10_000;
    let mut cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    database.execute(&format!(
        "INSERT INTO webhook.delivery_history
             (event_id, endpoint_id, event_type, status, attempts, max_attempts, created_at, completed_at)
         SELECT webhook.new_id(), e.id, 'past.event', 'SENT', 1, 3, at, at
         FROM webhook.endpoint e, generate_series(1, {EXPIRED}) n, LATERAL (SELECT now() - interval '8 days' + n * interval '1 ms') t (at);
         CREATE TABLE step (id bigint GENERATED ALWAYS AS IDENTITY, begun timestamptz, ended timestamptz, removed bigint);
         CREATE FUNCTION count_step() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
             PERFORM pg_sleep(0.1) WHERE EXISTS (SELECT FROM gone);
             INSERT INTO public.step (begun, ended, removed) SELECT now(), clock_timestamp(), count(*) FROM gone HAVING count(*) > 0;
             RETURN NULL;
         END $$;
         CREATE TRIGGER count_step AFTER DELETE ON webhook.delivery_history REFERENCING OLD TABLE AS gone
             FOR EACH STATEMENT EXECUTE FUNCTION count_step()"
    ));
    keep_as_by_default(&mut cluster);
    let all_are_gone = format!("SELECT coalesce(sum(removed), 0) = {EXPIRED} FROM step");
    wait_until(&database, &all_are_gone);
    let removed: Vec<i64> =
        database.query_one_value("SELECT array_agg(removed ORDER BY id) FROM step");
    assert_eq!(removed[0], 200);
    let full = removed.iter().filter(|removed| **removed == 1_000).count();
    assert_eq!((full, removed.len()), (9, 11), "{removed:?}");
    let rest: f64 = database.query_one_value(
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM s.until_next) / extract(epoch FROM s.took))
         FROM (SELECT lead(begun) OVER (ORDER BY id) - begun AS until_next, ended - begun AS took FROM step) s",
    );
    assert!(rest < 12.0, "{rest} times what a step takes");
}

#[test]
fn status_says_how_far_retention_is_behind() {
    let database = database(Cluster::shared(), &Receiver::start());
    past(&database, "SENT", "6 days 23:00");
    let fine = "SELECT retention_lag = interval '0' AND coalesce(reason, '') !~ 'retention' FROM webhook_status()";
    wait_until(&database, fine);
    // A trigger is the only thing that keeps rows which nobody has locked.
    database.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER keep BEFORE DELETE ON webhook.delivery_history FOR EACH ROW EXECUTE FUNCTION keep();
         CREATE TRIGGER keep BEFORE DELETE ON webhook.dead_letter FOR EACH ROW EXECUTE FUNCTION keep()",
    );
    past(&database, "SENT", "7 days 00:02");
    let lag_is = |from: &str, to: &str, says: bool| {
        database.wait_until(&format!(
            "SELECT retention_lag BETWEEN '{from}' AND '{to}' AND (coalesce(reason, '') ~ 'retention is behind') = {says}
             FROM webhook_status()"
        ))
    };
    lag_is("2 min", "9 min", false);
    past(&database, "SENT", "7 days 03:00");
    lag_is("3 h", "3 h 59 min", true);
    past(&database, "FAILED", "32 days");
    lag_is("2 days", "2 days 1 h", true);

    database.execute("DROP FUNCTION keep CASCADE");
    wait_until(&database, fine);
}

#[test]
fn a_step_planned_on_empty_tables_reads_little_of_full_ones() {
    const ROWS: i64 = 10_000;
    const STEP: i64 = 100;
    let cluster = cluster_that_keeps_everything();
    let database = database(&cluster, &Receiver::start());
    database.pause_all();
    database.execute(
        "VACUUM ANALYZE webhook.event, webhook.delivery_queue, webhook.delivery_history, webhook.dead_letter, webhook.attempt,
                        webhook.stat, webhook.endpoint",
    );
    let mut client = database.connect();
    let expire = format!("SELECT * FROM webhook.expire({STEP}, NULL, NULL, NULL, NULL)");
    let expire_figures = "SELECT webhook.expire_figures(0, 100)";
    client
        .batch_execute("SET webhook.retention_sent = '7d'; SET webhook.retention_failed = '30d'")
        .unwrap();
    client.batch_execute(&expire).unwrap();
    client.batch_execute(expire_figures).unwrap();

    client
        .batch_execute(&format!(
            "SELECT past('SENT', '8 days'), past('FAILED', '20 days'), past_event('8 days'), webhook_emit('order.created')
             FROM generate_series(1, {ROWS});
             INSERT INTO webhook.stat (endpoint_id, grain, begins_at)
             SELECT 1000 + n / 10, 'minute', now() - n % 10 * interval '10 hours' FROM generate_series(1, {ROWS}) n"
        ))
        .unwrap();
    for call in [expire.as_str(), expire_figures] {
        let pages = pages_read(&mut client, call);
        assert!(
            (1..50 * STEP).contains(&pages),
            "{call} has read {pages} pages"
        );
    }
    // Past all the deliveries: the same with events alone.
    client
        .batch_execute("TRUNCATE webhook.delivery_history")
        .unwrap();
    let pages = pages_read(&mut client, &expire);
    assert!((1..50 * STEP).contains(&pages), "events: {pages} pages");
}

/// By this call alone: autovacuum and the worker read the same tables meanwhile.
fn pages_read(client: &mut Client, call: &str) -> i64 {
    let explained = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}");
    let plan: serde_json::Value = client.query_one(&explained, &[]).unwrap().get(0);
    let pages = |kind: &str| plan[0]["Plan"][kind].as_i64().expect("a number of pages");
    pages("Shared Hit Blocks") + pages("Shared Read Blocks")
}
