//! The token of clients that may see figures from another machine.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use subtle::ConstantTimeEq;

const SHORTEST: usize = 16;

/// The command line would not do: other users of the machine see it.
pub const VARIABLE: &str = "WEBHOOK_RELAY_TOKEN";

#[derive(Clone)]
pub struct Token(Arc<[u8]>);

impl Token {
    pub fn of_file(path: &Path) -> Result<Token, String> {
        let wrong = |what: &str| format!("--token-file \"{}\": {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
        Token::new(&text).map_err(|problem| wrong(&problem))
    }

    pub fn new(text: &str) -> Result<Token, String> {
        let text = text.trim();
        if text.len() < SHORTEST || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "a token has {SHORTEST} or more characters of ASCII without spaces; \
                 \"openssl rand -hex 32\" makes one"
            ));
        }
        Ok(Token(text.as_bytes().into()))
    }

    /// Takes `Bearer`, as scrapers give it, or `Basic` with the token as the password of any user, as browsers do.
    pub fn is_given_by(&self, authorization: &[u8]) -> bool {
        let Some(space) = authorization.iter().position(|byte| *byte == b' ') else {
            return false;
        };
        let (scheme, given) = (
            &authorization[..space],
            authorization[space + 1..].trim_ascii(),
        );
        if scheme.eq_ignore_ascii_case(b"bearer") {
            return self.is(given);
        }
        let Ok(login) = BASE64_STANDARD.decode(given) else {
            return false;
        };
        let colon = login.iter().position(|byte| *byte == b':');
        scheme.eq_ignore_ascii_case(b"basic")
            && colon.is_some_and(|colon| self.is(&login[colon + 1..]))
    }

    /// Takes the same time wherever the two differ.
    fn is(&self, given: &[u8]) -> bool {
        self.0.ct_eq(given).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_given_as_bearer_or_as_a_password() {
        let token = Token::new("0123456789abcdef\n").expect("it is long enough");
        let basic = |login: &str| format!("Basic {}", BASE64_STANDARD.encode(login));
        for given in [
            "Bearer 0123456789abcdef",
            "bearer  0123456789abcdef",
            &basic("anybody:0123456789abcdef"),
            &basic(":0123456789abcdef"),
        ] {
            assert!(token.is_given_by(given.as_bytes()), "{given}");
        }
        for given in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "0123456789abcdef",
            "Digest 0123456789abcdef",
            "Basic 0123456789abcdef",
            "Basic ???",
            &basic("0123456789abcdef:"),
            &basic("0123456789abcdef"),
        ] {
            assert!(!token.is_given_by(given.as_bytes()), "{given}");
        }
    }

    #[test]
    fn a_short_token_is_refused() {
        assert!(Token::new("secret").is_err());
        assert!(Token::new("").is_err());
        assert!(Token::new("0123456789 abcdef").is_err());
    }
}
