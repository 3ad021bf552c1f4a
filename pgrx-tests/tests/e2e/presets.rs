//! Policies: every preset is the system that its document describes, number by number, and one's own are
//! made with an INSERT that refuses nonsense.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use postgres::{Client, Transaction};
use serde_json::json;
use webhook_e2e::database::{emit, refusal};
use webhook_e2e::{Cluster, Database};

struct Preset {
    name: &'static str,
    /// Where its numbers come from.
    document: &'static str,
    /// The wait after each failed attempt but the last, which ends in FAILED, in seconds.
    delays: &'static [i64],
    /// From the first attempt to each later one.
    cumulative: &'static [i64],
    /// What a hypothetical attempt far beyond the last would wait.
    at_last: i64,
    /// Fractions down and up.
    jitter: (f64, f64),
    verdicts: &'static [(RangeInclusive<i32>, &'static str)],
    retried_errors: &'static [&'static str],
    /// Every other column, as SQL.
    columns: &'static str,
}

const DAY: i64 = 86_400;
const ALL_ERRORS: &[&str] = &[
    "dns",
    "connect",
    "timeout",
    "tls",
    "reset",
    "invalid_response",
];
const EVERY_KIND: [&str; 10] = [
    "dns",
    "connect",
    "timeout",
    "tls",
    "reset",
    "invalid_response",
    "blocked",
    "invalid_request",
    "local",
    "released",
];

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

