//! `webhook-relay`, as the tests run it: cargo tells a test where the programs of its own package are.

use std::process::ExitCode;

fn main() -> ExitCode {
    webhook_relay::main(&webhook_relay::RELEASE, std::env::args_os())
}
