//! A standby takes over, the old primary becomes its standby by pg_rewind, and takes over again.

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};
use crate::cluster::{Builder, Cluster};
use crate::{wait, worker};

pub fn there_and_back(stage: &mut Stage) {
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder
            .setting("wal_log_hints = on")
            .setting("wal_keep_size = '256MB'")
    });
    let standby = standby().start_standby_of(&scene.cluster);
    wait_for_commits(&mut scene);
    under_load(&mut scene);
    let mut lost = take_over(&mut scene, standby);
    lost.rejoin(&scene.cluster);
    wait_for_commits(&mut scene);
    under_load(&mut scene);
    let in_recovery: bool = (lost.connect("postgres"))
        .query_one("SELECT pg_is_in_recovery()", &[])
        .expect("a standby answers")
        .get(0);
    assert!(in_recovery, "the old primary is a standby");
    drop(take_over(&mut scene, lost));
    scene.execute_anywhere("ALTER SYSTEM RESET synchronous_standby_names");
    under_load(&mut scene);
    stage.reconcile(scene);
}

fn standby() -> Builder {
    Cluster::builder().purpose("chaos")
}

/// From now on a commit waits until the standby has it: only then does a client that heard of it lose nothing.
fn wait_for_commits(scene: &mut Scene) {
    let streams = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')";
    scene.database.wait_until(streams);
    scene.execute_anywhere("ALTER SYSTEM SET synchronous_standby_names = '*'");
    scene.database.wait_until(
        "SELECT coalesce(bool_or(sync_state = 'sync'), false) FROM pg_stat_replication",
    );
}

fn under_load(scene: &mut Scene) {
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
}

/// The primary is killed, and the standby takes its place. Returns the old primary.
fn take_over(scene: &mut Scene, standby: Cluster) -> Cluster {
    scene.lose_sender();
    scene.strike();
    scene.cluster.kill_immediately();
    standby.promote();
    let lost = scene.move_to(standby);
    scene.execute_anywhere("ALTER SYSTEM RESET synchronous_standby_names");
    wait::until_true("a worker", || worker::count(&scene.database) == 1);
    lost
}