const PRESETS: [Preset; 11] = [
    Preset {
        name: "standard",
        document: "Standard Webhooks, which recommends these delays",
        delays: &[
            5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, DAY,
        ],
        cumulative: &[
            5, 305, 2_105, 9_305, 27_305, 63_305, 113_705, 185_705, 272_105,
        ],
        at_last: DAY,
        jitter: (0.1, 0.1),
        verdicts: &[
            (100..=199, "retry"),
            (200..=299, "success"),
            (300..=409, "retry"),
            (410..=410, "disable"),
            (411..=999, "retry"),
        ],
        retried_errors: ALL_ERRORS,
        columns: "retry_after = 'at_least' AND connect_timeout = '5 s' AND timeout = '15 s'
            AND failure_threshold = 5 AND warn_threshold = 3 AND cooldown = '60 s' AND max_cooldown = '60 min'
            AND breaker_counts = 'attempts' AND on_trip = 'open' AND when_open = 'hold'
            AND on_exhausted = 'continue' AND hold_for = '7 days' AND keep_sent",
    },
    Preset {
        name: "patient",
        document: "000_9675ae1d3b60a50c",
        delays: &[30, 300, 1_800, 7_200, DAY],
        cumulative: &[30, 330, 2_130, 9_330, 95_730],
        at_last: DAY,
        jitter: (0.1, 0.1),
        verdicts: ALL_OTHERS_ARE_RETRIED,
        retried_errors: ALL_ERRORS,
        columns: "retry_after = 'ignore' AND connect_timeout = '5 s' AND timeout = '10 s'
            AND failure_threshold = 5 AND warn_threshold = 0 AND cooldown = '60 min' AND max_cooldown = '60 min'
            AND breaker_counts = 'attempts' AND on_trip = 'open' AND when_open = 'skip'
            AND on_exhausted = 'continue' AND hold_for IS NULL AND keep_sent",
    },
    Preset {
        name: "outbox",
        document: "001_2e2ed73815a3bca9",
        delays: &[1, 2, 4, 8, 16],
        cumulative: &[1, 3, 7, 15, 31],
        at_last: DAY,
        jitter: (0.0, 0.0),
        verdicts: ALL_OTHERS_ARE_RETRIED,
        retried_errors: ALL_ERRORS,
        columns: OUTBOX_COLUMNS,
    },
    Preset {
        name: "outbox_fixed",
        document: "001_2e2ed73815a3bca9",
        delays: &[1, 1, 1, 1, 1],
        cumulative: &[1, 2, 3, 4, 5],
        at_last: 1,
        jitter: (0.0, 0.0),
        verdicts: ALL_OTHERS_ARE_RETRIED,
        retried_errors: ALL_ERRORS,
        columns: OUTBOX_COLUMNS,
    },
    Preset {
        name: "power5",
        document: "002_ee77d7fe79fe0705",
        delays: &[5, 25, 125, 625, 3_125],
        cumulative: &[5, 30, 155, 780, 3_905],
        at_last: DAY,
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
        columns: "retry_after = 'exact' AND connect_timeout = '5 s' AND timeout = '10 s'
            AND failure_threshold = 0 AND warn_threshold = 3
            AND on_exhausted = 'disable' AND hold_for IS NULL AND keep_sent",
    },
    Preset {
        name: "transport",
        document: "003_cb70084b888ab615",
        delays: &[1, 2, 4],
        cumulative: &[1, 3, 7],
        at_last: 60,
        jitter: (0.0, 0.0),
        verdicts: NO_STATUS_IS_RETRIED,
        retried_errors: ALL_ERRORS,
        columns: "retry_after = 'ignore' AND connect_timeout = '5 s' AND timeout = '10 s'
            AND failure_threshold = 5 AND warn_threshold = 0 AND cooldown = '30 s' AND max_cooldown = '30 s'
            AND breaker_counts = 'final' AND on_trip = 'open' AND when_open = 'fail'
            AND on_exhausted = 'continue' AND hold_for IS NULL AND keep_sent",
    },
    Preset {
        name: "bridge",
        document: "003_cb70084b888ab615",
        delays: &[1, 2, 4, 8],
        cumulative: &[1, 3, 7, 15],
        at_last: 60,
        jitter: (0.0, 0.0),
        verdicts: ALL_OTHERS_ARE_RETRIED,
        retried_errors: ALL_ERRORS,
        columns: "retry_after = 'ignore' AND connect_timeout = '5 s' AND timeout = '10 s'
            AND failure_threshold = 5 AND warn_threshold = 0 AND cooldown = '30 s' AND max_cooldown = '30 s'
            AND breaker_counts = 'attempts' AND on_trip = 'open' AND when_open = 'attempt'
            AND on_exhausted = 'continue' AND hold_for IS NULL AND keep_sent",
    },
    Preset {
        name: "high_traffic",
        document: "003_cb70084b888ab615",
        delays: &[1, 2],
        cumulative: &[1, 3],
        at_last: 60,
        jitter: (0.0, 0.0),
        verdicts: ALL_OTHERS_ARE_RETRIED,
        retried_errors: ALL_ERRORS,
        columns: "retry_after = 'ignore' AND connect_timeout = '3 s' AND timeout = '3 s'
            AND failure_threshold = 10 AND warn_threshold = 0 AND cooldown = '60 s' AND max_cooldown = '60 s'
            AND breaker_counts = 'attempts' AND on_trip = 'open' AND when_open = 'attempt'
            AND on_exhausted = 'continue' AND hold_for IS NULL AND keep_sent",
    },
    Preset {
        name: "development",
        document: "003_cb70084b888ab615",
        delays: &[1, 2, 4],
        cumulative: &[1, 3, 7],
        at_last: 60,
        jitter: (0.0, 0.0),
        verdicts: ALL_OTHERS_ARE_RETRIED,
        retried_errors: ALL_ERRORS,
        columns: "retry_after = 'ignore' AND connect_timeout = '5 s' AND timeout = '10 s'
            AND failure_threshold = 3 AND warn_threshold = 0 AND cooldown = '10 s' AND max_cooldown = '10 s'
            AND breaker_counts = 'attempts' AND on_trip = 'open' AND when_open = 'attempt'
            AND on_exhausted = 'continue' AND hold_for IS NULL AND keep_sent",
    },
    Preset {
        name: "critical",
        document: "003_cb70084b888ab615",
        delays: &[2, 4, 8, 16, 32],
        cumulative: &[2, 6, 14, 30, 62],
        at_last: 60,
        jitter: (0.0, 0.0),
        verdicts: ALL_OTHERS_ARE_RETRIED,
        retried_errors: ALL_ERRORS,
        columns: "retry_after = 'ignore' AND connect_timeout = '5 s' AND timeout = '10 s'
            AND failure_threshold = 20 AND warn_threshold = 0 AND cooldown = '120 s' AND max_cooldown = '120 s'
            AND breaker_counts = 'attempts' AND on_trip = 'open' AND when_open = 'hold'
            AND on_exhausted = 'continue' AND hold_for IS NULL AND keep_sent",
    },
    Preset {
        name: "job",
        document: "004_3bae08835230b415",
        delays: &[1, 2],
        cumulative: &[1, 3],
        at_last: DAY,
        jitter: (0.0, 0.0),
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
        columns: "retry_after = 'ignore' AND connect_timeout = '5 s' AND timeout = '5 s'
            AND failure_threshold = 50 AND warn_threshold = 0 AND breaker_counts = 'final' AND on_trip = 'disable'
            AND on_exhausted = 'continue' AND hold_for IS NULL AND NOT keep_sent",
    },
];

