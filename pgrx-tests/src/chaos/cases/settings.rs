//! Settings that a database, a role or a session may have, at their most hostile: for the sender, and for those who emit.

mod emitting;
mod hostile;

use std::thread;
use std::time::Duration;

use postgres::NoTls;

pub use emitting::{of_a_role, of_a_session};
use hostile::{Setting, settings};

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};
use crate::looking::role_with;
use crate::{pg_config, wait, worker};

/// For a relay, which is a client: a millisecond ends the session of any of them, or its first statement.
const CLIENTS_END: [&str; 3] = [
    "idle_session_timeout",
    "idle_in_transaction_session_timeout",
    "statement_timeout",
];

/// From PostgreSQL 18 on, the server finds PL/pgSQL by it: no client can call a function in PL/pgSQL with a wrong one.
const LIBRARY_PATH: &str = "dynamic_library_path";

/// Whose settings they are.
#[derive(Debug, Clone)]
enum Place {
    Database,
    /// In this database.
    Role(String),
}

impl Place {
    fn of(&self, scene: &Scene) -> String {
        let database = scene.database.name();
        match self {
            Place::Database => format!("DATABASE {database}"),
            Place::Role(role) => format!("ROLE {role} IN DATABASE {database}"),
        }
    }

    /// From a session elsewhere: one of this database would have the settings that are there. Some cannot be set so.
    fn set(&self, scene: &Scene, setting: &Setting) -> Result<(), postgres::Error> {
        let sql = format!("ALTER {} SET {}", self.of(scene), setting.assignment());
        scene.maintenance().batch_execute(&sql)
    }

