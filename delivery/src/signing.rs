//! Standard Webhooks signatures.

use base64::prelude::{BASE64_STANDARD, Engine};
use hmac::{Hmac, Mac};
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::Sha256;

use crate::failure::Failure;

/// The value of `webhook-signature`: one signature for each secret, in their order, so that receivers
/// accept both the old and the new secret while it is rotated.
pub(crate) fn sign(
    secrets: &[String],
    id: &str,
    timestamp: u64,
    body: &[u8],
) -> Result<String, Failure> {
    if secrets.is_empty() {
        return Err(Failure::invalid_request("the endpoint has no secret"));
    }
    let timestamp = timestamp.to_string();
    let signatures: Result<Vec<_>, Failure> = secrets
        .iter()
        .map(|secret| {
            let mut mac = keyed(secret)
                .ok_or_else(|| Failure::invalid_request("a secret is not whsec_ and base64"))?;
            for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
                mac.update(part);
            }
            let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
            Ok(format!("v1,{signature}"))
        })
        .collect();
    Ok(signatures?.join(" "))
}

/// A secret of 32 random bytes, straight from the operating system: a generator kept in memory would be
/// shared by processes that fork.
pub fn new_secret() -> Result<String, rand::rand_core::OsError> {
    let mut key = [0; 32];
    OsRng.try_fill_bytes(&mut key)?;
    Ok(format!("whsec_{}", BASE64_STANDARD.encode(key)))
}

fn keyed(secret: &str) -> Option<Hmac<Sha256>> {
    let key = BASE64_STANDARD
        .decode(secret.strip_prefix("whsec_")?)
        .ok()?;
    if key.is_empty() {
        return None;
    }
    Hmac::new_from_slice(&key).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIMESTAMP: u64 = 1614265330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;

    #[test]
    fn a_new_secret_has_32_bytes_and_signs() {
        let (one, other) = (new_secret().unwrap(), new_secret().unwrap());
        assert_ne!(one, other);
        let key = BASE64_STANDARD.decode(one.strip_prefix("whsec_").unwrap());
        assert_eq!(key.unwrap().len(), 32);
        assert!(sign(&[one], ID, TIMESTAMP, BODY).is_ok());
    }

    #[test]
    fn published_test_vector() {
        assert_eq!(
            sign(&[SECRET.into()], ID, TIMESTAMP, BODY).unwrap(),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn one_signature_for_each_secret_newest_first() {
        let newer = format!("whsec_{}", BASE64_STANDARD.encode([7; 32]));
        let of = |secrets: &[&str]| {
            let secrets: Vec<_> = secrets.iter().map(|s| s.to_string()).collect();
            sign(&secrets, ID, TIMESTAMP, BODY).unwrap()
        };
        assert_eq!(
            of(&[&newer, SECRET]),
            format!("{} {}", of(&[&newer]), of(&[SECRET]))
        );
    }

    #[test]
    fn malformed_secret_is_an_invalid_request_that_does_not_show_it() {
        for secret in ["hunter2", "whsec_", "whsec_hunter2!", "MfKQ9r8GKYqrTwjU"] {
            let failure = sign(&[secret.into()], ID, TIMESTAMP, BODY).unwrap_err();
            assert_eq!(failure.kind, FailureKind::InvalidRequest);
            assert!(!failure.message.contains("hunter2"));
        }
        assert!(sign(&[], ID, TIMESTAMP, BODY).is_err());
    }
}
