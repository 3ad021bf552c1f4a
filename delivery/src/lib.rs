//! Everything that moves bytes: signs an event, sends it over HTTP on a thread of its own and says how
//! it went. It knows nothing of Postgres, and Postgres's process is safe from it: no thread of this crate
//! takes a signal, and no call of [`Pool`] blocks.

mod address_guard;
mod attempt;
mod body;
mod client;
mod connection;
mod failure;
mod header;
mod idle;
#[cfg(test)]
mod loopback;
pub mod memory;
mod pool;
mod request;
mod resolver;
mod roots;
pub mod signing;
#[cfg(test)]
mod stopwatch;
pub mod template;
mod threads;

/// Private parsers, for fuzz/.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::client::{EXCERPT, excerpt, wait_asked_for};
}

pub use address_guard::{EndpointOwner, Network, Networks, Ports, RequireHttps};
pub use attempt::{Attempt, Key, Outcome, Response, Route};
pub use body::Format;
pub use failure::{Failure, FailureKind};
pub use header::{Header, problem as header_problem};
pub use pool::{Pool, Setup};
pub use request::{Preview, preview};
pub use roots::Roots;
