//! Signing keys: beside a secret or in its place, verified by the public key alone, and rotated like a secret.

use serde_json::json;
use webhook_e2e::database::refusal;
use webhook_e2e::verifier::{verify_by_key, verify_by_keys_alone, verify_signature};
use webhook_e2e::{Cluster, Database, Receiver, Request};

use super::endpoints::assert_refused;

/// From the tests of Svix, which hold the example of the specification.
const PRIVATE: &str =
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
const PUBLIC: &str = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";

fn database() -> Database {
    Cluster::shared().database("keys")
}

#[track_caller]
fn request_of(database: &Database, receiver: &Receiver) -> Request {
    let event = database.emit("order.created", json!({"item": "teapot"}));
    receiver.wait_for_event(event)
}

fn rotate(database: &Database, options: &str) -> String {
    database.query_one_value(&format!("SELECT webhook_rotate_key('shop'{options})"))
}

fn public_key(database: &Database) -> Option<String> {
    database.query_one_value("SELECT webhook_public_key('shop')")
}

/// The versions of the signatures, in their order.
fn versions(request: &Request) -> Vec<&str> {
    let signatures = request.header("webhook-signature").split(' ');
    signatures
        .map(|signature| signature.split_once(',').expect("a version").0)
        .collect()
}

#[test]
fn a_key_signs_beside_the_secret_and_each_verifies() {
    let (database, receiver) = (database(), Receiver::start());
    let secret = database.add_endpoint("shop", &receiver.url("/"));
    assert_eq!(versions(&request_of(&database, &receiver)), ["v1"]);
    assert_eq!(public_key(&database), None);

    let made = rotate(&database, "");
    assert_eq!(public_key(&database).as_deref(), Some(&*made));
    let mut request = request_of(&database, &receiver);
    assert_eq!(versions(&request), ["v1", "v1a"]);
    assert_eq!(verify_signature(&secret, &request), Ok(()));
    assert_eq!(verify_by_key(&made, &request), Ok(()));
    assert!(verify_by_key(PUBLIC, &request).is_err());
    request.body = b"{}".as_slice().into();
    assert!(verify_by_key(&made, &request).is_err());
}

#[test]
fn both_keys_sign_until_the_old_one_expires_and_the_secret_stays() {
    let (database, receiver) = (database(), Receiver::start());
    let secret = database.add_endpoint("shop", &receiver.url("/"));
    let old = rotate(&database, "");
    let new = rotate(&database, "");
    assert_ne!(old, new);
    let request = request_of(&database, &receiver);
    assert_eq!(versions(&request), ["v1", "v1a", "v1a"]);
    assert_eq!(verify_by_key(&old, &request), Ok(()));
    assert_eq!(verify_by_key(&new, &request), Ok(()));

    database.execute("UPDATE webhook.secret SET expires_at = now() WHERE expires_at IS NOT NULL");
    let request = request_of(&database, &receiver);
    assert_eq!(versions(&request), ["v1", "v1a"]);
    assert!(verify_by_key(&old, &request).is_err());
    assert_eq!(verify_by_key(&new, &request), Ok(()));
    assert_eq!(verify_signature(&secret, &request), Ok(()));

    let newest = rotate(&database, ", overlap => '0 s'");
    database.execute("SELECT webhook_rotate_secret('shop', overlap => '0 s')");
    let request = request_of(&database, &receiver);
    assert_eq!(versions(&request), ["v1", "v1a"]);
    assert_eq!(verify_by_key(&newest, &request), Ok(()));
    assert!(verify_signature(&secret, &request).is_err());
}

