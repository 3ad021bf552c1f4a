//! The engine of a sender: it decides when to ask the database for which deliveries, and for how many.
//!
//! The engine knows neither how SQL is run nor how requests are sent. A host lends it a [`Store`], whose calls are
//! one transaction and one statement each, and a [`Wire`]. [`Engine::turn`] takes outcomes, exchanges them in the
//! database for deliveries that are due, hands those to the wire, and says how long there is nothing to do. The host
//! waits: for outcomes, for somebody's commit, for signals.
//!
//! - `engine` has the turn, and `exchange` its call of the database: outcomes go in, claims come out
//! - `agenda` knows when each endpoint has something due, `admission` how much it may get, and `wishes` asks for that
//! - `shares` sees to it that an endpoint has one sender at a time
//! - `ledger` has the requests in flight and the outcomes; while a table is locked, `settling` has the pace, and
//!   `blind` claims without a look at breakers
//! - `turning_away` ends deliveries behind an open breaker that holds nothing
//! - `housekeeping` does the work of every few seconds: `recovery` and `retention` are parts of it
//! - `drain` ends a sender
//! - `sql_store` is the [`Store`] of all hosts that can run a statement

mod admission;
mod agenda;
mod blind;
mod budget;
mod drain;
mod engine;
mod exchange;
mod figures;
mod housekeeping;
mod known_routes;
mod ledger;
mod open_files;
mod protocol;
mod recovery;
mod retention;
mod settling;
mod shares;
mod sql_store;
mod store;
mod trouble;
mod turning_away;
mod wire;
mod wishes;

pub use agenda::Wake;
pub use engine::{Config, End, Engine, Hold, Notice};
pub use figures::Figures;
pub use ledger::Ending;
pub use open_files::{TooFew, allow_open_files};
pub use protocol::{Program, problem as protocol_problem};
pub use sql_store::{Connection, Identity, Parameter, SqlStore, Value};
pub use store::{
    Alert, BEGINNING, Claimed, Due, Examined, Exchanged, Finished, Position, Recovered, Retained,
    Shares, Store, Survey, Wish, Wishes,
};
pub use trouble::Trouble;
pub use wire::Wire;
