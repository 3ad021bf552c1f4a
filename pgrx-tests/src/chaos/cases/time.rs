//! A wall clock that jumps.

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::clock::Clock;

const HOUR: i64 = 3600;

/// Forward and a few seconds back under load. What is queued when it is set back by more is due that much later, so the queue
/// is empty then.
pub fn jumps(stage: &mut Stage) {
    let clock = Clock::make();
    let mut scene = stage.scene_with(Sender::Worker, |builder| clock.of(builder));
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
