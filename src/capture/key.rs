//! Keys that are made of a row: `schema/table/value/value`.
//!
//! No two lists of values make the same key, nor do two tables, unless they report the same name: a `/` in a part is
//! written `%2F`, and `%` is `%25`. A key that webhook_emit() would refuse, because it is too long or has control
//! characters, is its SHA-256 instead. A hash has no `/`, and so is no key of other values; and no error has to show
//! values of the row.
//!
//! A value may have a gigabyte, so a key that has become too long is hashed piece by piece and not kept.

use sha2::{Digest, Sha256};

/// The limit of `webhook.require_key()`.
const MAX_CHARACTERS: usize = 200;
const MAX_BYTES: usize = 4 * MAX_CHARACTERS;

#[derive(Default)]
pub struct Key {
    /// The key as far as it is known, while it may still be short enough.
    text: String,
    /// Takes what the text cannot.
    digest: Option<Sha256>,
    has_parts: bool,
}

impl Key {
    pub fn add(&mut self, part: &str) {
        if self.has_parts {
            self.push("/");
        }
        self.has_parts = true;
        let mut rest = part;
        while let Some(place) = rest.find(['%', '/']) {
            pgrx::check_for_interrupts!();
            let (plain, special) = rest.split_at(place);
            self.push(plain);
            self.push(if special.starts_with('%') {
                "%25"
            } else {
                "%2F"
            });
            rest = &special[1..];
        }
        self.push(rest);
    }

    fn push(&mut self, piece: &str) {
        if let Some(digest) = &mut self.digest {
            digest.update(piece);
        } else if self.text.len() + piece.len() <= MAX_BYTES {
            self.text.push_str(piece);
        } else {
            let start = Sha256::new_with_prefix(&self.text);
            self.digest = Some(start.chain_update(piece));
        }
    }

    pub fn finish(self) -> String {
        let digest = match self.digest {
            Some(digest) => digest.finalize(),
            None if is_valid(&self.text) => return self.text,
            None => Sha256::digest(&self.text),
        };
        let digits: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{}", digits.concat())
    }
}

fn is_valid(key: &str) -> bool {
    key.chars().count() <= MAX_CHARACTERS && !key.chars().any(char::is_control)
}
