//! Comparisons in a filter. One of two sequences takes the product of their lengths, minutes for a payload
//! of 1 MB, and the server does not look for a cancellation meanwhile. A lax path makes a sequence of any
//! array that it meets, so only one side of a comparison may be a path. In a strict filter both may be, as
//! long as neither can be more than one value.

use std::iter::Peekable;
use std::str::Chars;

/// The problem of a filter, given as the server writes a jsonpath.
pub fn problem(filter: &str) -> Option<&'static str> {
    let tokens = tokens(filter);
    if has_root_in_condition(&tokens) {
        return Some(
            "the filter has $ within ?( ): it would go through the whole event for each element",
        );
    }
    let is_strict = filter.starts_with("strict ");
    let comparisons = (0..tokens.len()).filter(|place| tokens[*place] == Token::Comparison);
    let mut sides = comparisons.map(|place| (left_of(&tokens, place), right_of(&tokens, place)));
    let is_costly = |(left, right): (&[Token], &[Token])| {
        let has = |side: &[Token], wanted: fn(&Token) -> bool| side.iter().any(wanted);
        has(left, Token::is_path)
            && has(right, Token::is_path)
            && !(is_strict && !has(left, Token::is_many) && !has(right, Token::is_many))
    };
    sides.any(is_costly).then_some(
        "the filter compares two paths: one side must be a value, or the filter begin with strict and \
         neither path have [*], .* or the like",
    )
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Open,
    Close,
    /// `$`
    Root,
    /// `@`
    Current,
    Comparison,
    /// `&&`, `||` and `!`
    Logic,
    /// `?`
    Condition,
    /// An accessor that may stand for several values: `[*]`, `.*`, `.**`, `[1 to 2]`, `[1, 2]`, `keyvalue()`
    Many,
    Other,
}

impl Token {
    fn is_path(&self) -> bool {
        matches!(self, Token::Root | Token::Current)
    }

    fn is_many(&self) -> bool {
        *self == Token::Many
    }
}

fn tokens(filter: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = filter.chars().peekable();
    let mut before = ' ';
    while let Some(c) = rest.next() {
        tokens.push(match c {
            '"' => skip_text(&mut rest),
            '(' | '[' => Token::Open,
            ')' | ']' => Token::Close,
            '$' => Token::Root,
            '@' => Token::Current,
            '?' => Token::Condition,
            '!' if rest.next_if_eq(&'=').is_none() => Token::Logic,
            '=' | '<' | '>' | '!' => {
                rest.next_if(|c| matches!(c, '=' | '>'));
                Token::Comparison
            }
            '&' | '|' => Token::Logic,
            ',' => Token::Many,
            // The server writes a product with spaces.
            '*' if matches!(before, '.' | '[' | '*') => Token::Many,
            _ if super::is_of_word(&c) => match super::word(c, &mut rest).as_str() {
                "to" | "keyvalue" => Token::Many,
                _ => Token::Other,
            },
            _ => Token::Other,
        });
        before = c;
    }
    tokens
}

fn skip_text(rest: &mut Peekable<Chars>) -> Token {
    super::text(rest);
    Token::Other
}

fn has_root_in_condition(tokens: &[Token]) -> bool {
    let mut groups = Vec::new();
    for (place, token) in tokens.iter().enumerate() {
        match token {
            Token::Open => {
                let follows = tokens[..place]
                    .iter()
                    .rfind(|token| **token != Token::Other);
                groups.push(follows == Some(&Token::Condition));
            }
            Token::Close => _ = groups.pop(),
            Token::Root if groups.contains(&true) => return true,
            _ => {}
        }
    }
    false
}

fn left_of(tokens: &[Token], place: usize) -> &[Token] {
    let mut depth = 0;
    let start = tokens[..place].iter().rposition(|token| match token {
        Token::Close => {
            depth += 1;
            false
        }
        Token::Open if depth > 0 => {
            depth -= 1;
            false
        }
        Token::Open => true,
        Token::Logic => depth == 0,
        _ => false,
    });
    &tokens[start.map_or(0, |start| start + 1)..place]
}

fn right_of(tokens: &[Token], place: usize) -> &[Token] {
    let mut depth = 0;
    let end = tokens[place + 1..].iter().position(|token| match token {
        Token::Open => {
            depth += 1;
            false
        }
        Token::Close if depth > 0 => {
            depth -= 1;
            false
        }
        Token::Close => true,
        Token::Logic => depth == 0,
        _ => false,
    });
    &tokens[place + 1..end.map_or(tokens.len(), |end| place + 1 + end)]
}

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn a_path_is_compared_with_values() {
        for filter in [
            r#"($."data"."total" > 100)"#,
            r#"(100 < $."data"."items"[*]."price")"#,
            r#"($."data"."items"[*] == 1)"#,
            r#"exists ($."data"."items"[*]?(@."price" > 10 && @."name" == "a $ b == c @"))"#,
            r#"($."due".datetime() < "2030-01-01".datetime())"#,
            r#"(($."a" > 1) && ($."b" < 2) || !($."c" == 3))"#,
            r#"(($."a" + $."b") * 2 >= 10)"#,
            r#"($."data" starts with "x")"#,
            r#"($."data"[0 to 3] <> 2)"#,
            r#"strict ($."data"."record"."status" != $."data"."old_record"."status")"#,
            r#"strict exists ($."data"[*]?(@."a" > @."b"))"#,
        ] {
            assert_eq!(problem(filter), None, "{filter}");
        }
    }

    #[test]
    fn two_sequences_are_not_compared() {
        for filter in [
            r#"($."a"[*] > $."b"[*])"#,
            r#"($."a" > $."b")"#,
            r#"($."data".**?(@."a" == @."b") == 1)"#,
            r#"exists ($."data"[*]?(@ == 1 && $."data"[*] == 2))"#,
            r#"exists ($."data"[*]?(@ == $."data"[0]))"#,
            r#"(($."x" == 1) && ($."a" == ($."b" + 1)))"#,
            r#"strict ($."a"[*] > $."b")"#,
            r#"strict ($."a" > $."b".*)"#,
            r#"strict ($."a"[0,1] > $."b")"#,
            r#"strict ($."a"[0 to 1] > $."b")"#,
            r#"strict ($."a".keyvalue()."id" > $."b")"#,
        ] {
            assert!(problem(filter).is_some(), "{filter}");
        }
    }
}
