//! The engine of a sender: what to ask the database for, when, and how much, whoever hosts it.
//!
//! It knows neither how SQL is run nor how requests are sent. A host lends it a [`Store`], whose calls are one
//! transaction and one statement each, and a [`Wire`]. [`Engine::turn`] takes what has ended, exchanges it in the
//! database for what is due, hands that to the wire, and says how long there is nothing to do; it is the host that
//! waits, for outcomes, for somebody's commit, for signals.
//!
//! - `agenda` knows when each endpoint has something due, and `admission` how much it may get
//! - `shares` sees to it that an endpoint has one sender at a time
//! - `ledger` has what is in flight and what has ended; while a table is locked, `settling` has the pace, and `blind` claims
//!   without a look at breakers
//! - `housekeeping` does what is to be done every few seconds: `recovery` and `retention` are parts of it
//! - `sql_store` is the [`Store`] of all who can run a statement

mod admission;
mod agenda;
mod blind;
mod budget;
mod drain;
mod engine;
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
mod wire;

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
