//! A wall clock that jumps.

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::clock::Clock;

const HOUR: i64 = 3600;

/// Forward and back, under load.
pub fn jumps(stage: &mut Stage) {
    let clock = Clock::make();
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        clock.of(builder).setting("webhook.poll_interval = '1 s'")
    });
    scene.forget_order();
    for steps in [[2 * HOUR, 2 * HOUR - 3], [-HOUR, 24 * HOUR], [0, HOUR]] {
        scene.begin_load();
        for step in steps {
            scene.wait_for_requests(scene.size() / 6);
            scene.strike();
            clock.set(step);
        }
        scene.wait_for_requests(scene.size() / 6);
        scene.clients.stop();
        scene.wait_until_settled();
    }
    stage.reconcile(scene);
}
