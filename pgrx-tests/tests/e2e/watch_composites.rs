//! Watched tables whose columns are of composite types, which change while rows of them are on their way. The server
//! compares a value with its type from the minor releases that fix CVE-2026-6460 on, so no value is taken apart by a
//! type that it does not have.

use serde_json::Value;
use webhook_e2e::{Cluster, Database};

/// A table that has the type in each of its places, with a trigger of each kind.
fn watched(database: &Database) {
    database.execute(
        "CREATE TYPE part AS (a int, b text);
         CREATE DOMAIN piece AS part;
         CREATE TYPE whole AS (name text, p part, ps part[]);
         CREATE TABLE element (a int, b text);
         CREATE TABLE machine (id int, one part, many part[], dressed piece, dressed_many piece[], nested whole, whole_row element);
         SELECT webhook_watch('machine', 'machine', changed => '{id, one, many}');
         CREATE TRIGGER by_row AFTER INSERT OR UPDATE ON machine FOR EACH ROW
             EXECUTE FUNCTION webhook_trigger('machine.row', '{\"ordering_key\": [\"one\"]}');
         CREATE CONSTRAINT TRIGGER at_end AFTER INSERT OR UPDATE ON machine DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
             EXECUTE FUNCTION webhook_trigger('machine.late')",
    );
}

/// A row of the table, in which every part is this one.
fn row(id: i32, part: &str) -> String {
    format!(
        "INSERT INTO machine VALUES ({id}, {part}, ARRAY[{part}, NULL], {part}, ARRAY[{part}]::piece[],
                                     ROW('w', {part}, ARRAY[{part}]), jsonb_populate_record(NULL::element, '{{\"a\": {id}, \"b\": 5}}'))"
    )
}

/// The newest event of each row.
fn captured(client: &mut postgres::Client, event_type: &str) -> Vec<Value> {
    let sql = format!(
        "SELECT DISTINCT ON (payload #>> '{{record,id}}') payload -> 'record' FROM webhook.event
         WHERE event_type = '{event_type}' AND (payload #> '{{record,id}}')::int < 10 ORDER BY payload #>> '{{record,id}}', id DESC"
    );
    let rows = client.query(&sql, &[]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn present(client: &mut postgres::Client) -> Vec<Value> {
    let rows = client.query("SELECT to_jsonb(m) FROM machine m ORDER BY id::text", &[]);
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn a_type_that_changes_in_mid_transaction_is_captured_as_the_server_shows_it() {
    let database = Cluster::idle().database("composites");
    watched(&database);
    let mut client = database.connect();
    client.batch_execute("BEGIN").unwrap();
    for step in [
        &row(1, "ROW(1, 'x')::part"),
        "ALTER TYPE part ADD ATTRIBUTE c numeric CASCADE; ALTER TABLE element ADD COLUMN c int",
        &row(2, "ROW(2, 'y', 2.5)::part"),
        "ALTER TYPE part DROP ATTRIBUTE b CASCADE; ALTER TABLE element DROP COLUMN b",
        &row(3, "ROW(3, 3.5)::part"),
        "ALTER TYPE part ADD ATTRIBUTE b int[] CASCADE; ALTER TABLE element ADD COLUMN b int",
        &row(4, "ROW(4, 4.5, '{4}')::part"),
        "ALTER TYPE part RENAME ATTRIBUTE c TO d",
    ] {
        client.batch_execute(step).unwrap();
        // Old rows too, which have the type of then.
        let touch = "UPDATE machine SET id = id + 10; UPDATE machine SET id = id - 10";
        client.batch_execute(touch).unwrap();
        let rows = present(&mut client);
        for event_type in ["machine.updated", "machine.row"] {
            assert_eq!(
                captured(&mut client, event_type),
                rows,
                "{event_type} after {step}"
            );
        }
    }
    let rows = present(&mut client);
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(captured(&mut client, "machine.late"), rows);
}

#[test]
fn a_type_that_changes_in_mid_statement_does_no_harm() {
    let database = Cluster::idle().database("mid");
    watched(&database);
    database.execute(
        "CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             EXECUTE format('ALTER TYPE part ADD ATTRIBUTE x%s int', NEW.id);
             EXECUTE format('ALTER TYPE part DROP ATTRIBUTE %s', CASE NEW.id WHEN 2 THEN 'b' ELSE 'x' || NEW.id - 2 END);
             RETURN NEW;
         END $$;
         CREATE TRIGGER before BEFORE INSERT ON machine FOR EACH ROW WHEN (NEW.id % 2 = 0) EXECUTE FUNCTION change();
         CREATE TRIGGER between AFTER INSERT ON machine FOR EACH ROW WHEN (NEW.id % 2 = 1 AND NEW.id > 4)
             EXECUTE FUNCTION change()",
    );
    let mut client = database.connect();
    let insert = "INSERT INTO machine (id, one, many)
                  SELECT n, ROW(n, 'value')::part, ARRAY[ROW(n, 'value')::part] FROM generate_series(1, 2) AS n";
    client.batch_execute(insert).unwrap();
    let rows = present(&mut client);
    for event_type in ["machine.created", "machine.row", "machine.late"] {
        assert_eq!(captured(&mut client, event_type), rows, "{event_type}");
    }
}

/// The server refuses it while a column has the type, at any depth. Else values would stay as they were.
#[test]
fn the_type_of_an_attribute_cannot_change_while_a_watched_column_has_it() {
    let database = Cluster::idle().database("retyped");
    watched(&database);
    let mut client = database.connect();
    client.batch_execute(&row(1, "ROW(1, 'x')::part")).unwrap();
    for change in [
        "ALTER TYPE part ALTER ATTRIBUTE a TYPE text",
        "ALTER TABLE element ALTER COLUMN a TYPE text",
    ] {
        let error = client.batch_execute(change).expect_err(change);
        let code = error.as_db_error().unwrap().code().code().to_owned();
        assert_eq!(code, "0A000", "{error:?}");
    }
    client.batch_execute("UPDATE machine SET id = 2").unwrap();
    assert_eq!(
        captured(&mut client, "machine.updated"),
        present(&mut client)
    );
}
