//! `make chaos`: every case of the scoreboard with many seeds, and docs/reliability.md on standard output.
//!
//! Arguments: how many seeds, the first seed, and a part of the names of the cases to run.

use std::process::ExitCode;
use std::time::Instant;

use webhook_e2e::Cluster;
use webhook_e2e::chaos::{CASES, LONG, Outcome, markdown};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse().ok());
    let seeds: u64 = number(0).unwrap_or(1);
    let first: u64 = number(1).unwrap_or(1);
    let only = arguments.get(2).map_or("", String::as_str);
    let begun = Instant::now();
    eprintln!("seeds {first} to {}", first + seeds - 1);

    let chosen: Vec<_> = CASES
        .iter()
        .filter(|case| case.name.contains(only))
        .collect();
    let mut outcomes = Vec::new();
    for (place, case) in chosen.iter().enumerate() {
        let mut outcome = Outcome::of(case);
        for seed in first..first + seeds {
            eprintln!(
                "[{:>5.0} s] {}/{} {}, seed {seed}",
                begun.elapsed().as_secs_f64(),
                place + 1,
                chosen.len(),
                case.name
            );
            if let Err(why) = outcome.run(seed, LONG) {
                eprintln!("FAILED: {}, seed {seed}: {why}", case.name);
            }
        }
        outcomes.push(outcome);
    }
    let server = Cluster::builder().without_preload().start();
    let mut session = server.connect("postgres");
    let version = session.query_one("SHOW server_version", &[]);
    let version: String = version.expect("a server knows its version").get(0);
    print!("{}", markdown(&outcomes, seeds, &version));
    match outcomes.iter().any(|outcome| outcome.failure.is_some()) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
