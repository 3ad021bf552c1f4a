//! Presets: each is the system that its document describes, number by number, and nobody changes one.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use postgres::{Client, Transaction};
use serde_json::json;
use webhook_e2e::database::{emit, refusal};
use webhook_e2e::engine::{OTHER_ERRORS, RETRIABLE_ERRORS, claim_statement};
use webhook_e2e::{Cluster, Database};

pub(super) struct Preset {
    pub(super) name: &'static str,
    /// Where its numbers come from.
    document: &'static str,
    /// The wait after each failed attempt but the last, which ends in FAILED, in seconds.
    delays: &'static [i64],
    /// From the first attempt to each later one.
    cumulative: &'static [i64],
    /// The wait of a hypothetical attempt far beyond the last.
    at_last: i64,
    /// Fractions down and up.
    jitter: (f64, f64),
    verdicts: &'static [(RangeInclusive<i32>, &'static str)],
    retried_errors: &'static [&'static str],
    /// Other columns that are not as USUAL says, as SQL.
    columns: &'static [(&'static str, &'static str)],
}

const DAY: i64 = 86_400;
const ALL_OTHERS_ARE_RETRIED: &[(RangeInclusive<i32>, &str)] = &[
    (100..=199, "retry"),
    (200..=299, "success"),
    (300..=999, "retry"),
];
const NO_STATUS_IS_RETRIED: &[(RangeInclusive<i32>, &str)] = &[
    (100..=199, "final"),
    (200..=299, "success"),
    (300..=999, "final"),
];

const USUAL: [(&str, &str); 9] = [
    ("retry_after", "= 'ignore'"),
    ("connect_timeout", "= '5 s'"),
    ("timeout", "= '10 s'"),
    ("warn_threshold", "= 0"),
    ("breaker_counts", "= 'attempts'"),
    ("on_trip", "= 'open'"),
    ("on_exhausted", "= 'continue'"),
    ("hold_for", "IS NULL"),
    ("keep_sent", "= true"),
];

/// The others name only values that differ from these.
const PATIENT: Preset = Preset {
    name: "patient",
    document: "000_9675ae1d3b60a50c",
    delays: &[30, 300, 1_800, 7_200, DAY],
    cumulative: &[30, 330, 2_130, 9_330, 95_730],
    at_last: DAY,
    jitter: (0.1, 0.1),
    verdicts: ALL_OTHERS_ARE_RETRIED,
    retried_errors: &RETRIABLE_ERRORS,
    columns: &[
        ("failure_threshold", "= 5"),
        ("cooldown", "= '60 min'"),
        ("max_cooldown", "= '60 min'"),
        ("when_open", "= 'skip'"),
    ],
};
const OUTBOX: Preset = Preset {
    name: "outbox",
    document: "001_2e2ed73815a3bca9",
    delays: &[1, 2, 4, 8, 16],
    cumulative: &[1, 3, 7, 15, 31],
    jitter: (0.0, 0.0),
    columns: &[("failure_threshold", "= 0")],
    ..PATIENT
};
const BRIDGE: Preset = Preset {
    name: "bridge",
    document: "003_cb70084b888ab615",
    delays: &[1, 2, 4, 8],
    cumulative: &[1, 3, 7, 15],
    at_last: 60,
    columns: &[
        ("failure_threshold", "= 5"),
        ("cooldown", "= '30 s'"),
        ("max_cooldown", "= '30 s'"),
        ("when_open", "= 'attempt'"),
    ],
    ..OUTBOX
};

