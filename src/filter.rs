//! The cost of a filter at worst. A filter runs in the transaction that emits, on any payload, so it is bounded when
//! it is registered: by its length, by the patterns of `like_regex` in it, and by the ways that it goes through a
//! document. It must not fail there either: a filter may only have words that the server evaluates without an error,
//! whatever the values.
//!
//! The server's regular expressions are automata, as long as they have no back-references and no
//! look-around. An automaton takes each character once, and at worst looks at each of its states and their
//! arcs for it. A pattern has about as many states as characters once its repetitions are written out,
//! and a class has an arc for each of the characters that the pattern tells apart. Both are counted here.
//! A repetition within a repetition is refused whatever it costs.
//!
//! This code has to understand everything that the server takes for a pattern, and refuses a pattern that it does not
//! understand. No pgrx here: the tests run without a server.

#[path = "filter/comparison.rs"]
mod comparison;

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::str::Chars;

const MOST_CHARACTERS: usize = 1_000;
/// The largest bound, as in {1,100}.
const MOST_REPETITIONS: usize = 100;
/// The states of all patterns together. A million characters took 3 s with the worst of these.
const MOST_STATES: usize = 200;
const MOST_ARCS: usize = 1_000;

/// The words of a filter beside names, texts and numbers: those of jsonpath in PostgreSQL 15 to 18, except words
/// that raise errors also in silence: `floor()` and `ceiling()` for a number of 131,072 digits, `timestamp()` and
/// `timestamp_tz()` for a date after the year 294276. A later server may have more; they stay out until somebody has
/// read them.
const WORDS: [&str; 29] = [
    "abs",
    "bigint",
    "boolean",
    "date",
    "datetime",
    "decimal",
    "double",
    "exists",
    "false",
    "flag",
    "integer",
    "is",
    "keyvalue",
    "last",
    "lax",
    "like_regex",
    "null",
    "number",
    "size",
    "starts",
    "strict",
    "string",
    "time",
    "time_tz",
    "to",
    "true",
    "type",
    "unknown",
    "with",
];

/// The problem of a filter, given as the server writes a jsonpath: names and texts in quotes.
pub fn problem(filter: &str) -> Option<String> {
    let length = filter.chars().count();
    if length > MOST_CHARACTERS {
        return Some(format!(
            "the filter has {length} characters, more than {MOST_CHARACTERS}"
        ));
    }
    let Found {
        patterns,
        descents,
        unknown,
    } = found_in(filter);
    if let Some(word) = unknown {
        return Some(format!(
            "the filter has {word}(), which fails for some values"
        ));
    }
    if descents > 1 {
        return Some("the filter has .** or keyvalue() more than once".into());
    }
    if let Some(problem) = comparison::problem(filter) {
        return Some(problem.into());
    }
    let (mut states, mut arcs) = (0, 0);
    for pattern in patterns {
        match Cost::of(&pattern) {
            Ok(cost) => {
                states += cost.0;
                arcs += cost.1;
            }
            Err(what) => return Some(format!("the filter has a pattern with {what}")),
        }
    }
    if states > MOST_STATES {
        return Some(format!(
            "the patterns of the filter have {states} characters with their repetitions written out, \
             more than {MOST_STATES}"
        ));
    }
    (arcs > MOST_ARCS).then(|| {
        format!(
            "the patterns of the filter have {arcs} ways to go on, more than {MOST_ARCS}: \
             classes times the characters beside them"
        )
    })
}

#[derive(Default)]
struct Found {
    /// The patterns of like_regex, except plain text (flag "q").
    patterns: Vec<String>,
    /// How often there is `.**` or `keyvalue()`, which copies the values that it goes through.
    descents: usize,
    /// The last word that a filter may not have.
    unknown: Option<String>,
}

fn found_in(filter: &str) -> Found {
    let mut found = Found::default();
    let mut rest = filter.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => _ = text(&mut rest),
            '*' if rest.next_if_eq(&'*').is_some() => found.descents += 1,
            _ if is_of_word(&c) => {
                match word(c, &mut rest).as_str() {
                    "like_regex" => {}
                    "keyvalue" => {
                        found.descents += 1;
                        continue;
                    }
                    other => {
                        if !c.is_ascii_digit() && !WORDS.contains(&other) {
                            found.unknown = Some(other.to_owned());
                        }
                        continue;
                    }
                }
                let pattern = quoted(&mut rest);
                let flags = flags(&mut rest);
                if !flags.contains('q') {
                    found.patterns.push(pattern);
                }
            }
            _ => {}
        }
    }
    found
}

fn is_of_word(c: &char) -> bool {
    c.is_alphanumeric() || *c == '_'
}