const OUTBOX_COLUMNS: &str =
    "retry_after = 'ignore' AND connect_timeout = '5 s' AND timeout = '10 s'
    AND failure_threshold = 0 AND warn_threshold = 0
    AND on_exhausted = 'continue' AND hold_for IS NULL AND keep_sent";

impl Preset {
    fn is_named_in(&self, message: &str) -> String {
        format!("{message} of {} (from {})", self.name, self.document)
    }
}

static DATABASE: LazyLock<Database> = LazyLock::new(|| Cluster::shared().database("presets"));

/// Runs in a transaction that is rolled back, so that no test sees another's policies.
fn in_transaction(body: impl FnOnce(&mut Transaction)) {
    let mut client: Client = DATABASE.connect();
    body(&mut client.transaction().unwrap());
}

/// The policy's own waits in microseconds, where the jitter changes nothing.
fn neutral_delays(transaction: &mut Transaction, policy: &str, attempts: &[i32]) -> Vec<i64> {
    let query = "
        SELECT (extract(epoch FROM webhook.own_delay(p, n, CASE WHEN p.jitter_down = 0 THEN 0
                    ELSE p.jitter_down / (p.jitter_down + p.jitter_up) END)) * 1000000)::bigint
        FROM webhook.policy p, unnest($2::int[]) WITH ORDINALITY AS a (n, place)
        WHERE p.name = $1 ORDER BY place";
    let rows = transaction.query(query, &[&policy, &attempts]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn microseconds(seconds: &[i64]) -> Vec<i64> {
    seconds.iter().map(|s| s * 1_000_000).collect()
}

#[track_caller]
fn value<T: postgres::types::FromSqlOwned>(transaction: &mut Transaction, sql: &str) -> T {
    let row = transaction.query_one(sql, &[]);
    row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0)
}

#[track_caller]
fn execute(transaction: &mut Transaction, sql: &str) {
    let result = transaction.batch_execute(sql);
    result.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Refused inside a savepoint, so that the transaction goes on.
#[track_caller]
fn refused(transaction: &mut Transaction, sql: &str) -> postgres::error::DbError {
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
                    "SELECT count(*) FROM webhook.claim(1, ARRAY[{endpoint}], '{{1}}', '{{0}}', '{{1}}', 1) AS c,
                          webhook.settle(ARRAY[c.event_id], ARRAY[c.endpoint_id], ARRAY[c.claim_seq], '{{NULL}}', '{{connect}}',
                                         '{{connection refused}}', '{{NULL}}', '{{NULL}}', '{{5}}', '{{1e12}}')"
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
            for kind in EVERY_KIND {
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
            for condition in preset.columns.split(" AND ") {
                let as_designed: bool = value(
                    transaction,
                    &format!(
                        "SELECT {condition} FROM webhook.policy WHERE name = '{}'",
                        preset.name
                    ),
                );
                let message = preset.is_named_in(condition.trim());
                assert!(as_designed, "not so: {message}");
            }
        }
    });
}

#[test]
fn a_wait_is_never_negative_and_never_overflows() {
    // backoff, initial_delay, factor, max_delay, schedule, jitter_down, jitter_up: each at the end of what is allowed.
    let extremes = [
        "'exponential', '1000 days', 100, '1000 days', '{1 s}', 1, 1",
        "'exponential', '1 us', 100, '1000 days', '{1 s}', 1, 1",
        "'exponential', '0 s', 100, '1000 days', '{1 s}', 0, 1",
        "'exponential', '1000 days', 1, '0 s', '{1 s}', 1, 0",
        "'fixed', '1000 days', 100, '0 s', '{1 s}', 1, 1",
        "'schedule', '1 s', 100, '0 s', '{0 s, 1000 days}', 1, 1",
        "'schedule', '1 s', 100, '0 s', '{1000 days}', 0, 0",
    ];
    in_transaction(|transaction| {
        for (number, extreme) in extremes.iter().enumerate() {
            execute(
                transaction,
                &format!(
                    "INSERT INTO webhook.policy (name, backoff, initial_delay, factor, max_delay, schedule, jitter_down, jitter_up)
                     VALUES ('extreme_{number}', {extreme})"
                ),
            );
        }
        let query = "
            SELECT p.name, n, webhook.backoff_delay(p, n, NULL, draw) BETWEEN interval '100 ms' AND interval '2000 days'
            FROM webhook.policy p, unnest('{-1, 0, 1, 2, 100, 31999, 32000, 2147483647}'::int[]) AS n,
                 unnest('{0, 0.5, 1}'::float8[]) AS draw";
        let rows = transaction.query(query, &[]).unwrap();
        assert_eq!(rows.len(), (PRESETS.len() + extremes.len() + 1) * 8 * 3);
        for row in rows {
            let (policy, attempts): (&str, i32) = (row.get(0), row.get(1));
            let within: Option<bool> = row.get(2);
            assert_eq!(within, Some(true), "{policy} at attempt {attempts}");
        }
    });
}

