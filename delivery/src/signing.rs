//! Standard Webhooks signatures: `v1`, HMAC-SHA256 by a secret that the receiver has too, and `v1a`, ed25519 by a
//! private key whose public key is all that the receiver needs.

use base64::prelude::{BASE64_STANDARD, Engine};
use hmac::digest::Output;
use hmac::{Hmac, Mac};
use rand::TryRngCore;
use rand::rngs::OsRng;
use ring::signature::{Ed25519KeyPair, KeyPair};
use sha2::Sha256;

use crate::failure::Failure;
use crate::memory::{Growing, OutOfMemory};

/// Bytes of the seed of a private key, and of its public key.
const HALF: usize = 32;

/// The value of `webhook-signature`: one signature for each secret and each key, in their order, so that receivers
/// accept both the old and the new one while it is rotated.
pub(crate) fn sign(
    secrets: &[String],
    id: &str,
    timestamp: &str,
    body: &[u8],
) -> Result<String, Failure> {
    if secrets.is_empty() {
        return Err(Failure::invalid_request("the endpoint has no secret"));
    }
    let content = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body];
    let signatures: Result<Vec<_>, Failure> = secrets
        .iter()
        .map(|secret| match secret.strip_prefix("whsk_") {
            Some(key) => sign_with_key(key, &content),
            None => sign_with_secret(secret, &content),
        })
        .collect();
    Ok(signatures?.join(" "))
}

/// HMAC-SHA256 of the parts together, by a key of any length.
pub(crate) fn hmac(key: &[u8], content: &[&[u8]]) -> Result<Output<Sha256>, Failure> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key)
        .map_err(|_| Failure::invalid_request("the HMAC secret cannot be used"))?;
    content.iter().for_each(|part| mac.update(part));
    Ok(mac.finalize().into_bytes())
}

fn sign_with_secret(secret: &str, content: &[&[u8]]) -> Result<String, Failure> {
    let key = key_of(secret)
        .ok_or_else(|| Failure::invalid_request("a secret is not whsec_ and base64"))?;
    let signature = BASE64_STANDARD.encode(hmac(&key, content)?);
    Ok(format!("v1,{signature}"))
}

fn sign_with_key(key: &str, content: &[&[u8]]) -> Result<String, Failure> {
    let pair = key_pair(key)
        .ok_or_else(|| Failure::invalid_request("a private key is not whsk_ and a key pair"))?;
    let signature = pair.sign(&joined(content)?);
    Ok(format!("v1a,{}", BASE64_STANDARD.encode(signature)))
}

/// ed25519 reads the content twice, and so wants it in one piece.
fn joined(parts: &[&[u8]]) -> Result<Vec<u8>, OutOfMemory> {
    let mut whole = Growing::with_room(parts.iter().map(|part| part.len()).sum())?;
    parts.iter().try_for_each(|part| whole.push(part))?;
    Ok(whole.into_bytes())
}

/// A secret of 32 random bytes, straight from the operating system: a generator kept in memory would be
/// shared by processes that fork.
pub fn new_secret() -> Result<String, rand::rand_core::OsError> {
    Ok(format!("whsec_{}", BASE64_STANDARD.encode(random()?)))
}

/// A private key: the random seed and then the public key that belongs to it.
pub fn new_private_key() -> Result<String, rand::rand_core::OsError> {
    let seed = random()?;
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("a seed has 32 bytes");
    let key = [&seed, pair.public_key().as_ref()].concat();
    Ok(format!("whsk_{}", BASE64_STANDARD.encode(key)))
}

/// Whether this is a private key with its own public key: with the public key of another it would give itself away by
/// its signatures.
pub fn is_private_key(key: &str) -> bool {
    key.strip_prefix("whsk_").and_then(key_pair).is_some()
}

fn random() -> Result<[u8; HALF], rand::rand_core::OsError> {
    let mut bytes = [0; HALF];
    OsRng.try_fill_bytes(&mut bytes)?;
    Ok(bytes)
}

fn key_of(secret: &str) -> Option<Vec<u8>> {
    let key = BASE64_STANDARD
        .decode(secret.strip_prefix("whsec_")?)
        .ok()?;
    (!key.is_empty()).then_some(key)
}

fn key_pair(base64: &str) -> Option<Ed25519KeyPair> {
    // The buffer has room for 66 bytes, whatever the padding hides.
    let mut key = [0; 2 * HALF + 2];
    let length = BASE64_STANDARD.decode_slice(base64, &mut key).ok()?;
    let (seed, public) = key[..length].split_at_checked(HALF)?;
    Ed25519KeyPair::from_seed_and_public_key(seed, public).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const KEY: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIMESTAMP: &str = "1614265330";
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

    /// The signature of the specification, whose key and content are in the tests of Svix.
    #[test]
    fn published_test_vector_of_a_key() {
        assert_eq!(
            sign(&[KEY.into()], ID, TIMESTAMP, BODY).unwrap(),
            "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
        );
    }

    #[test]
    fn a_new_private_key_has_its_public_key_with_it_and_signs() {
        let (one, other) = (new_private_key().unwrap(), new_private_key().unwrap());
        assert_ne!(one, other);
        assert!(is_private_key(&one));
        let bytes = |key: &str| BASE64_STANDARD.decode(&key["whsk_".len()..]).unwrap();
        assert_eq!(bytes(&one).len(), 64);
        assert!(sign(std::slice::from_ref(&one), ID, TIMESTAMP, BODY).is_ok());
        for size in [0, 31, 63, 65, 66, 67, 1_000_000] {
            let key = format!("whsk_{}", BASE64_STANDARD.encode(vec![0; size]));
            assert!(!is_private_key(&key), "{size} bytes");
        }
        let mixed = [&bytes(&one)[..HALF], &bytes(&other)[HALF..]].concat();
        let mixed = format!("whsk_{}", BASE64_STANDARD.encode(mixed));
        assert!(!is_private_key(&mixed), "it has the public key of another");
        assert!(sign(&[mixed], ID, TIMESTAMP, BODY).is_err());
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
        assert_eq!(
            of(&[SECRET, KEY]),
            format!("{} {}", of(&[SECRET]), of(&[KEY]))
        );
    }

    #[test]
    fn malformed_secret_is_an_invalid_request_that_does_not_show_it() {
        for secret in [
            "hunter2",
            "whsec_",
            "whsec_hunter2!",
            "MfKQ9r8GKYqrTwjU",
            "whsk_hunter2!",
            "whsk_hunter2a",
            "whsk_",
        ] {
            let failure = sign(&[secret.into()], ID, TIMESTAMP, BODY).unwrap_err();
            assert_eq!(failure.kind, FailureKind::InvalidRequest);
            assert!(!failure.message.contains("hunter2"));
        }
        assert!(sign(&[], ID, TIMESTAMP, BODY).is_err());
    }
}
