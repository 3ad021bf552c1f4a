//! A test that cannot test fails, unless `untested.txt` permits it.

use std::env;
use std::process::Command;

use webhook_e2e::Host;
use webhook_e2e::untested::{Run, exceptions, judge, listed};

const LIST: &str = "
# a comment
16   any     missing  a::built    this build has no hstore
any  portable  always  a::loaded  there is no library
";

const NEWER: Run = Run {
    version: 16,
    host: Host::Server,
    requires_all: false,
};
const PORTABLE: Run = Run {
    version: 15,
    host: Host::Portable,
    requires_all: false,
};

#[track_caller]
fn assert_judged(run: &Run, test: &str, problem: Option<&str>, expected: Result<(), &str>) {
    match (judge(&exceptions(LIST), run, test, problem), expected) {
        (Ok(()), Ok(())) => {}
        (Err(why), Err(part)) if why.contains(part) => {}
        (judged, _) => panic!("{judged:?} instead of {expected:?}"),
    }
}

#[test]
fn a_test_that_cannot_test_fails_unless_it_is_listed_for_its_version_and_host() {
    let problem = Some("no hstore");
    let unlisted = Err("could not test: no hstore. Install");
    assert_judged(&NEWER, "a::built", problem, Ok(()));
    assert_judged(&NEWER, "a::other", problem, unlisted);
    assert_judged(&NEWER, "a::loaded", problem, unlisted);
    assert_judged(&PORTABLE, "a::built", problem, unlisted);
    assert_judged(&PORTABLE, "a::loaded", problem, Ok(()));
}

#[test]
fn a_machine_that_has_to_have_everything_excuses_nothing_that_could_be_installed() {
    let all = |run: Run| Run {
        requires_all: true,
        ..run
    };
    let refused = Err("WEBHOOK_TEST_REQUIRE_ALL is set");
    assert_judged(&all(NEWER), "a::built", Some("no hstore"), refused);
    assert_judged(&all(PORTABLE), "a::loaded", Some("no library"), Ok(()));
}

#[test]
fn a_test_that_tests_fails_if_it_is_listed_as_one_that_never_does() {
    assert_judged(&NEWER, "a::built", None, Ok(()));
    assert_judged(&NEWER, "a::other", None, Ok(()));
    assert_judged(&PORTABLE, "a::loaded", None, Err("remove the line"));
}

#[test]
fn the_lists_of_exceptions_name_tests_that_exist() {
    let list = Command::new(env::current_exe().unwrap())
        .arg("--list")
        .output()
        .unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let tests: Vec<&str> = list
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .collect();
    for exception in listed() {
        assert!(tests.contains(&exception.test), "{exception:?}");
    }
    // The Makefile skips every test whose name contains that of a line.
    for skipped in [
        include_str!("../../hosts/relay.txt"),
        include_str!("../../hosts/portable.txt"),
    ] {
        for line in skipped.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split_whitespace().next().expect("a line names a test");
            assert!(tests.iter().any(|test| test.contains(name)), "{line}");
        }
    }
}
