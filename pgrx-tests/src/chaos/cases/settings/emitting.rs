//! Hostile settings of those who emit, and of those who write a watched table.

use std::collections::HashMap;

use postgres::{Client, NoTls};
use serde_json::{Value, json};
use uuid::Uuid;

use super::hostile::{Setting, settings};
use super::{CLIENTS_END, Place};
use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};

const ROLE: &str = "emitter";

/// Values that a session writes in its own way. The documents promise one way for all of them.
const WATCHED: &str = "
    CREATE TABLE watched (id int PRIMARY KEY, at timestamptz, day date, span interval, ratio float8, bytes bytea, words text[]);
    SELECT webhook_watch('watched', 'chaos.watched', '{insert}');
    CREATE ROLE emitter LOGIN;
    SELECT webhook_grant('emitter', 'emit');
    GRANT INSERT ON watched TO emitter";
const EMIT: &str = "SELECT public.webhook_emit('chaos.n0')";

fn insert(number: i32) -> String {
    format!(
        "INSERT INTO public.watched VALUES ({number}, '2026-01-02 03:04:05.678+00', pg_catalog.make_date(2026, 2, 1),
         pg_catalog.make_interval(days => 1, hours => 2), 0.30000000000000004, pg_catalog.decode('00ff', 'hex'), ARRAY[NULL, 'a'])"
    )
}

fn captured(number: i32) -> Value {
    json!({"id": number, "at": "2026-01-02T03:04:05.678+00:00", "day": "2026-02-01", "span": "1 day 02:00:00",
           "ratio": 0.30000000000000004, "bytes": "\\x00ff", "words": [null, "a"]})
}

/// By SET.
pub fn of_a_session(stage: &mut Stage) {
    each(stage, |scene, setting| {
        // For some a role needs the rights of a superuser.
        let config = scene.cluster.config(scene.database.name());
        let mut plain = config.clone();
        let clients = [plain.user(ROLE).connect(NoTls), config.connect(NoTls)];
        let set = format!("SET {}", setting.assignment());
        let mut clients = clients.into_iter().flatten();
        clients.find_map(|mut client| client.batch_execute(&set).is_ok().then_some(client))
    });
}

/// By ALTER ROLE.
pub fn of_a_role(stage: &mut Stage) {
    let role = Place::Role(ROLE.to_owned());
    each(stage, |scene, setting| {
        role.set(scene, setting).ok()?;
        let mut config = scene.cluster.config(scene.database.name());
        let client = config.user(ROLE).connect(NoTls);
        role.reset_all(scene);
        client.ok()
    });
}

/// Sessions of those who may emit and no more, each with one setting: nothing is planned in them, and nothing known, that
/// another setting has shaped.
fn each(stage: &mut Stage, connect: impl Fn(&Scene, &Setting) -> Option<Client>) {
    let mut scene = stage.scene(Sender::Worker);
    scene.database.execute(WATCHED);
    let url = scene.receiver.url("/watched");
    let options = "event_types => '{chaos.watched.*}', policy => 'persistent'";
    scene.database.add_endpoint_with("watched", &url, options);
    let mut settings = settings(&mut scene);
    settings.retain(|setting| !setting.ends_connecting());
    settings.truncate(scene.size() / 2);
    let mut inserted = Vec::new();
    for (number, setting) in (0..).zip(&settings) {
        let Some(mut client) = connect(&scene, setting) else {
            continue;
        };
        match client.query_one(EMIT, &[]) {
            Ok(row) => scene.note_committed([row.get(0)]),
            Err(error) => assert_own_refusal(setting, &error),
        }
        match client.batch_execute(&insert(number)) {
            // Triggers do not fire then, as the documents say.
            Ok(()) if setting.assignment() == "session_replication_role = 'replica'" => {}
            Ok(()) => inserted.push(number),
            Err(error) => assert_own_refusal(setting, &error),
        }
    }
    let committed = scene.clients.committed();
    assert!(2 * committed > settings.len(), "{committed} have emitted");
    note_captured(&scene, &settings, &inserted);
    stage.reconcile(scene);
}

/// It is what the setting is for, and no trouble of ours.
#[track_caller]
fn assert_own_refusal(setting: &Setting, error: &postgres::Error) {
    let is_its_end = CLIENTS_END.contains(&setting.name.as_str());
    assert!(is_its_end, "{}: {error:?}", setting.assignment());
}

/// Each row that is there has one event, with the same values under each setting.
#[track_caller]
fn note_captured(scene: &Scene, settings: &[Setting], inserted: &[i32]) {
    let rows = scene.connect().query(
        "SELECT id, payload->'record' FROM webhook.event WHERE event_type = 'chaos.watched.created'",
        &[],
    );
    let rows = rows.expect("events are readable");
    let events: Vec<(Uuid, Value)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut by_number: HashMap<i64, &Value> = HashMap::new();
    for (_, record) in &events {
        let number = record["id"].as_i64().expect("a row has its number");
        assert!(
            by_number.insert(number, record).is_none(),
            "twice: {record}"
        );
    }
    assert_eq!(events.len(), inserted.len());
    for number in inserted {
        let setting = settings[*number as usize].assignment();
        let record = by_number.get(&i64::from(*number));
        assert_eq!(record, Some(&&captured(*number)), "under {setting}");
    }
    scene.note_committed(events.iter().map(|(id, _)| *id));
}
