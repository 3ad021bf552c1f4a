//! docs/reference.md, as the catalogs of a database with the extension tell it.

use std::fmt::Write;

use postgres::{Client, Row};

use crate::database::Database;

const INTRODUCTION: &str = "\
# Reference

What there is to call, to read and to set. `make reference` writes this page from the catalogs of a database with the
extension: `\\df+ webhook*`, `\\d+ webhook.delivery` and `SELECT * FROM webhook.api()` say the same in `psql`.

A role needs a level, from `webhook_grant(role, level)`: `emit`; `read`; `operate`, which reads too; `admin`, which does
all of it. A superuser needs none.

| word | meaning |
|---|---|
| event | what the application emitted: a type and a payload |
| endpoint | a URL that events are sent to, with patterns of the types that it gets |
| delivery | one event for one endpoint |
| attempt | one request of a delivery |
| policy | when a delivery is tried again, and when the circuit breaker of an endpoint opens |
| breaker | the circuit breaker of an endpoint: while it is open, nothing is sent but a probe |
| dead letter | a delivery that failed for good, kept until somebody sends it again or retention deletes it |
| worker | the background process that delivers the events of one database |
";

/// The whole page.
pub fn markdown(database: &Database) -> String {
    let client = &mut database.connect();
    let mut page = INTRODUCTION.to_owned();
    routines(client, &mut page);
    relations(client, &mut page, "table", "Tables");
    relations(client, &mut page, "view", "Views");
    codes(client, &mut page);
    settings(client, &mut page);
    page
}

fn routines(client: &mut Client, page: &mut String) {
    page.push_str("\n## Functions\n");
    let routines = client.query(
        "SELECT p.proname::text, a.kind, a.level, a.comment,
                replace(regexp_replace(pg_get_function_arguments(p.oid), '::[a-z ]+([[][]])?', '', 'g'),
                        'timestamp with time zone', 'timestamptz'),
                replace(pg_get_function_result(p.oid), 'timestamp with time zone', 'timestamptz')
         FROM webhook.api() a JOIN webhook.members() m USING (name) JOIN pg_proc p ON p.oid = m.routine
         WHERE a.kind IN ('function', 'procedure')
         ORDER BY array_position('{emit,read,operate,admin,superuser}', a.level), p.proname, p.oid",
        &[],
    );
    let mut documented = String::new();
    for routine in routines.expect("the API is readable") {
        let name: String = routine.get(0);
        if name != documented {
            let (level, comment) = (text(&routine, 2), text(&routine, 3));
            write!(page, "\n### {name}\n\n{comment} Level: {level}.\n").unwrap();
        }
        let (call, result) = match text(&routine, 1).as_str() {
            "procedure" => ("CALL ", String::new()),
            _ => ("", format!(" -> {}", text(&routine, 5))),
        };
        let arguments = text(&routine, 4);
        let mut signature = format!("{call}{name}({arguments}){result}");
        if signature.len() > 100 {
            let arguments = separate(&arguments).join(",\n    ");
            signature = format!("{call}{name}(\n    {arguments}\n){result}");
        }
        write!(page, "\n```sql\n{signature}\n```\n").unwrap();
        documented = name;
    }
}

