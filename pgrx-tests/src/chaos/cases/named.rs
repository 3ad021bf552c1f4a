//! Names of receivers that hang, lie and change their mind.

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::names::Names;

/// Addresses that the guard permits to nobody here. They are judged and never dialled.
const LIES: [&str; 3] = ["169.254.169.254", "10.1.2.3", "fd00::1"];

pub fn hang_and_lie(stage: &mut Stage) {
    let names = Names::make();
    let mut scene = stage.scene_with(Sender::Worker, |builder| names.of(builder));
    let port = scene.receiver.port();
    let url = |name: &str, path: &str| format!("http://{name}:{port}{path}");

    // One hangs from the beginning, and its endpoint gets all that has waited when it resolves.
    names.hang("hanging.invalid");
    scene.direct("n0", &url("hanging.invalid", "/0"));
    // The others resolve to where nothing may go, each at its first lookup alone.
    let mut lies = LIES;
    scene.random.shuffle(&mut lies);
    scene.begin_load();
    for (number, lie) in lies.into_iter().enumerate() {
        let name = format!("lie{number}.invalid");
        names.resolve(&name, lie);
        scene.direct("n2", &url(&name, "/2"));
        let blocked = format!(
            "SELECT EXISTS (SELECT FROM webhook.dead_letter WHERE reason = 'blocked' AND last_error LIKE '%{lie}%')"
        );
        scene.database.wait_until(&blocked);
        names.resolve(&name, "127.0.0.1");
    }
    names.resolve("well.invalid", "127.0.0.1");
    scene.direct("n2", &url("well.invalid", "/2"));
    scene.database.execute("CALL webhook_replay_all('n2')");
    names.resolve("hanging.invalid", "127.0.0.1");
    scene.mend();
    scene.wait_for_requests(scene.size() / 2);
    scene.clients.stop();
    // What was blocked before its endpoint was told the truth.
    scene.wait_until_settled();
    scene.database.execute("CALL webhook_replay_all('n2')");
    stage.reconcile(scene);
}
