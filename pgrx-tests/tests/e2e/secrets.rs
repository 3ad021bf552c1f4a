//! Signing secrets: made or given, and rotated without a request that the receiver cannot verify.

use serde_json::json;
use webhook_e2e::verifier::verify_signature;
use webhook_e2e::{Cluster, Database, Receiver, Request};

use super::endpoints::{CREDENTIAL, add_with, assert_refused, secret_of};

fn database() -> Database {
    Cluster::shared().database("secrets")
}

/// Emits an event and waits for its request.
#[track_caller]
fn request_of(database: &Database, receiver: &Receiver) -> Request {
    let event = database.emit("order.created", json!({"item": "teapot"}));
    receiver.wait_for_event(event)
}

fn rotate(database: &Database, options: &str) -> String {
    database.query_one_value(&format!("SELECT webhook_rotate_secret('shop'{options})"))
}

#[test]
fn both_secrets_sign_until_the_old_one_expires() {
    let (database, receiver) = (database(), Receiver::start());
    let old = database.add_endpoint("shop", &receiver.url("/"));
    let new = rotate(&database, "");
    assert_ne!(old, new);
    let request = request_of(&database, &receiver);
    assert_eq!(verify_signature(&old, &request), Ok(()));
    assert_eq!(verify_signature(&new, &request), Ok(()));
    let current: String = database.query_one_value("SELECT webhook_secret('shop')");
    assert_eq!(current, new);

    database.execute("UPDATE webhook.secret SET expires_at = now() WHERE expires_at IS NOT NULL");
    let request = request_of(&database, &receiver);
    assert!(verify_signature(&old, &request).is_err());
    assert_eq!(verify_signature(&new, &request), Ok(()));
}

#[test]
fn without_an_overlap_the_old_secret_signs_nothing_more() {
    let (database, receiver) = (database(), Receiver::start());
    let old = database.add_endpoint("shop", &receiver.url("/"));
    let new = rotate(&database, ", overlap => '0 s'");
    let request = request_of(&database, &receiver);
    assert!(verify_signature(&old, &request).is_err());
    assert_eq!(verify_signature(&new, &request), Ok(()));
}

#[test]
fn a_secret_of_ones_own_is_taken_and_a_bad_one_is_refused_without_being_shown() {
    let (database, receiver) = (database(), Receiver::start());
    let old = database.add_endpoint("shop", &receiver.url("/"));
    for bad in ["whsec_c2hvcnQ=", "hunter2hunter2hunter2hunter2"] {
        let rotate = format!("SELECT webhook_rotate_secret('shop', secret => '{bad}')");
        let refusal = database.refusal(&rotate);
        assert_eq!(refusal.code().code(), "22023");
        assert!(!format!("{refusal:?}").contains(bad), "{refusal:?}");
    }
    let refusal =
        database.refusal("SELECT webhook_rotate_secret('shop', overlap => '-1 s'::interval)");
    assert_eq!(refusal.code().code(), "22023");
    let current: String = database.query_one_value("SELECT webhook_secret('shop')");
    assert_eq!(current, old, "what was refused has changed nothing");

    let own = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    assert_eq!(rotate(&database, &format!(", secret => '{own}'")), own);
    assert_eq!(
        verify_signature(own, &request_of(&database, &receiver)),
        Ok(())
    );
}

#[test]
fn what_the_table_of_secrets_refuses_is_not_shown() {
    let database = database();
    let secret = database.add_endpoint("shop", "http://127.0.0.1/");
    for (refused, code) in [
        ("VALUES (1, '{secret}', now())", "23505"),
        ("VALUES (NULL, '{secret}', now())", "23502"),
        ("VALUES (1, '{secret}', NULL)", "23502"),
        ("VALUES (1, 'hunter2', now())", "22023"),
    ] {
        let refused = refused.replace("{secret}", &secret);
        let refusal = database.refusal(&format!(
            "INSERT INTO webhook.secret (endpoint_id, secret, created_at) {refused}"
        ));
        assert_eq!(refusal.code().code(), code, "{refused}");
        let shown = format!("{refusal:?}");
        assert!(
            !shown.contains(&secret) && !shown.contains("hunter2"),
            "{shown}"
        );
    }
    let refusal = database.refusal("UPDATE webhook.secret SET created_at = NULL");
    assert!(!format!("{refusal:?}").contains(&secret), "{refusal:?}");
}

