//! `webhook-relay` of a release to come, whose migration changes a table. WEBHOOK_TEST_MIGRATION is another migration.

use std::env;
use std::process::ExitCode;

use webhook_e2e::scripts::{LATER, MIGRATION};
use webhook_relay::{RELEASE, Release};

fn main() -> ExitCode {
    let migration = env::var("WEBHOOK_TEST_MIGRATION").unwrap_or_else(|_| MIGRATION.to_owned());
    let release = Release {
        version: LATER,
        migrations: &[(
            concat!(env!("CARGO_PKG_VERSION"), "--99.0.0.sql"),
            &migration,
        )],
        releases: &[(
            concat!("portable--", env!("CARGO_PKG_VERSION"), ".sql"),
            &RELEASE.template(),
        )],
    };
    webhook_relay::main(&release, env::args_os())
}
