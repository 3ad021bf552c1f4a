//! Tests that cannot test here. Such a test fails, unless `untested.txt` permits it to end without having tested.

use std::fmt::Display;
use std::io::{self, Write};
use std::{env, thread};

use crate::host::Host;
use crate::pg_config;

const LIST: &str = include_str!("../untested.txt");

/// With this variable in the environment, the machine has to have everything that tests need.
const REQUIRE_ALL: &str = "WEBHOOK_TEST_REQUIRE_ALL";

/// The columns of a line.
#[derive(Debug, PartialEq, Eq)]
pub struct Exception<'a> {
    pub version: &'a str,
    pub host: &'a str,
    pub when: When,
    pub test: &'a str,
    pub reason: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    Missing,
}

/// What decides about an exception, in addition to the test.
#[derive(Debug)]
pub struct Run {
    pub version: u32,
    pub host: Host,
    pub requires_all: bool,
}

/// Returns whether the test that calls it has to end without having tested, which it also prints.
///
/// The test runner names each thread after its test, and shows no output of tests that pass, except past it.
#[track_caller]
pub fn skip_if(problem: Option<impl Display>) -> bool {
    let run = Run {
        version: pg_config::major_version("PG_CONFIG"),
        host: Host::current(),
        requires_all: env::var_os(REQUIRE_ALL).is_some(),
    };
    let test = thread::current().name().unwrap_or_default().to_owned();
    let problem = problem.map(|problem| problem.to_string());
    if let Err(why) = judge(&listed(), &run, &test, problem.as_deref()) {
        panic!("{why}");
    }
    if let Some(problem) = &problem {
        let _ = writeln!(io::stdout(), "NOT TESTED: {test}: {problem}");
    }
    problem.is_some()
}

/// Fails for a problem that is not permitted, and for a permission that is out of date.
pub fn judge(
    exceptions: &[Exception],
    run: &Run,
    test: &str,
    problem: Option<&str>,
) -> Result<(), String> {
    let exception = exceptions
        .iter()
        .find(|exception| exception.test == test && exception.is_for(run));
    let permitted = exception.map(|exception| exception.when);
    match (problem, permitted) {
        (None, None | Some(When::Missing)) | (Some(_), Some(When::Always)) => Ok(()),
        (Some(_), Some(When::Missing)) if !run.requires_all => Ok(()),
        (Some(problem), Some(When::Missing)) => {
            Err(format!("could not test: {problem} ({REQUIRE_ALL} is set)"))
        }
        (Some(problem), None) => Err(format!(
            "could not test: {problem}. Install what is missing, or list the test in pgrx-tests/untested.txt"
        )),
        (None, Some(When::Always)) => Err(
            "pgrx-tests/untested.txt says that this is never tested here, but it can be: remove the line".to_owned(),
        ),
    }
}

impl Exception<'_> {
    fn is_for(&self, run: &Run) -> bool {
        let is_version = self.version == "any" || self.version == run.version.to_string();
        is_version && (self.host == "any" || self.host == run.host.name())
    }
}

/// The exceptions of this package.
pub fn listed() -> Vec<Exception<'static>> {
    exceptions(LIST)
}

#[track_caller]
pub fn exceptions(list: &str) -> Vec<Exception<'_>> {
    let lines = list.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|line| {
        exception(line)
            .unwrap_or_else(|| panic!("untested.txt: this line has no exception: {line}"))
    });
    parsed.collect()
}

fn exception(line: &str) -> Option<Exception<'_>> {
    let mut rest = line;
    let mut column = || {
        let (column, after) = rest.split_once(char::is_whitespace)?;
        rest = after.trim_start();
        Some(column)
    };
    let (version, host, when, test) = (column()?, column()?, column()?, column()?);
    let when = match when {
        "always" => When::Always,
        "missing" => When::Missing,
        _ => return None,
    };
    let is_version = version == "any" || version.parse::<u32>().is_ok();
    let is_host = host == "any" || Host::named(host).is_some();
    (is_version && is_host && !rest.is_empty()).then_some(Exception {
        version,
        host,
        when,
        test,
        reason: rest,
    })
}
