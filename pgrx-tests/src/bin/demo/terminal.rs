//! The output of the demo: explanations, SQL with its results as psql prints them, and checked claims.

use std::io::{IsTerminal, stdout};
use std::sync::LazyLock;

use postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

/// Wider results are printed one column per line.
const WIDTH: usize = 110;

const BOLD: &str = "1";
const RED: &str = "31";
const GREEN: &str = "32";
const BLUE: &str = "34";

pub fn step(explanation: &str) {
    println!("\n{}", coloured(BOLD, explanation));
}

/// Checks a claim of the demo; the first claim that does not hold ends it.
#[track_caller]
pub fn claim(holds: bool, text: &str) {
    assert!(holds, "this does not hold: {text}");
    println!("{} {text}", coloured(GREEN, "✓"));
}

pub fn failure(text: &str) {
    println!("{} {text}", coloured(RED, "✗"));
}

/// Prints and runs one statement, prints its result and returns its rows.
#[track_caller]
pub fn run(client: &mut Client, sql: &str) -> Vec<SimpleQueryRow> {
    let sql = sql.trim();
    println!(
        "{} {}",
        coloured(BLUE, "=>"),
        coloured(BLUE, &sql.replace('\n', "\n   "))
    );
    let messages = client
        .simple_query(sql)
        .unwrap_or_else(|error| match error.as_db_error() {
            Some(refusal) => panic!("{refusal}"),
            None => panic!("{error}"),
        });
    let mut rows = Vec::new();
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => rows.push(row),
            SimpleQueryMessage::CommandComplete(count) if rows.is_empty() => {
                println!("{}", command_tag(sql, count));
            }
            _ => {}
        }
    }
    print_table(&rows);
    rows
}

fn command_tag(sql: &str, count: u64) -> String {
    let mut words = sql.split([' ', ';']);
    match words.next().unwrap_or_default() {
        "INSERT" => format!("INSERT 0 {count}"),
        "CREATE" => format!("CREATE {}", words.next().unwrap_or_default()),
        "SELECT" => format!("({count} rows)"),
        "UPDATE" => format!("UPDATE {count}"),
        verb => verb.to_owned(),
    }
}

fn print_table(rows: &[SimpleQueryRow]) {
    let Some(first) = rows.first() else { return };
    let names: Vec<String> = first
        .columns()
        .iter()
        .map(|column| column.name().to_owned())
        .collect();
    let cells: Vec<Vec<String>> = (rows.iter())
        .map(|row| {
            (0..row.len())
                .map(|column| shown(row.get(column)))
                .collect()
        })
        .collect();
    let widths: Vec<usize> = (0..names.len())
        .map(|column| {
            let values = cells.iter().map(|row| &row[column]);
            values
                .chain([&names[column]])
                .map(|text| text.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    if widths.iter().map(|width| width + 3).sum::<usize>() > WIDTH {
        return print_expanded(&names, &cells);
    }
    println!("{}", aligned(&names, &widths, " | "));
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    println!("{}", aligned(&rules, &widths, "-+-"));
    for row in &cells {
        println!("{}", aligned(row, &widths, " | "));
    }
}

fn print_expanded(names: &[String], cells: &[Vec<String>]) {
    let width = names.iter().map(String::len).max().unwrap_or(0);
    for row in cells {
        for (name, value) in names.iter().zip(row) {
            println!("{name:width$} | {value}");
        }
    }
}

fn aligned(cells: &[String], widths: &[usize], separator: &str) -> String {
    let cells: Vec<String> = (cells.iter().zip(widths))
        .map(|(text, width)| format!("{text:width$}"))
        .collect();
    cells.join(separator).trim_end().to_owned()
}

/// A secret is nobody's business in a terminal's scrollback.
fn shown(value: Option<&str>) -> String {
    match value {
        Some(secret) if secret.starts_with("whsec_") => format!("{}...", &secret[..12]),
        Some(value) => value.to_owned(),
        None => String::new(),
    }
}

fn coloured(colour: &str, text: &str) -> String {
    static IN_COLOUR: LazyLock<bool> = LazyLock::new(|| stdout().is_terminal());
    match *IN_COLOUR {
        true => format!("\x1b[{colour}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}
