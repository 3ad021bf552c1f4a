//! Many endpoints that are down at once.

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::receiver::Receiver;

/// Endpoints that refuse connections, each with something due, beside those of the scene.
pub fn down(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Worker);
    let count = scene.size();
    let closed = Receiver::closed_url();
    scene.database.execute(&format!(
        "INSERT INTO webhook.policy (name, max_attempts, backoff, initial_delay, failure_threshold)
         VALUES ('down', 1000, 'fixed', '1 s', 3);
         SELECT count(*)
         FROM generate_series(1, {count}) AS n,
              webhook_set_endpoint('down' || n, '{closed}' || n, event_types => '{{down}}', policy => 'down')"
    ));
    scene.begin_load();
    scene.wait_for_requests(10);
    scene
        .database
        .execute("SELECT count(webhook_emit('down')) FROM generate_series(1, 5)");
    scene.mend();
    scene.wait_for_requests(scene.size());
    stage.reconcile(scene);
}
