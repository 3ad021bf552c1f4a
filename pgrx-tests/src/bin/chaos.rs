//! `make chaos`: every case of the scoreboard with many seeds, and docs/reliability.md on standard output.
//!
//! Arguments: how many seeds, the first seed, and a part of the names of the cases to run.

use std::process::ExitCode;
use std::time::Instant;

use webhook_e2e::Cluster;
use webhook_e2e::chaos::{CASES, Outcome, Score, markdown, try_run};

/// Events that the clients of a scene commit about.
const SIZE: usize = 1000;

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
        let mut outcome = Outcome {
            case,
            runs: 0,
            score: Score::default(),
            failure: None,
        };
        for seed in first..first + seeds {
            eprintln!(
                "[{:>5.0} s] {}/{} {}, seed {seed}",
                begun.elapsed().as_secs_f64(),
                place + 1,
                chosen.len(),
                case.name
            );
            outcome.runs += 1;
            match try_run(case, seed, SIZE) {
                Ok(score) => outcome.score.add(&score),
                Err(why) => {
                    eprintln!("FAILED: {}, seed {seed}: {why}", case.name);
                    outcome.failure.get_or_insert((seed, why));
                }
            }
        }
        outcomes.push(outcome);
    }
    let server = Cluster::builder().without_preload().start();
    let mut session = server.connect("postgres");
    let version = session.query_one("SHOW server_version", &[]);
    let version: String = version.expect("a server knows its version").get(0);
    print!("{}", markdown(&outcomes, seeds, SIZE, &version));
    match outcomes.iter().any(|outcome| outcome.failure.is_some()) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
