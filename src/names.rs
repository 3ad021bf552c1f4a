//! Suggestions for a person who named something that is not there.

const MOST: usize = 3;
/// A name is part of many others if it is shorter than this.
const SHORTEST_PART: usize = 3;

/// The longest name is the address of an endpoint: a tenant and a name of 200 letters each. To compare two texts
/// takes as long as the product of their lengths, and no signal interrupts it.
const LONGEST: usize = 401;

/// The names that are close to the wanted one, nearest first, as a question; `None` if none is. There may be any
/// number of names, and only the nearest are kept.
pub fn did_you_mean<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    if is_too_long(wanted) {
        return None;
    }
    let wanted = wanted.to_lowercase();
    let mut close: Vec<(usize, &str)> = Vec::with_capacity(MOST + 1);
    for name in names.filter(|name| !is_too_long(name)) {
        pgrx::check_for_interrupts!();
        if let Some(distance) = distance(&wanted, &name.to_lowercase()) {
            close.push((distance, name));
            close.sort_unstable();
            close.truncate(MOST);
        }
    }
    let quoted: Vec<_> = (close.iter())
        .map(|(_, name)| format!("\"{name}\""))
        .collect();
    (!quoted.is_empty()).then(|| format!("Did you mean {}?", quoted.join(" or ")))
}

fn is_too_long(name: &str) -> bool {
    name.chars().nth(LONGEST).is_some()
}

/// How many letters to change, add, drop or swap, if that is a third of them at most or one is part of the other.
fn distance(one: &str, other: &str) -> Option<usize> {
    let (a, b) = (one.chars().count(), other.chars().count());
    let (shorter, longer) = (a.min(b), a.max(b));
    let is_part = shorter >= SHORTEST_PART && (one.contains(other) || other.contains(one));
    let most = (longer + 1) / 3;
    if !is_part && longer - shorter > most {
        return None;
    }
    let distance = strsim::osa_distance(one, other);
    (is_part || distance <= most).then_some(distance)
}
