//! Settings that a database or a role may have, at their most hostile.

use std::time::Duration;

use postgres::NoTls;

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};
use crate::{wait, worker};

/// Settings that make everybody wait by design, and read-only transactions, which a worker waits out; a test of
/// settings has them.
const LEFT_OUT: &str = "'pre_auth_delay', 'post_auth_delay', 'default_transaction_read_only'";
/// For a relay, which is a client: a millisecond ends the session of any of them, or its first statement.
const CLIENTS_END: [&str; 3] = [
    "idle_session_timeout",
    "idle_in_transaction_session_timeout",
    "statement_timeout",
];

/// Each value that is the opposite, the least, the most, or one of a list.
const HOSTILE: &str = "
    SELECT s.name, v.value, s.reset_val
    FROM pg_settings s
    CROSS JOIN LATERAL (
        SELECT CASE s.reset_val WHEN 'on' THEN 'off' ELSE 'on' END AS value WHERE s.vartype = 'bool'
        UNION SELECT unnest(s.enumvals)
        UNION SELECT unnest(ARRAY[s.min_val, s.max_val]) WHERE s.vartype IN ('integer', 'real')
        UNION SELECT '1' WHERE s.vartype = 'integer' AND s.min_val::bigint < 1 AND s.max_val::bigint > 1
        UNION SELECT unnest(CASE s.name
            WHEN 'search_path' THEN ARRAY['pg_temp, public', ''] WHEN 'TimeZone' THEN ARRAY['Pacific/Chatham']
            WHEN 'DateStyle' THEN ARRAY['German, DMY'] WHEN 'client_encoding' THEN ARRAY['LATIN1']
            WHEN 'dynamic_library_path' THEN ARRAY['/nowhere'] WHEN 'default_tablespace' THEN ARRAY['pg_default']
            WHEN 'application_name' THEN ARRAY['somebody else'] END)
    ) v
    WHERE s.context IN ('user', 'superuser', 'backend', 'superuser-backend') AND v.value IS DISTINCT FROM s.reset_val
      AND s.name NOT LIKE 'webhook.%' AND s.name NOT IN (";

#[derive(Clone)]
struct Setting {
    name: String,
    value: String,
    usual: String,
}

/// A worker that runs gets each of them, or one that starts.
pub fn each(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    let mut settings = hostile(&scene);
    scene.random.shuffle(&mut settings);
    // With one seed some of them; 1,000 are more than there are.
    settings.truncate(scene.size() / 2);
    for setting in &settings {
        let one = std::slice::from_ref(setting);
        if set(&scene, setting).is_err() {
            continue;
        }
        deliver(&mut scene, one);
        reset(&scene, setting);
    }
    deliver(&mut scene, &[]);
    stage.reconcile(scene);
}

pub fn many_for_a_worker(stage: &mut Stage) {
    many(stage, Sender::Worker);
}
pub fn many_for_a_relay(stage: &mut Stage) {
    many(stage, Sender::Relay);
}
fn many(stage: &mut Stage, sender: Sender) {
    const AT_ONCE: usize = 30;
    let mut scene = stage.scene(sender);
    let mut all = hostile(&scene);
    if sender == Sender::Relay {
        all.retain(|setting| !CLIENTS_END.contains(&setting.name.as_str()));
    }
    for _ in 0..(scene.size() / 100).max(2) {
        let mut chosen: Vec<&Setting> = Vec::new();
        while chosen.len() < AT_ONCE {
            let setting = &all[scene.random.below(all.len())];
            if chosen.iter().all(|other| other.name != setting.name) {
                chosen.push(setting);
            }
        }
        chosen.retain(|setting| set(&scene, setting).is_ok());
        if scene.relay.take().is_some() {
            scene.start_relay();
        }
        let chosen: Vec<Setting> = chosen.into_iter().cloned().collect();
        deliver(&mut scene, &chosen);
        chosen.iter().for_each(|setting| reset(&scene, setting));
    }
    stage.reconcile(scene);
}

fn hostile(scene: &Scene) -> Vec<Setting> {
    let rows =
        (scene.database.connect()).query(&format!("{HOSTILE}{LEFT_OUT}) ORDER BY 1, 2"), &[]);
    let rows = rows.expect("settings are readable");
    let text = |row: &postgres::Row, place| row.get::<_, Option<String>>(place).unwrap_or_default();
    (rows.iter())
        .map(|row| Setting {
            name: text(row, 0),
            value: text(row, 1),
            usual: text(row, 2),
        })
        .collect()
}

/// From a session elsewhere: one of this database would have the settings that are there. Some cannot be set so.
fn set(scene: &Scene, setting: &Setting) -> Result<(), postgres::Error> {
    let Setting { name, value, .. } = setting;
    let database = scene.database.name();
    let sql = format!("ALTER DATABASE {database} SET {name} = '{value}'");
    scene.maintenance().batch_execute(&sql)
}

fn reset(scene: &Scene, setting: &Setting) {
    let sql = format!(
        "ALTER DATABASE {} RESET {}",
        scene.database.name(),
        setting.name
    );
    let done = scene.maintenance().batch_execute(&sql);
    done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// An event of a client that has its own settings arrives, and is settled.
fn deliver(scene: &mut Scene, hostile: &[Setting]) {
    let options = hostile.iter().map(|setting| {
        let usual = setting.usual.replace('\\', "\\\\").replace(' ', "\\ ");
        format!("-c {}={usual}", setting.name)
    });
    let options: Vec<String> = options.collect();
    let mut config = scene.cluster.config(scene.database.name());
    config.options(&options.join(" "));
    let mut client = config
        .connect(NoTls)
        .unwrap_or_else(|error| panic!("{options:?}: {error:?}"));
    if scene.random.chance(30) {
        let pid: Option<i32> = client
            .query_one("SELECT max(pid) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'webhook worker'", &[])
            .expect("it is readable")
            .get(0);
        if let Some(pid) = pid {
            worker::signal(pid, libc::SIGTERM);
        }
    }
    let event = crate::database::emit(&mut client, "chaos.n0", serde_json::json!({}));
    scene.clients.ledger.lock().unwrap().committed.insert(event);
    let names: Vec<String> = (hostile.iter())
        .map(|setting| format!("{} = {}", setting.name, setting.value))
        .collect();
    wait::until_within(
        Duration::from_secs(30),
        &format!("an event under {names:?}"),
        || {
            let left = "SELECT count(*) FROM webhook.delivery_queue";
            match client.query_one(left, &[]).map(|row| row.get::<_, i64>(0)) {
                Ok(0) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    );
}
