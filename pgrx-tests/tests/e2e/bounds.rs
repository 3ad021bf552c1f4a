//! Every page of upkeep has a limit in total, whatever the number of endpoints and the length of the queue.

use postgres::Client;
use webhook_e2e::{Cluster, Database, engine};

const ENDPOINTS: i64 = 20;
const OF_EACH: i64 = 10;
const PAGE: i64 = 30;

/// Endpoints with something due each, and a session like the worker's.
fn queue(cluster: &Cluster) -> (Database, Client) {
    let database = cluster.database("bounds");
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url) SELECT n::text, 'http://127.0.0.1:9/' FROM generate_series(1, {ENDPOINTS}) n;
         SELECT webhook_emit('order.created', ordering_key => n::text) FROM generate_series(1, {OF_EACH}) n"
    ));
    let mut client = database.connect();
    client.batch_execute("SET ROLE webhook_owner").unwrap();
    (database, client)
}

#[track_caller]
fn count(client: &mut Client, of: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {of}");
    client.query_one(&sql, &[]).unwrap().get(0)
}

/// Calls it again and again, each time for a page, until nothing is left in the queue.
#[track_caller]
fn ends_page_by_page(client: &mut Client, call: &str) {
    let mut left = count(client, "webhook.delivery_queue");
    assert_eq!(left, ENDPOINTS * OF_EACH);
    while left > 0 {
        let ended: i64 = client.query_one(call, &[]).unwrap().get(0);
        let now_left = count(client, "webhook.delivery_queue");
        assert_eq!(ended, PAGE.min(left), "{call}");
        assert_eq!(now_left, left - ended, "{call}");
        left = now_left;
    }
}

#[test]
fn deliveries_behind_many_open_breakers_are_turned_away_page_by_page() {
    let cluster = Cluster::unattended();
    let (database, mut client) = queue(cluster);
    database.execute(
        "SELECT webhook_copy_policy('transport', 'failing');
         UPDATE webhook.endpoint SET policy = 'failing';
         INSERT INTO webhook.breaker (endpoint_id, state, trips, opened_at, probe_at)
         SELECT id, 'OPEN', 1, now(), now() + interval '1 h' FROM webhook.endpoint",
    );
    let call = format!("SELECT webhook.turn_away(array_agg(id), {PAGE}) FROM webhook.endpoint");
    ends_page_by_page(&mut client, &call);
}

#[test]
fn deliveries_that_many_endpoints_have_held_for_too_long_fail_page_by_page() {
    let cluster = Cluster::unattended();
    let (database, mut client) = queue(cluster);
    database.execute("UPDATE webhook.endpoint SET paused_at = now() - interval '30 days'");
    database.execute_as_engine(
        "UPDATE webhook.delivery_queue SET next_attempt_at = now() - interval '20 days'",
    );
    ends_page_by_page(
        &mut client,
        &format!("SELECT webhook.expire_kept_back({PAGE})"),
    );
}

#[test]
fn deliveries_of_many_removed_endpoints_end_page_by_page() {
    let cluster = Cluster::unattended();
    let (database, mut client) = queue(cluster);
    database.execute("DELETE FROM webhook.endpoint");
    let call = format!("SELECT ended FROM webhook.end_orphans(0, {PAGE})");
    ends_page_by_page(&mut client, &call);
    let cancelled = "webhook.delivery_history WHERE status = 'CANCELLED'";
    assert_eq!(count(&mut client, cancelled), ENDPOINTS * OF_EACH);
}

#[test]
fn the_look_for_orphans_goes_on_after_the_endpoints_that_have_none() {
    let cluster = Cluster::unattended();
    let (database, mut client) = queue(cluster);
    database.execute(
        "INSERT INTO webhook.endpoint (id, name, url, event_types) VALUES (1000, 'last', 'http://127.0.0.1:9/', '{order.paid}');
         SELECT webhook_emit('order.paid', endpoints => '{last}');
         DELETE FROM webhook.endpoint WHERE id = 1000;
         INSERT INTO webhook.removed_endpoint (id, name) SELECT n, n::text FROM generate_series(100, 799) n",
    );
    let mut after = 0;
    let mut ended = 0;
    for _ in 0..10 {
        let call = format!("SELECT ended, after_endpoint FROM webhook.end_orphans({after}, 1000)");
        let row = client.query_one(&call, &[]).unwrap();
        ended += row.get::<_, i64>(0);
        after = row.get(1);
        if after == 0 {
            break;
        }
    }
    assert_eq!((ended, after), (1, 0));
}