fn word(first: char, rest: &mut Peekable<Chars>) -> String {
    let mut word = String::from(first);
    word.extend(std::iter::from_fn(|| rest.next_if(is_of_word)));
    word
}

/// The text that follows a word.
fn quoted(rest: &mut Peekable<Chars>) -> String {
    while rest.next_if_eq(&' ').is_some() {}
    rest.next_if_eq(&'"')
        .map_or_else(String::new, |_| text(rest))
}

/// The flags after `flag`, if that is next.
fn flags(rest: &mut Peekable<Chars>) -> String {
    let mut ahead = rest.clone();
    while ahead.next_if_eq(&' ').is_some() {}
    match ahead.next() {
        Some(c) if is_of_word(&c) && word(c, &mut ahead) == "flag" => {
            let flags = quoted(&mut ahead);
            *rest = ahead;
            flags
        }
        _ => String::new(),
    }
}

/// The rest of a text in quotes, without them.
fn text(rest: &mut Peekable<Chars>) -> String {
    let mut text = String::new();
    while let Some(c) = rest.next() {
        match c {
            '"' => break,
            '\\' => match rest.next() {
                Some('b') => text.push('\u{8}'),
                Some('f') => text.push('\u{c}'),
                Some('n') => text.push('\n'),
                Some('r') => text.push('\r'),
                Some('t') => text.push('\t'),
                // The server escapes control characters so, and no others.
                Some('u') => {
                    let digits: String = rest.take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).ok();
                    let c = code.and_then(char::from_u32);
                    text.push(c.unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                Some(c) => text.push(c),
                None => break,
            },
            c => text.push(c),
        }
    }
    text
}

/// The states and the arcs of a pattern.
struct Cost(usize, usize);

impl Cost {
    fn of(pattern: &str) -> Result<Cost, String> {
        if pattern.starts_with("***") {
            return Err("a director (***)".into());
        }
        let mut reader = Reader {
            rest: pattern.chars().peekable(),
            told_apart: BTreeSet::new(),
        };
        let part = reader.alternatives(0)?;
        let arcs = part.classes.saturating_mul(reader.told_apart.len());
        Ok(Cost(part.states, arcs))
    }
}

#[derive(Clone, Copy, Default)]
struct Part {
    states: usize,
    /// How many of them take more than one character.
    classes: usize,
    /// Whether something in it is repeated.
    repeats: bool,
}

impl Part {
    const CHARACTER: Part = Part {
        states: 1,
        classes: 0,
        repeats: false,
    };
    const CLASS: Part = Part {
        states: 1,
        classes: 1,
        repeats: false,
    };

    fn add(&mut self, other: Part) {
        self.states = self.states.saturating_add(other.states);
        self.classes = self.classes.saturating_add(other.classes);
        self.repeats |= other.repeats;
    }
}

struct Quantifier {
    /// How often the part is written out.
    copies: usize,
    repeats: bool,
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    /// The characters and ranges that the pattern names.
    told_apart: BTreeSet<String>,
}

impl Reader<'_> {
    fn alternatives(&mut self, depth: usize) -> Result<Part, String> {
        let mut whole = Part::default();
        loop {
            match self.rest.peek() {
                None => return Ok(whole),
                Some(')') if depth > 0 => return Ok(whole),
                Some('|') => _ = self.rest.next(),
                Some(_) => whole.add(self.quantified(depth)?),
            }
        }
    }

    fn quantified(&mut self, depth: usize) -> Result<Part, String> {
        let mut part = self.atom(depth)?;
        if let Some(quantifier) = self.quantifier()? {
            if quantifier.repeats && part.repeats {
                return Err("a repetition within a repetition, such as (a+)+".into());
            }
            part.states = part.states.saturating_mul(quantifier.copies);
            part.classes = part.classes.saturating_mul(quantifier.copies);
            part.repeats |= quantifier.repeats;
            if self.quantifier()?.is_some() {
                return Err("two quantifiers in a row".into());
            }
        }
        Ok(part)
    }

    fn quantifier(&mut self) -> Result<Option<Quantifier>, String> {
        let mut ahead = self.rest.clone();
        let quantifier = match ahead.next() {
            Some('*' | '+') => Quantifier {
                copies: 1,
                repeats: true,
            },
            Some('?') => Quantifier {
                copies: 1,
                repeats: false,
            },
            // Without a digit it is a character like any other.
            Some('{') if ahead.peek().is_some_and(char::is_ascii_digit) => bound(&mut ahead)?,
            _ => return Ok(None),
        };
        // As few as possible: that changes nothing about whether it matches.
        ahead.next_if_eq(&'?');
        self.rest = ahead;
        Ok(Some(quantifier))
    }

    fn atom(&mut self, depth: usize) -> Result<Part, String> {
        let c = self.rest.next().ok_or("no end")?;
        match c {
            '(' => self.group(depth),
            '[' => self.bracket(),
            '\\' => self.escape(),
            '.' => Ok(Part::CLASS),
            '^' | '$' => Ok(Part::default()),
            '*' | '+' | '?' => Err("a quantifier of nothing".into()),
            c => Ok(self.character(c)),
        }
    }

    fn character(&mut self, c: char) -> Part {
        self.told_apart.insert(c.into());
        Part::CHARACTER
    }

    fn group(&mut self, depth: usize) -> Result<Part, String> {
        if self.rest.next_if_eq(&'?').is_some() && self.rest.next() != Some(':') {
            return Err("look-ahead, look-behind or options, (?..)".into());
        }
        let part = self.alternatives(depth + 1)?;
        match self.rest.next() {
            Some(')') => Ok(part),
            _ => Err("a group that does not end".into()),
        }
    }

    fn bracket(&mut self) -> Result<Part, String> {
        self.rest.next_if_eq(&'^');
        let mut is_first = true;
        loop {
            let c = self.rest.next().ok_or("a [ that does not end")?;
            let mut element = String::from(c);
            match c {
                ']' if !is_first => return Ok(Part::CLASS),
                '[' => {
                    // Such as [:alpha:] within the brackets.
                    if let Some(kind) = (self.rest).next_if(|c| matches!(c, ':' | '.' | '=')) {
                        self.named_class(kind, &mut element)?;
                    }
                }
                '\\' => element.extend(self.rest.next()),
                _ => {}
            }
            // The end of a range may be named or escaped too; it is counted as an element of its own then.
            if self.rest.next_if_eq(&'-').is_some() {
                element.push('-');
            }
            self.told_apart.insert(element);
            is_first = false;
        }
    }

    /// Reads up to its end and with it.
    fn named_class(&mut self, kind: char, element: &mut String) -> Result<(), String> {
        loop {
            let c = self.rest.next().ok_or("a [ that does not end")?;
            element.push(c);
            if c == kind && self.rest.next_if_eq(&']').is_some() {
                return Ok(());
            }
        }
    }

    fn escape(&mut self) -> Result<Part, String> {
        let c = self.rest.next().ok_or("a backslash at its end")?;
        match c {
            '1'..='9' => Err(format!("a back-reference (\\{c})")),
            'd' | 'D' | 'w' | 'W' | 's' | 'S' => {
                self.told_apart.insert(format!("\\{c}"));
                Ok(Part::CLASS)
            }
            'A' | 'm' | 'M' | 'y' | 'Y' | 'Z' => Ok(Part::default()),
            'c' => {
                let control = self.rest.next().ok_or("a backslash at its end")?;
                self.told_apart.insert(format!("\\c{control}"));
                Ok(Part::CHARACTER)
            }
            // Digits of \u0041 and the like are counted as characters of their own.
            c => Ok(self.character(c)),
        }
    }
}

