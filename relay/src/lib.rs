//! The host of the engine outside of the server: `webhook-relay`.
//!
//! - `options` is the command line, `target` the database that it names, and `passfile` its password
//! - `session` runs the engine's statements, over `tls` where the target wants it, and not through a `pooler` of
//!   transactions
//! - `silence` is how long it may send without an answer: a relay that is cut off stops by its own clock
//! - `relay` is the life of the process: it finds the SQL, turns the engine, waits, reconnects and stops
//! - `settings` are those of the database that count here too
//! - `portable` makes the schema in a database without the library, by the statements of `script`
//! - `memory` that a burst took is given back
//! - `log` and `health` tell people and machines how it is
//! - `http` answers them, and serves `figures`: `metrics` for Prometheus, a `page` for people; a client of another
//!   machine has a `token`

mod connections;
mod figures;
mod health;
mod http;
mod log;
mod memory;
mod metrics;
mod options;
mod page;
mod passfile;
mod pooler;
mod portable;
mod relay;
mod script;
mod session;
mod settings;
mod silence;
mod target;
mod tls;
mod token;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

pub use script::{RELEASE, Release};
pub use session::Session;

use figures::Refusal;
use options::{Command, Look};
use target::Target;

/// Says in one line why nothing was done, if so.
pub fn main(release: &Release, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let done = match options::read(arguments) {
        Ok(Command::Tell(text)) => {
            println!("{text}");
            Ok(())
        }
        Ok(Command::Run(options)) => relay::run(&options),
        Ok(Command::Administer(order)) => portable::carry_out(&order, release),
        Ok(Command::Look(look, target)) => print(look, &target),
        Err(problem) => {
            eprintln!("webhook-relay: {problem}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("webhook-relay: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Prints once, for people who run no relay.
fn print(look: Look, target: &Target) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let text = runtime.block_on(async {
        match look {
            Look::Metrics => metrics::print(target).await,
            Look::Page => page::print(target).await,
        }
    });
    let text = text.map_err(|refusal| match refusal {
        Refusal::Denied(message) => message,
        Refusal::Unavailable(message) => format!("{}: {message}", target.name),
    })?;
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| error.to_string())
}
