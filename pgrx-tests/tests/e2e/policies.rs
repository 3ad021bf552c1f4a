//! Policies of one's own: made with an INSERT or a copy; values that make no sense are refused.

use serde_json::json;

use super::presets::{
    PRESETS, execute, in_transaction, microseconds, neutral_delays, refused, value,
};

#[test]
fn a_wait_is_never_negative_and_never_overflows() {
    // backoff, initial_delay, factor, max_delay, schedule, jitter_down, jitter_up: each at the end of its range.
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
fn a_policy_stays_while_it_is_in_use() {
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
        execute(
            transaction,
            "UPDATE webhook.endpoint SET policy = 'standard'",
        );
        execute(
            transaction,
            "DELETE FROM webhook.policy WHERE name = 'fast'",
        );
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
    // The own delay is 60 s, max_delay 600 s. The mode, the wait that is asked for, the wait.
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
