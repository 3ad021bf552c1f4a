//! A machine that loses its power: what was not synced is gone, and pages are half written.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chaos::Stage;
use crate::chaos::scene::{Scene, Sender};
use crate::volatile_disk::VolatileDisk;

/// Tables whose pages are torn.
const TORN: [&str; 3] = [
    "webhook.delivery_queue",
    "webhook.delivery_history",
    "webhook.event",
];
const PAGE: usize = 8192;

/// Three times. Pages that have changed since the last checkpoint get the old version of their second half, as if the
/// power had failed between the two halves: the server restores them from its WAL.
pub fn lost(stage: &mut Stage) {
    const TIMES: usize = 3;
    let Some(disk) = VolatileDisk::mount(512) else {
        stage.score.not_tested = Some("only root may mount a file as a disk");
        return;
    };
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder
            .data_on(&disk.path())
            .setting("fsync = on")
            // So few that pages are written without a checkpoint.
            .setting("shared_buffers = '1MB'")
            .setting("checkpoint_timeout = '1h'")
            .setting("max_wal_size = '1GB'")
            .setting("min_wal_size = '32MB'")
    });
    scene.begin_load();
    let mut torn = 0;
    for _ in 0..TIMES {
        scene.wait_for_requests(scene.size() / TIMES);
        let before = checkpoint(&scene);
        scene.wait_for_requests(5);
        write_pages(&scene);
        disk.sync();
        // From here on only what the server syncs is on the disk.
        let more = 1 + scene.random.below(scene.size() / TIMES);
        scene.wait_for_commits(more);
        scene.lose_sender();
        scene.strike();
        scene.cluster.lose_postmaster();
        disk.lose_power();
        torn += before.iter().map(tear).sum::<usize>();
        scene.cluster.start_server();
    }
    scene.wait_for_requests(scene.size() / TIMES);
    assert!(torn > 0, "no page was torn");
    stage.reconcile(scene);
}

/// A table's file as it was.
struct OldFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

fn checkpoint(scene: &Scene) -> Vec<OldFile> {
    let mut session = scene.connect();
    session.batch_execute("CHECKPOINT").expect("it is allowed");
    let mut read = |table: &&str| {
        let path = session.query_one("SELECT pg_relation_filepath($1::text::regclass)", &[table]);
        let path: String = path.expect("the table has a file").get(0);
        let path = scene.cluster.data_directory().join(Path::new(&path));
        let bytes = fs::read(&path).expect("the file is readable");
        OldFile { path, bytes }
    };
    TORN.iter().map(&mut read).collect()
}

/// Reads more pages than the server has buffers for, so that it writes those that have changed.
fn write_pages(scene: &Scene) {
    let read = "SET enable_seqscan = off; SET enable_bitmapscan = off;
                SELECT count(prosrc) FROM pg_proc WHERE oid > 0;
                SELECT count(attoptions) FROM pg_attribute WHERE attrelid > 0";
    let mut session = scene.connect();
    // A page in use is written when it has been passed over a few times.
    for _ in 0..5 {
        session.batch_execute(read).expect("catalogs are readable");
    }
}

/// Returns the number of pages.
fn tear(old: &OldFile) -> usize {
    let mut now = fs::read(&old.path).expect("the file is readable");
    let mut torn = 0;
    for (page, old) in now.chunks_exact_mut(PAGE).zip(old.bytes.chunks_exact(PAGE)) {
        if page != old {
            page[PAGE / 2..].copy_from_slice(&old[PAGE / 2..]);
            torn += 1;
        }
    }
    fs::write(&old.path, now).expect("the file can be written");
    torn
}
