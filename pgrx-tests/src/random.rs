//! Numbers that are the same in every run, for tests that try many cases: a seed names its case.

use std::ops::RangeInclusive;
use std::thread;

use uuid::Uuid;

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// In hundredths, so that SQL and Rust read the same number.
    pub fn fraction(&mut self) -> f64 {
        self.below(101) as f64 / 100.0
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }

    pub fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.next(), self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Runs a case for each seed from 1; the seed of a case that fails is shown.
pub fn for_each_seed(cases: u64, case: impl FnMut(Random)) {
    for_each_seed_of(1..=cases, case);
}

pub fn for_each_seed_of(seeds: RangeInclusive<u64>, mut case: impl FnMut(Random)) {
    for seed in seeds {
        let _shown = ShownOnFailure(seed);
        case(Random::seeded(seed));
    }
}

struct ShownOnFailure(u64);

impl Drop for ShownOnFailure {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("it was the case with seed {}", self.0);
        }
    }
}
