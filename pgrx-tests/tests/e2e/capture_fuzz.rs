//! Tables that nobody thought of: columns of types that are made at random of one another, and values of them.

use std::env;
use std::ops::RangeInclusive;

use webhook_e2e::Cluster;
use webhook_e2e::random::{Random, for_each_seed_of};

/// `make chaos` asks for more of them.
const SEEDS: u64 = 12;
const COLUMNS: usize = 6;
const ROWS: usize = 4;
const DEPTH: usize = 3;

/// Types of the server, each with values that are hard for somebody.
const PLAIN: [(&str, &[&str]); 22] = [
    ("smallint", &["-32768", "0"]),
    ("bigint", &["9223372036854775807", "9007199254740993"]),
    ("numeric", &["NaN", "-0.000000000000000000001", "1e131071"]),
    ("real", &["-0", "Infinity", "1e-45"]),
    ("float8", &["NaN", "0.1", "1.7976931348623157e308"]),
    ("bool", &["t", "f"]),
    (
        "text",
        &["", "\"\\/\u{1}\u{7f}", "\u{2028}🫖", "null", "{}"],
    ),
    ("varchar(3)", &["é", "   "]),
    ("char(4)", &["a", ""]),
    ("\"char\"", &["", "\u{7f}"]),
    ("bytea", &["\\x", "\\x00ff5c"]),
    ("date", &["infinity", "4713-01-01 BC", "5874897-12-31"]),
    (
        "timestamptz",
        &["-infinity", "294276-12-31 23:59:59.999999+00"],
    ),
    ("interval", &["-178000000 years", "1 mon -1 day 0.000001 s"]),
    ("uuid", &["00000000-0000-0000-0000-000000000000"]),
    (
        "json",
        &["{\"a\": 1, \"a\": [2.50, null]}", " \"\\u00e9\" ", "1E+2"],
    ),
    ("jsonb", &["{}", "[[], \"\", 1e400]", "null"]),
    ("inet", &["::ffff:1.2.3.4/120", "10.0.0.1"]),
    ("tsvector", &["", "'a b':1A '''':2"]),
    ("money", &["-12.34"]),
    ("int4range", &["empty", "[1,)", "(,)"]),
    ("tstzmultirange", &["{}", "{[2026-01-01 00:00Z,)}"]),
];

struct Generator {
    random: Random,
    statements: String,
    made: usize,
}

impl Generator {
    /// The name of a type, and an expression that has a value of it.
    fn of_any_type(&mut self, depth: usize) -> (String, String) {
        self.made += 1;
        let name = format!("t{}", self.made);
        match self.random.below(if depth == 0 { 3 } else { 8 }) {
            0..=2 => {
                let (plain, values) = self.random.one_of(&PLAIN);
                let value = self.random.one_of(values).replace('\'', "''");
                (plain.to_owned(), format!("'{value}'::{plain}"))
            }
            3 => {
                self.statements += &format!("CREATE TYPE {name} AS ENUM ('a', 'B \"b\"', '');");
                (name.clone(), format!("'B \"b\"'::{name}"))
            }
            4 => {
                let (base, value) = self.of_any_type(depth - 1);
                self.statements += &format!("CREATE DOMAIN {name} AS {base};");
                (name.clone(), format!("({value})::{name}"))
            }
            5 | 6 => {
                let (element, value) = self.of_any_type(depth - 1);
                // An array of arrays has one more dimension, and each is whole.
                let array = match self.random.below(3) {
                    _ if element.ends_with("[]") => {
                        return (element, format!("ARRAY[{value}, {value}]"));
                    }
                    0 => format!("'{{}}'::{element}[]"),
                    1 => format!("ARRAY[{value}, NULL]::{element}[]"),
                    _ => format!("ARRAY[ARRAY[{value}], ARRAY[{value}]]::{element}[]"),
                };
                (format!("{element}[]"), array)
            }
            _ => {
                let (first, one) = self.of_any_type(depth - 1);
                let (second, other) = self.of_any_type(depth - 1);
                self.statements += &format!(
                    "CREATE TYPE {name} AS (\"A \"\"a\" {first}, gone int, b {second}); ALTER TYPE {name} DROP ATTRIBUTE gone;"
                );
                (name.clone(), format!("ROW({one}, {other})::{name}"))
            }
        }
    }
}

/// WEBHOOK_FUZZ_SEEDS of them, from WEBHOOK_FUZZ_FIRST on.
fn fuzzed_seeds() -> RangeInclusive<u64> {
    let number = |variable: &str, usual: u64| match env::var(variable) {
        Ok(text) => (text.parse()).unwrap_or_else(|_| panic!("{variable} is no number: {text:?}")),
        Err(_) => usual,
    };
    let first = number("WEBHOOK_FUZZ_FIRST", 1);
    first..=first + number("WEBHOOK_FUZZ_SEEDS", SEEDS) - 1
}

#[test]
fn records_of_odd_types_are_what_to_jsonb_makes_of_the_rows() {
    let database = Cluster::shared().database("capture_fuzz");
    for_each_seed_of(fuzzed_seeds(), |random| {
        let mut generator = Generator {
            random,
            statements: String::new(),
            made: 0,
        };
        let columns: Vec<(String, String)> =
            (0..COLUMNS).map(|_| generator.of_any_type(DEPTH)).collect();
        let types = columns.iter().map(|(name, _)| name.as_str());
        let types: Vec<String> = (0..).zip(types).map(|(n, t)| format!("c{n} {t}")).collect();
        let mut rows = Vec::new();
        for _ in 0..ROWS {
            let values = columns
                .iter()
                .map(|(_, value)| match generator.random.chance(20) {
                    true => "NULL",
                    false => value.as_str(),
                });
            rows.push(format!("({})", values.collect::<Vec<_>>().join(", ")));
        }
        database.execute(&format!(
            "DROP SCHEMA IF EXISTS odd CASCADE; DELETE FROM webhook.event; CREATE SCHEMA odd; SET search_path = odd, public;
             SET webhook.max_payload = '256MB';
             {} CREATE TABLE odd ({}); SELECT webhook_watch('odd', 'odd'); INSERT INTO odd VALUES {}",
            generator.statements,
            types.join(", "),
            rows.join(", ")
        ));
        let different: Vec<String> = database.query_one_value(
            "WITH settings AS MATERIALIZED (SELECT set_config('TimeZone', 'UTC', false)),
                  event AS (SELECT payload -> 'record' AS record, row_number() OVER (ORDER BY id) AS n FROM webhook.event),
                  row AS (SELECT to_jsonb(whole) AS record, row_number() OVER (ORDER BY ctid) AS n FROM settings, odd.odd AS whole)
             SELECT coalesce(array_agg(format('%s and not %s', event.record, row.record)), '{}')
             FROM event FULL JOIN row USING (n) WHERE event.record IS DISTINCT FROM row.record",
        );
        assert_eq!(different, Vec::<String>::new(), "{}", generator.statements);
    });
}
