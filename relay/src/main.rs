use std::process::ExitCode;

fn main() -> ExitCode {
    webhook_relay::main(std::env::args_os())
}
