//! Recipes of the documentation, run as they are written.

use postgres::fallible_iterator::FallibleIterator;
use serde_json::{Value, json};
use webhook_e2e::{Answer, Cluster, Receiver, wait};

/// The blocks of code in a section, in this language alone.
pub fn blocks<'a>(page: &'a str, heading: &str, language: &str) -> Vec<&'a str> {
    let (_, section) = page.split_once(heading).expect("the section is there");
    let section = section.split("\n## ").next().unwrap();
    let section = section.split("\n### ").next().unwrap();
    (section.split("```").skip(1).step_by(2))
        .filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'))
        .collect()
}

#[test]
fn what_is_watched_in_psql_fits_a_terminal() {
    let (database, receiver) = (Cluster::shared().database("watched"), Receiver::start());
    receiver.respond("/down", |_, _| Answer::status(503));
    database.add_guarding_policy("guarding", 3, "");
    let name = "a-name-that-is-longer-than-most-names-of-endpoints-are";
    let options = "'{order.*}', policy => 'guarding'";
    database.add_endpoint_with(&format!("acme/{name}"), &receiver.url("/down"), options);
    database.execute(
        "SELECT webhook_emit('order.created', tenant => 'acme') FROM generate_series(1, 2000)",
    );
    database.wait_until("SELECT EXISTS (SELECT FROM webhook.breaker WHERE state = 'OPEN')");
    database.wait_until("SELECT EXISTS (SELECT FROM webhook.stat)");
    let page = include_str!("../../../docs/operations.md");
    let recipes: Vec<&str> = (blocks(page, "\n### Watch it\n", "")[0].split("\\watch"))
        .map(|recipe| recipe.trim_start_matches([' ', '2', '5', '\n']).trim())
        .filter(|recipe| !recipe.is_empty())
        .collect();
    assert_eq!(recipes.len(), 4);
    for recipe in recipes {
        let mut psql = Cluster::shared().program("psql");
        psql.args([
            "-X",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            database.name(),
            "-c",
            recipe,
        ]);
        let shown = psql.output().expect("psql runs");
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success(), "{recipe}");
        assert!(text.lines().count() > 3, "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(120), "{text}");
    }
}

#[test]
fn a_session_reacts_once_to_each_delivery_that_fails() {
    let (database, receiver) = (Cluster::shared().database("reacting"), Receiver::start());
    receiver.respond("/down", |_, _| Answer::status(404));
    database.add_endpoint_with("down", &receiver.url("/down"), "policy => 'fast'");
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text); INSERT INTO orders VALUES (1), (2)");
    let page = include_str!("../../../docs/observability.md");
    let recipe = blocks(page, "\n## React in SQL to an outcome\n", "sql");
    let [listen, remember, react, totals] = recipe[..] else {
        panic!("{} blocks", recipe.len());
    };
    let mut session = database.connect();
    session.batch_execute(listen).unwrap();
    session.batch_execute(remember).unwrap();
    assert_eq!(session.execute(react, &[]).unwrap(), 0);

    let failed = database.emit("order.created", json!({"id": 2}));
    let told: Value = {
        let mut notifications = session.notifications();
        let mut heard = notifications.timeout_iter(wait::DEADLINE);
        loop {
            let next = heard.next().unwrap().expect("it is told in time");
            let told: Value = serde_json::from_str(next.payload()).unwrap();
            if told["type"] == "webhook.delivery.failed" {
                break told;
            }
        }
    };
    assert_eq!(told["deliveries"], 1);
    database.wait_for_status(failed, "FAILED");
    assert_eq!(session.execute(react, &[]).unwrap(), 1);
    assert_eq!(session.execute(react, &[]).unwrap(), 0);
    let notes: Vec<Option<String>> =
        database.query_one_value("SELECT array_agg(note ORDER BY id) FROM orders");
    assert_eq!(notes, [None, Some("webhook to down failed".to_owned())]);
    wait::until("the total", || {
        let rows = session.query(totals, &[]).unwrap();
        let seen: Vec<(String, i64)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
        match seen == [("down".to_owned(), 1)] {
            true => Ok(()),
            false => Err(seen),
        }
    });
}

#[test]
fn a_test_of_an_application_sees_its_events_and_sends_nothing() {
    let (database, receiver) = (Cluster::shared().database("tested"), Receiver::start());
    database.add_endpoint("orders", &receiver.url("/orders"));
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric);
         CREATE FUNCTION emit() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM webhook_emit('order.created', to_jsonb(NEW)); RETURN NEW; END $$;
         CREATE TRIGGER emit AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION emit();
         INSERT INTO orders VALUES (4710, 1)",
    );
    receiver.wait_for_requests_to("/orders", 1);
    let page = include_str!("../../../docs/emitting.md");
    let recipe = blocks(page, "\n## Test an application that emits\n", "sql")[1];
    let mut session = database.connect();
    session.batch_execute(recipe).unwrap();
    let kept: i64 = database.query_one_value("SELECT count(*) FROM webhook.event");
    assert_eq!(kept, 1);

    // It fails where the application does not do it.
    database.execute("ALTER TABLE orders DISABLE TRIGGER emit");
    let refusal = session.batch_execute(recipe).unwrap_err();
    let refusal = refusal.as_db_error().unwrap().message();
    assert_eq!(refusal, "one event for the order");
}
