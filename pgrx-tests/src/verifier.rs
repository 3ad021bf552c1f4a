//! Checks signatures with the receivers' own library, `standardwebhooks` from PyPI, not with our code.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::directory::target_directory;
use crate::receiver::Request;

const SCRIPT: &str = include_str!("../verify_signature.py");

/// `Err` says why the library refused the request.
pub fn verify_signature(secret: &str, request: &Request) -> Result<(), String> {
    let headers: HashMap<_, _> = (request.headers.iter())
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let mut child = Command::new(python())
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python can be run");
    let mut input = child.stdin.take().expect("stdin is a pipe");
    // A script that ends early says why on its standard error.
    let _ = writeln!(input, "{}", json!({ "secret": secret, "headers": headers }))
        .and_then(|()| input.write_all(&request.body));
    drop(input);
    let output = child.wait_with_output().expect("python can be waited for");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn python() -> PathBuf {
    let python = std::env::var_os("WEBHOOK_TEST_PYTHON").map_or_else(
        || target_directory().join("venv/bin/python3"),
        PathBuf::from,
    );
    assert!(
        python.exists(),
        "{} is missing: run `make venv`, or set WEBHOOK_TEST_PYTHON to a python that has standardwebhooks",
        python.display()
    );
    python
}
