//! docs/scale.md: endpoints are read as one document and made from it elsewhere.

use serde_json::Value;
use webhook_e2e::{Cluster, Database};

const PAGE: &str = include_str!("../../../docs/scale.md");

/// The statements of its last section.
fn statements() -> [&'static str; 3] {
    let (_, section) = PAGE
        .split_once("### Endpoints for another node")
        .expect("it is there");
    let mut blocks = section.split("```sql\n").skip(1);
    [(); 3].map(|()| {
        let block = blocks.next().expect("there are three");
        block
            .split("```")
            .next()
            .expect("it ends")
            .trim_end_matches(";\n")
    })
}

fn endpoints(database: &Database) -> Value {
    database.query_one_value(
        "SELECT jsonb_agg(to_jsonb(e) - '{id, origin, created_at}'::text[]
                          || jsonb_build_object('secrets', (SELECT jsonb_agg(s.secret ORDER BY s.secret) FROM webhook.secret s
                                                             WHERE s.endpoint_id = e.id))
                          ORDER BY e.tenant, e.name)
         FROM webhook.endpoint e",
    )
}

#[test]
fn an_administrator_takes_all_endpoints_to_another_node_by_one_statement_each() {
    let cluster = Cluster::shared();
    let [here, there] = ["here", "there"].map(|name| cluster.database(name));
    here.execute("SELECT webhook_set_endpoint('orders', 'https://example.invalid/orders')");
    here.execute(
        r#"SELECT webhook_set_endpoint('acme/all', 'https://example.invalid/all', ARRAY['order.*', 'user.*'],
               headers => '{"X-Key": "one {{hmac_hex(body)}}"}', hmac_secret => 'of a receiver', format => 'template', template => '{"text": "{{type}}"}',
               filter => '$.data.total > 10', max_in_flight => 7, rate_limit => 2.5,
               metadata => '{"team": "shop"}')"#,
    );
    // One has a key beside its secret, and one in its place.
    here.execute(
        "SELECT webhook_set_endpoint('signed', 'https://example.invalid/signed');
         SELECT webhook_rotate_key(name) FROM unnest('{orders, signed}'::text[]) AS name;
         DELETE FROM webhook.secret s USING webhook.endpoint e
         WHERE e.id = s.endpoint_id AND e.name = 'signed' AND s.secret LIKE 'whsec%'",
    );
    let admin = format!("admin_of_{}", here.name());
    here.execute(&format!("CREATE ROLE {admin}"));
    for database in [&here, &there] {
        database.execute(&format!("SELECT webhook_grant('{admin}', 'admin')"));
    }
    let as_admin = |database: &Database| {
        let mut client = database.connect();
        client
            .batch_execute(&format!("SET ROLE {admin}"))
            .expect("a superuser may");
        client
    };

    let [export, import, import_keys] = statements();
    let exported: Value = as_admin(&here)
        .query_one(export, &[])
        .expect("an administrator may")
        .get(0);
    let mut other = as_admin(&there);
    let made = other
        .query(import, &[&exported])
        .expect("an administrator may");
    assert_eq!(made.len(), 3);
    let keyed = other
        .query(import_keys, &[&exported])
        .expect("an administrator may");
    assert_eq!(keyed.len(), 3);
    assert_eq!(endpoints(&there), endpoints(&here));

    // Once more changes nothing.
    for import in [import, import_keys] {
        for row in other
            .query(import, &[&exported])
            .expect("it may be repeated")
        {
            assert_eq!(row.get::<_, Vec<String>>("changed"), Vec::<String>::new());
        }
    }
}
