//! No size that a caller chooses takes memory that a session cannot do without: where there is none, the call fails
//! with an error and the server goes on. A Rust allocation that fails ends the process, and with it all others.

use std::fmt::Write;

use postgres::Client;
use postgres::error::SqlState;
use webhook_e2e::worker::{address_space, limit_address_space};
use webhook_e2e::{Cluster, Database, pg_config};

const MEGABYTES: usize = 1 << 20;
/// The size of a large argument.
const LARGE: usize = 64 * MEGABYTES;
/// Room for the argument, in halves of it: without a copy, and with some.
const ROOMS: [usize; 2] = [3, 7];

/// A session with a bound to the memory that it may take from here on.
struct Session {
    client: Client,
    pid: i32,
}

impl Session {
    fn open(mut client: Client) -> Session {
        let pid = client.query_one("SELECT pg_backend_pid()", &[]);
        let pid = pid.unwrap().get(0);
        Session { client, pid }
    }

    fn limit(&self, room: usize) {
        limit_address_space(self.pid, &(address_space(self.pid) + room).to_string());
    }

    /// Runs it in a transaction that is rolled back; any error of the server's will do, as long as the session goes on.
    #[track_caller]
    fn survives(&mut self, sql: &str) -> Option<SqlState> {
        let result = self.client.batch_execute(&format!("BEGIN; {sql}"));
        let code = result.err().map(|error| {
            let answer = error.as_db_error();
            let answer = answer.unwrap_or_else(|| panic!("{sql}: {error:?}"));
            answer.code().clone()
        });
        let crashes = [
            SqlState::CRASH_SHUTDOWN,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
        ];
        let crashed = code.as_ref().is_some_and(|code| crashes.contains(code));
        assert!(!crashed, "the server has crashed at or before {sql}");
        let ended = self.client.batch_execute("ROLLBACK");
        ended.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        code
    }

    /// The DETAIL of the error that there is no memory.
    #[track_caller]
    fn lacks_memory(&mut self, sql: &str) -> String {
        let error = self.client.batch_execute(sql).expect_err(sql);
        let answer = error
            .as_db_error()
            .unwrap_or_else(|| panic!("{sql}: {error:?}"));
        assert_eq!(*answer.code(), SqlState::OUT_OF_MEMORY, "{answer:?}");
        answer.detail().unwrap_or_default().to_owned()
    }
}

fn start() -> (Cluster, Database) {
    let cluster = (Cluster::builder().setting("webhook.max_payload = '256MB'"))
        .setting("webhook.max_in_flight = 0")
        // A backtrace would take more memory than the reserve has.
        .variable("RUST_BACKTRACE", "1")
        .start();
    let database = cluster.database("limited");
    let options = "filter => '$.data.a == 1'";
    database.add_endpoint_with("orders", "http://127.0.0.1:9/", options);
    (cluster, database)
}

#[track_caller]
fn assert_goes_on(cluster: &Cluster, mut bystander: Client) {
    let answer = bystander.batch_execute("SELECT 1");
    answer.unwrap_or_else(|error| panic!("the server has crashed: {error:?}"));
    assert!(!cluster.log().contains("terminated by signal"));
}

/// A function of the library and its parameters.
struct Function {
    name: String,
    parameters: Vec<(String, String)>,
}

impl Function {
    /// A call in which the text of one parameter is replaced.
    fn call(&self, replaced: Option<(usize, &str)>) -> String {
        let arguments = self.parameters.iter().enumerate();
        let arguments = arguments.map(|(number, (name, data_type))| match replaced {
            Some((place, text)) if place == number => text.to_owned(),
            _ => small(name, data_type),
        });
        let arguments: Vec<_> = arguments.collect();
        let arguments = arguments.join(", ");
        // What is returned stays in the server.
        format!(
            "SELECT count(r::text) FROM (SELECT {}({arguments}) AS r OFFSET 0) s",
            self.name
        )
    }
}

/// An argument that the function works with.
fn small(parameter: &str, data_type: &str) -> String {
    let value = match (parameter, data_type) {
        ("payload" | "template", _) => "{}",
        ("url", _) => "http://127.0.0.1:9/",
        ("format", _) => "template",
        ("secrets", _) => "{whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}",
        ("hmac_secrets" | "header_names" | "header_values", _) => "{x}",
        ("filter", _) => "$.data == 1",
        (_, "text") => "x",
        (_, "text[]") => "{x}",
        (_, "boolean") => "true",
        (_, "integer" | "bigint") => "1",
        (_, "integer[]") => "{1,1}",
        (_, "uuid") => "00000000-0000-0000-0000-000000000000",
        (_, "timestamp with time zone") => "2024-01-01",
        other => panic!("there is no value for {other:?}"),
    };
    format!("'{value}'::{data_type}")
}