#[test]
fn a_key_of_ones_own_may_stand_in_place_of_the_secret() {
    let (database, receiver) = (database(), Receiver::start());
    let set = format!(
        "SELECT secret FROM webhook_set_endpoint('shop', '{}', secret => '{PRIVATE}')",
        receiver.url("/")
    );
    for _ in 0..2 {
        assert_eq!(database.query_one_value::<Option<String>>(&set), None);
    }
    assert_eq!(public_key(&database).as_deref(), Some(PUBLIC));
    let secret = "SELECT webhook_secret('shop')";
    assert_eq!(database.query_one_value::<Option<String>>(secret), None);
    let mut request = request_of(&database, &receiver);
    assert_eq!(versions(&request), ["v1a"]);
    assert_eq!(verify_by_key(PUBLIC, &request), Ok(()));
    assert_eq!(verify_by_keys_alone(PUBLIC, &request), Ok(()));
    request.body = b"{}".as_slice().into();
    assert!(verify_by_keys_alone(PUBLIC, &request).is_err());

    // A secret that was there may go.
    database.execute("SELECT webhook_rotate_secret('shop')");
    assert_eq!(versions(&request_of(&database, &receiver)), ["v1", "v1a"]);
    database.execute("DELETE FROM webhook.secret WHERE secret LIKE 'whsec%'");
    assert_eq!(versions(&request_of(&database, &receiver)), ["v1a"]);
    let own = format!(", key => '{PRIVATE}'");
    assert_eq!(rotate(&database, &own), PUBLIC);
}

#[test]
fn the_public_key_is_for_read_and_the_private_key_for_admin() {
    let database = database();
    database.add_endpoint("shop", "http://127.0.0.1/");
    let made = rotate(&database, "");
    let name = database.name();
    for level in ["emit", "read", "admin"] {
        database.execute(&format!(
            "CREATE ROLE {level}_{name}; SELECT webhook_grant('{level}_{name}', '{level}')"
        ));
    }
    let role = |level: &str| {
        let mut client = database.connect();
        let set = format!("SET ROLE {level}_{name}");
        client.batch_execute(&set).unwrap();
        client
    };
    let public = "SELECT webhook_public_key('shop')";
    assert_eq!(refusal(&mut role("emit"), public).code().code(), "42501");
    for level in ["read", "admin"] {
        let seen: String = role(level).query_one(public, &[]).unwrap().get(0);
        assert_eq!(seen, made);
    }
    for private in [
        "SELECT secret FROM webhook.secret",
        "SELECT webhook_rotate_key('shop')",
        "SELECT webhook.rotate_key('shop', '1 h', NULL)",
    ] {
        let code = refusal(&mut role("read"), private).code().code().to_owned();
        assert_eq!(code, "42501", "{private}");
    }
    let private = "SELECT secret FROM webhook.secret WHERE secret LIKE 'whsk%'";
    let seen: String = role("admin").query_one(private, &[]).unwrap().get(0);
    assert!(seen.starts_with("whsk_"));
}

#[test]
fn bad_keys_are_refused_and_not_shown() {
    let database = database();
    database.add_endpoint("shop", "http://127.0.0.1/");
    let body = &PRIVATE["whsk_".len()..];
    for bad in [
        "".to_owned(),
        "whsk_".to_owned(),
        body.to_owned(),
        format!("whpk_{body}"),
        format!("whsk_{body}\n"),
        // The seed alone, and the seed with the public key of another.
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc=".to_owned(),
        PRIVATE.replace("X0dRqSKJp4", "aaaaaaaaaa"),
    ] {
        for sql in [
            format!("SELECT webhook_rotate_key('shop', key => '{bad}')"),
            format!("SELECT webhook_set_endpoint('shop', secret => '{bad}')"),
            format!(
                "INSERT INTO webhook.secret (endpoint_id, secret) SELECT id, '{bad}' FROM webhook.endpoint"
            ),
        ] {
            assert_refused(&database, &sql, "22023");
            let shown = format!("{:?}", database.refusal(&sql));
            assert!(!shown.contains("6Xb/dCcH"), "{shown}");
        }
    }
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let sql = format!("SELECT webhook_rotate_key('shop', key => '{secret}')");
    assert_refused(&database, &sql, "22023");
}

#[test]
fn a_preview_has_both_signatures() {
    let database = Cluster::idle().database("keys");
    database.add_endpoint("shop", "http://127.0.0.1/");
    rotate(&database, "");
    let event = database.emit("order.created", json!({}));
    let signature: String = database.query_one_value(&format!(
        "SELECT headers ->> 'webhook-signature' FROM webhook_preview('{event}', 'shop')"
    ));
    assert!(signature.starts_with("v1,"), "{signature}");
    assert!(signature.contains(" v1a,"), "{signature}");
}
