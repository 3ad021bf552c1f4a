//! Figures as people read them: a table in Markdown, with the promise beside the measured value.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;

use crate::options::Options;

pub struct Figure {
    pub measure: String,
    pub figure: String,
    /// The promise of docs/performance.md, if there is one.
    pub wanted: String,
    pub met: Option<bool>,
}

impl Figure {
    pub fn new(measure: impl Into<String>, figure: impl Into<String>) -> Figure {
        Figure {
            measure: measure.into(),
            figure: figure.into(),
            wanted: String::new(),
            met: None,
        }
    }

    pub fn wanted(mut self, wanted: impl Into<String>, met: bool) -> Figure {
        self.wanted = wanted.into();
        self.met = Some(met);
        self
    }
}

pub fn table(figures: &[Figure]) -> String {
    let rows = figures.iter().map(|figure| {
        let wanted = match figure.met {
            Some(true) => format!("{}: reached", figure.wanted),
            Some(false) => format!("{}: **missed**", figure.wanted),
            None => figure.wanted.clone(),
        };
        vec![figure.measure.clone(), figure.figure.clone(), wanted]
    });
    markdown(&["measure", "figure", "wanted"], rows)
}

/// With columns padded, so that it can be read in a terminal too.
pub fn markdown(heading: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let heading = heading.iter().map(|&name| name.to_owned()).collect();
    let mut lines: Vec<Vec<String>> = vec![heading];
    lines.extend(rows);
    let columns = lines[0].len();
    let widths: Vec<usize> = (0..columns)
        .map(|column| (lines.iter().map(|line| line[column].chars().count())).max())
        .map(|width| width.unwrap_or(0).max(3))
        .collect();
    let rule = widths.iter().map(|&width| "-".repeat(width)).collect();
    lines.insert(1, rule);
    (lines.iter())
        .map(|line| {
            let cells = (line.iter().zip(&widths))
                .map(|(cell, width)| format!(" {cell:width$} "))
                .collect::<Vec<_>>();
            format!("|{}|\n", cells.join("|"))
        })
        .collect()
}

/// Writes one section's file, with the conditions of the run.
pub fn write(options: &Options, name: &str, text: &str) {
    let text = format!("{text}\n{}\n", conditions(options));
    write_file(options, &format!("{name}.md"), &text);
}

pub fn write_file(options: &Options, name: &str, text: &str) {
    let path = options.results.join(name);
    (fs::create_dir_all(&options.results).and_then(|()| fs::write(&path, text)))
        .unwrap_or_else(|error| panic!("could not write {}: {error}", path.display()));
}

/// The machine, the versions and the load that there was before the run.
fn conditions(options: &Options) -> &'static str {
    static CONDITIONS: OnceLock<String> = OnceLock::new();
    CONDITIONS.get_or_init(|| {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: String, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once(':'));
            value.map_or("unknown".to_owned(), |(_, value)| value.trim().to_owned())
        };
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        format!(
            "{}; commit {}; {cores} cores ({}), {} of memory, {}; {} events, median of {} runs, cut after {} s.",
            said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            said("git", &["describe", "--always", "--dirty"]),
            field(read("/proc/cpuinfo"), "model name"),
            field(read("/proc/meminfo"), "MemTotal"),
            said(&pg_config(), &["--version"]),
            options.events,
            options.rounds,
            options.limit.as_secs()
        )
    })
}

pub fn pg_config() -> String {
    std::env::var("PG_CONFIG").unwrap_or("pg_config".to_owned())
}

/// The output of a program, or `unknown`.
pub fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    (text.ok().filter(|text| !text.is_empty())).unwrap_or("unknown".to_owned())
}

/// One line at a time: a run takes many minutes.
pub fn progress(text: &str) {
    eprintln!("{text}");
}

/// 12345.6 as 12,346; small numbers keep their significant digits.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value < 10.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