#[test]
fn an_insert_of_a_name_and_two_columns_makes_a_policy() {
    in_transaction(|transaction| {
        execute(
            transaction,
            "INSERT INTO webhook.policy (name, max_attempts, schedule) VALUES ('mine', 3, '{1 h, 8 h}')",
        );
        let difference: serde_json::Value = value(
            transaction,
            "SELECT jsonb_object_agg(mine.key, mine.value)
             FROM webhook.policy m, webhook.policy s, jsonb_each(to_jsonb(m)) AS mine
             JOIN jsonb_each((SELECT to_jsonb(p) FROM webhook.policy p WHERE name = 'standard')) AS standard USING (key)
             WHERE m.name = 'mine' AND s.name = 'standard' AND mine.value <> standard.value",
        );
        assert_eq!(
            difference,
            json!({"name": "mine", "max_attempts": 3, "schedule": ["01:00:00", "08:00:00"], "preset": false})
        );
        let delays = neutral_delays(transaction, "mine", &[1, 2, 3]);
        assert_eq!(delays, microseconds(&[3_600, 28_800, 28_800]));
    });
}

#[test]
fn a_copy_has_every_column_of_its_source_and_can_be_changed() {
    in_transaction(|transaction| {
        for preset in PRESETS {
            let copy = format!("{}_copy", preset.name);
            execute(
                transaction,
                &format!("SELECT webhook_copy_policy('{}', '{copy}')", preset.name),
            );
            let row = transaction.query_one(
                "SELECT to_jsonb(c) - '{name, preset}'::text[] = to_jsonb(s) - '{name, preset}'::text[], c.preset
                 FROM webhook.policy c, webhook.policy s WHERE c.name = $1 AND s.name = $2",
                &[&copy, &preset.name],
            );
            let row = row.unwrap();
            let (same, preset): (bool, bool) = (row.get(0), row.get(1));
            assert!(same && !preset, "{copy}");
            execute(
                transaction,
                &format!("UPDATE webhook.policy SET max_attempts = 9 WHERE name = '{copy}'"),
            );
        }
    });
}

#[test]
fn a_copy_needs_a_source_that_exists_and_a_name_that_does_not() {
    in_transaction(|transaction| {
        let cases = [
            (
                "'nothing', 'mine'",
                "42704",
                "SELECT name FROM webhook.policy",
            ),
            ("'power5', 'outbox'", "42710", "Choose another name"),
            ("'power5', 'fast'", "42710", "Choose another name"),
        ];
        for (arguments, code, hint) in cases {
            let refusal = refused(
                transaction,
                &format!("SELECT webhook_copy_policy({arguments})"),
            );
            assert_eq!(refusal.code().code(), code, "{arguments}");
            let said = refusal.hint().unwrap_or_default();
            assert!(said.contains(hint), "{arguments}: {said}");
        }
    });
}

#[test]
fn presets_cannot_be_changed_removed_or_made() {
    in_transaction(|transaction| {
        let cases = [
            (
                "UPDATE webhook.policy SET max_attempts = 9 WHERE name = 'power5'",
                "webhook_copy_policy('power5'",
            ),
            (
                "UPDATE webhook.policy SET preset = false WHERE name = 'power5'",
                "webhook_copy_policy('power5'",
            ),
            (
                "UPDATE webhook.policy SET name = 'mine' WHERE name = 'power5'",
                "webhook_copy_policy('power5'",
            ),
            (
                "DELETE FROM webhook.policy WHERE name = 'power5'",
                "webhook_copy_policy('power5'",
            ),
            (
                "INSERT INTO webhook.policy (name, preset) VALUES ('mine', true)",
                "leave the column preset at false",
            ),
            (
                "UPDATE webhook.policy SET preset = true WHERE name = 'fast'",
                "leave the column preset at false",
            ),
        ];
        for (statement, hint) in cases {
            let refusal = refused(transaction, statement);
            let said = refusal.hint().unwrap_or_default();
            assert!(said.contains(hint), "{statement}: {refusal}, {said}");
        }
    });
}

