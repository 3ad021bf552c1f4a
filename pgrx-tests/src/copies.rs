//! Copies of databases: how they are made, and the messages of their workers.

use std::fs;
use std::path::PathBuf;

use crate::cluster::Cluster;
use crate::database::Database;
use crate::directory::target_directory;
use crate::process::complete;
use crate::{wait, worker};

/// Restores a dump of `source` into `copy`, a database without the extension.
#[track_caller]
pub fn dump_and_restore(source: (&Cluster, &Database), copy: (&Cluster, &Database)) {
    let archive = DumpFile::of(source.1);
    let mut dump = source.0.program("pg_dump");
    complete(
        dump.arg("-Fc")
            .arg("-f")
            .arg(&archive.0)
            .arg(source.1.name()),
    );
    let mut restore = copy.0.program("pg_restore");
    complete(
        restore
            .args(["-j4", "--exit-on-error", "-d", copy.1.name()])
            .arg(&archive.0),
    );
}

/// From now on `subscriber`, a database of the same cluster, gets the rows that are written to this table of
/// `publisher`.
#[track_caller]
pub fn subscribe(cluster: &Cluster, publisher: &Database, subscriber: &Database, table: &str) {
    publisher.execute(&format!("CREATE PUBLICATION p FOR TABLE {table}"));
    publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    subscriber.execute(&format!(
        "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port={} user=postgres dbname={}' PUBLICATION p
         WITH (create_slot = false, copy_data = false)",
        cluster.port(),
        publisher.name()
    ));
}

#[track_caller]
pub fn unsubscribe(subscriber: &Database) {
    subscriber.execute("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)");
    subscriber.execute("DROP SUBSCRIPTION s");
}

/// The file is removed with this value.
pub struct DumpFile(pub PathBuf);

impl DumpFile {
    pub fn of(database: &Database) -> DumpFile {
        let name = format!("{}-{}.dump", database.name(), std::process::id());
        DumpFile(target_directory().join(name))
    }
}

impl Drop for DumpFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Waits until the database's worker has said in the log that it holds endpoints.
#[track_caller]
pub fn wait_for_warning(cluster: &Cluster, database: &Database) {
    let pid = worker::pid(database);
    wait::until("a warning about foreign endpoints", || {
        let complaints = worker::complaints(cluster, pid);
        match (complaints.iter()).any(|line| line.contains("another installation")) {
            true => Ok(()),
            false => Err(complaints),
        }
    });
}
