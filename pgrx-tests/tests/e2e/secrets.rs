//! Signing secrets: rotated without a request that the receiver cannot verify.

use serde_json::json;
use webhook_e2e::verifier::verify_signature;
use webhook_e2e::{Cluster, Database, Receiver, Request};

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