pub(super) const PRESETS: [Preset; 11] = [
    Preset {
        name: "standard",
        document: "Standard Webhooks, which recommends these delays",
        delays: &[5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, DAY],
        cumulative: &[
            5, 305, 2_105, 9_305, 27_305, 63_305, 113_705, 185_705, 272_105,
        ],
        verdicts: &[
            (100..=199, "retry"),
            (200..=299, "success"),
            (300..=409, "retry"),
            (410..=410, "disable"),
            (411..=999, "retry"),
        ],
        columns: &[
            ("retry_after", "= 'at_least'"),
            ("timeout", "= '15 s'"),
            ("failure_threshold", "= 5"),
            ("warn_threshold", "= 3"),
            ("cooldown", "= '60 s'"),
            ("max_cooldown", "= '60 min'"),
            ("when_open", "= 'hold'"),
            ("hold_for", "= '7 days'"),
        ],
        ..PATIENT
    },
    PATIENT,
    OUTBOX,
    Preset {
        name: "outbox_fixed",
        delays: &[1, 1, 1, 1, 1],
        cumulative: &[1, 2, 3, 4, 5],
        at_last: 1,
        ..OUTBOX
    },
    Preset {
        name: "power5",
        document: "002_ee77d7fe79fe0705",
        delays: &[5, 25, 125, 625, 3_125],
        cumulative: &[5, 30, 155, 780, 3_905],
        jitter: (0.0, 0.1),
        verdicts: &[
            (100..=199, "final"),
            (200..=399, "success"),
            (400..=428, "final"),
            (429..=429, "retry"),
            (430..=499, "final"),
            (500..=599, "retry"),
            (600..=999, "final"),
        ],
        retried_errors: &["dns", "connect", "timeout", "tls", "reset"],
        columns: &[
            ("retry_after", "= 'exact'"),
            ("failure_threshold", "= 0"),
            ("warn_threshold", "= 3"),
            ("on_exhausted", "= 'disable'"),
        ],
        ..OUTBOX
    },
    Preset {
        name: "transport",
        delays: &[1, 2, 4],
        cumulative: &[1, 3, 7],
        verdicts: NO_STATUS_IS_RETRIED,
        columns: &[
            ("failure_threshold", "= 5"),
            ("cooldown", "= '30 s'"),
            ("max_cooldown", "= '30 s'"),
            ("breaker_counts", "= 'final'"),
            ("when_open", "= 'fail'"),
        ],
        ..BRIDGE
    },
    BRIDGE,
    Preset {
        name: "high_traffic",
        delays: &[1, 2],
        cumulative: &[1, 3],
        columns: &[
            ("connect_timeout", "= '3 s'"),
            ("timeout", "= '3 s'"),
            ("failure_threshold", "= 10"),
            ("cooldown", "= '60 s'"),
            ("max_cooldown", "= '60 s'"),
            ("when_open", "= 'attempt'"),
        ],
        ..BRIDGE
    },
    Preset {
        name: "development",
        delays: &[1, 2, 4],
        cumulative: &[1, 3, 7],
        columns: &[
            ("failure_threshold", "= 3"),
            ("cooldown", "= '10 s'"),
            ("max_cooldown", "= '10 s'"),
            ("when_open", "= 'attempt'"),
        ],
        ..BRIDGE
    },
    Preset {
        name: "critical",
        delays: &[2, 4, 8, 16, 32],
        cumulative: &[2, 6, 14, 30, 62],
        columns: &[
            ("failure_threshold", "= 20"),
            ("cooldown", "= '120 s'"),
            ("max_cooldown", "= '120 s'"),
            ("when_open", "= 'hold'"),
        ],
        ..BRIDGE
    },
    Preset {
        name: "job",
        document: "004_3bae08835230b415",
        delays: &[1, 2],
        cumulative: &[1, 3],
        verdicts: &[
            (100..=199, "final"),
            (200..=299, "success"),
            (300..=428, "final"),
            (429..=429, "retry"),
            (430..=499, "final"),
            (500..=599, "retry"),
            (600..=999, "final"),
        ],
        retried_errors: &["dns", "connect", "timeout", "reset"],
        columns: &[
            ("timeout", "= '5 s'"),
            ("failure_threshold", "= 50"),
            ("breaker_counts", "= 'final'"),
            ("on_trip", "= 'disable'"),
            ("keep_sent", "= false"),
        ],
        ..OUTBOX
    },
];

impl Preset {
    fn is_named_in(&self, message: &str) -> String {
        format!("{message} of {} (from {})", self.name, self.document)
    }
}

static DATABASE: LazyLock<Database> = LazyLock::new(|| Cluster::shared().database("presets"));

/// Runs in a transaction that is rolled back, so that no test sees another's policies.
pub(super) fn in_transaction(body: impl FnOnce(&mut Transaction)) {
    let mut client: Client = DATABASE.connect();
    body(&mut client.transaction().unwrap());
}