    #[track_caller]
    fn reset_all(&self, scene: &Scene) {
        let sql = format!("ALTER {} RESET ALL", self.of(scene));
        let done = scene.maintenance().batch_execute(&sql);
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

/// A worker that runs gets each of them, or one that starts: from its database, or from its role.
pub fn each(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    let mut settings = settings(&mut scene);
    // With one seed some of them; 1,000 are more than there are.
    settings.truncate(scene.size() / 2);
    for setting in &settings {
        let places = [Place::Database, Place::Role("webhook_owner".to_owned())];
        let place = &places[scene.random.below(2)];
        if place.set(&scene, setting).is_err() {
            continue;
        }
        deliver(&mut scene, std::slice::from_ref(setting));
        place.reset_all(&scene);
    }
    deliver(&mut scene, &[]);
    stage.reconcile(scene);
}

pub fn many_for_a_worker(stage: &mut Stage) {
    let scene = stage.scene(Sender::Worker);
    let places = [Place::Database, Place::Role("webhook_owner".to_owned())];
    many(stage, scene, &places, None);
}

pub fn many_for_a_relay(stage: &mut Stage) {
    let scene = stage.scene(Sender::Relay);
    // It has no right but the one that it needs, and so cannot take back all that is set for it.
    let connection = role_with(&scene.cluster, &scene.database, &["relay"]);
    let role = format!("relay_of_{}", scene.database.name());
    let places = [Place::Database, Place::Role(role)];
    many(stage, scene, &places, Some(&connection));
}

/// Thirty of them, some here and some there, for as long as the sender's upkeep takes to come round.
fn many(stage: &mut Stage, mut scene: Scene, places: &[Place], relay: Option<&str>) {
    const AT_ONCE: usize = 30;
    const MOST_ROUNDS: usize = 6;
    let mut left = settings(&mut scene);
    left.sort_by_key(|setting| !setting.is_text());
    scene.database.execute(DISABLED);
    if relay.is_some() {
        let finds_plpgsql_by_path = pg_config::major_version("PG_CONFIG") >= 18;
        left.retain(|setting| {
            let ends_functions = finds_plpgsql_by_path && setting.name == LIBRARY_PATH;
            let ends_sessions = CLIENTS_END.contains(&setting.name.as_str());
            !ends_functions && !ends_sessions && !setting.ends_connecting()
        });
    }
    for round in 0..(scene.size() / 100).clamp(1, MOST_ROUNDS) {
        let mut chosen: Vec<Setting> = Vec::new();
        left.retain(|setting| {
            let is_chosen = chosen.len() < AT_ONCE
                && chosen.iter().all(|other| other.name != setting.name)
                && places[(round + chosen.len()) % places.len()]
                    .set(&scene, setting)
                    .is_ok();
            if is_chosen {
                chosen.push(setting.clone());
            }
            !is_chosen
        });
        if let Some(connection) = relay {
            scene.start_relay_with(connection);
        }
        deliver(&mut scene, &chosen);
        assert_upkeep(&mut scene, &chosen);
        places.iter().for_each(|place| place.reset_all(&scene));
    }
    stage.reconcile(scene);
}

/// Endpoints that are cause for an alert about a metric.
const DISABLED: &str = "
    INSERT INTO webhook.endpoint (name, url, event_types, disabled_at, disabled_reason)
    SELECT 'disabled' || n, 'http://127.0.0.1:9/', '{nothing}', now(), 'gone' FROM generate_series(1, 11) AS n";
const IS_TOLD: &str = "
    SELECT EXISTS (SELECT FROM webhook.alarm WHERE metric = 'webhook_disabled_endpoints')
           AND NOT EXISTS (SELECT FROM webhook.alert)";

/// The sender looks at the metrics and tells the alert, and has complained of nothing.
#[track_caller]
fn assert_upkeep(scene: &mut Scene, hostile: &[Setting]) {
    const PAUSE: Duration = Duration::from_millis(100);
    /// A sender looks at metrics in one part of 500 of its time, and some settings make everything slow.
    const PATIENCE: Duration = Duration::from_secs(90);
    let mut client = connect_with_usual(scene, hostile);
    let done = client.batch_execute("DELETE FROM webhook.alarm");
    done.expect("an alarm can be taken back");
    let names = names(hostile);
    wait::until_within(PATIENCE, &format!("an alert under {names:?}"), || {
        // Upkeep wakes no sender that is at rest.
        emit(scene, &mut client);
        thread::sleep(PAUSE);
        let row = client.query_one(IS_TOLD, &[]);
        match row.expect("the tables are readable").get(0) {
            true => Ok(()),
            false => Err(scene.cluster.log()),
        }
    });
    let log = match &scene.relay {
        Some(relay) => relay.log(),
        None => scene.cluster.log(),
    };
    let complaints: Vec<&str> = (log.lines())
        .filter(|line| line.contains("WARNING:  webhook worker") || line.starts_with("WARNING:"))
        .filter(|line| !line.contains("webhook metric"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:#?} under {names:?}");
}

fn names(hostile: &[Setting]) -> Vec<String> {
    hostile.iter().map(Setting::assignment).collect()
}

/// A client that has its own settings, and not those of the database.
#[track_caller]
fn connect_with_usual(scene: &Scene, hostile: &[Setting]) -> postgres::Client {
    let options = hostile.iter().map(|setting| {
        let usual = setting.usual.replace('\\', "\\\\").replace(' ', "\\ ");
        format!("-c {}={usual}", setting.name)
    });
    let options: Vec<String> = options.collect();
    let mut config = scene.cluster.config(scene.database.name());
    let client = config.options(&options.join(" ")).connect(NoTls);
    client.unwrap_or_else(|error| panic!("{options:?}: {error:?}"))
}

/// An event of a client that has its own settings arrives, and is settled.
#[track_caller]
fn deliver(scene: &mut Scene, hostile: &[Setting]) {
    let mut client = connect_with_usual(scene, hostile);
    if scene.random.chance(30) {
        let pid: Option<i32> = client
            .query_one("SELECT max(pid) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'webhook worker'", &[])
            .expect("it is readable")
            .get(0);
        if let Some(pid) = pid {
            worker::signal(pid, libc::SIGTERM);
        }
    }
    emit(scene, &mut client);
    wait::until_within(
        Duration::from_secs(30),
        &format!("an event under {:?}", names(hostile)),
        || {
            let left = "SELECT count(*) FROM webhook.delivery_queue";
            match client.query_one(left, &[]).map(|row| row.get::<_, i64>(0)) {
                Ok(0) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    );
}

#[track_caller]
fn emit(scene: &Scene, client: &mut postgres::Client) {
    let event = crate::database::emit(client, "chaos.n0", serde_json::json!({}));
    scene.note_committed([event]);
}
