//! The level `relay`: a program that faces a network gets what its claims need, and no value that it reports breaks more
//! than the report.

use postgres::Client;
use serde_json::{Value, json};
use webhook_e2e::{Cluster, Database};

/// A database whose worker claims nothing, and a session of a role that has this level alone.
struct Stage {
    database: Database,
    role: String,
    session: Client,
}

impl Stage {
    fn set(name: &str) -> Stage {
        let database = Cluster::idle().database(name);
        let role = format!("{}_relay", database.name());
        database.execute(&format!(
            "CREATE ROLE {role} LOGIN; SELECT webhook_grant('{role}', 'relay')"
        ));
        let session = database.connect_as(&role);
        Stage {
            database,
            role,
            session,
        }
    }

    fn add_endpoint(&self, name: &str, options: &str) -> i32 {
        let url = format!("http://127.0.0.1:9/{name}");
        self.database.add_endpoint_with(name, &url, options);
        self.id(name)
    }

    fn id(&self, name: &str) -> i32 {
        let id = format!("SELECT id FROM webhook.endpoint WHERE name = '{name}'");
        self.database.query_one_value(&id)
    }

    /// Asks for one delivery of each endpoint, with the stamps of routes that it knows.
    fn claim(&mut self, endpoints: &[i32], known: &[Option<String>]) -> Claimed {
        let ones = vec![1; endpoints.len()];
        let rooms = vec![1_000_000_i64; endpoints.len()];
        let rows = self.session.query(
            "SELECT event_id::text, endpoint_id, claim_seq, report::text
             FROM webhook.exchange('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', $1, NULL, 1, $2, $3, 1000000, $4)",
            &[&endpoints, &ones, &rooms, &known],
        );
        let rows = rows.unwrap();
        let (report, claims) = rows.split_last().expect("a report");
        let report: Value = serde_json::from_str(report.get(3)).unwrap();
        Claimed {
            claims: claims
                .iter()
                .map(|row| (row.get(0), row.get(1), row.get(2)))
                .collect(),
            routes: report["routes"].as_array().cloned().unwrap_or_default(),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let role = &self.role;
        let _ = (self.database.connect())
            .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    }
}

struct Claimed {
    claims: Vec<(String, i32, i64)>,
    routes: Vec<Value>,
}

impl Claimed {
    fn endpoints(&self) -> Vec<i32> {
        self.claims
            .iter()
            .map(|(_, endpoint, _)| *endpoint)
            .collect()
    }

    fn routed(&self) -> Vec<i64> {
        let ids = self
            .routes
            .iter()
            .filter_map(|route| route["endpoint_id"].as_i64());
        ids.collect()
    }
}

#[test]
fn a_sender_gets_the_routes_of_its_claims_and_no_other() {
    let mut stage = Stage::set("routes");
    let open = stage.add_endpoint("open", "event_types => '{order.*}'");
    let secrets = r#"event_types => '{never}', headers => '{"Authorization": "Bearer HUSH"}'"#;
    let idle = stage.add_endpoint("idle", secrets);
    let paused = stage.add_endpoint("paused", "event_types => '{order.*}'");
    stage.database.execute("SELECT webhook_pause('paused')");
    stage.database.emit("order.created", json!({}));

    let all = [open, idle, paused, 1_000_000];
    let claimed = stage.claim(&all, &[None, None, None, None]);
    assert_eq!(claimed.endpoints(), [open]);
    assert_eq!(claimed.routed(), [i64::from(open)]);
    // Nothing is due any more.
    assert_eq!(
        stage.claim(&all, &[None, None, None, None]).routed(),
        [0_i64; 0]
    );
    // The others are no different when something is due there.
    stage.database.execute("SELECT webhook_resume('paused')");
    let claimed = stage.claim(&all, &[None, None, None, None]);
    assert_eq!(claimed.routed(), [i64::from(paused)]);
}

#[test]
fn a_sender_gets_a_changed_route_with_its_next_claim() {
    let mut stage = Stage::set("changed");
    let orders = stage.add_endpoint("orders", "event_types => '{order.*}'");
    for _ in 0..5 {
        stage.database.emit("order.created", json!({}));
    }
    let route = stage.claim(&[orders], &[None]).routes.remove(0);
    let known = || [route["stamp"].as_str().map(str::to_owned)];
    assert_eq!(route["url"], "http://127.0.0.1:9/orders");
    assert_eq!(stage.claim(&[orders], &known()).routes.len(), 0);

    stage
        .database
        .execute("UPDATE webhook.endpoint SET url = 'http://127.0.0.1:9/moved'");
    let moved = stage.claim(&[orders], &known()).routes.remove(0);
    assert_eq!(moved["url"], "http://127.0.0.1:9/moved");
    let known = [moved["stamp"].as_str().map(str::to_owned)];
    assert_eq!(stage.claim(&[orders], &known).routes.len(), 0);

    let secret: String = stage
        .database
        .query_one_value("SELECT webhook_rotate_secret('orders')");
    let rotated = stage.claim(&[orders], &known).routes.remove(0);
    assert_eq!(rotated["secrets"][0], secret);
}
