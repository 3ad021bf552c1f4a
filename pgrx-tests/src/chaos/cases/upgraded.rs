//! pg_upgrade of a server that has endpoints, a queue and dead letters.

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::cluster::Cluster;
use crate::pg_config;
use crate::receiver::Answer;

pub fn to_17(stage: &mut Stage) {
    upgraded(stage, 17);
}
pub fn to_18(stage: &mut Stage) {
    upgraded(stage, 18);
}

fn upgraded(stage: &mut Stage, version: u32) {
    if pg_config::major_version("PG_CONFIG") >= version {
        stage.score.not_tested = Some("the server is not older than that");
        return;
    }
    let Some(newer) = Cluster::builder().purpose("chaos").fetched(version) else {
        stage.score.not_tested = Some("make install PG=17 and PG=18 first");
        return;
    };
    let mut scene = stage.scene(Sender::Worker);
    if !newer.dumps_plainly(&scene.cluster) {
        if Cluster::builder().fetched(15).is_none() {
            stage.score.not_tested = Some("make older15 first");
            return;
        }
        scene = stage.scene_with(Sender::Worker, |builder| {
            builder
                .fetched(15)
                .expect("the older server is still there")
        });
    }
    scene.receiver.respond("/dead", |_, _| Answer::status(400));
    let url = scene.receiver.url("/dead");
    let options = "event_types => '{chaos.dead}', policy => 'fast'";
    scene.database.add_endpoint_with("dead", &url, options);
    let dead = scene.database.emit("chaos.dead", serde_json::json!({}));
    scene.note_committed([dead]);
    scene.allow_repetition(1);
    scene.database.wait_for_status(dead, "FAILED");
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    scene.database.pause_all();
    scene.wait_for_commits(scene.size() / 3);
    scene.clients.stop();
    let queued: i64 = (scene.database)
        .query_one_value("SELECT count(*) FROM webhook.delivery_queue WHERE status = 'PENDING'");
    assert!(queued > 0, "there is no queue to upgrade");
    scene.cluster.stop();

    let new = newer
        .setting("fsync = off")
        .start_upgrade_of(&scene.cluster);
    drop(scene.move_to(new));
    scene.mend();
    scene.begin_load();
    scene.database.resume_all();
    scene.wait_for_requests(scene.size() / 3);
    scene.receiver.respond("/dead", |_, _| Answer::status(200));
    scene.database.execute("CALL webhook_replay_all('dead')");
    scene.database.wait_for_status(dead, "SENT");
    stage.reconcile(scene);
}