#[test]
fn a_request_has_ten_signatures_at_most() {
    let (database, receiver) = (database(), Receiver::start());
    let first = database.add_endpoint("shop", &receiver.url("/"));
    for _ in 1..10 {
        rotate(&database, "");
    }
    let refusal = database.refusal("SELECT webhook_rotate_secret('shop')");
    assert_eq!(refusal.code().code(), "54000");
    assert_eq!(refusal.message(), "the endpoint has 10 secrets already");
    let request = request_of(&database, &receiver);
    assert_eq!(verify_signature(&first, &request), Ok(()));

    // One that it has may be the newest again, and one may replace them all.
    let again = format!(", secret => '{first}'");
    assert_eq!(rotate(&database, &again), first);
    let only = rotate(&database, ", overlap => '0 s'");
    let request = request_of(&database, &receiver);
    assert_eq!(verify_signature(&only, &request), Ok(()));
    assert!(verify_signature(&first, &request).is_err());
}

#[test]
fn rotating_twice_keeps_the_earlier_end_of_the_first_one() {
    let database = database();
    database.add_endpoint("shop", "http://127.0.0.1/");
    rotate(&database, ", overlap => '1 h'");
    rotate(&database, ", overlap => '1 day'");
    let ends: Vec<String> = database.query_one_value(
        "SELECT array_agg(coalesce(round(extract(epoch FROM expires_at - now()) / 3600)::text, 'never') ORDER BY created_at)
         FROM webhook.secret",
    );
    assert_eq!(ends, ["1", "24", "never"]);
}

#[test]
fn bad_secrets_are_refused_and_not_shown() {
    let database = database();
    database.add_endpoint("kept", "http://127.0.0.1/");
    for secret in [
        "",
        "whsec_",
        CREDENTIAL,
        // Too short, not base64, not padded, followed by something, too long.
        "whsec_c2hvcnQ=",
        &format!("whsec_{CREDENTIAL}!"),
        &format!("whsec_{CREDENTIAL}"),
        &format!("whsec_{CREDENTIAL}=\n"),
        &format!("WHSEC_{CREDENTIAL}="),
        &format!("whsec_{CREDENTIAL}a{CREDENTIAL}a{CREDENTIAL}="),
    ] {
        for sql in [
            add_with("secret", &format!("'{secret}'")),
            format!("SELECT webhook_set_endpoint('kept', secret => '{secret}')"),
        ] {
            assert_refused(&database, &sql, "22023");
        }
    }
}

#[test]
fn a_secret_is_made_of_32_random_bytes() {
    let database = database();
    let first = database.add_endpoint("first", "http://127.0.0.1/");
    let second = database.add_endpoint("second", "http://127.0.0.1/");
    for (name, secret) in [("first", &first), ("second", &second)] {
        let base64 = secret.strip_prefix("whsec_").expect("whsec_ comes first");
        let bytes: Vec<u8> =
            database.query_one_value(&format!("SELECT decode('{base64}', 'base64')"));
        assert_eq!(bytes.len(), 32);
        let stored: String = database.query_one_value(&format!("SELECT webhook_secret('{name}')"));
        assert_eq!(stored, *secret);
    }
    assert_ne!(first, second);
}

#[test]
fn a_given_secret_is_used() {
    let database = database();
    let given = format!("whsec_{CREDENTIAL}=");
    let returned: Option<String> = database.query_one_value(&format!(
        "SELECT secret FROM webhook_set_endpoint('given', 'http://127.0.0.1/', secret => '{given}')"
    ));
    let stored: String = database.query_one_value("SELECT webhook_secret('given')");
    assert_eq!(
        (returned, &stored),
        (None, &given),
        "only one that was made is returned"
    );
}

#[test]
fn an_endpoint_without_a_secret_gets_one_at_the_first_claim() {
    let (database, receiver) = (database(), Receiver::start());
    database.execute(&format!(
        "INSERT INTO webhook.endpoint (name, url) VALUES ('plain', '{}')",
        receiver.url("/")
    ));
    assert_eq!(secret_of(&database, "plain"), None);
    let event = database.emit("order.created", json!({}));
    let request = receiver.wait_for_event(event);

    let secret = secret_of(&database, "plain").expect("a secret was made");
    let webhook = standardwebhooks::Webhook::new(&secret).unwrap();
    webhook.verify(&request.body, &request.headers).unwrap();
}
