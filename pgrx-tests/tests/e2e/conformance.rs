//! The library and its stand-ins give the same results: pgrx-tests/conformance.sql has inputs and results.

use serde_json::Value;
use webhook_e2e::{Cluster, Database};

const FILE: &str = include_str!("../../conformance.sql");

enum Expected<'a> {
    Rows(Value),
    Error(&'a str),
}

struct Case<'a> {
    name: &'a str,
    statements: &'a str,
    expected: Expected<'a>,
}

fn cases() -> (&'static str, Vec<Case<'static>>) {
    let mut parts = FILE.split("\n-- case: ");
    let before = parts.next().unwrap_or_default();
    let case = |part: &'static str| {
        let (name, rest) = part.split_once('\n').expect("a case has statements");
        if let Some((statements, error)) = rest.split_once("\n-- !> ") {
            let error = error.lines().next().unwrap_or_default();
            return Case {
                name,
                statements,
                expected: Expected::Error(error),
            };
        }
        let (statements, rows) = rest.split_once("\n-- => ").expect("a case has a result");
        let rows = serde_json::from_str(rows.lines().next().unwrap_or_default());
        Case {
            name,
            statements,
            expected: Expected::Rows(rows.unwrap_or_else(|error| panic!("{name}: {error}"))),
        }
    };
    (before, parts.map(case).collect())
}

/// Collects all differences, so that one run tells them all.
fn differences(database: &Database) -> Vec<String> {
    let (before, cases) = cases();
    assert!(cases.len() > 30);
    let mut session = database.connect();
    let mut different = Vec::new();
    for case in cases {
        let mut transaction = session.transaction().unwrap();
        transaction.batch_execute(before).unwrap();
        let mut differs = |got: String, wanted: &str| {
            if got != wanted {
                different.push(format!("{}:\n  got    {got}\n  wanted {wanted}", case.name));
            }
        };
        match &case.expected {
            Expected::Error(wanted) => {
                let got = match transaction.batch_execute(case.statements) {
                    Ok(()) => "no error".to_owned(),
                    Err(error) => match error.as_db_error() {
                        Some(error) => format!("{} {}", error.code().code(), error.message()),
                        None => error.to_string(),
                    },
                };
                differs(got, wanted);
            }
            Expected::Rows(wanted) => {
                let statements = format!("\n{}", case.statements);
                let place = statements
                    .rfind("\nSELECT ")
                    .expect("the last statement is a SELECT");
                let (first, last) = statements.split_at(place);
                let rows = format!(
                    "SELECT coalesce(jsonb_agg(to_jsonb(r)), '[]') FROM ({}) r",
                    last.trim().trim_end_matches(';')
                );
                let got = transaction
                    .batch_execute(first)
                    .and_then(|()| transaction.query_one(&rows, &[]))
                    .map(|row| row.get::<_, Value>(0).to_string());
                let got = got.unwrap_or_else(|error| format!("{error:?}"));
                differs(got, &wanted.to_string());
            }
        }
        transaction.rollback().unwrap();
    }
    different
}

#[test]
fn the_library_gives_the_results_of_the_file() {
    let different = differences(&Cluster::idle().database("library"));
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn the_stand_ins_give_the_results_of_the_file() {
    let different = differences(&Cluster::portable().database("stand_ins"));
    assert!(different.is_empty(), "{}", different.join("\n"));
}
