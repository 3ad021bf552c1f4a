//! The command line of the runner.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, process};

use webhook_e2e::directory::target_directory;

pub struct Options {
    sections: Vec<String>,
    /// Systems of the comparison, by the beginning of their names; none is all.
    systems: Vec<String>,
    /// Committed events of one run of the comparison.
    pub events: u32,
    /// Alternating runs; their median counts.
    pub rounds: usize,
    /// A run is cut after this time, and its rate is that of the deliveries settled until then.
    pub limit: Duration,
    /// How long a transaction holds its snapshot.
    pub pinned: Duration,
    /// How long events are emitted at a steady rate.
    pub flow: Duration,
    /// Rows of tables that have grown, in thousandths of those of the full run.
    pub thousandths: u32,
    pub results: PathBuf,
}

impl Options {
    pub fn from_arguments(sections: &[&str]) -> Options {
        let mut options = Options {
            sections: Vec::new(),
            systems: Vec::new(),
            events: 20_000,
            rounds: 3,
            limit: Duration::from_secs(60),
            pinned: Duration::from_secs(60),
            flow: Duration::from_secs(15),
            thousandths: 1000,
            results: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("results"),
        };
        let mut arguments = env::args().skip(1).peekable();
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next();
                value.unwrap_or_else(|| refuse(&format!("{argument} takes a value"), sections))
            };
            let mut number = || -> u32 {
                let value = value();
                let refused = format!("{argument} takes a positive number, not {value}");
                (value.parse().ok().filter(|number| *number > 0))
                    .unwrap_or_else(|| refuse(&refused, sections))
            };
            match argument.as_str() {
                "--events" => options.events = number(),
                "--rounds" => options.rounds = number() as usize,
                "--limit" => options.limit = Duration::from_secs(number().into()),
                "--pinned" => options.pinned = Duration::from_secs(number().into()),
                "--flow" => options.flow = Duration::from_secs(number().into()),
                "--system" => options.systems.push(value().to_lowercase()),
                "--results" => options.results = PathBuf::from(value()),
                "--quick" => options.be_quick(),
                name if sections.contains(&name) => options.sections.push(argument),
                _ => refuse(&format!("{argument} is no section"), sections),
            }
        }
        options
    }

    /// Shows whether the harness works, and no real figures: they do not go to the place of the real ones.
    fn be_quick(&mut self) {
        self.events = 500;
        self.rounds = 1;
        self.limit = Duration::from_secs(10);
        self.pinned = Duration::from_secs(5);
        self.flow = Duration::from_secs(5);
        self.thousandths = 10;
        self.results = target_directory().join("bench-results");
    }

    pub fn wants_system(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.systems.is_empty() || (self.systems.iter()).any(|wanted| name.starts_with(wanted))
    }

    pub fn wants(&self, section: &str) -> bool {
        self.sections.is_empty() || self.sections.iter().any(|name| name == section)
    }
}

fn refuse(problem: &str, sections: &[&str]) -> ! {
    eprintln!("{problem}\nThe sections are {}.", sections.join(", "));
    process::exit(2);
}
