//! Programs in other languages, with the packages that `make venv` installs.

use std::process::Command;

use crate::process::complete;
use crate::verifier::virtual_environment;

pub fn python(program: &str) -> Command {
    let mut python = Command::new(virtual_environment().join("bin/python3"));
    python.args(["-c", program]);
    python
}

pub fn node(program: &str) -> Command {
    let venv = virtual_environment();
    // bin/node only starts it, and a signal would end that alone.
    let started = complete(Command::new(venv.join("bin/node")).args(["-p", "process.execPath"]));
    let mut node = Command::new(started.trim());
    node.env("NODE_PATH", venv.join("node_modules"));
    node.args(["-e", program]);
    node
}