/// Reads a bound after its brace.
fn bound(ahead: &mut Peekable<Chars>) -> Result<Quantifier, String> {
    let least = number(ahead).unwrap_or(0);
    let most = match ahead.next_if_eq(&',') {
        None => Some(least),
        Some(_) => number(ahead),
    };
    if ahead.next() != Some('}') {
        return Err("a { that does not end".into());
    }
    let copies = most.unwrap_or(least).max(1);
    if copies > MOST_REPETITIONS {
        return Err(format!("more than {MOST_REPETITIONS} repetitions"));
    }
    Ok(Quantifier {
        copies,
        repeats: most != Some(0) && most != Some(1),
    })
}

fn number(ahead: &mut Peekable<Chars>) -> Option<usize> {
    let digits: String = std::iter::from_fn(|| ahead.next_if(char::is_ascii_digit)).collect();
    // A number of too many digits is too large as well.
    (!digits.is_empty()).then(|| digits.parse().unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::problem;

    /// A filter as the server writes it.
    fn with_pattern(pattern: &str) -> String {
        let quoted = pattern.replace('\\', "\\\\").replace('"', "\\\"");
        format!("($.\"data\".\"name\" like_regex \"{quoted}\")")
    }

    #[test]
    fn patterns_that_take_each_character_once_are_accepted() {
        for pattern in [
            "",
            "^order[.](created|paid)$",
            "^[a-z0-9._%+-]+@[a-z0-9.-]+[.][a-z]{2,10}$",
            "^(https?://)?(www[.])?example[.]com(/.*)?$",
            "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
            r"^\d{4}-\d{2}-\d{2}T\d+?$",
            r"\m[[:alpha:]_]+\M",
            "[]a]+[^]b]*[a\\]]",
            "(?:a|b|c)+",
            "(a|ab)*c",
            "x{1,100}",
            "a{,b {} }",
            r"\(\)\\1\[\*",
            "[(?=]",
            "[[.hyphen.]]{3,}",
            r"\cA\u00e9\.",
        ] {
            assert_eq!(problem(&with_pattern(pattern)), None, "{pattern}");
        }
    }

    #[test]
    fn patterns_that_may_take_for_ever_are_refused() {
        let nested = "a repetition within a repetition, such as (a+)+";
        let around = "look-ahead, look-behind or options, (?..)";
        for (pattern, what) in [
            (r"(a+)\1", r"a back-reference (\1)"),
            (r"((((((((((a))))))))))\10", r"a back-reference (\1)"),
            ("(?=a)", around),
            ("a(?!b)", around),
            ("(?<=a)b", around),
            ("(?<!a)b", around),
            ("(?i)a", around),
            ("***:a", "a director (***)"),
            ("(a+)+$", nested),
            ("(a*)*", nested),
            ("(?:a|b+|c){2}", nested),
            ("((a{2})?b)*", nested),
            ("(([a-z])+.)+", nested),
            ("(x[+](a+))+", nested),
            ("(a{1,100}){1,100}", nested),
            ("a{101}", "more than 100 repetitions"),
            ("a{0,255}", "more than 100 repetitions"),
            ("a{99999999999999999999,}", "more than 100 repetitions"),
            ("a**", "two quantifiers in a row"),
            ("a{2}{2}", "two quantifiers in a row"),
            ("*a", "a quantifier of nothing"),
            ("(a", "a group that does not end"),
            ("[a", "a [ that does not end"),
            ("a{1,2", "a { that does not end"),
            ("a\\", "a backslash at its end"),
        ] {
            assert_eq!(
                problem(&with_pattern(pattern)),
                Some(format!("the filter has a pattern with {what}")),
                "{pattern}"
            );
        }
    }

    #[test]
    fn the_size_of_all_patterns_together_is_bounded() {
        let states = |count: usize| {
            Some(format!(
                "the patterns of the filter have {count} characters with their repetitions written out, \
                 more than 200"
            ))
        };
        assert_eq!(problem(&with_pattern("a{100}b{100}")), None);
        assert_eq!(problem(&with_pattern("a{100}b{100}c")), states(201));
        assert_eq!(problem(&with_pattern("(abc|def){40}")), states(240));
        let both = with_pattern(".{100}a") + " && " + &with_pattern(".{100}");
        assert_eq!(problem(&both), states(201));

        assert_eq!(problem(&with_pattern("[abcdefghij]{100}")), None);
        let arcs = problem(&with_pattern("k|[abcdefghij]{100}")).unwrap();
        assert!(arcs.contains("have 1100 ways to go on"), "{arcs}");
    }

    #[test]
    fn the_length_of_a_filter_and_its_descents_are_bounded() {
        let long = |size: usize| format!("($.\"type\" == \"{}\")", "é".repeat(size - 16));
        assert_eq!(problem(&long(1000)), None);
        assert_eq!(
            problem(&long(1001)),
            Some("the filter has 1001 characters, more than 1000".into())
        );
        let once = r#"exists ($.**{1 to 3}?(@ == "**" && @."**".* == 2 * 3))"#;
        assert_eq!(problem(once), None);
        assert_eq!(
            problem(r#"($.**."a".**{2} == 1)"#),
            Some("the filter has .** or keyvalue() more than once".into())
        );
        assert!(problem(r#"($.**."a".keyvalue()."id" == 1)"#).is_some());
    }

    #[test]
    fn only_the_patterns_of_like_regex_are_patterns() {
        for filter in [
            r#"($."like_regex" == "like_regex \"(a+)+\"")"#,
            r#"($."data"."(a+)+" == "(a+)+")"#,
            r#"($."data" like_regex "(a+)+" flag "q")"#,
            r#"($."data" like_regex "(a+)+" flag "iq")"#,
            r#"($."data" like_regex "a" && $."x" == "q(a+)+")"#,
            r#"($."data" like_regex "\\\\1")"#,
            r#"($."a\"like_regex" == "(a+)+")"#,
        ] {
            assert_eq!(problem(filter), None, "{filter}");
        }
        for filter in [
            r#"($."data" like_regex "(a+)+" flag "i")"#,
            r#"($."data" like_regex "(a+)+" && $."x" like_regex "b" flag "q")"#,
            r#"($."data" like_regex "b" flag "q" || $."x" like_regex "(a+)+")"#,
            r#"($."\"" == "\\" && $."x" like_regex "\"(a+)+")"#,
            r#"exists ($."a"[*]?(@ like_regex "(a)\\1"))"#,
        ] {
            let problem = problem(filter);
            assert!(problem.is_some_and(|p| p.contains("pattern")), "{filter}");
        }
    }
}