/// A text of about so many bytes. The server repeats a long text faster than a short one.
fn repeated(text: &str, bytes: usize) -> String {
    let length = 4096 * text.len();
    format!("repeat(repeat('{text}', 4096), {})", bytes / length)
}

/// Arguments of about so many bytes.
fn large(data_type: &str, bytes: usize) -> Vec<String> {
    match data_type {
        "text" => vec![repeated("a", bytes), repeated("[", bytes)],
        "text[]" => vec![
            format!("ARRAY[{}]", repeated("a", bytes)),
            format!("array_fill(repeat('x', 60), ARRAY[{}])", bytes / 64),
        ],
        "integer[]" => vec![format!("array_fill(1, ARRAY[{}])", bytes / 4)],
        _ => Vec::new(),
    }
}

fn functions_of_the_library(database: &Database) -> Vec<Function> {
    let sql = "SELECT p.oid::regproc::text, coalesce(p.proargnames[:p.pronargs], '{}'),
                      ARRAY(SELECT format_type(t.oid, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS t (oid, n) ORDER BY t.n)
               FROM webhook.members() m JOIN pg_proc p ON p.oid = m.routine JOIN pg_language l ON l.oid = p.prolang
               WHERE l.lanname = 'c' AND p.prorettype <> 'trigger'::regtype";
    let rows = database.connect().query(sql, &[]).unwrap();
    let function = |row: &postgres::Row| {
        let (names, types): (Vec<String>, Vec<String>) = (row.get(1), row.get(2));
        Function {
            name: row.get(0),
            parameters: names.into_iter().zip(types).collect(),
        }
    };
    rows.iter().map(function).collect()
}

#[test]
fn arguments_of_any_size_end_in_a_result_or_an_error() {
    let (cluster, database) = start();
    let bystander = database.connect();
    let functions = functions_of_the_library(&database);
    assert!(functions.len() > 20, "{}", functions.len());
    let mut calls = Vec::new();
    for function in &functions {
        for (place, (_, data_type)) in function.parameters.iter().enumerate() {
            for text in large(data_type, LARGE) {
                calls.push(function.call(Some((place, &text))));
            }
        }
    }
    // The functions that people call, with what the library judges.
    let text = repeated("a", LARGE);
    calls.extend([
        format!("SELECT webhook_emit({text}, tenant => {text})"),
        format!("SELECT webhook_emit('a', to_jsonb({text}))"),
        format!("SELECT webhook_emit_many({text}, ARRAY[to_jsonb({text})])"),
        format!("SELECT webhook_set_endpoint('a', 'http://127.0.0.1:9/' || {text})"),
        format!("SELECT webhook_set_endpoint('a', 'http://127.0.0.1:9/', headers => jsonb_build_object('a', {text}))"),
        format!("SELECT webhook_set_endpoint('a', 'http://127.0.0.1:9/', template => to_jsonb({text}))"),
        format!("SELECT webhook_set_endpoint('a', 'http://127.0.0.1:9/', filter => ('$.data == \"' || {text} || '\"')::jsonpath)"),
        format!("SELECT webhook_pause({text})"),
        format!("SELECT webhook_grant({text}, 'emit')"),
    ]);
    for room in ROOMS {
        let mut session = Session::open(database.connect());
        session.survives("SELECT webhook.new_id()");
        session.limit(room * LARGE / 2);
        for call in &calls {
            session.survives(call);
        }
    }
    // As much as a text can have.
    let mut session = Session::open(database.connect());
    session.limit(2000 * MEGABYTES);
    for megabytes in [300, 900] {
        let text = repeated("a", megabytes * MEGABYTES);
        session.survives(&format!("SELECT webhook_emit({text}, tenant => {text})"));
        session.survives(&format!("SELECT webhook_emit('a', tenant => {text})"));
    }
    assert_goes_on(&cluster, bystander);
}

/// A type of column, and a value of about so many bytes.
fn columns(bytes: usize) -> Vec<(&'static str, String)> {
    let text = repeated("a", bytes);
    let quarter = repeated("a", bytes / 4);
    let mut columns = vec![
        ("text", text.clone()),
        ("varchar", repeated("%/", bytes)),
        ("bytea", format!("convert_to({text}, 'UTF8')")),
        ("json", format!("to_json({text})")),
        ("jsonb", format!("to_jsonb({text})")),
        ("int[]", format!("array_fill(1, ARRAY[{}])", bytes / 4)),
        ("text[]", format!("array_fill({quarter}, ARRAY[4])")),
        (
            "numeric[]",
            "array_fill(repeat('9', 131072)::numeric, ARRAY[500])".to_owned(),
        ),
        ("varbit", format!("{}::varbit", repeated("1", bytes))),
        ("name", "repeat('a', 63)::name".to_owned()),
        ("shade", format!("{text}::shade")),
        ("pair", format!("ROW(1, {text})::pair")),
        (
            "pair[]",
            format!("array_fill(ROW(1, {quarter})::pair, ARRAY[4])"),
        ),
        ("couple", format!("ROW(1, {text})::couple")),
        ("spread", format!("spread({text}, NULL)")),
        ("spread[]", format!("ARRAY[spread({text}, NULL)]")),
    ];
    if pg_config::missing_module(&["citext"]).is_none() {
        columns.push(("citext", format!("{text}::citext")));
    }
    if pg_config::missing_module(&["hstore"]).is_none() {
        columns.push(("hstore", format!("hstore('a', {text})")));
    }
    columns
}

#[test]
fn captured_values_of_any_size_end_in_a_result_or_an_error() {
    let (cluster, database) = start();
    let bystander = database.connect();
    let columns = columns(LARGE);
    let mut tables = String::from(
        "CREATE ROLE writer LOGIN; GRANT CREATE ON SCHEMA public TO PUBLIC;
         CREATE DOMAIN shade AS text; CREATE TYPE pair AS (a int, b text); CREATE DOMAIN couple AS pair;
         CREATE TYPE spread AS RANGE (subtype = text);",
    );
    for extension in ["citext", "hstore"] {
        if columns.iter().any(|(data_type, _)| *data_type == extension) {
            writeln!(tables, "CREATE EXTENSION {extension};").unwrap();
        }
    }
    for (number, (data_type, _)) in columns.iter().enumerate() {
        for (table, options) in [
            ("shown", "changed => '{c}'"),
            (
                "keyed",
                "include => '{id}', ordering_key => '{c}', coalesce_key => '{c}'",
            ),
            (
                "tolerant",
                "include => '{id}', tenant_column => 'c', on_error => 'warn'",
            ),
        ] {
            writeln!(
                tables,
                "CREATE UNLOGGED TABLE {table}_{number} (id int, c {data_type}); GRANT ALL ON {table}_{number} TO writer;
                 INSERT INTO {table}_{number} VALUES (1);
                 SELECT webhook_watch('{table}_{number}', 't', {options});"
            )
            .unwrap();
        }
    }
    database.execute(&tables);
    for room in ROOMS {
        let mut session = Session::open(database.connect_as("writer"));
        session.survives("UPDATE shown_0 SET id = 2");
        session.limit(room * LARGE / 2);
        for (number, (data_type, value)) in columns.iter().enumerate() {
            session.survives(&format!("INSERT INTO keyed_{number} VALUES (2, {value})"));
            session.survives(&format!("UPDATE shown_{number} SET c = {value}"));
            if *data_type == "text" {
                session.survives(&format!(
                    "INSERT INTO tolerant_{number} VALUES (2, {value})"
                ));
            }
        }
    }
    assert_goes_on(&cluster, bystander);
}

#[test]
fn arguments_of_a_trigger_of_any_size_are_refused() {
    let database = Cluster::shared().database("arguments");
    database.execute("CREATE TABLE orders (id int)");
    let long = |text: &str| text.repeat(4 * MEGABYTES / text.len());
    for arguments in [
        format!("'{}'", long("a")),
        format!("'a', '{{\"changed\": [\"id\"{}]}}'", long(", \"id\"")),
        format!("'a', '{}'", long("[")),
        format!("'a', '{{\"{}\": 1}}'", long("\\\\n")),
        vec!["''"; 30_000].join(", "),
    ] {
        let create = format!(
            "BEGIN; CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION webhook_trigger({arguments})"
        );
        let mut session = database.connect();
        session.batch_execute(&create).unwrap();
        let error = session.batch_execute("INSERT INTO orders VALUES (1)");
        let error = error.expect_err("it is refused");
        let code = error.as_db_error().expect("by the server").code();
        let violated = SqlState::E_R_I_E_TRIGGER_PROTOCOL_VIOLATED;
        assert_eq!(*code, violated, "{error:?}");
    }
    let condition = format!("NEW.id > 0{}", " ".repeat(250_000));
    let watch = format!("SELECT webhook_watch('orders', 'order', condition => '{condition}')");
    let refused = database.refusal(&watch);
    assert_eq!(*refused.code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
    assert_eq!(
        refused.message(),
        "\"public.orders\" cannot be watched with these options"
    );
}

#[test]
fn without_any_memory_each_function_ends_in_a_result_or_an_error() {
    let (cluster, database) = start();
    let bystander = database.connect();
    database.execute("CREATE TABLE orders (id int, c text); SELECT webhook_watch('orders', 'order', ordering_key => '{c}')");
    let mut calls: Vec<String> = functions_of_the_library(&database)
        .iter()
        .map(|function| function.call(None))
        .collect();
    calls.extend([
        "INSERT INTO orders VALUES (1, repeat('a', 1000))".to_owned(),
        "SELECT webhook_emit('order.paid')".to_owned(),
    ]);
    for room in [0, 100_000, 1_000_000] {
        let mut session = Session::open(database.connect());
        session.survives("SELECT webhook.new_id()");
        session.limit(room);
        for call in &calls {
            let expected = [
                SqlState::OUT_OF_MEMORY,
                SqlState::ACTIVE_SQL_TRANSACTION,
                // The server could not load the time zone UTC, or a library.
                SqlState::INVALID_PARAMETER_VALUE,
                SqlState::UNDEFINED_FILE,
            ];
            if let Some(code) = session.survives(call) {
                assert!(expected.contains(&code), "{call}: {code:?}");
            }
        }
        limit_address_space(session.pid, "unlimited");
        let again = session
            .client
            .batch_execute("SELECT webhook_emit('order.paid')");
        again.expect("there is memory again");
    }
    assert_goes_on(&cluster, bystander);
}

#[test]
fn a_session_that_has_used_its_reserve_gets_an_error() {
    let (cluster, database) = start();
    // The session remembers 2 kB for each row: small pieces of memory, which Rust takes for granted.
    let remember = "PREPARE remember (int) AS SELECT count(*) FROM (
        SELECT webhook.recall_routes(repeat('t', 800 - n), 'a'),
               webhook.remember_routes(repeat('t', 800 - n), 'a', array_fill(1, ARRAY[200]))
        FROM generate_series(1, $1) AS n OFFSET 0) s";
    let open = || {
        let mut session = Session::open(database.connect());
        session.client.batch_execute(remember).unwrap();
        session
    };
    let mut session = open();
    session.limit(512 * 1024);
    assert_eq!(
        session.lacks_memory("EXECUTE remember (1)"),
        "There is no room for the reserve of the webhook library."
    );
    limit_address_space(session.pid, "unlimited");
    session
        .client
        .batch_execute("EXECUTE remember (1)")
        .unwrap();

    // Without any room, the server itself may be the first that lacks memory.
    let details = [0, 50_000, 100_000, 200_000, 400_000].map(|room| {
        let mut session = open();
        let remember_one = session.client.batch_execute("EXECUTE remember (1)");
        remember_one.unwrap();
        session.limit(room);
        let detail = session.lacks_memory("EXECUTE remember (799)");
        limit_address_space(session.pid, "unlimited");
        let remember_all = session.client.batch_execute("EXECUTE remember (799)");
        remember_all.expect("there is memory again");
        detail
    });
    assert!(
        details.contains(&"The webhook library has used its reserve.".to_owned()),
        "{details:?}"
    );
    assert!(!cluster.log().contains("terminated by signal"));
}

#[test]
fn functions_for_sql_borrow_their_arguments() {
    let source = include_str!("../../../src/api.rs");
    let signatures = source.split("#[pg_extern").skip(1);
    for signature in signatures {
        let parameters = signature.split_once("fn ").expect("it is a function").1;
        let parameters = parameters.split_once(") ").expect("it has parameters").0;
        for owned in ["String", "Vec<"] {
            assert!(
                !parameters.contains(owned),
                "{parameters} copies what may be large"
            );
        }
    }
}
