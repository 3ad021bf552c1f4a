//! Signatures as other senders have them: `hmac_hex(body)`, `hmac_base64("v0:", attempt_time, ":", body)`.

use base64::prelude::{BASE64_STANDARD, Engine};

use super::Moment;
use crate::failure::Failure;
use crate::signing;
use crate::template::Problem;

const A_SIGNATURE: &str = "Write {{hmac_hex(body)}} or {{hmac_base64(\"v0:\", attempt_time, \":\", body)}}: body, attempt_time and texts in \
                           quotes, separated by commas. Where the receiver takes several signatures, join \",v1=\" behind the \
                           parenthesis gives one by each valid secret.";

/// HMAC-SHA256 of the parts, one after the other.
pub(super) struct Signature {
    encoding: Encoding,
    signed: Vec<Signed>,
    /// Between signatures by all secrets that are valid; without it the newest secret alone signs.
    joined_by: Option<String>,
}

enum Encoding {
    Hex,
    Base64,
}

enum Signed {
    Text(String),
    AttemptTime,
    Body,
}

impl Signature {
    pub fn parse(inside: &str) -> Result<Signature, Problem> {
        let mut rest = Rest(inside);
        match rest.signature() {
            Some(signature) if rest.is_empty() => Ok(signature),
            _ => Err(Problem::of(inside, "is not a signature", A_SIGNATURE)),
        }
    }

    pub fn sign(&self, moment: &Moment<'_>) -> Result<String, Failure> {
        let content = self.signed.iter().map(|signed| match signed {
            Signed::Text(text) => text.as_bytes(),
            Signed::AttemptTime => moment.attempt_time.as_bytes(),
            Signed::Body => moment.body,
        });
        let content: Vec<&[u8]> = content.collect();
        let secrets = match (&self.joined_by, moment.hmac_secrets) {
            (_, []) => return Err(Failure::invalid_request("the endpoint has no HMAC secret")),
            (None, [newest, ..]) => std::slice::from_ref(newest),
            (Some(_), all) => all,
        };
        let signatures = secrets.iter().map(|secret| {
            let signature = signing::hmac(secret.as_bytes(), &content)?;
            Ok(match self.encoding {
                Encoding::Hex => format!("{signature:x}"),
                Encoding::Base64 => BASE64_STANDARD.encode(signature),
            })
        });
        let signatures = signatures.collect::<Result<Vec<String>, Failure>>()?;
        Ok(signatures.join(self.joined_by.as_deref().unwrap_or_default()))
    }
}

/// The text that is still to be read, with or without spaces before it.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn signature(&mut self) -> Option<Signature> {
        let encoding = match (self.skip("hmac_hex"), self.skip("hmac_base64")) {
            (true, _) => Encoding::Hex,
            (_, true) => Encoding::Base64,
            _ => return None,
        };
        let mut signed = Vec::new();
        let mut before = "(";
        while self.skip(before) {
            signed.push(self.signed()?);
            before = ",";
        }
        if signed.is_empty() || !self.skip(")") {
            return None;
        }
        let joined_by = match self.skip("join") {
            true => Some(self.text()?.to_owned()),
            false => None,
        };
        Some(Signature {
            encoding,
            signed,
            joined_by,
        })
    }

    fn signed(&mut self) -> Option<Signed> {
        match self.text() {
            Some(text) => Some(Signed::Text(text.to_owned())),
            None if self.skip("attempt_time") => Some(Signed::AttemptTime),
            None if self.skip("body") => Some(Signed::Body),
            None => None,
        }
    }

    /// In double quotes or, since JSON has to escape these, in single ones.
    fn text(&mut self) -> Option<&'a str> {
        let quote = ['"', '\'']
            .into_iter()
            .find(|quote| self.skip(&quote.to_string()))?;
        let (text, rest) = self.0.split_once(quote)?;
        self.0 = rest;
        Some(text)
    }

    fn skip(&mut self, token: &str) -> bool {
        match self.0.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn is_empty(&self) -> bool {
        self.0.trim().is_empty()
    }
}
