//! The values of an event that a template names, cut out of the event's own JSON.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The longest way in which JSON may write one byte: `\u0041`.
pub(crate) const LONGEST_ESCAPE: usize = 6;

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
        // Any other value has nothing below it.
        if !self.below.is_empty() && value.get().starts_with(['{', '[']) {
            let mut reader = serde_json::Deserializer::from_str(value.get());
            let below = Below {
                wanted: self,
                found,
            };
            // It is valid JSON.
            let _ = reader.deserialize_any(below);
        }
    }

    /// The part of the tree under a key as it is written, in its quotes.
    fn under(&self, key: &str) -> Option<&Wanted> {
        let name = key.get(1..key.len() - 1)?;
        if !name.contains('\\') {
            return self.below.get(name);
        }
        // No key is copied that is longer than every name, however it is escaped.
        let longest = self.below.keys().map(String::len).max()?;
        if name.len() > LONGEST_ESCAPE * longest {
            return None;
        }
        self.below.get(&serde_json::from_str::<String>(key).ok()?)
    }
}

/// Reads an object or an array, and takes memory for none of its members: there may be as many as a payload has bytes.
struct Below<'w, 'f, 'a> {
    wanted: &'w Wanted,
    found: &'f mut [&'a str],
}

impl<'a> Visitor<'a> for Below<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<&RawValue>()? {
            let value: &RawValue = members.next_value()?;
            if let Some(wanted) = self.wanted.under(key.get()) {
                wanted.find(value, self.found);
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut elements: A) -> Result<(), A::Error> {
        let below = self.wanted.below.iter();
        let mut wanted: Vec<(usize, &Wanted)> = below
            .filter_map(|(name, wanted)| Some((name.parse().ok()?, wanted)))
            .collect();
        wanted.sort_unstable_by_key(|(place, _)| *place);
        let mut wanted = wanted.into_iter().peekable();
        let mut place = 0;
        while let Some(element) = elements.next_element::<&RawValue>()? {
            while let Some((_, wanted)) = wanted.next_if(|(wanted, _)| *wanted == place) {
                wanted.find(element, self.found);
            }
            place += 1;
        }
        Ok(())
    }
}
