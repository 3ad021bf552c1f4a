//! docs/reference.md, as the catalogs of a database with the extension tell it.

use std::fmt::Write;

use postgres::{Client, Row};

use crate::database::Database;

const INTRODUCTION: &str = "\
# Reference: functions, tables, views, codes and settings

Every function, table, view, code and setting. `make reference` writes this page from the catalogs of a
database with the extension; `\\df+ webhook*`, `\\d+ webhook.delivery` and `SELECT * FROM webhook.api()` say
the same in `psql`.

A role needs a level, from `webhook_grant(role, level)`: `emit`, `read`, `operate` (which includes `read`),
`admin` (which includes all) or `relay`. A superuser needs none.

## Glossary

| word | meaning |
|---|---|
| event | what the application emitted: a type and a payload, once, with an id that receivers see as `webhook-id` |
| endpoint | a URL that events are sent to, with patterns of the types that it gets |
| address | the text that names an endpoint: `name`, `tenant/name`, or `tenant/*` for many |
| tenant | the customer that an event or an endpoint belongs to, if any |
| delivery | one event for one endpoint: a row of `webhook.delivery` |
| attempt | one request of a delivery, or what stood in its place; failed ones are rows of `webhook.attempt` |
| policy | when a delivery is tried again, and when the circuit breaker of an endpoint opens |
| preset | a policy that the extension brings and that only an upgrade changes |
| verdict, reason | what the outcome of an attempt means, and the code of what happened; see [Codes](#codes) |
| due | said of a delivery: its time has come, and the next claim takes it |
| parked | said of a delivery: a person took its time away (`next_attempt_at = 'infinity'`), and it waits for a person |
| kept back | said of a delivery: due, but its endpoint is paused, disabled, held or behind an open breaker. The metric `webhook_parked` counts these |
| held | said of an endpoint: it belongs to another installation, and waits for `webhook_adopt()`. Said of a sender: it delivers nothing, and `webhook_status()` says why |
| breaker | the circuit breaker of an endpoint: while it is open, nothing is sent but a probe |
| probe | the one request that goes out after the cooldown of an open breaker; its outcome closes the breaker or opens it again |
| dead letter | a delivery that failed for good, kept until somebody sends it again or retention deletes it |
| replay, backfill | to send again what an endpoint had; to send what it never had |
| sender | a process that claims, sends and settles deliveries: the worker or a relay |
| worker | the sender inside the server: a background process for each database |
| relay | the sender outside of the server: the program `webhook-relay` |
| share | a part of the endpoints of a database; each share has one sender at a time |
| claim | to take a delivery for one attempt (SENDING); it is given back, or settled |
| settle | to record the outcome of an attempt: SENT, FAILED, or PENDING until the next one |
| window | how many requests an endpoint may have in flight, by what it has shown to bear |
| origin | the installation that an endpoint belongs to |
| level | what a role may do: `emit`, `read`, `operate`, `admin`, `relay` |
";

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
         WHERE a.kind IN ('function', 'procedure') AND 'webhook.type_beside_json'::regtype <> ALL (p.proargtypes)
         ORDER BY array_position('{emit,read,operate,admin,superuser}', a.level), p.proname, p.oid",
        &[],
    );
    let mut documented = String::new();
    for routine in routines.expect("the API is readable") {
        let name: String = routine.get(0);
        if name != documented {
            parameters(client, page, &documented);
            let (level, comment) = (text(&routine, 2), text(&routine, 3));
            write!(page, "\n### {name}\n\n{comment}\nLevel: `{level}`.\n").unwrap();
        }
        let (call, result) = match text(&routine, 1).as_str() {
            "procedure" => ("CALL ", String::new()),
            _ => ("", format!(" -> {}", text(&routine, 5))),
        };
        let arguments = text(&routine, 4);
        let mut signature = format!("{call}{name}({arguments}){result}");
        if signature.len() > 100 {
            let columns = result
                .strip_prefix(" -> TABLE(")
                .and_then(|rest| rest.strip_suffix(')'));
            let result = match columns {
                Some(columns) if result.len() > 100 => format!(" -> TABLE({})", in_lines(columns)),
                _ => result,
            };
            signature = format!("{call}{name}({}){result}", in_lines(&arguments));
        }
        write!(page, "\n```sql\n{signature}\n```\n").unwrap();
        documented = name;
    }
    parameters(client, page, &documented);
}

/// Parameters and result columns of all functions with this name.
fn parameters(client: &mut Client, page: &mut String, function: &str) {
    for (title, is_result) in [("parameter", false), ("column", true)] {
        let parameters = client.query(
            "SELECT d.parameter, d.meaning FROM webhook.members() m
             CROSS JOIN LATERAL webhook.parameters_of(m.routine) WITH ORDINALITY AS d (parameter, meaning, is_result, ordinal)
             WHERE m.name = $1 AND d.is_result = $2 GROUP BY d.parameter, d.meaning ORDER BY min(d.ordinal), d.parameter",
            &[&function, &is_result],
        );
        let parameters = parameters.expect("the API is readable");
        if !parameters.is_empty() {
            write!(page, "\n| {title} | |\n|---|---|\n").unwrap();
        }
        for parameter in parameters {
            let (name, meaning) = (text(&parameter, 0), text(&parameter, 1).replace('*', "\\*"));
            writeln!(page, "| `{name}` | {meaning} |").unwrap();
        }
    }
}

/// A line for each argument.
fn in_lines(arguments: &str) -> String {
    match arguments {
        "" => String::new(),
        some => format!("\n    {}\n", separate(some).join(",\n    ")),
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
        write!(
            page,
            "\n### webhook.{name}\n\n{comment}\nLevel: `{level}`.\n"
        )
        .unwrap();
        let oid: u32 = relation.get(3);
        grants(client, page, oid);
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

/// The privileges beyond those of the level, of the table and of its partitions.
fn grants(client: &mut Client, page: &mut String, table: u32) {
    let granted = query(
        client,
        "SELECT g.level, g.privilege, CASE WHEN c.relispartition THEN ' on `webhook.' || g.name || '`' ELSE '' END,
                coalesce(array_to_string(g.columns, ', '), '')
         FROM webhook.api_grants() WITH ORDINALITY AS g (name, level, privilege, columns, ordinal)
         JOIN pg_class c ON c.relname = g.name AND c.relnamespace = 'webhook'::regnamespace
         WHERE c.oid = $1 OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = $1)
         ORDER BY g.ordinal",
        table,
    );
    if !granted.is_empty() {
        page.push_str("\n| level | may also | columns |\n|---|---|---|\n");
    }
    for grant in granted {
        let [level, privilege, partition, columns] = [0, 1, 2, 3].map(|index| text(&grant, index));
        writeln!(page, "| `{level}` | {privilege}{partition} | {columns} |").unwrap();
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
        "\n## Settings\n\nSettings are in `postgresql.conf`, and a reload applies them. Those per database can be set by \
         `ALTER\nDATABASE` too, by a superuser.\n\n| setting | default | per database | |\n|---|---|---|---|\n",
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
