//! The values of an event that a template names, cut out of the event's own JSON.

use std::collections::HashMap;

use serde_json::value::RawValue;

pub(crate) const MISSING: &str = "null";

/// Paths have numbers.
#[derive(Default)]
pub(crate) struct Paths {
    wanted: Wanted,
    /// Different paths in `wanted`.
    count: usize,
}

/// All paths as a tree, so that a payload is read once for each of its levels, however many paths lead there.
#[derive(Default)]
struct Wanted {
    number: Option<usize>,
    below: HashMap<String, Wanted>,
}

impl Paths {
    pub fn number_of(&mut self, path: &[&str]) -> usize {
        let mut wanted = &mut self.wanted;
        for name in path {
            wanted = wanted.below.entry((*name).to_owned()).or_default();
        }
        let number = *wanted.number.get_or_insert(self.count);
        self.count = self.count.max(number + 1);
        number
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The JSON of each path, by its number. `event` is the object that the paths lead into.
    pub fn find<'a>(&self, event: &'a RawValue) -> Vec<&'a str> {
        let mut found = vec![MISSING; self.count];
        self.wanted.find(event, &mut found);
        found
    }
}

impl Wanted {
    fn find<'a>(&self, value: &'a RawValue, found: &mut [&'a str]) {
        if let Some(number) = self.number {
            found[number] = value.get();
        }
        if self.below.is_empty() {
            return;
        }
        if let Ok(members) = serde_json::from_str::<HashMap<String, &RawValue>>(value.get()) {
            for (name, wanted) in &self.below {
                if let Some(member) = members.get(name) {
                    wanted.find(member, found);
                }
            }
        } else if let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(value.get()) {
            for (name, wanted) in &self.below {
                let element = name.parse().ok().and_then(|n: usize| elements.get(n));
                if let Some(element) = element {
                    wanted.find(element, found);
                }
            }
        }
    }
}
