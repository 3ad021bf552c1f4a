//! No statement of ours is compiled in a session of a user: that takes a hundred times as long as the statement.

use webhook_e2e::pg_config::missing_module;
use webhook_e2e::{Cluster, Receiver, untested};

#[test]
fn jit_compiles_no_statement_of_ours_in_a_users_session() {
    if untested::skip_if(missing_module(&["llvmjit", "pg_stat_statements"])) {
        return;
    }
    let cluster = Cluster::builder()
        .setting("shared_preload_libraries = 'webhook, pg_stat_statements'")
        .setting("pg_stat_statements.track = all")
        .setting("jit = on")
        // Above the cost of a statement that handles a few rows, and far below that of a plan with a disabled node.
        .setting("jit_above_cost = 1000")
        .start();
    let database = cluster.database("compiled");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint_with("orders", &receiver.url("/orders"), "max_in_flight => 1");
    database
        .execute("CREATE EXTENSION pg_stat_statements; CREATE TABLE orders (id int PRIMARY KEY)");
    let mut session = database.connect();
    let mut run = |sql: &str| {
        let result = session.batch_execute(sql);
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    };
    run("SELECT webhook_watch('orders', 'order')");
    run("SELECT pg_stat_statements_reset()");
    run("INSERT INTO orders SELECT generate_series(1, 3)");
    run("SELECT webhook_emit('order.created', coalesce_key => 'k') FROM generate_series(1, 3)");
    run("SELECT webhook_emit_many('order.created', ARRAY['{}', '{}']::jsonb[])");
    run(
        "SELECT webhook_emit('order.created', idempotency_key => 'k', ordering_key => 'k', endpoints => '{orders}')",
    );
    run("SELECT * FROM webhook_status()");
    run("SELECT webhook_emit('order.created', endpoints => '{orders}')");
    // A costly statement of this session is.
    run("SELECT sum(n) AS ours FROM generate_series(1, 200000) AS n");

    let compiled = |what: &str| -> Vec<String> {
        database.query_one_value(&format!(
            "SELECT coalesce(array_agg(query), '{{}}') FROM pg_stat_statements
             WHERE jit_functions > 0 AND {what}"
        ))
    };
    assert_eq!(
        compiled("query LIKE '%AS ours%'").len(),
        1,
        "jit works here"
    );
    let superseded: i64 = database
        .query_one_value("SELECT count(*) FROM webhook.delivery WHERE last_error = 'coalesced'");
    assert!(superseded > 0, "something was superseded");
    assert_eq!(compiled("NOT toplevel"), Vec::<String>::new());
}
