//! Text of people, on the page.

use std::fmt::Write;

/// Escapes for text in an element or in an attribute in double quotes, and for nothing else. Invisible characters
/// that change the look of a text are named: a name must not be able to turn the rest of its line around.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            letter if letter.is_control() || turns_text_around(letter) => {
                let _ = write!(out, "[U+{:04X}]", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out
}

fn turns_text_around(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A literal of SQL in printable ASCII, whatever the server's settings, so that a copied text is the text that was
/// seen.
pub fn literal(text: &str) -> String {
    if text
        .chars()
        .all(|letter| matches!(letter, ' '..='~') && letter != '\\')
    {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut out = String::from("E'");
    for letter in text.chars() {
        match letter {
            '\'' => out.push_str("''"),
            '\\' => out.push_str("\\\\"),
            ' '..='~' => out.push(letter),
            letter if u32::from(letter) > 0xffff => {
                let _ = write!(out, "\\U{:08X}", u32::from(letter));
            }
            letter => {
                let _ = write!(out, "\\u{:04X}", u32::from(letter));
            }
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(
            escaped("<script>alert(\"1\")</script> & 'more'"),
            "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#39;more&#39;"
        );
        assert_eq!(escaped("a\nb\r\0"), "a b[U+000D][U+0000]");
        assert_eq!(escaped("in\u{202e}txt.exe"), "in[U+202E]txt.exe");
        assert_eq!(escaped("Größe 東京 👍"), "Größe 東京 👍");
    }

    #[test]
    fn a_literal_is_printable_and_ends_where_it_ends() {
        assert_eq!(literal("orders"), "'orders'");
        assert_eq!(literal("o'; DROP TABLE x; --"), "'o''; DROP TABLE x; --'");
        assert_eq!(literal("\\'; --"), "E'\\\\''; --'");
        assert_eq!(
            literal("a\u{202e}é👍\n"),
            "E'a\\u202E\\u00E9\\U0001F44D\\u000A'"
        );
    }
}
