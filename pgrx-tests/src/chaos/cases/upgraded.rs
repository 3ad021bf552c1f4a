//! Upgrades of the server and of the extension, with endpoints, a queue and dead letters.

use std::thread;
use std::time::Duration;

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::cluster::Cluster;
use crate::receiver::Answer;
use crate::scripts::{LATER, VERSION, later_upgrade};
use crate::{RawReceiver, pg_config, wait};

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

/// ALTER EXTENSION .. UPDATE while one endpoint fails and another hangs up, with a server that crashes in the middle of
/// it and right after it.
pub fn during_faults(stage: &mut Stage) {
    let script = format!("webhook--{VERSION}--{LATER}.sql");
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder.script(&script, &later_upgrade())
    });
    scene.receiver.respond("/1", |_, number| match number % 3 {
        0 => Answer::status(503),
        _ => Answer::status(200),
    });
    let resetting = RawReceiver::resetting();
    scene.direct("n2", &resetting.url());
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    scene.disturb();
    scene.lose_sender();
    let upgrade = format!("ALTER EXTENSION webhook UPDATE TO '{LATER}'");
    let mut session = scene.connect();
    let pid: i32 = session
        .query_one("SELECT pg_backend_pid()", &[])
        .expect("the session is open")
        .get(0);
    thread::scope(|scope| {
        let interrupted = upgrade.clone();
        scope.spawn(move || session.batch_execute(&interrupted));
        scene.database.wait_until(&format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND query LIKE 'ALTER EXTENSION%')"
        ));
        scene.crash_by(pid);
    });
    // It waits for a lock for a minute at most, and may lose a deadlock.
    wait::until_within(Duration::from_secs(60), "the upgrade", || {
        scene.connect().batch_execute(&upgrade)
    });
    scene.kill_sender();
    scene.mend();
    let version: String = (scene.database)
        .query_one_value("SELECT extversion FROM pg_extension WHERE extname = 'webhook'");
    assert_eq!(version, LATER);
    scene.receiver.respond("/1", |_, _| Answer::status(200));
    scene.direct("n2", &scene.receiver.url("/2"));
    scene.wait_for_requests(scene.size() / 3);
    // Each refusal is followed by one more request.
    let refused: i64 = (scene.database)
        .query_one_value("SELECT count(*) FROM webhook.attempt WHERE status_code = 503");
    scene.allow_repetition(usize::try_from(refused).expect("a count"));
    stage.reconcile(scene);
}
