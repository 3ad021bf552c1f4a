//! A backlog of large payloads is claimed a few at a time, and is in nobody's way.

use webhook_e2e::{Cluster, Receiver};

/// A payload of this many bytes, nearly the most that is accepted.
const MEGABYTE: usize = 1_000_000;
/// Payloads that fit into the bounds of all endpoints and of one; each bound may be exceeded by one payload.
const OF_ALL: i64 = (32 << 20) / MEGABYTE as i64;
const OF_ONE: i64 = OF_ALL / 2;

#[test]
fn a_backlog_of_large_payloads_is_claimed_by_bytes_and_delays_nobody() {
    const BACKLOGS: i64 = 6;
    const SHOWN: i64 = 200;
    let cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 200")
        .start();
    let database = cluster.database("large");
    let receiver = Receiver::start();
    database.execute("INSERT INTO webhook.policy (name, timeout) VALUES ('slow', '10 min')");
    let emit = |count: i64, event_type: &str| {
        database.execute(&format!(
            "SELECT webhook_emit('{event_type}', jsonb_build_object('x', repeat('x', {MEGABYTE} - 100))) FROM generate_series(1, {count})"
        ));
    };
    let in_flight = |of: &str| -> i64 {
        database.query_one_value(&format!(
            "SELECT count(*) FROM webhook.delivery_queue WHERE status = 'SENDING' AND event_type LIKE '{of}'"
        ))
    };
    for backlog in 1..=BACKLOGS {
        let name = format!("slow{backlog}");
        let options =
            format!("event_types => '{{{name}}}', max_in_flight => 1000, policy => 'slow'");
        database.add_endpoint_with(&name, &receiver.url("/slow"), &options);
    }
    database.add_endpoint_with(
        "quick",
        &receiver.url("/quick"),
        "event_types => '{quick}', max_in_flight => 1000",
    );

    // Each shows first that it bears more than the bytes allow.
    let shown = (BACKLOGS * SHOWN) as usize;
    for backlog in 1..=BACKLOGS {
        database.execute(&format!(
            "SELECT webhook_emit('slow{backlog}') FROM generate_series(1, {SHOWN})"
        ));
    }
    receiver.wait_for_requests_to("/slow", shown);
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    receiver.hold("/slow");

    emit(2 * OF_ONE, "slow1");
    receiver.wait_for_requests_to("/slow", shown + OF_ONE as usize);
    emit(1, "quick");
    receiver.wait_for_requests_to("/quick", 1);
    assert!((OF_ONE..=OF_ONE + 1).contains(&in_flight("slow1")));

    for backlog in 2..=BACKLOGS {
        emit(2 * OF_ONE, &format!("slow{backlog}"));
    }
    receiver.wait_for_requests_to("/slow", shown + OF_ALL as usize);
    // The bound is reached, and an endpoint with nothing in flight still gets one after the other.
    emit(5, "quick");
    receiver.wait_for_requests_to("/quick", 6);
    assert!((OF_ALL..=OF_ALL + BACKLOGS).contains(&in_flight("slow%")));

    receiver.release("/slow");
    let all = (2 * OF_ONE + SHOWN) * BACKLOGS + 6;
    database.wait_until(&format!(
        "SELECT count(*) = {all} FROM webhook.delivery WHERE status = 'SENT'"
    ));
}
