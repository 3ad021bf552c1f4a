//! Placeholders: the places of `{{..}}` in a text, and the value of the event that a path names.

const OPEN: &str = "{{";
const CLOSE: &str = "}}";
/// Following a path takes the stack as deep as it is long.
pub(super) const MAX_NAMES: usize = 100;
pub(super) const MAX_SHOWN: usize = 60;

const ROOTS: [&str; 5] = ["id", "type", "timestamp", "tenant", "data"];
pub(super) const A_PATH: &str = "A placeholder is {{id}}, {{type}}, {{timestamp}}, {{tenant}}, {{data}} or a path below data such as \
                                 {{data.order.id}} or {{data.items.0.name}}.";

/// Reasons why a template is refused, for its author. A reason shows the placeholder and nothing else of the
/// template, which may contain credentials.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub remedy: &'static str,
}

impl Problem {
    pub(crate) fn new(what: impl Into<String>, remedy: &'static str) -> Problem {
        let what = what.into();
        Problem { what, remedy }
    }

    /// The problem of the placeholder that has `inside` between its braces.
    pub(crate) fn of(inside: &str, what: &str, remedy: &'static str) -> Problem {
        let placeholder = match inside.contains(['{', '}']) {
            true => beginning(inside),
            false => shown(&format!("{inside}{CLOSE}")),
        };
        Problem::new(format!("{placeholder} {what}"), remedy)
    }
}

pub(crate) enum Part<'a, P> {
    Literal(&'a str),
    Placeholder(P),
}

/// `read` gets the text between the braces.
pub(crate) fn split<'a, P>(
    text: &'a str,
    read: impl Fn(&'a str) -> Result<P, Problem>,
) -> Result<Vec<Part<'a, P>>, Problem> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((literal, after)) = rest.split_once(OPEN) {
        parts.push(Part::Literal(literal));
        if let Some(after) = after.strip_prefix(OPEN) {
            parts.push(Part::Literal(OPEN));
            rest = after;
        } else if let Some((inside, after)) = after.split_once(CLOSE) {
            parts.push(Part::Placeholder(read(inside)?));
            rest = after;
        } else {
            return Err(Problem::new(
                format!("{} is not closed", beginning(after)),
                "Close it with }}, or write {{{{ for two braces that are to be sent.",
            ));
        }
    }
    parts.push(Part::Literal(rest));
    parts.retain(|part| !matches!(part, Part::Literal("")));
    Ok(parts)
}

/// The first placeholder of a text that may have none, for a [`Problem`].
pub(super) fn first(text: &str) -> Option<String> {
    let (_, after) = text.split_once(OPEN)?;
    Some(beginning(after))
}

pub(crate) fn path(inside: &str) -> Result<Vec<&str>, Problem> {
    let problem = |what, remedy| Err(Problem::of(inside, what, remedy));
    let names: Vec<&str> = inside.trim().split('.').collect();
    if !names.iter().all(|name| is_name(name)) {
        return problem("is not a path", A_PATH);
    }
    if !ROOTS.contains(&names[0]) {
        return problem(
            "begins with none of id, type, timestamp, tenant and data",
            "The payload is below data: {{data.order.id}}.",
        );
    }
    if names[0] != "data" && names.len() > 1 {
        return problem(
            "leads nowhere",
            "Only data has something below it: {{data.order.id}}.",
        );
    }
    if names.len() > MAX_NAMES {
        return problem("is too long", "A path has at most 100 names.");
    }
    Ok(names)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(is_allowed)
}

/// Less than the keys of JSON may have: characters that mean something in other languages of templates are refused,
/// and do not just find nothing.
fn is_allowed(c: char) -> bool {
    matches!(c, '_' | '-' | '$' | '@' | ':')
        || !(c.is_ascii_punctuation() || c.is_whitespace() || c.is_control())
}

/// A placeholder up to where it might end: the text after that is none of its business.
fn beginning(after: &str) -> String {
    let end = after.find(|c| !matches!(c, '.' | '{' | '}') && !is_allowed(c));
    shown(&after[..end.unwrap_or(after.len())])
}

fn shown(placeholder: &str) -> String {
    match placeholder.char_indices().nth(MAX_SHOWN) {
        Some((cut, _)) => format!("\"{OPEN}{}..\"", &placeholder[..cut]),
        None => format!("\"{OPEN}{placeholder}\""),
    }
}
