//! `webhook_set_endpoint()`: it creates or changes, and run twice it changes nothing.

use std::thread;

use webhook_e2e::Database;

use super::endpoints::{CREDENTIAL, assert_refused, database, secret_of, written};

/// The result of `webhook_set_endpoint`: the secret, and the changes.
fn set(database: &Database, arguments: &str) -> (Option<String>, Vec<String>) {
    let sql = format!("SELECT * FROM webhook_set_endpoint({arguments})");
    let row = database.connect().query_one(&sql, &[]);
    let row = row.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let known: i32 =
        database.query_one_value("SELECT id FROM webhook.endpoint WHERE name = 'billing'");
    assert_eq!(row.get::<_, i32>("id"), known);
    (row.get("secret"), row.get("changed"))
}

const EVERY_PARAMETER: &str = r#"'acme/billing', 'http://127.0.0.1:9/a', event_types => '{order.*,!order.draft}', policy => 'patient',
    headers => '{"X-Key": "k", "X-Other": "o"}', format => 'template', template => '{"text": "{{type}}"}',
    filter => '$.data.total > 100 && $.data.name == "a"', max_in_flight => 3, metadata => '{"owner": "me"}'"#;

#[test]
fn setting_an_endpoint_again_changes_nothing() {
    let database = database();
    let (secret, changed) = set(&database, EVERY_PARAMETER);
    assert!(secret.is_some());
    assert_eq!(changed, ["created"]);
    let of_rows = "SELECT string_agg(concat(e.xmin, e.xmax, e::text), '') FROM webhook.endpoint e";
    let rows = || {
        (
            database.query_one_value::<String>(of_rows),
            written(&database),
        )
    };
    let before = rows();
    for arguments in [
        EVERY_PARAMETER,
        "'acme/billing'",
        "'acme/billing', policy => 'patient', max_in_flight => 3",
        // Equal, if not written alike.
        r#"'acme/billing', filter => '($.data.total>100 && $.data.name=="a")', headers => '{"X-Other":"o","X-Key":"k"}'"#,
        &format!("'acme/billing', secret => '{}'", secret.unwrap()),
    ] {
        assert_eq!(set(&database, arguments), (None, vec![]), "{arguments}");
        assert_eq!(rows(), before, "{arguments}");
    }
}

#[test]
fn setting_an_endpoint_changes_what_is_given_and_keeps_the_rest() {
    let database = database();
    set(&database, EVERY_PARAMETER);
    database.execute("SELECT webhook_pause('acme/billing')");
    let columns = "url, event_types, policy, headers, format, template, filter, max_in_flight, rate_limit, metadata, \
                   tenant, name, origin, paused_at, disabled_at, created_at, id";
    for (arguments, expected) in [
        ("url => 'http://127.0.0.1:9/b'", vec!["url"]),
        ("event_types => '{*}'", vec!["event_types"]),
        ("policy => 'standard'", vec!["policy"]),
        ("headers => '{}'", vec!["headers"]),
        ("template => '{}'", vec!["template"]),
        ("filter => '$.data.total > 1'", vec!["filter"]),
        ("max_in_flight => 4", vec!["max_in_flight"]),
        ("metadata => '{}'", vec!["metadata"]),
        // The template goes with its format.
        ("format => 'raw'", vec!["format", "template"]),
        (
            "metadata => '{\"a\": 1}', url => 'http://127.0.0.1:9/c', format => 'raw'",
            vec!["url", "metadata"],
        ),
    ] {
        let sql = format!(
            "BEGIN; CREATE TEMPORARY TABLE before ON COMMIT DROP AS SELECT * FROM webhook.endpoint;
             CREATE TEMPORARY TABLE answer ON COMMIT DROP AS SELECT * FROM webhook_set_endpoint('acme/billing', {arguments})"
        );
        let mut client = database.connect();
        client
            .batch_execute(&sql)
            .unwrap_or_else(|error| panic!("{arguments}: {error:?}"));
        let differ = format!(
            "SELECT array(SELECT a.key FROM (SELECT {columns} FROM before) b, (SELECT {columns} FROM webhook.endpoint) e,
                          LATERAL jsonb_each(to_jsonb(e)) a, LATERAL jsonb_each(to_jsonb(b)) o
                          WHERE a.key = o.key AND a.value <> o.value ORDER BY 1),
                    array(SELECT unnest(changed) FROM answer ORDER BY 1), (SELECT changed FROM answer)"
        );
        let row = client.query_one(&differ, &[]).unwrap();
        let (differ, sorted, told): (Vec<String>, Vec<String>, Vec<String>) =
            (row.get(0), row.get(1), row.get(2));
        assert_eq!(differ, sorted, "{arguments}");
        assert_eq!(told, expected, "{arguments}");
        client.batch_execute("COMMIT").unwrap();
    }
    // Nothing given can be null; that is a plain UPDATE.
    database.execute("UPDATE webhook.endpoint SET filter = NULL, max_in_flight = NULL");
}

