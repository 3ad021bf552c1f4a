//! A fast stop of the server while something hangs.

use std::time::Instant;

use postgres::Client;

use crate::chaos::Stage;
use crate::chaos::scene::{MAX_IN_FLIGHT, Scene, Sender};
use crate::names::Names;
use crate::worker;

const PATHS: [&str; 3] = ["/0", "/1", "/2"];
const NAME: &str = "hanging.invalid";

#[derive(Debug, Clone, Copy)]
enum Hanging {
    /// All receivers hold their answers.
    Receivers,
    /// The name of a receiver never resolves.
    Name,
    /// Another session has locked the queue. The stop ends that session too.
    Lock,
    /// Commits wait for a standby that is away.
    Standby,
}

/// The server is stopped once for each of them, in an order that the seed chooses.
pub fn fast_stop(stage: &mut Stage) {
    let names = Names::make();
    let mut scene = stage.scene_with(Sender::Worker, |builder| names.of(builder));
    // No request ends by itself before the stop.
    scene.database.execute(
        "UPDATE webhook.policy SET timeout = '10 min', connect_timeout = '10 min' WHERE name = 'persistent'",
    );
    let mut all = [
        Hanging::Receivers,
        Hanging::Name,
        Hanging::Lock,
        Hanging::Standby,
    ];
    scene.random.shuffle(&mut all);
    scene.begin_load();
    for hanging in all {
        scene.wait_for_requests(scene.size() / all.len());
        scene.disturb();
        let locking = hanging.begin(&mut scene, &names);
        let told = Instant::now();
        scene.cluster.stop();
        let took = told.elapsed();
        assert!(took < worker::ENDS_WITHIN, "{hanging:?}: {took:?}");
        drop(locking);
        hanging.end(&mut scene, &names);
        scene.mend();
    }
    scene.wait_for_requests(scene.size() / all.len());
    stage.reconcile(scene);
}

impl Hanging {
    /// Waits until the worker hangs. Returns the session that has to stay open so that it does.
    fn begin(self, scene: &mut Scene, names: &Names) -> Option<Client> {
        match self {
            Hanging::Receivers => {
                PATHS.iter().for_each(|path| scene.receiver.hold(path));
                scene.wait_for_requests(5);
                // Requests that have arrived, and whose answers the worker does not wait for.
                scene.allow_repetition(MAX_IN_FLIGHT);
                None
            }
            Hanging::Name => {
                names.hang(NAME);
                let url = format!("http://{NAME}:{}/0", scene.receiver.port());
                scene.direct("n0", &url);
                names.wait_for_lookup(NAME);
                None
            }
            Hanging::Lock => {
                // The worker cannot write the outcomes that it has.
                scene.lose_sender();
                let mut person = scene.connect();
                let locked = person.batch_execute("BEGIN; LOCK TABLE webhook.delivery_queue");
                locked.expect("the lock is granted");
                wait_for_worker(scene, "wait_event_type = 'Lock'");
                Some(person)
            }
            Hanging::Standby => {
                scene.lose_sender();
                let away = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'";
                scene.execute_anywhere(away);
                emit_locally(scene);
                wait_for_worker(scene, "wait_event = 'SyncRep'");
                None
            }
        }
    }

    /// Starts the server that was stopped, and nothing hangs any more.
    fn end(self, scene: &mut Scene, names: &Names) {
        scene.cluster.start_server();
        match self {
            Hanging::Receivers => PATHS.iter().for_each(|path| scene.receiver.release(path)),
            Hanging::Name => names.resolve(NAME, "127.0.0.1"),
            Hanging::Lock => {}
            Hanging::Standby => {
                scene.execute_anywhere("ALTER SYSTEM RESET synchronous_standby_names");
            }
        }
    }
}

/// An event that the worker sees although the standby is away.
fn emit_locally(scene: &mut Scene) {
    let mut session = scene.connect();
    let local = session.batch_execute("SET synchronous_commit = local");
    local.expect("everybody may set it");
    let event = crate::database::emit(&mut session, "chaos.n0", serde_json::json!({}));
    scene.note_committed([event]);
}

fn wait_for_worker(scene: &Scene, waits: &str) {
    scene.database.wait_until(&format!(
        "SELECT EXISTS (SELECT FROM pg_stat_activity
                        WHERE datname = current_database() AND backend_type = 'webhook worker' AND {waits})"
    ));
}