/// The policy's own waits in microseconds, where the jitter changes nothing.
pub(super) fn neutral_delays(
    transaction: &mut Transaction,
    policy: &str,
    attempts: &[i32],
) -> Vec<i64> {
    let query = "
        SELECT (extract(epoch FROM webhook.own_delay(p, n, CASE WHEN p.jitter_down = 0 THEN 0
                    ELSE p.jitter_down / (p.jitter_down + p.jitter_up) END)) * 1000000)::bigint
        FROM webhook.policy p, unnest($2::int[]) WITH ORDINALITY AS a (n, place)
        WHERE p.name = $1 ORDER BY place";
    let rows = transaction.query(query, &[&policy, &attempts]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

pub(super) fn microseconds(seconds: &[i64]) -> Vec<i64> {
    seconds.iter().map(|s| s * 1_000_000).collect()
}

#[track_caller]
pub(super) fn value<T: postgres::types::FromSqlOwned>(
    transaction: &mut Transaction,
    sql: &str,
) -> T {
    let row = transaction.query_one(sql, &[]);
    row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0)
}

#[track_caller]
pub(super) fn execute(transaction: &mut Transaction, sql: &str) {
    let result = transaction.batch_execute(sql);
    result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Refused inside a savepoint, so that the transaction goes on.
#[track_caller]
pub(super) fn refused(transaction: &mut Transaction, sql: &str) -> postgres::error::DbError {
    refusal(&mut transaction.savepoint("refused").unwrap(), sql)
}

#[test]
fn the_presets_are_these() {
    in_transaction(|transaction| {
        let names: Vec<String> = value(
            transaction,
            "SELECT array_agg(name ORDER BY name) FROM webhook.policy WHERE preset",
        );
        let mut expected = PRESETS.map(|preset| preset.name);
        expected.sort_unstable();
        assert_eq!(names, expected);
    });
}

#[test]
fn each_preset_waits_as_its_document_says() {
    in_transaction(|transaction| {
        for preset in PRESETS {
            let attempts: Vec<i32> = (1..).take(preset.delays.len()).collect();
            let delays = neutral_delays(transaction, preset.name, &attempts);
            let message = preset.is_named_in("the delays");
            assert_eq!(delays, microseconds(preset.delays), "{message}");

            let mut elapsed = 0;
            let cumulative = delays.iter().map(|delay| {
                elapsed += delay;
                elapsed
            });
            let message = preset.is_named_in("the cumulative times");
            let expected = microseconds(preset.cumulative);
            assert_eq!(cumulative.collect::<Vec<_>>(), expected, "{message}");
        }
    });
}

#[test]
fn beyond_its_table_a_preset_stays_at_its_cap_or_last_delay() {
    in_transaction(|transaction| {
        for preset in PRESETS {
            let far = neutral_delays(transaction, preset.name, &[50, 1_000, 32_000, i32::MAX]);
            let message = preset.is_named_in("the longest delay");
            assert_eq!(far, microseconds(&[preset.at_last; 4]), "{message}");
        }
    });
}

#[test]
fn each_preset_ends_in_failed_with_the_attempt_that_its_document_says() {
    in_transaction(|transaction| {
        for preset in PRESETS {
            let endpoint: i32 = value(
                transaction,
                &format!(
                    "SELECT id FROM webhook_set_endpoint('{0}', 'http://127.0.0.1:9/', '{{{0}}}', policy => '{0}')",
                    preset.name
                ),
            );
            let event = emit(transaction, preset.name, json!({}));
            for attempt in 1..=preset.delays.len() + 1 {
                execute(
                    transaction,
                    "UPDATE webhook.delivery SET next_attempt_at = now() WHERE status = 'PENDING'",
                );
                let settle = format!(
                    "SELECT count(*) FROM ({}) AS c,
                          webhook.settle(ARRAY[c.event_id], ARRAY[c.endpoint_id], ARRAY[c.claim_seq], '{{NULL}}', '{{connect}}',
                                         '{{connection refused}}', '{{NULL}}', '{{NULL}}', '{{5}}', '{{1e12}}')",
                    claim_statement(&endpoint.to_string(), 1)
                );
                execute(transaction, "SET LOCAL ROLE webhook_owner");
                value::<i64>(transaction, &settle);
                execute(transaction, "RESET ROLE");
                let query = "SELECT status, attempts FROM webhook.delivery WHERE event_id = $1";
                let row = transaction.query_one(query, &[&event]).unwrap();
                let last = attempt > preset.delays.len();
                let expected = if last { "FAILED" } else { "PENDING" };
                let message = preset.is_named_in(&format!("attempt {attempt}"));
                assert_eq!(row.get::<_, &str>("status"), expected, "{message}");
                assert_eq!(row.get::<_, i32>("attempts"), attempt as i32, "{message}");
            }
        }
    });
}

#[test]
fn jitter_spreads_the_waits_between_its_bounds() {
    in_transaction(|transaction| {
        for preset in PRESETS {
            let query = "
                SELECT p.jitter_down, p.jitter_up, min(share), max(share), avg(share)
                FROM webhook.policy p, generate_series(1, p.max_attempts - 1) AS n,
                     LATERAL (SELECT extract(epoch FROM webhook.own_delay(p, n, random()))::float8
                                     / ($2::bigint[])[n] AS share
                              FROM generate_series(1, 10000)) draws
                WHERE p.name = $1 GROUP BY p.name, n";
            let rows = transaction.query(query, &[&preset.name, &preset.delays]);
            for row in rows.unwrap() {
                let message = preset.is_named_in("the jitter");
                let (down, up) = preset.jitter;
                assert_eq!((row.get(0), row.get(1)), preset.jitter, "{message}");
                let [min, max, mean]: [f64; 3] = [row.get(2), row.get(3), row.get(4)];
                // A wait has whole microseconds.
                let slack = 1e-6;
                assert!(min >= 1.0 - down - slack, "{message}: {min}");
                assert!(max <= 1.0 + up + slack, "{message}: {max}");
                let width = down + up;
                assert!(max - min >= 0.95 * width, "{message}: {min} to {max}");
                let middle = 1.0 + (up - down) / 2.0;
                assert!(
                    (mean - middle).abs() <= 0.05 * width + slack,
                    "{message}: {mean}"
                );
            }
        }
    });
}

#[test]
fn every_status_means_what_the_document_says() {
    in_transaction(|transaction| {
        for preset in PRESETS {
            let query = "
                SELECT s, webhook.verdict(p, s, NULL), webhook.verdict(p, s, 'reset')
                FROM webhook.policy p, generate_series(100, 999) AS s WHERE p.name = $1";
            let rows = transaction.query(query, &[&preset.name]).unwrap();
            assert_eq!(rows.len(), 900);
            for row in rows {
                let status: i32 = row.get(0);
                let message = preset.is_named_in(&format!("status {status}"));
                let expected = preset
                    .verdicts
                    .iter()
                    .find(|(range, _)| range.contains(&status));
                let expected = expected.expect("the table has every status").1;
                assert_eq!(row.get::<_, &str>(1), expected, "{message}");
                assert_eq!(row.get::<_, &str>(2), expected, "{message}, then a reset");
            }
        }
    });
}

#[test]
fn every_error_means_what_the_document_says() {
    in_transaction(|transaction| {
        for preset in PRESETS {
            for kind in RETRIABLE_ERRORS.into_iter().chain(OTHER_ERRORS) {
                let query =
                    "SELECT webhook.verdict(p, NULL, $2) FROM webhook.policy p WHERE name = $1";
                let row = transaction.query_one(query, &[&preset.name, &kind]);
                let expected = match kind {
                    "local" | "released" => "release",
                    kind if preset.retried_errors.contains(&kind) => "retry",
                    _ => "final",
                };
                let message = preset.is_named_in(kind);
                assert_eq!(row.unwrap().get::<_, &str>(0), expected, "{message}");
            }
        }
    });
}

#[test]
fn every_other_column_of_a_preset_is_as_designed() {
    in_transaction(|transaction| {
        for preset in PRESETS {
            let own = |column| preset.columns.iter().any(|(other, _)| *other == column);
            let usual = USUAL.iter().filter(|(column, _)| !own(*column));
            for (column, value_is) in usual.chain(preset.columns) {
                let condition = format!("{column} {value_is}");
                let as_designed: bool = value(
                    transaction,
                    &format!(
                        "SELECT {condition} FROM webhook.policy WHERE name = '{}'",
                        preset.name
                    ),
                );
                let message = preset.is_named_in(&condition);
                assert!(as_designed, "not so: {message}");
            }
        }
    });
}

#[test]
fn presets_cannot_be_changed_removed_or_made() {
    in_transaction(|transaction| {
        let cases = [
            (
                "UPDATE webhook.policy SET max_attempts = 9 WHERE name = 'power5'",
                "55000",
                "webhook_copy_policy('power5'",
            ),
            (
                "UPDATE webhook.policy SET preset = false WHERE name = 'power5'",
                "55000",
                "webhook_copy_policy('power5'",
            ),
            (
                "UPDATE webhook.policy SET name = 'mine' WHERE name = 'power5'",
                "55000",
                "webhook_copy_policy('power5'",
            ),
            (
                "DELETE FROM webhook.policy WHERE name = 'power5'",
                "55000",
                "webhook_copy_policy('power5'",
            ),
            (
                "INSERT INTO webhook.policy (name, preset) VALUES ('mine', true)",
                "22023",
                "leave the column preset at false",
            ),
            (
                "UPDATE webhook.policy SET preset = true WHERE name = 'fast'",
                "22023",
                "leave the column preset at false",
            ),
        ];
        for (statement, code, hint) in cases {
            let refusal = refused(transaction, statement);
            assert_eq!(refusal.code().code(), code, "{statement}");
            let said = refusal.hint().unwrap_or_default();
            assert!(said.contains(hint), "{statement}: {refusal}, {said}");
        }
    });
}

#[test]
fn under_a_preset_an_endpoint_can_ask_for_a_day() {
    in_transaction(|transaction| {
        for preset in ["standard", "power5"] {
            let wait: f64 = value(
                transaction,
                &format!(
                    "SELECT extract(epoch FROM webhook.backoff_delay('{preset}', 1, '30 days'))::float8"
                ),
            );
            assert_eq!(wait, DAY as f64, "{preset}");
        }
    });
}