/// The arguments one by one; their defaults may have commas.
fn separate(arguments: &str) -> Vec<String> {
    let (mut parts, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for character in arguments.chars() {
        match character {
            '\'' => quoted = !quoted,
            '(' | '{' | '[' if !quoted => depth += 1,
            ')' | '}' | ']' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is one").push(character);
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

fn relations(client: &mut Client, page: &mut String, kind: &str, title: &str) {
    write!(page, "\n## {title}\n").unwrap();
    let relations = client.query(
        "SELECT a.name, a.level, a.comment, c.oid FROM webhook.api() a
         JOIN pg_class c ON c.relnamespace = 'webhook'::regnamespace AND c.relname = a.name
         WHERE a.kind = $1 AND NOT c.relispartition ORDER BY a.name",
        &[&kind],
    );
    for relation in relations.expect("the API is readable") {
        let (name, level, comment) = (text(&relation, 0), text(&relation, 1), text(&relation, 2));
        write!(page, "\n### webhook.{name}\n\n{comment} Level: {level}.\n").unwrap();
        let oid: u32 = relation.get(3);
        for partition in query(
            client,
            "SELECT c.relname::text, obj_description(c.oid), '', '' FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = $1 ORDER BY c.oid",
            oid,
        ) {
            let (name, comment) = (text(&partition, 0), text(&partition, 1));
            write!(page, "\n`webhook.{name}`: {comment}\n").unwrap();
        }
        page.push_str("\n| column | type | default | |\n|---|---|---|---|\n");
        for column in query(
            client,
            "SELECT a.attname::text, replace(format_type(a.atttypid, a.atttypmod), 'timestamp with time zone', 'timestamptz'),
                    CASE WHEN a.attgenerated <> '' THEN 'generated' WHEN a.attidentity <> '' THEN 'identity'
                         ELSE coalesce(regexp_replace(pg_get_expr(d.adbin, d.adrelid), '::[a-z0-9 ]+([[][]])?', '', 'g'), CASE WHEN NOT a.attnotnull AND c.relkind <> 'v' THEN 'null' END, '') END,
                    coalesce(col_description(a.attrelid, a.attnum), '')
             FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
             LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            oid,
        ) {
            let [name, kind, default, comment] = [0, 1, 2, 3].map(|index| text(&column, index));
            let default = if default.is_empty() {
                default
            } else {
                format!("`{default}`")
            };
            writeln!(page, "| {name} | {kind} | {default} | {comment} |").unwrap();
        }
    }
}

/// Verdicts and reason codes, which the view webhook.code lists.
fn codes(client: &mut Client, page: &mut String) {
    let there = client.query_one("SELECT to_regclass('webhook.code') IS NOT NULL", &[]);
    if !there.expect("the catalogs are readable").get::<_, bool>(0) {
        return;
    }
    page.push_str("\n## Codes\n\n| kind | code | meaning |\n|---|---|---|\n");
    let codes = client.query(
        "SELECT kind, code, meaning FROM webhook.code ORDER BY 1 DESC, 2",
        &[],
    );
    for code in codes.expect("codes are readable") {
        let [kind, code, meaning] = [0, 1, 2].map(|index| text(&code, index));
        writeln!(page, "| {kind} | {code} | {meaning} |").unwrap();
    }
}

fn settings(client: &mut Client, page: &mut String) {
    page.push_str(
        "\n## Settings\n\nIn postgresql.conf; a reload applies them. Those per database can be set by ALTER DATABASE too, by a \
         superuser.\n\n| setting | default | per database | |\n|---|---|---|---|\n",
    );
    let settings = client.query(
        "SELECT s.name, s.boot_val, coalesce(s.unit, ''), s.context = 'superuser', s.short_desc, coalesce(s.extra_desc, '')
         FROM pg_settings s WHERE s.name LIKE 'webhook.%' ORDER BY s.name",
        &[],
    );
    for setting in settings.expect("settings are readable") {
        let [name, value, unit] = [0, 1, 2].map(|index| text(&setting, index));
        let value = in_units(&value, &unit);
        let per_database = if setting.get(3) { "yes" } else { "" };
        let more = text(&setting, 5);
        let space = if more.is_empty() { "" } else { " " };
        let about = format!("{}{space}{more}", text(&setting, 4));
        writeln!(page, "| {name} | `{value}` | {per_database} | {about} |").unwrap();
    }
}

/// 604800 with the unit s is 7 d.
fn in_units(value: &str, unit: &str) -> String {
    let larger: &[(&str, i64)] = match unit {
        "ms" => &[("s", 1_000), ("min", 60), ("h", 60), ("d", 24)],
        "s" => &[("min", 60), ("h", 60), ("d", 24)],
        "min" => &[("h", 60), ("d", 24)],
        "B" => &[("kB", 1_024), ("MB", 1_024), ("GB", 1_024)],
        _ => &[],
    };
    let Ok(mut number) = value.parse::<i64>() else {
        return if value.is_empty() {
            "''".to_owned()
        } else {
            value.to_owned()
        };
    };
    let mut unit = unit;
    for (name, size) in larger {
        if number <= 0 || number % size != 0 {
            break;
        }
        (number, unit) = (number / size, name);
    }
    format!("{number}{unit}")
}

fn query(client: &mut Client, sql: &str, oid: u32) -> Vec<Row> {
    client
        .query(sql, &[&oid])
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

fn text(row: &Row, index: usize) -> String {
    row.get(index)
}
