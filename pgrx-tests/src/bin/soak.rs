//! `make soak`: a mix of loads for so many minutes, with a line for each sample, and a chart of them. Arguments: the
//! minutes, the seed, and the file of the chart.

use std::process::ExitCode;
use std::time::Duration;

use webhook_e2e::soak::{self, MEASURES, chart};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse().ok());
    let minutes: u64 = number(0).unwrap_or(10);
    let seed = number(1).unwrap_or(1);
    println!("seed {seed}, {minutes} minutes");
    println!("seconds, {}", MEASURES.join(", "));
    let samples = soak::run(seed, Duration::from_secs(60 * minutes), |sample| {
        let values = sample.values.iter().map(|value| format!("{value:.0}"));
        let values: Vec<String> = values.collect();
        println!("{:.0}, {}", sample.at.as_secs_f64(), values.join(", "));
    });
    if let Some(file) = arguments.get(2) {
        let title = format!("A worker under about 300 events a second, {minutes} minutes");
        std::fs::write(file, chart::draw(&title, &samples)).expect("the chart can be written");
    }
    let growing = soak::growing(&samples);
    for measure in &growing {
        println!("still grows: {measure}");
    }
    match growing.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
