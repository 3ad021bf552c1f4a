//! Disks that are full: a small file system in memory, and a file that takes the rest of it.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use postgres::NoTls;

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::small_disk::{Part, SmallDisk};
use crate::wait;

/// Writes fail, and the server runs.
pub fn of_data(stage: &mut Stage) {
    full(stage, Part::Data);
}

/// A server that cannot write its WAL ends, and cannot start.
pub fn of_wal(stage: &mut Stage) {
    full(stage, Part::Wal);
}

fn full(stage: &mut Stage, part: Part) {
    let Some(disk) = SmallDisk::mount(256) else {
        stage.score.not_tested = Some("only root may mount a small disk");
        return;
    };
    let place = disk.path().to_owned();
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder
            .on_small_disk(part, disk)
            .setting("min_wal_size = '32MB'")
            .setting("max_wal_size = '64MB'")
            .setting("wal_recycle = off")
    });
    scene.begin_load();
    scene.wait_for_requests(scene.size() / 3);
    scene.disturb();
    scene.lose_sender();
    let ballast = Ballast::fill(place);
    let config = scene.cluster.config("postgres");
    wait::until_true("a full disk", || {
        // A segment of WAL that was made before has room: the next one has none.
        if let Ok(mut session) = config.connect(NoTls) {
            let _ = session.batch_execute("SELECT pg_switch_wal()");
        }
        scene.cluster.log().contains("No space left on device")
    });
    drop(ballast);
    scene.cluster.start_if_it_has_ended();
    scene.mend();
    scene.wait_for_requests(scene.size() / 3);
    stage.reconcile(scene);
}

struct Ballast(PathBuf);

impl Ballast {
    fn fill(place: PathBuf) -> Ballast {
        let path = place.join("ballast");
        let mut file = File::create(&path).expect("a file can be made");
        let block = vec![0; 1 << 16];
        while file.write_all(&block).is_ok() {}
        while file.write_all(&[0; 512]).is_ok() {}
        Ballast(path)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
