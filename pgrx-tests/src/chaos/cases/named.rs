//! Names of receivers that hang, lie and change their mind.

use std::time::Duration;

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};
use crate::names::Names;
use crate::wait;

/// Addresses that the guard permits to nobody here. They are judged and never dialled.
const LIES: [&str; 3] = ["169.254.169.254", "10.1.2.3", "fd00::1"];
const TRUTH: &str = "127.0.0.1";
/// An answer is fresh for 30 s; after that a request gets it once more while the name is looked up again.
const FRESH: Duration = Duration::from_secs(60);

pub fn hang_and_lie(stage: &mut Stage) {
    let names = Names::make();
    let mut scene = stage.scene_with(Sender::Worker, |builder| names.of(builder));

    // One name hangs from the beginning, and its endpoint gets all waiting deliveries when it resolves.
    names.hang("hanging.invalid");
    scene.direct("n0", &url(&scene, "hanging.invalid", "/0"));
    let mut lies = LIES;
    scene.random.shuffle(&mut lies);
    scene.begin_load();
    for (number, lie) in lies.into_iter().enumerate() {
        let name = format!("lie{number}.invalid");
        names.resolve(&name, lie);
        scene.direct("n2", &url(&scene, &name, "/2"));
        wait_until_blocked(&scene, lie);
    }
    names.resolve("changing.invalid", TRUTH);
    scene.direct("n2", &url(&scene, "changing.invalid", "/2"));
    if stage.is_long() {
        change_twice(&scene, &names);
    }
    names.resolve("hanging.invalid", TRUTH);
    scene.mend();
    scene.wait_for_requests(scene.size() / 2);
    scene.clients.stop();
    scene.wait_until_settled();
    // Blocked deliveries are dead letters.
    scene.database.execute("CALL webhook_replay_all('n2')");
    stage.reconcile(scene);
}

/// To a forbidden address, although connections to the other one are open, and back.
fn change_twice(scene: &Scene, names: &Names) {
    const ANOTHER: &str = "192.168.1.1";
    wait_for_another_request(scene);
    names.resolve("changing.invalid", ANOTHER);
    wait_until_blocked(scene, ANOTHER);
    names.resolve("changing.invalid", TRUTH);
    wait_for_another_request(scene);
}

fn wait_until_blocked(scene: &Scene, address: &str) {
    let blocked = format!(
        "SELECT EXISTS (SELECT FROM webhook.dead_letter WHERE reason = 'blocked' AND last_error LIKE '%{address}%')"
    );
    let is_blocked = || match scene.database.query_one_value::<bool>(&blocked) {
        true => Ok(()),
        false => Err(address),
    };
    wait::until_within(FRESH, "a blocked address", is_blocked);
}

fn wait_for_another_request(scene: &Scene) {
    let count = || scene.receiver.requests_to("/2").len();
    let before = count();
    wait::until_within(FRESH, "a request to a name", || match count() {
        now if now > before => Ok(()),
        now => Err(now),
    });
}

fn url(scene: &Scene, name: &str, path: &str) -> String {
    format!("http://{name}:{}{path}", scene.receiver.port())
}
