//! Statements of the engine over a connection to the server.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio_postgres::error::Severity;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, Row, SimpleQueryMessage, Socket, Statement,
};
use uuid::Uuid;
use webhook_engine::{Connection, Parameter, Trouble, Value};

use crate::silence::Silence;

const TRANSACTION_RESOLUTION_UNKNOWN: &str = "08007";
const CONNECTION_DOES_NOT_EXIST: &str = "08003";
const PROTOCOL_VIOLATION: &str = "08P01";
const INVALID_AUTHORIZATION_SPECIFICATION: &str = "28000";
const SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION: &str = "08001";

/// A statement takes milliseconds, and the slowest disk some seconds. Keepalives find a server that is gone sooner
/// than this; but not one behind a proxy that is there itself.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A commit waits for the disk at least, or a crash would undo outcomes. lock_timeout is below deadlock_timeout, so
/// that in a deadlock no person loses. The server ends the session of a relay that is cut off after about 5 s, idle
/// or not; where its system has no such option it ignores it. transaction_timeout is there from PostgreSQL 17 on, and
/// restrict_nonsystem_relation_kind, which would keep the session from the view of metrics, since minor releases of 2024.
const PREPARE: &str = "
    SET search_path = pg_catalog, pg_temp;
    SET default_transaction_isolation = 'read committed';
    SET default_transaction_deferrable = off;
    SET standard_conforming_strings = on;
    SET extra_float_digits = 1;
    SET statement_timeout = 0;
    SET idle_session_timeout = 0;
    SET lock_timeout = '250ms';
    SET jit = off;
    SET geqo = off;
    SET tcp_keepalives_idle = '2s';
    SET tcp_keepalives_interval = '1s';
    SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = '5s';
    SELECT set_config(s.name, '0', false) FROM pg_settings s WHERE s.name = 'transaction_timeout';
    SELECT set_config(s.name, '', false) FROM pg_settings s WHERE s.name = 'restrict_nonsystem_relation_kind';
    SELECT set_config(s.name, 'local', false) FROM pg_settings s
    WHERE s.name = 'synchronous_commit' AND s.setting = 'off';
    LISTEN webhook_due";

/// Prepares each statement once. A statement is sent without BEGIN and COMMIT: it is a transaction by itself, and one
/// round trip.
///
/// The calls block, and nothing else of the runtime stands still meanwhile: it runs while they wait.
pub struct Session {
    runtime: Rc<Runtime>,
    client: Client,
    statements: HashMap<&'static str, Statement>,
    /// Why the connection ended, as far as the server or the system has said so.
    end: watch::Receiver<Option<String>>,
    rings: Arc<Notify>,
    silence: Arc<Silence>,
    given_up: Cell<bool>,
}

impl Session {
    pub fn begin<T>(runtime: &Rc<Runtime>, config: &Config, tls: T) -> Result<Self, Trouble>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T::TlsConnect: TlsConnect<Socket>,
    {
        runtime.block_on(Session::open(runtime, config, tls, Arc::default()))
    }

