//! `make soak`: a mix of loads for so many minutes, with a line for each sample. Arguments: the minutes and the seed.

use std::process::ExitCode;
use std::time::Duration;

use webhook_e2e::soak::{self, MEASURES};

fn main() -> ExitCode {
    let arguments: Vec<u64> = (std::env::args().skip(1))
        .filter_map(|text| text.parse().ok())
        .collect();
    let minutes = arguments.first().copied().unwrap_or(10);
    let seed = arguments.get(1).copied().unwrap_or(1);
    println!("seed {seed}, {minutes} minutes");
    println!("seconds, {}", MEASURES.join(", "));
    let samples = soak::run(seed, Duration::from_secs(60 * minutes), |sample| {
        let values = sample.values.iter().map(|value| format!("{value:.0}"));
        let values: Vec<String> = values.collect();
        println!("{:.0}, {}", sample.at.as_secs_f64(), values.join(", "));
    });
    let growing = soak::growing(&samples);
    for measure in &growing {
        println!("still grows: {measure}");
    }
    match growing.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