#[test]
fn a_new_endpoint_has_the_defaults_of_the_table() {
    let database = database();
    database.execute(
        "SELECT webhook_set_endpoint('set', 'http://127.0.0.1:9/');
         INSERT INTO webhook.endpoint (name, url) VALUES ('inserted', 'http://127.0.0.1:9/')",
    );
    let rows: i64 = database.query_one_value(
        "SELECT count(DISTINCT to_jsonb(e) - '{id,name,created_at}'::text[]) FROM webhook.endpoint e",
    );
    assert_eq!(rows, 1);
}

#[test]
fn a_new_endpoint_needs_a_url_and_a_misspelt_one_is_told_from_it() {
    let database = database();
    database.add_endpoint("acme/billing", "http://127.0.0.1/");
    let sql = "SELECT webhook_set_endpoint('acme/biling', policy => 'patient')";
    assert_refused(&database, sql, "22023");
    let refusal = database.refusal(sql);
    assert_eq!(
        refusal.message(),
        r#"endpoint "acme/biling" does not exist, and a new one needs a url"#
    );
    let hint = refusal.hint().unwrap();
    assert!(
        hint.starts_with(r#"Did you mean "acme/billing"? Give the url"#),
        "{hint}"
    );
}

#[test]
fn a_secret_that_the_endpoint_does_not_have_yet_becomes_the_newest() {
    let database = database();
    let old = database.add_endpoint("billing", "http://127.0.0.1/");
    let given = format!("whsec_{CREDENTIAL}=");
    let arguments = format!("'billing', secret => '{given}'");
    assert_eq!(
        set(&database, &arguments),
        (None, vec!["secret".to_owned()])
    );
    assert_eq!(secret_of(&database, "billing"), Some(given.clone()));
    let overlap: bool = database.query_one_value(&format!(
        "SELECT expires_at BETWEEN now() + interval '23 h' AND now() + interval '24 h' FROM webhook.secret WHERE secret = '{old}'"
    ));
    assert!(overlap, "the old one serves as long as after a rotation");
    assert_eq!(set(&database, &arguments), (None, vec![]));

    // One that serves still is had; one that does not any more is not.
    let newest = database.query_one_value::<String>("SELECT webhook_rotate_secret('billing')");
    assert_eq!(set(&database, &arguments), (None, vec![]));
    assert_eq!(secret_of(&database, "billing"), Some(newest));
    database.execute(&format!(
        "UPDATE webhook.secret SET expires_at = now() - interval '1 s' WHERE secret = '{given}'"
    ));
    assert_eq!(
        set(&database, &arguments),
        (None, vec!["secret".to_owned()])
    );
    assert_eq!(secret_of(&database, "billing"), Some(given));
}

#[test]
fn of_two_who_set_the_same_new_endpoint_one_creates_it_and_the_other_changes_it() {
    let database = database();
    for (url, changed) in [("/a", vec![]), ("/b", vec!["url".to_owned()])] {
        let mut first = database.connect();
        let mut transaction = first.transaction().unwrap();
        transaction
            .batch_execute(
                "SELECT webhook_set_endpoint('acme/billing', 'http://127.0.0.1:9/a', policy => 'patient')",
            )
            .unwrap();
        let mut second = database.connect();
        let call = format!(
            "SELECT secret, changed FROM webhook_set_endpoint('acme/billing', 'http://127.0.0.1:9{url}')"
        );
        second
            .batch_execute("SET application_name = 'second'")
            .unwrap();
        let second = thread::spawn(move || {
            let row = second.query_one(&call, &[]).unwrap();
            (row.get(0), row.get(1))
        });
        database.wait_until(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'",
        );
        transaction.commit().unwrap();
        let told: (Option<String>, Vec<String>) = second.join().unwrap();
        assert_eq!(told, (None, changed), "{url}");
        let kept: bool = database.query_one_value(&format!(
            "SELECT url = 'http://127.0.0.1:9{url}' AND policy = 'patient' AND (SELECT count(*) = 1 FROM webhook.secret)
             FROM webhook.endpoint"
        ));
        assert!(kept, "{url}");
        database.execute("SELECT webhook_remove_endpoint('acme/billing')");
    }
}

#[test]
fn of_two_who_set_the_same_endpoint_neither_undoes_what_the_other_set() {
    let database = database();
    database.add_endpoint("billing", "http://127.0.0.1:9/");
    let mut first = database.connect();
    let mut transaction = first.transaction().unwrap();
    transaction
        .batch_execute("SELECT webhook_set_endpoint('billing', max_in_flight => 7)")
        .unwrap();
    let mut second = database.connect();
    second
        .batch_execute("SET application_name = 'second'")
        .unwrap();
    let second = thread::spawn(move || {
        let call = "SELECT changed FROM webhook_set_endpoint('billing', policy => 'patient', max_in_flight => 7)";
        let row = second.query_one(call, &[]).unwrap();
        row.get::<_, Vec<String>>(0)
    });
    database.wait_until(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'",
    );
    transaction.commit().unwrap();
    assert_eq!(second.join().unwrap(), ["policy"]);
    let both: bool = database
        .query_one_value("SELECT policy = 'patient' AND max_in_flight = 7 FROM webhook.endpoint");
    assert!(both);
}