    /// The same for callers that wait for something else meanwhile. Each answer ends the silence.
    pub async fn open<T>(
        runtime: &Rc<Runtime>,
        config: &Config,
        tls: T,
        silence: Arc<Silence>,
    ) -> Result<Self, Trouble>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T::TlsConnect: TlsConnect<Socket>,
    {
        let begun = tokio::time::timeout(ANSWER_WITHIN, config.connect(tls)).await;
        let begun = begun
            .map_err(|_| Trouble::new(SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, no_answer()))?;
        let (client, mut connection) = begun.map_err(|error| not_begun(&error))?;
        let (told, end) = watch::channel(None);
        let rings = Arc::new(Notify::new());
        let rung = Arc::clone(&rings);
        runtime.spawn(async move {
            let why = loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(_))) => rung.notify_one(),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break Some(described(&error)),
                    None => break None,
                }
            };
            told.send_replace(why);
        });
        Ok(Session {
            runtime: Rc::clone(runtime),
            client,
            statements: HashMap::new(),
            end,
            rings,
            silence,
            given_up: Cell::new(false),
        })
    }

    /// Sets the settings that the engine relies on, whatever the server, the database and the role have set.
    pub fn prepare(&self) -> Result<(), Trouble> {
        self.execute(PREPARE)
    }

    /// Comes to its end when the worker of the server rings.
    pub fn rung(&self) -> impl Future<Output = ()> + use<> {
        let rings = Arc::clone(&self.rings);
        async move { rings.notified().await }
    }

    /// Comes to its end with the connection.
    pub fn lost(&self) -> impl Future<Output = ()> + use<> {
        let mut end = self.end.clone();
        async move { while end.changed().await.is_ok() {} }
    }

    pub fn is_over(&self) -> bool {
        self.client.is_closed() || self.is_given_up()
    }

    /// Whether there was no answer within any reasonable time.
    pub fn is_given_up(&self) -> bool {
        self.given_up.get()
    }

    /// The backend that answers. Several servers may be behind one address, and have backends of the same number.
    pub fn backend(&self) -> Result<String, Trouble> {
        let statement = "SELECT pg_catalog.concat_ws(' ', pg_catalog.pg_backend_pid(), \
                         pg_catalog.pg_postmaster_start_time())";
        let answer = self.answer(self.client.simple_query(statement), Session::unanswered)?;
        let backend = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(backend.unwrap_or_default().to_owned())
    }

    /// Asks for nothing but an answer.
    pub fn ask_whether_it_lasts(&self) -> Result<(), Trouble> {
        self.execute("")
    }

    /// Runs statements that return nothing.
    pub fn execute(&self, script: &str) -> Result<(), Trouble> {
        self.answer(self.client.batch_execute(script), Session::unanswered)
    }

    /// Runs a statement that no other call repeats.
    pub fn query(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Trouble> {
        self.answer(
            self.client.query(statement, parameters),
            Session::unanswered,
        )
    }

    /// An answer that took long says little about now: the next one tells whether the session lasts.
    fn answer<T>(
        &self,
        question: impl Future<Output = Result<T, Error>>,
        trouble: impl Fn(&Session, &Error) -> Trouble,
    ) -> Result<T, Trouble> {
        let answer = self.await_answer(question, trouble);
        if answer.is_ok() && self.silence.calls_for_question() {
            self.await_answer(self.client.batch_execute(""), Session::not_sent)
                .ok();
        }
        answer
    }

    fn await_answer<T>(
        &self,
        question: impl Future<Output = Result<T, Error>>,
        trouble: impl Fn(&Session, &Error) -> Trouble,
    ) -> Result<T, Trouble> {
        if self.is_given_up() {
            return Err(Trouble::new(CONNECTION_DOES_NOT_EXIST, lost(&no_answer())));
        }
        let asked = Instant::now();
        let answer = async { tokio::time::timeout(ANSWER_WITHIN, question).await };
        match self.runtime.block_on(answer) {
            Ok(Ok(answer)) => {
                self.silence.end(asked);
                Ok(answer)
            }
            Ok(Err(error)) => Err(trouble(self, &error)),
            Err(_) => {
                self.given_up.set(true);
                Err(Trouble {
                    commit_unknown: true,
                    ..Trouble::new(TRANSACTION_RESOLUTION_UNKNOWN, lost(&no_answer()))
                })
            }
        }
    }

    fn prepared(
        &mut self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Statement, Trouble> {
        if let Some(prepared) = self.statements.get(statement) {
            return Ok(prepared.clone());
        }
        let types: Vec<Type> = parameters.iter().map(type_of).collect();
        let preparing = self.client.prepare_typed(statement, &types);
        let prepared = self.answer(preparing, Session::not_sent)?;
        self.statements.insert(statement, prepared.clone());
        Ok(prepared)
    }

    /// The trouble of a statement that the server has not been asked to execute.
    fn not_sent(&self, error: &Error) -> Trouble {
        match error.as_db_error() {
            Some(_) => refused(error, CONNECTION_DOES_NOT_EXIST),
            None => Trouble::new(CONNECTION_DOES_NOT_EXIST, self.loss(error)),
        }
    }

    /// The trouble of a statement that the server may have executed. A server that ends the session may do so after
    /// the commit.
    fn unanswered(&self, error: &Error) -> Trouble {
        let severity = error
            .as_db_error()
            .and_then(|error| error.parsed_severity());
        match severity {
            Some(Severity::Fatal | Severity::Panic) => Trouble {
                commit_unknown: true,
                ..refused(error, TRANSACTION_RESOLUTION_UNKNOWN)
            },
            Some(_) => refused(error, TRANSACTION_RESOLUTION_UNKNOWN),
            None => Trouble {
                commit_unknown: true,
                ..Trouble::new(TRANSACTION_RESOLUTION_UNKNOWN, self.loss(error))
            },
        }
    }

    fn loss(&self, error: &Error) -> String {
        let why = self.end.borrow().clone();
        lost(&why.unwrap_or_else(|| described(error)))
    }
}

fn lost(why: &str) -> String {
    format!("the connection to the database was lost: {why}")
}

fn no_answer() -> String {
    format!("no answer within {} s", ANSWER_WITHIN.as_secs())
}

impl Connection for Session {
    fn run(
        &mut self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Vec<Value>>, Trouble> {
        let prepared = self.prepared(statement, parameters)?;
        if self.client.is_closed() {
            let why = self.end.borrow().clone();
            let why = why.unwrap_or_else(|| "it was closed".to_owned());
            return Err(Trouble::new(CONNECTION_DOES_NOT_EXIST, lost(&why)));
        }
        let parameters: Vec<Sent<'_>> = parameters.iter().map(Sent).collect();
        let parameters: Vec<&(dyn ToSql + Sync)> = (parameters.iter())
            .map(|parameter| parameter as &(dyn ToSql + Sync))
            .collect();
        let question = self.client.query(&prepared, &parameters);
        match self.answer(question, Session::unanswered) {
            Ok(rows) => rows.iter().map(values).collect(),
            Err(trouble) => {
                // An upgrade may have replaced it.
                self.statements.remove(statement);
                Err(trouble)
            }
        }
    }
}

/// A server that was not reached may be there later. Where neither the server nor the network is at fault, the
/// configuration is: a password is missing, for one.
fn not_begun(error: &Error) -> Trouble {
    let sources = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
    let is_of_network = error.is_closed() || sources.into_iter().any(|e| e.is::<io::Error>());
    match is_of_network {
        true => refused(error, SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION),
        false => refused(error, INVALID_AUTHORIZATION_SPECIFICATION),
    }
}

/// The error of the server, under its code; else under this one.
fn refused(error: &Error, code: &str) -> Trouble {
    let code = error.code().map_or(code, |code| code.code());
    Trouble::new(code, described(error))
}

/// The innermost error has no names of layers in it.
pub fn described(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.message().to_owned();
    }
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// The types are said, not left to the server: it would take a text that is cast for the type of the cast.
fn type_of(parameter: &Parameter<'_>) -> Type {
    match parameter {
        Parameter::Int(_) => Type::INT4,
        Parameter::BigInt(_) => Type::INT8,
        Parameter::Text(_) => Type::TEXT,
        Parameter::Ints(_) | Parameter::NullableInts(_) => Type::INT4_ARRAY,
        Parameter::BigInts(_) => Type::INT8_ARRAY,
        Parameter::Uuids(_) => Type::UUID_ARRAY,
        Parameter::Texts(_) | Parameter::NullableTexts(_) => Type::TEXT_ARRAY,
        Parameter::NullableFloats(_) => Type::FLOAT8_ARRAY,
    }
}

#[derive(Debug)]
struct Sent<'a>(&'a Parameter<'a>);

impl ToSql for Sent<'_> {
    fn to_sql(
        &self,
        to: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self.0 {
            Parameter::Int(number) => number.to_sql(to, out),
            Parameter::BigInt(number) => number.to_sql(to, out),
            Parameter::Text(text) => text.to_sql(to, out),
            Parameter::Ints(numbers) => numbers.to_sql(to, out),
            Parameter::BigInts(numbers) => numbers.to_sql(to, out),
            Parameter::Uuids(ids) => ids.to_sql(to, out),
            Parameter::Texts(texts) => texts.to_sql(to, out),
            Parameter::NullableInts(numbers) => numbers.to_sql(to, out),
            Parameter::NullableTexts(texts) => texts.to_sql(to, out),
            Parameter::NullableFloats(numbers) => numbers.to_sql(to, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A value of a type that the engine does not ask for is nothing, as over SPI.
fn values(row: &Row) -> Result<Vec<Value>, Trouble> {
    let value = |(place, column): (usize, &tokio_postgres::Column)| {
        Ok(match *column.type_() {
            Type::BOOL => row.try_get::<_, Option<bool>>(place)?.map(Value::Bool),
            Type::INT4 => row.try_get::<_, Option<i32>>(place)?.map(Value::Int),
            Type::INT8 => row.try_get::<_, Option<i64>>(place)?.map(Value::BigInt),
            Type::UUID => row.try_get::<_, Option<Uuid>>(place)?.map(Value::Uuid),
            Type::TEXT => row.try_get::<_, Option<String>>(place)?.map(Value::Text),
            _ => None,
        }
        .unwrap_or(Value::Null))
    };
    let values = row.columns().iter().enumerate().map(value);
    values
        .collect::<Result<_, Error>>()
        .map_err(|error| Trouble {
            commit_unknown: true,
            ..Trouble::new(PROTOCOL_VIOLATION, described(&error))
        })
}
