//! `webhook-relay` of a release to come, whose migration changes a table.

use std::process::ExitCode;

use webhook_e2e::scripts::{LATER, MIGRATION};
use webhook_relay::Release;

const RELEASE: Release = Release {
    version: LATER,
    migrations: &[(
        concat!(env!("CARGO_PKG_VERSION"), "--99.0.0.sql"),
        MIGRATION,
    )],
};

fn main() -> ExitCode {
    webhook_relay::main(&RELEASE, std::env::args_os())
}