#[test]
fn a_policy_in_use_stays() {
    in_transaction(|transaction| {
        execute(
            transaction,
            "SELECT webhook_set_endpoint('user', 'http://127.0.0.1:9/', policy => 'fast')",
        );
        for statement in [
            "DELETE FROM webhook.policy WHERE name = 'fast'",
            "UPDATE webhook.policy SET name = 'faster' WHERE name = 'fast'",
        ] {
            let refusal = refused(transaction, statement);
            assert_eq!(refusal.code().code(), "2BP01", "{statement}");
            assert!(refusal.hint().is_some(), "{statement}");
        }
    });
}

#[test]
fn a_policy_that_makes_no_sense_is_refused() {
    let cases = [
        ("name", "'Mine'"),
        ("name", "''"),
        ("name", "'with space'"),
        ("max_attempts", "0"),
        ("max_attempts", "-1"),
        ("max_attempts", "32001"),
        ("backoff", "'linear'"),
        ("initial_delay", "'-1 s'"),
        ("initial_delay", "'170000000 years'"),
        ("factor", "0.5"),
        ("factor", "100.1"),
        ("factor", "'NaN'"),
        ("max_delay", "'-1 s'"),
        ("max_delay", "'1001 days'"),
        ("schedule", "'{}'"),
        ("schedule", "'{1 s, -1 s}'"),
        ("schedule", "'{1001 days}'"),
        ("schedule", "'{1 s, NULL}'"),
        ("schedule", "'{{1 s, 2 s}, {3 s, 4 s}}'"),
        ("schedule", "'[0:1]={1 s, 2 s}'"),
        ("jitter_down", "-0.1"),
        ("jitter_down", "1.1"),
        ("jitter_down", "'NaN'"),
        ("jitter_up", "-0.1"),
        ("jitter_up", "1.1"),
        ("jitter_up", "'Infinity'"),
        ("retry_errors", "'{weather}'"),
        ("retry_errors", "'{blocked}'"),
        ("retry_errors", "'{local}'"),
        ("retry_errors", "'{dns, NULL}'"),
        ("retry_after", "'always'"),
        ("timeout", "'0 s'"),
        ("timeout", "'-1 s'"),
        ("timeout", "'61 min'"),
        ("connect_timeout", "'0 s'"),
        ("connect_timeout", "'61 min'"),
        ("failure_threshold", "-1"),
        ("warn_threshold", "-1"),
        ("cooldown", "'-1 s'"),
        ("cooldown", "'61 min'"),
        ("max_cooldown", "'59 s'"),
        ("breaker_counts", "'requests'"),
        ("on_trip", "'panic'"),
        ("when_open", "'wait'"),
        ("on_exhausted", "'panic'"),
        ("hold_for", "'0 s'"),
    ];
    in_transaction(|transaction| {
        let mut accepted = Vec::new();
        for (column, nonsense) in cases {
            let name = if column == "name" { "" } else { "name, " };
            let mine = if column == "name" { "" } else { "'mine', " };
            let insert =
                format!("INSERT INTO webhook.policy ({name}{column}) VALUES ({mine}{nonsense})");
            let mut savepoint = transaction.savepoint("nonsense").unwrap();
            match savepoint.batch_execute(&insert) {
                Ok(()) => accepted.push(format!("{column} = {nonsense}")),
                Err(error) => {
                    let code = error.code().map(|code| code.code());
                    assert_eq!(code, Some("23514"), "{column} = {nonsense}: {error}");
                }
            }
        }
        assert_eq!(accepted, Vec::<String>::new());
    });
}

#[test]
fn no_column_of_a_policy_but_hold_for_may_be_null() {
    in_transaction(|transaction| {
        let nullable: Vec<String> = value(
            transaction,
            "SELECT array_agg(attname::text) FROM pg_attribute
             WHERE attrelid = 'webhook.policy'::regclass AND attnum > 0 AND NOT attnotnull",
        );
        assert_eq!(nullable, ["hold_for"]);
    });
}

