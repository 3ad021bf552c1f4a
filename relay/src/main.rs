use std::process::ExitCode;

fn main() -> ExitCode {
    webhook_relay::main(&webhook_relay::RELEASE, std::env::args_os())
}
