//! The unit that service managers get with the relay.

use std::fs;
use std::process::Command;

use webhook_e2e::directory::ServerDirectory;
use webhook_e2e::relay::ServiceManager;
use webhook_e2e::{Cluster, Relay, port, wait};

const PROGRAM: &str = env!("CARGO_BIN_EXE_relay");
const UNIT: &str = include_str!("../../../relay/webhook-relay.service");
const CONFIGURATION: &str = include_str!("../../../relay/webhook-relay.conf");

/// The value of the line that begins with `name=`.
fn setting(name: &str) -> &'static str {
    let values = UNIT
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let values: Vec<&str> = values.collect();
    assert_eq!(values.len(), 1, "{name}: {values:?}");
    values[0]
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit_and_little_that_it_lets_the_relay_do() {
    let directory = ServerDirectory::create("e2e");
    let unit = directory.join("webhook-relay.service");
    // The program that it starts must be there.
    fs::write(&unit, UNIT.replace("/usr/bin/webhook-relay", PROGRAM)).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze")
            .args(arguments)
            .arg(&unit)
            .output()
            .expect("systemd-analyze runs: make venv installs it");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), told, printed)
    };
    let (verified, told, _) = analyze(&["verify"]);
    assert!(verified && told.is_empty(), "{told}");
    // The threshold is out of 100; a service that hardens nothing has more than 90.
    let (hardened, told, printed) = analyze(&["security", "--offline=true", "--threshold=20"]);
    assert!(hardened, "{told}{printed}");
}

#[test]
fn the_unit_starts_a_relay_that_tells_when_it_is_ready_however_long_that_takes() {
    let mut arguments = setting("ExecStart").split(' ');
    assert_eq!(arguments.next(), Some("/usr/bin/webhook-relay"));
    assert_eq!(
        arguments.collect::<Vec<_>>(),
        ["run", "$WEBHOOK_RELAY_OPTIONS"]
    );
    assert_eq!(
        (setting("Type"), setting("TimeoutStartSec")),
        ("notify", "infinity")
    );

    // The example in the comments of its configuration, but for where the server is.
    let example = CONFIGURATION
        .lines()
        .filter_map(|line| line.strip_prefix('#')?.split_once('='));
    let mut example: Vec<(&str, String)> = example
        .map(|(name, value)| (name, value.to_owned()))
        .collect();
    let help = Command::new(PROGRAM).arg("--help").output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    for (name, _) in example.iter().filter(|(name, _)| name.starts_with("PG")) {
        assert!(help.contains(name), "{name}");
    }
    let mut cluster = Cluster::builder()
        .setting("webhook.max_in_flight = 0")
        .start();
    let database = cluster.database("service");
    cluster.stop();
    let server = [
        ("PGHOST", "127.0.0.1".to_owned()),
        ("PGPORT", cluster.port().to_string()),
        ("PGDATABASE", database.name().to_owned()),
        ("PGUSER", "postgres".to_owned()),
        ("PGSSLMODE", "disable".to_owned()),
    ];
    example.extend(server);
    let options = example
        .iter()
        .find(|(name, _)| *name == "WEBHOOK_RELAY_OPTIONS");
    let (_, options) = options.expect("the example has options").clone();
    let options = options.replace(":8080", &format!(":{}", port::free()));

    let manager = ServiceManager::start();
    let told = || manager.told();
    let mut command = Relay::program(PROGRAM);
    manager.manage(&mut command);
    command.envs(example).args(options.split(' '));
    let relay = Relay::spawn(command);
    let waits = told();
    assert!(
        waits.starts_with("STATUS=") && !waits.contains("READY"),
        "{waits}"
    );
    cluster.start_server();
    wait::until("the relay to be ready", || match told() {
        ready if ready == "READY=1\nSTATUS=delivering" => Ok(()),
        other => Err(other),
    });
    relay.terminate();
    assert!(relay.wait().success(), "{}", relay.log());
}