#[test]
fn lost_claims_are_found_page_by_page_and_each_page_reads_no_more() {
    const QUEUED: i64 = 20_000;
    let cluster = Cluster::unattended();
    let database = cluster.database("bounds");
    engine::add_endpoint(&database);
    let mut client = database.connect();
    client.batch_execute("SET ROLE webhook_owner").unwrap();
    client
        .batch_execute("SELECT webhook.recover(2, '{}', '{}')")
        .unwrap();
    database.execute(&format!(
        "SELECT count(*) FROM webhook_emit_many('order.created', array_fill('{{}}'::jsonb, ARRAY[{QUEUED}]))"
    ));
    database.execute_as_engine(
        "UPDATE webhook.delivery_queue SET status = 'SENDING', attempts = 1, claimed_by = 1000000, claimed_at = now()
         WHERE event_id IN (SELECT event_id FROM webhook.delivery_queue WHERE random() < 0.01)",
    );
    let claims = count(
        &mut client,
        "webhook.delivery_queue WHERE status = 'SENDING'",
    );
    assert!(claims > 0);
    let read = "SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes WHERE indexrelname = 'delivery_queue_pkey'";
    let reads = |client: &mut Client| -> i64 {
        client
            .batch_execute("SELECT pg_stat_force_next_flush()")
            .unwrap();
        client
            .batch_execute("SELECT pg_stat_clear_snapshot()")
            .unwrap();
        client.query_one(read, &[]).unwrap().get(0)
    };
    let mut place: (Option<uuid::Uuid>, Option<i32>) = (None, None);
    let (mut released, mut pages) = (0, 0);
    loop {
        let before = reads(&mut client);
        let recover = "SELECT released, after_event, after_endpoint FROM webhook.recover(2, '{}', '{}', $1, $2, 1000)";
        let row = client.query_one(recover, &[&place.0, &place.1]).unwrap();
        let page_reads = reads(&mut client) - before;
        assert!(page_reads < 1_500, "{page_reads} index entries");
        released += row.get::<_, i64>(0);
        place = (row.get(1), row.get(2));
        pages += 1;
        if place.0.is_none() {
            break;
        }
    }
    assert_eq!((released, pages), (claims, QUEUED / 1000 + 1));
}

#[test]
fn lost_turns_are_passed_on_page_by_page() {
    let cluster = Cluster::unattended();
    let (database, mut client) = queue(cluster);
    // The lanes belong to deliveries that are gone, and all deliveries wait for these.
    database.execute_as_engine(
        "INSERT INTO webhook.lane (endpoint_id, ordering_key, event_id)
         SELECT q.endpoint_id, q.ordering_key, '00000000-0000-0000-0000-000000000001' FROM webhook.delivery_queue q
         WHERE q.endpoint_id <= 10;
         UPDATE webhook.delivery_queue SET waits_for = '00000000-0000-0000-0000-000000000001'",
    );
    let waiting = "webhook.delivery_queue WHERE waits_for IS NOT NULL";
    type Lane = (Option<i32>, Option<String>);
    type Follower = (Option<i32>, Option<String>, Option<uuid::Uuid>);
    let (mut lane, mut follower) = (Lane::default(), Follower::default());
    let mut left = count(&mut client, waiting);
    for _ in 0..2 * ENDPOINTS {
        let call = format!(
            "SELECT lane_endpoint, lane_key, follower_endpoint, follower_key, follower_event
             FROM webhook.keep_order($1, $2, $3, $4, $5, {PAGE})"
        );
        let row = client
            .query_one(
                &call,
                &[&lane.0, &lane.1, &follower.0, &follower.1, &follower.2],
            )
            .unwrap();
        lane = (row.get(0), row.get(1));
        follower = (row.get(2), row.get(3), row.get(4));
        let now_left = count(&mut client, waiting);
        assert!(left - now_left <= 2 * PAGE, "{left} and then {now_left}");
        left = now_left;
    }
    assert_eq!(left, 0);
}

#[test]
fn a_long_queue_of_a_removed_endpoint_ends_as_its_removal_has_said() {
    const QUEUED: i64 = 2_500;
    let cluster = Cluster::shared();
    for (pending, table) in [
        (
            "cancel",
            "webhook.delivery_history WHERE status = 'CANCELLED'",
        ),
        ("fail", "webhook.dead_letter"),
    ] {
        let database = cluster.database("removal");
        let mut client = database.connect();
        database.add_endpoint("orders", "http://127.0.0.1:9/");
        database.pause_all();
        database.execute(&format!(
            "SELECT count(*) FROM webhook_emit_many('order.created', array_fill('{{}}'::jsonb, ARRAY[{QUEUED}]))"
        ));
        let mut removal = client.transaction().unwrap();
        removal
            .execute("SELECT webhook_remove_endpoint('orders', $1)", &[&pending])
            .unwrap();
        let at_once: i64 = removal
            .query_one(&format!("SELECT count(*) FROM {table}"), &[])
            .unwrap()
            .get(0);
        assert_eq!(at_once, 1_000, "{pending}");
        removal.commit().unwrap();
        database.wait_until(&format!("SELECT count(*) = {QUEUED} FROM {table}"));
        database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)");
    }
}
