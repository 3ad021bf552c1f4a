//! Checks signatures with the receivers' own libraries, `standardwebhooks` of PyPI and of npm, not with our code.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::directory::target_directory;
use crate::receiver::Request;

const PYTHON: &str = include_str!("../verifiers/verify.py");
const JAVASCRIPT: &str = include_str!("../verifiers/verify.js");

/// `Err` says why the libraries refused the request. It is an error of the test if they do not agree.
#[track_caller]
pub fn verify_signature(secret: &str, request: &Request) -> Result<(), String> {
    let venv = virtual_environment();
    let mut python = Command::new(venv.join("bin/python3"));
    let python = verdict(python.args(["-c", PYTHON]), secret, request);
    let mut node = Command::new(venv.join("bin/node"));
    node.env("NODE_PATH", venv.join("node_modules"));
    let node = verdict(node.args(["-e", JAVASCRIPT]), secret, request);
    assert_eq!(
        python.is_ok(),
        node.is_ok(),
        "Python: {python:?}, JavaScript: {node:?}"
    );
    python
}

#[track_caller]
fn verdict(verifier: &mut Command, secret: &str, request: &Request) -> Result<(), String> {
    let headers: HashMap<_, _> = (request.headers.iter())
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let program = Path::new(verifier.get_program()).display().to_string();
    let mut child = verifier
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("could not run {program}: {error}"));
    let mut input = child.stdin.take().expect("stdin is a pipe");
    // A script that ends early says why on its standard error.
    let _ = writeln!(input, "{}", json!({ "secret": secret, "headers": headers }))
        .and_then(|()| input.write_all(&request.body));
    drop(input);
    let output = child.wait_with_output().expect("it can be waited for");
    let said = String::from_utf8_lossy(&output.stdout);
    match said.trim_end().split_once("refused: ") {
        Some(("", why)) => Err(why.to_owned()),
        _ if said.trim_end() == "accepted" => Ok(()),
        _ => panic!(
            "{program} has no verdict: {}",
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

fn virtual_environment() -> PathBuf {
    let venv = std::env::var_os("WEBHOOK_TEST_VENV")
        .map_or_else(|| target_directory().join("venv"), PathBuf::from);
    assert!(
        venv.join("node_modules").exists(),
        "{} is not what the tests need: run `make venv`, and set WEBHOOK_TEST_VENV where that makes it elsewhere",
        venv.display()
    );
    venv
}
