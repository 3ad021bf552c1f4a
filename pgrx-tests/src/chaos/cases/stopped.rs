//! Signals to processes, by a server's administrator, a failover manager or the kernel.

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};
use crate::{wait, worker};

pub fn worker(stage: &mut Stage) {
    under_load(stage, Sender::Worker, |scene| {
        let pid = scene.worker_pid();
        worker::terminate(&scene.database, pid);
        worker::successor(&scene.database, pid);
    });
}

pub fn relay(stage: &mut Stage) {
    under_load(stage, Sender::Relay, |scene| {
        let relay = scene.relay.take().expect("a relay delivers");
        relay.terminate();
        relay.wait();
        scene.start_relay();
    });
}

pub fn launcher(stage: &mut Stage) {
    under_load(stage, Sender::Worker, |scene| {
        let launcher =
            "SELECT max(pid) FROM pg_stat_activity WHERE backend_type = 'webhook launcher'";
        let find = || scene.database.query_one_value::<Option<i32>>(launcher);
        let pid = wait::until("a launcher", || find().ok_or("none"));
        worker::terminate(&scene.database, pid);
        wait::until("another launcher", || match find() {
            Some(next) if next != pid => Ok(()),
            seen => Err(seen),
        });
    });
}

pub fn fast(stage: &mut Stage) {
    under_load(stage, Sender::Worker, |scene| scene.cluster.restart());
}

pub fn immediate(stage: &mut Stage) {
    under_load(stage, Sender::Worker, |scene| {
        scene.lose_sender();
        scene.cluster.kill_immediately();
        scene.cluster.start_server();
    });
}

pub fn crash(stage: &mut Stage) {
    under_load(stage, Sender::Worker, |scene| {
        scene.lose_sender();
        let mut victim = scene.connect();
        let pid: i32 = victim
            .query_one("SELECT pg_backend_pid()", &[])
            .expect("it runs")
            .get(0);
        scene.crash_by(pid);
    });
}

/// Its children notice that and end.
pub fn postmaster(stage: &mut Stage) {
    under_load(stage, Sender::Worker, |scene| {
        scene.lose_sender();
        scene.cluster.lose_postmaster();
        scene.cluster.start_server();
    });
}

/// Three times, each at a moment that the seed chooses.
fn under_load(stage: &mut Stage, sender: Sender, disturb: impl Fn(&mut Scene)) {
    const TIMES: usize = 3;
    let mut scene = stage.scene(sender);
    scene.begin_load();
    for _ in 0..TIMES {
        let more = 1 + scene.random.below(scene.size() / TIMES);
        scene.wait_for_commits(more);
        scene.strike();
        disturb(&mut scene);
        scene.wait_for_requests(scene.size() / TIMES);
    }
    stage.reconcile(scene);
}
