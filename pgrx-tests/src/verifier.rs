//! Reads requests with the receivers' own libraries, not with our code: `standardwebhooks` of PyPI and of npm,
//! `cloudevents` of PyPI, and libraries of other senders. The official ones know no signatures by keys: these
//! are verified as docs/receiving.md tells receivers to, with the ed25519 of OpenSSL in Node, and where no other signature is
//! beside them by `authweave-webhooks` of PyPI, too.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::directory::target_directory;
use crate::receiver::Request;

const PYTHON: &str = include_str!("../verifiers/verify.py");
const JAVASCRIPT: &str = include_str!("../verifiers/verify.js");
const KEY: &str = include_str!("../verifiers/verify_key.js");
const KEYS_ALONE: &str = include_str!("../verifiers/verify_key.py");
const PROVIDER: &str = include_str!("../verifiers/verify_provider.js");
const SLACK: &str = include_str!("../verifiers/verify_slack.py");
const RECEIVING: &str = include_str!("../../docs/receiving.md");
const CLOUDEVENT: &str = include_str!("../verifiers/parse_cloudevent.py");

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

/// Verifies by a public key, `whpk_` and base64.
#[track_caller]
pub fn verify_by_key(public_key: &str, request: &Request) -> Result<(), String> {
    let (_, section) = RECEIVING
        .split_once("### By a public key\n")
        .expect("the section");
    let (_, example) = section.split_once("```js\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let mut node = Command::new(virtual_environment().join("bin/node"));
    let program = format!("{example}\n{KEY}");
    verdict(node.args(["-e", &program]), public_key, request)
}

/// The same by a library, which takes requests that are signed by keys alone.
#[track_caller]
pub fn verify_by_keys_alone(public_key: &str, request: &Request) -> Result<(), String> {
    let mut python = Command::new(virtual_environment().join("bin/python3"));
    verdict(python.args(["-c", KEYS_ALONE]), public_key, request)
}

/// Verifies by the library of another sender: github, shopify, slack or stripe.
#[track_caller]
pub fn verify_as(provider: &str, secret: &str, request: &Request) -> Result<(), String> {
    let venv = virtual_environment();
    if provider == "slack" {
        let mut python = Command::new(venv.join("bin/python3"));
        return verdict(python.args(["-c", SLACK]), secret, request);
    }
    let mut node = Command::new(venv.join("bin/node"));
    // `import` looks for node_modules here; it knows no NODE_PATH.
    node.current_dir(&venv);
    verdict(node.args(["-e", PROVIDER, provider]), secret, request)
}

/// The event's `attributes` and `data`; `Err` says why the library did not take it for one.
#[track_caller]
pub fn parse_cloudevent(request: &Request) -> Result<Value, String> {
    let mut python = Command::new(virtual_environment().join("bin/python3"));
    let (said, complaint) = run(python.args(["-c", CLOUDEVENT]), "", request);
    serde_json::from_str(&said).map_err(|_| complaint)
}

#[track_caller]
fn verdict(verifier: &mut Command, secret: &str, request: &Request) -> Result<(), String> {
    let (said, complaint) = run(verifier, secret, request);
    match said.trim_end().split_once("refused: ") {
        Some(("", why)) => Err(why.to_owned()),
        _ if said.trim_end() == "accepted" => Ok(()),
        _ => panic!("{verifier:?} has no verdict: {complaint}"),
    }
}

/// The output of the program, and its complaints.
#[track_caller]
fn run(program: &mut Command, secret: &str, request: &Request) -> (String, String) {
    let headers: HashMap<_, _> = (request.headers.iter())
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let path = Path::new(program.get_program()).display().to_string();
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("could not run {path}: {error}"));
    let mut input = child.stdin.take().expect("stdin is a pipe");
    // A script that ends early says why on its standard error.
    let _ = writeln!(input, "{}", json!({ "secret": secret, "headers": headers }))
        .and_then(|()| input.write_all(&request.body));
    drop(input);
    let output = child.wait_with_output().expect("it can be waited for");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

pub fn virtual_environment() -> PathBuf {
    let venv = std::env::var_os("WEBHOOK_TEST_VENV")
        .map_or_else(|| target_directory().join("venv"), PathBuf::from);
    assert!(
        venv.join("node_modules").exists(),
        "{} is not what the tests need: run `make venv`, and set WEBHOOK_TEST_VENV where that makes it elsewhere",
        venv.display()
    );
    venv
}
