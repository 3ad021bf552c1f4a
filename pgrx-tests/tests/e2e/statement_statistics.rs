//! What the server shows of statements has no credential and no payload in it: pg_stat_statements, pg_stat_activity and
//! the log, for all statements of ours, and for calls with parameters. A literal that a user writes is the user's.

use postgres::types::ToSql;
use serde_json::json;
use webhook_e2e::pg_config::{major_version, missing_module};
use webhook_e2e::{Answer, Cluster, Receiver, Relay, untested, wait};

/// In every value that must not be seen.
const HUSH: &str = "Hu5hHu5h";
/// A key of the specification of Standard Webhooks.
const PRIVATE_KEY: &str =
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
/// Hu5hHu5h, four times.
const SECRET: &str = "whsec_Hu5hHu5hHu5hHu5hHu5hHu5hHu5hHu5h";

#[track_caller]
fn call(session: &mut postgres::Client, sql: &str, parameters: &[&(dyn ToSql + Sync)]) {
    let result = session.query(sql, parameters);
    result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// The parts of the text that must not be there.
fn shown(text: &str) -> Vec<&str> {
    let key = &PRIVATE_KEY["whsk_".len()..40];
    let hushed = |line: &&str| line.contains(HUSH) || line.contains(key);
    text.lines().filter(hushed).collect()
}

#[test]
fn statistics_activity_and_log_show_no_credential_and_no_payload() {
    if untested::skip_if(missing_module(&["pg_stat_statements", "auto_explain"])) {
        return;
    }
    let mut cluster = Cluster::builder()
        .setting("shared_preload_libraries = 'webhook, pg_stat_statements, auto_explain'")
        .setting("pg_stat_statements.track = all")
        .setting("pg_stat_statements.track_utility = on")
        .setting("track_activity_query_size = '64kB'")
        .setting("log_statement = all")
        .setting("log_min_duration_statement = 0")
        .setting("log_parameter_max_length = 0")
        .setting("auto_explain.log_min_duration = 0")
        .setting("auto_explain.log_nested_statements = on")
        .setting("fsync = off");
    // Earlier versions of auto_explain log no parameters, and do not know the setting.
    if major_version("PG_CONFIG") >= 16 {
        cluster = cluster.setting("auto_explain.log_parameter_max_length = 0");
    }
    let cluster = cluster.start();
    let database = cluster.database("watched");
    database.execute(
        "CREATE EXTENSION pg_stat_statements; CREATE ROLE monitor LOGIN IN ROLE pg_monitor; CREATE ROLE relay LOGIN;
         SELECT webhook_grant('relay', 'relay');
         CREATE TABLE notes (id int PRIMARY KEY, note text);
         SELECT webhook_watch('notes', 'note', ordering_key => '{note}')",
    );
    let receiver = Receiver::start();
    receiver.respond("/failing", |_, _| Answer::status(500).body(HUSH));
    let mut session = database.connect();

    // Everything with parameters, all of which are secret.
    let path = format!("/orders?token={HUSH}");
    let headers =
        json!({"Authorization": format!("Bearer {HUSH}"), "X-Signature": "{{hmac_hex(body)}}"});
    let template = json!({"text": format!("{HUSH} {{{{data.card}}}}")});
    let filter = format!("$.data.card != \"{HUSH} other\"");
    let metadata = json!({"note": HUSH});
    call(
        &mut session,
        "SELECT webhook_set_endpoint('orders', $1, headers => $2, hmac_secret => $3, secret => $4, format => 'template',
                                     template => $5, filter => $6::text::jsonpath, metadata => $7, policy => 'fast')",
        &[&receiver.url(&path), &headers, &HUSH, &SECRET, &template, &filter, &metadata],
    );
    let failing = receiver.url(&format!("/failing?token={HUSH}"));
    call(
        &mut session,
        "SELECT webhook_set_endpoint('failing', $1, event_types => '{note.*}', policy => 'fast')",
        &[&failing],
    );
    call(
        &mut session,
        "SELECT webhook_rotate_secret('orders', secret => $1)",
        &[&SECRET.replace("whsec_Hu5h", "whsec_hU5h")],
    );
    call(
        &mut session,
        "SELECT webhook_rotate_key('orders', key => $1)",
        &[&PRIVATE_KEY],
    );
    let other = format!("another {HUSH}");
    call(
        &mut session,
        "SELECT webhook_rotate_hmac_secret('orders', secret => $1)",
        &[&other],
    );
    for reads in [
        "SELECT webhook_secret('orders'), webhook_hmac_secret('orders'), webhook_public_key('orders')",
        "SELECT * FROM webhook.endpoint_status",
        "SELECT * FROM webhook.endpoint",
        "SELECT webhook_why('orders')",
        "SELECT webhook_why()",
    ] {
        call(&mut session, reads, &[]);
    }
    let payload = json!({"card": HUSH});
    call(
        &mut session,
        "SELECT webhook_emit('order.created', $1, idempotency_key => $2, ordering_key => $2, coalesce_key => $2)",
        &[&payload, &HUSH],
    );
    let row = session
        .query_one("SELECT webhook_emit('order.created', $1)", &[&payload])
        .unwrap();
    let event: uuid::Uuid = row.get(0);
    call(
        &mut session,
        "SELECT webhook_emit_many('order.created', ARRAY[$1, $1]::jsonb[])",
        &[&payload],
    );
    call(
        &mut session,
        "INSERT INTO notes VALUES (1, $1), (2, $1)",
        &[&HUSH],
    );
    call(&mut session, "UPDATE notes SET note = $1", &[&other]);
    call(&mut session, "DELETE FROM notes", &[]);
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    for sql in [
        "SELECT webhook_preview($1, 'orders')",
        "SELECT webhook_why($1::uuid::text)",
        "SELECT webhook_replay($1)",
    ] {
        call(&mut session, sql, &[&event]);
    }
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");
    for sql in [
        "CALL webhook_replay_all('failing')",
        "CALL webhook_backfill('orders', NULL)",
        "CALL webhook_test('orders')",
        "SELECT webhook_pause('orders')",
        "SELECT webhook_resume('orders')",
        "SELECT webhook_reset_breaker('failing')",
        "UPDATE webhook.delivery SET status = 'PENDING' WHERE status = 'FAILED'",
        "SELECT * FROM webhook.failed",
    ] {
        session
            .batch_execute(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    // A relay takes its part of the endpoints, from the first one on.
    let connection = format!(
        "host=127.0.0.1 port={} user=relay dbname={}",
        cluster.port(),
        database.name()
    );
    database.execute("ALTER SYSTEM SET webhook.max_in_flight = 0");
    database.execute("SELECT pg_reload_conf()");
    let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &connection, &[]);
    call(
        &mut session,
        "SELECT webhook_emit('order.created', $1)",
        &[&payload],
    );
    database.wait_until("SELECT count(*) = 0 FROM webhook.delivery_queue");

    // A literal is seen, so values are looked for in the right places.
    database.execute("COMMENT ON TABLE notes IS 'a literal of a user'");

    // What is refused, is logged as a statement and as an error.
    let short = format!("whsec_{HUSH}");
    let long = HUSH.repeat(2000);
    let refused: [(&str, &[&(dyn ToSql + Sync)]); 9] = [
        (
            "SELECT webhook_rotate_secret('orders', secret => $1)",
            &[&short],
        ),
        ("SELECT webhook_rotate_key('orders', key => $1)", &[&short]),
        (
            "SELECT webhook_rotate_hmac_secret('orders', secret => $1)",
            &[&long],
        ),
        (
            "INSERT INTO webhook.secret (endpoint_id, secret) SELECT id, $1 FROM webhook.endpoint WHERE name = 'orders'",
            &[&SECRET],
        ),
        (
            "INSERT INTO webhook.secret (endpoint_id, secret) VALUES (NULL, $1)",
            &[&SECRET],
        ),
        (
            "UPDATE webhook.endpoint SET url = $1 WHERE name = 'orders'",
            &[&"ftp://Hu5hHu5h/"],
        ),
        (
            "UPDATE webhook.endpoint SET disabled_at = now() WHERE name = 'orders'",
            &[],
        ),
        (
            "UPDATE webhook.endpoint SET headers = jsonb_build_object('X-Long', $1::text) WHERE name = 'orders'",
            &[&long],
        ),
        ("SELECT webhook_emit('order created', $1)", &[&payload]),
    ];
    for (sql, parameters) in refused {
        assert!(session.query(sql, parameters).is_err(), "{sql}");
    }

    let mut monitor = database.connect_as("monitor");
    let statements = monitor
        .query("SELECT query FROM pg_stat_statements", &[])
        .unwrap();
    let statements: Vec<String> = statements.iter().map(|row| row.get(0)).collect();
    // The statements of functions, the worker and the relay are among them.
    for known in [
        "INSERT INTO webhook.secret",
        "FROM webhook.exchange(",
        "INSERT INTO webhook.event",
        "SELECT webhook.begin_sender(",
        "a literal of a user",
    ] {
        assert!(
            statements.iter().any(|statement| statement.contains(known)),
            "no statement with {known}"
        );
    }
    assert_eq!(shown(&statements.join("\n")), Vec::<&str>::new());

    let activity = monitor
        .query(
            "SELECT query FROM pg_stat_activity WHERE query IS NOT NULL",
            &[],
        )
        .unwrap();
    let activity: Vec<String> = activity.iter().map(|row| row.get(0)).collect();
    assert!(activity.len() > 1, "{activity:?}");
    assert_eq!(shown(&activity.join("\n")), Vec::<&str>::new());
    let others = monitor
        .query(
            "SELECT DISTINCT tablename FROM pg_stats WHERE schemaname = 'webhook'",
            &[],
        )
        .unwrap();
    assert!(others.is_empty());

    // The log has statements, errors and what the worker said.
    wait::until_true("the log to be written", || {
        cluster.log().contains("webhook_emit('order created'")
    });
    let log = cluster.log();
    for known in [
        "signing secret is not valid",
        "a literal of a user",
        "Query Text",
    ] {
        assert!(log.contains(known), "{known} is not in the log: {log}");
    }
    assert_eq!(shown(&log), Vec::<&str>::new());
    assert_eq!(shown(&relay.log()), Vec::<&str>::new());
}
