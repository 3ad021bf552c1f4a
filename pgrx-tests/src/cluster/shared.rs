//! Clusters that all tests of this process share.

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Once, OnceLock};

use super::Cluster;
use crate::database::Database;
use crate::host::{self, Host};
use crate::log::ServerLog;

/// For a cluster that no test kills. Every DROP DATABASE waits for a checkpoint, and that for the disk: a second for
/// each test on a busy machine.
const NEVER_CRASHES: &str = "fsync = off";

/// The name of a database with the extension in it, which databases of a shared cluster are copies of.
const TEMPLATE: &str = "with_extension";

static SHARED: OnceLock<Cluster> = OnceLock::new();
static IDLE: OnceLock<Cluster> = OnceLock::new();
static UNATTENDED: OnceLock<Cluster> = OnceLock::new();
static RELAYED: OnceLock<Cluster> = OnceLock::new();
static PORTABLE: OnceLock<Cluster> = OnceLock::new();

impl Cluster {
    /// The cluster of all tests of this process that neither restart nor configure it.
    pub fn shared() -> &'static Cluster {
        SHARED.get_or_init(|| {
            remove_shared_at_exit();
            let shared = Cluster::builder().setting(NEVER_CRASHES);
            match Host::current() {
                Host::Server => shared.start(),
                Host::Relay => shared.setting("webhook.max_in_flight = 0").start(),
                Host::Portable => shared.without_preload().start(),
            }
        })
    }

    /// The same for tests where nobody may claim but the test: its workers deliver nothing.
    pub fn idle() -> &'static Cluster {
        IDLE.get_or_init(|| {
            remove_shared_at_exit();
            let idle = Cluster::builder().setting("webhook.enabled = off");
            idle.setting("jit = off").setting(NEVER_CRASHES).start()
        })
    }

    /// The same for tests that count what the worker's statements read and write: the launcher is its only process, so
    /// that no worker does its upkeep at the same time.
    pub fn unattended() -> &'static Cluster {
        UNATTENDED.get_or_init(|| {
            remove_shared_at_exit();
            let unattended = Cluster::builder().setting("max_logical_replication_workers = 0");
            let unattended = unattended.setting("max_worker_processes = 1");
            unattended
                .setting("jit = off")
                .setting(NEVER_CRASHES)
                .start()
        })
    }

    /// The same for tests of senders outside of the server: its workers leave delivery to them.
    pub fn relayed() -> &'static Cluster {
        RELAYED.get_or_init(|| {
            remove_shared_at_exit();
            let relayed = Cluster::builder().setting("webhook.max_in_flight = 0");
            relayed.setting("jit = off").setting(NEVER_CRASHES).start()
        })
    }

    /// The same for tests of databases that have webhook without the library.
    pub fn portable() -> &'static Cluster {
        PORTABLE.get_or_init(|| {
            remove_shared_at_exit();
            let portable = Cluster::builder().without_preload();
            portable.setting(NEVER_CRASHES).start()
        })
    }

    pub(super) fn copy_of_template(&self, prefix: &str) -> Database {
        self.has_template.get_or_init(|| self.make_template());
        let mut database = self.new_database(prefix, &format!("TEMPLATE {TEMPLATE}"));
        if self.host() != Host::Server {
            database.deliver_by(host::start_relay(self, &database));
        }
        database
    }

    /// A database that no worker is ever in, so that it can be copied at any time: a copy takes a third of the time of
    /// CREATE EXTENSION.
    fn make_template(&self) {
        let make = format!("CREATE DATABASE {TEMPLATE} IS_TEMPLATE true");
        let made = self.connect("postgres").batch_execute(&make);
        made.unwrap_or_else(|error| panic!("{make}: {error:?}"));
        let template = ManuallyDrop::new(self.existing_database(TEMPLATE));
        match self.host() {
            Host::Portable => host::install_portable(self, &template),
            Host::Server | Host::Relay => template.create_extension(),
        }
        if self.host() != Host::Server {
            host::grant_relay_role(&template);
        }
    }

    fn host(&self) -> Host {
        let is = |cluster: &OnceLock<Cluster>| cluster.get().is_some_and(|c| ptr::eq(c, self));
        match (is(&SHARED), is(&PORTABLE)) {
            (true, _) => Host::current(),
            (_, true) => Host::Portable,
            _ => Host::Server,
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        let mut shared = [&SHARED, &IDLE, &UNATTENDED, &RELAYED, &PORTABLE]
            .into_iter()
            .filter_map(OnceLock::get);
        shared.any(|shared| ptr::eq(shared, self))
    }

    /// Nothing for a cluster of the test's own, which shows its log itself.
    pub(super) fn shared_log(&self) -> Option<ServerLog> {
        self.is_shared().then(|| self.server_log())
    }
}

extern "C" fn remove_shared() {
    for cluster in [&SHARED, &IDLE, &UNATTENDED, &RELAYED, &PORTABLE]
        .into_iter()
        .filter_map(OnceLock::get)
    {
        cluster.server.as_ref().inspect(|server| server.quit());
        cluster.directory.remove();
    }
}

/// Statics are never dropped.
fn remove_shared_at_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: it is a plain function that stays loaded as long as the process runs.
    ONCE.call_once(|| _ = unsafe { libc::atexit(remove_shared) });
}