#[test]
fn an_endpoint_can_ask_for_a_wait_as_far_as_the_policy_lets_it() {
    // The own delay is 60 s, max_delay 600 s. Mode, what is asked, the wait.
    let cases = [
        ("ignore", "'300 s'", 60),
        ("ignore", "NULL", 60),
        ("exact", "'300 s'", 300),
        ("exact", "'1 s'", 1),
        ("exact", "'601 s'", 600),
        ("exact", "'100 years'", 600),
        ("exact", "'-1 s'", 60),
        ("exact", "NULL", 60),
        ("at_least", "'300 s'", 300),
        ("at_least", "'1 s'", 60),
        ("at_least", "'0 s'", 60),
        ("at_least", "'601 s'", 600),
        ("at_least", "'-1 s'", 60),
        ("at_least", "NULL", 60),
    ];
    in_transaction(|transaction| {
        execute(
            transaction,
            "INSERT INTO webhook.policy (name, retry_after, backoff, initial_delay, max_delay, jitter_down, jitter_up)
             SELECT mode, mode, 'fixed', '60 s', '600 s', 0, 0 FROM unnest('{ignore, exact, at_least}'::text[]) AS mode",
        );
        for (mode, asked, seconds) in cases {
            let wait: f64 = value(
                transaction,
                &format!(
                    "SELECT extract(epoch FROM webhook.backoff_delay('{mode}', 1, {asked}))::float8"
                ),
            );
            assert_eq!(wait, f64::from(seconds), "{mode} with {asked}");
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

#[test]
fn a_wait_by_name_draws_its_own_jitter_and_is_null_for_no_policy() {
    in_transaction(|transaction| {
        let (waits, nothing): (i64, Option<f64>) = (
            value(
                transaction,
                "SELECT count(DISTINCT webhook.backoff_delay('power5', 3, NULL)) FROM generate_series(1, 100)",
            ),
            value(
                transaction,
                "SELECT extract(epoch FROM webhook.backoff_delay('nothing', 1, NULL))::float8",
            ),
        );
        assert!(waits > 90, "{waits} different waits of 100");
        assert_eq!(nothing, None);
    });
}

#[test]
fn attempts_that_nobody_asked_for_are_100_ms_apart() {
    in_transaction(|transaction| {
        execute(
            transaction,
            "INSERT INTO webhook.policy (name, retry_after, backoff, initial_delay, schedule, jitter_down, jitter_up, cooldown, max_cooldown)
             VALUES ('none', 'exact', 'fixed', '0 s', '{1 s}', 0, 0, '0 s', '0 s'),
                    ('schedule', 'at_least', 'schedule', '1 s', '{0 s, 1 us}', 0, 0, '1 ms', '50 ms'),
                    ('jitter', 'ignore', 'fixed', '200 ms', '{1 s}', 1, 0, '1 ms', '1 ms'),
                    ('own', 'exact', 'fixed', '101 ms', '{1 s}', 0, 0, '101 ms', '101 ms')",
        );
        for (policy, attempts, asked, draw, seconds) in [
            ("none", 1, "NULL", 0, 0.1),
            ("none", 1, "'0 s'", 0, 0.1),
            ("none", 1, "'99 ms'", 0, 0.1),
            ("none", 1, "'2 s'", 0, 2.0),
            ("schedule", 1, "NULL", 0, 0.1),
            ("schedule", 9, "'0 s'", 0, 0.1),
            ("jitter", 1, "NULL", 0, 0.1),
            ("jitter", 1, "NULL", 1, 0.2),
            ("own", 1, "NULL", 0, 0.101),
        ] {
            let wait: f64 = value(
                transaction,
                &format!(
                    "SELECT extract(epoch FROM webhook.backoff_delay(p, {attempts}, {asked}, {draw}))::float8
                     FROM webhook.policy p WHERE p.name = '{policy}'"
                ),
            );
            assert_eq!(wait, seconds, "{policy} with {asked}");
        }
        // Probes are attempts too.
        let cooldowns: Vec<f64> = value(
            transaction,
            "SELECT array_agg(extract(epoch FROM webhook.cooldown(p, 1))::float8 ORDER BY p.name)
             FROM webhook.policy p WHERE p.name IN ('none', 'own', 'schedule')",
        );
        assert_eq!(cooldowns, [0.1, 0.101, 0.1]);
    });
}
