//! The scene of a case: a server, a sender, clients that emit, and a receiver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use uuid::Uuid;

use crate::chaos::books::{Records, Tables, assert_order, reconcile};
use crate::chaos::clients::Clients;
use crate::chaos::{Stage, gate};
use crate::cluster::{Builder, Cluster};
use crate::database::Database;
use crate::host::relay_program;
use crate::random::Random;
use crate::receiver::Receiver;
use crate::relay::Relay;
use crate::{wait, worker};

/// Requests that a sender may have in flight.
pub const MAX_IN_FLIGHT: usize = 50;
/// Deliveries that a sender may have claimed and not settled: twice as many again are claimed ahead where receivers
/// are quick.
pub const MAX_CLAIMED: usize = 3 * MAX_IN_FLIGHT;
const ENDPOINTS: usize = 3;
/// Everything has arrived and is settled so soon after the last disturbance, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    Worker,
    Relay,
}

/// Its fields are dropped in this order.
pub struct Scene {
    pub clients: Clients,
    pub relay: Option<Relay>,
    pub database: Database,
    pub receiver: Receiver,
    pub cluster: Cluster,
    pub random: Random,
    size: usize,
    seed: u64,
    keeps_order: bool,
    records: Arc<Records>,
}

impl Stage {
    pub fn scene(&mut self, sender: Sender) -> Scene {
        self.scene_with(sender, |builder| builder)
    }

    pub fn scene_with(
        &mut self,
        sender: Sender,
        settings: impl FnOnce(Builder) -> Builder,
    ) -> Scene {
        let of_worker = match sender {
            Sender::Worker => MAX_IN_FLIGHT,
            Sender::Relay => 0,
        };
        let builder = Cluster::builder()
            .purpose("chaos")
            .setting(&format!("webhook.max_in_flight = {of_worker}"))
            // Processes are killed, and not the machine: their writes are there.
            .setting("fsync = off");
        let cluster = settings(builder).start();
        let database = cluster.database("chaos");
        let receiver = Receiver::start();
        database.execute(
            "SELECT webhook_copy_policy('fast', 'persistent');
             UPDATE webhook.policy SET max_attempts = 1000 WHERE name = 'persistent'",
        );
        for number in 0..ENDPOINTS {
            let options = format!("event_types => '{{chaos.n{number}}}', policy => 'persistent'");
            let url = receiver.url(&format!("/{number}"));
            database.add_endpoint_with(&format!("n{number}"), &url, &options);
        }
        gate::build(&database);
        let records = Arc::<Records>::default();
        records.include(&receiver);
        self.score.open.push(Arc::clone(&records));
        let mut scene = Scene {
            clients: Clients::idle(&records.ledger),
            relay: None,
            database,
            receiver,
            cluster,
            random: Random::seeded(self.seed),
            size: self.size,
            seed: self.seed,
            keeps_order: true,
            records,
        };
        if sender == Sender::Relay {
            scene.start_relay();
        }
        scene
    }

    /// The end of a scene: its books are closed and compared.
    #[track_caller]
    pub fn reconcile(&mut self, scene: Scene) {
        self.reconcile_with(scene, &[]);
    }

    /// The same, where events have arrived elsewhere too.
    #[track_caller]
    pub fn reconcile_with(&mut self, mut scene: Scene, others: &[Receiver]) {
        let records = Arc::clone(&scene.records);
        others.iter().for_each(|other| records.include(other));
        scene.clients.stop();
        scene.wait_until_settled();
        let tables = Tables::read(&scene.database);
        // The score is there before anything is asserted: a case that fails shows its numbers.
        let score = self.score.close(&records);
        if scene.keeps_order {
            assert_order(&scene.receiver.requests());
        }
        reconcile(&records, &score, &tables);
    }
}

impl Scene {
    pub fn size(&self) -> usize {
        self.size
    }

    /// From now on this endpoint is elsewhere.
    #[track_caller]
    pub fn direct(&self, endpoint: &str, url: &str) {
        let call = format!("SELECT webhook_set_endpoint('{endpoint}', '{url}')");
        self.database.execute(&call);
    }

    /// Clients emit until the scene is reconciled.
    pub fn begin_load(&mut self) {
        let config = self.cluster.config(self.database.name());
        let types = (0..ENDPOINTS).map(|number| format!("chaos.n{number}"));
        self.clients.begin(&config, types.collect(), self.seed);
    }

    /// Waits until clients have committed so many more.
    #[track_caller]
    pub fn wait_for_commits(&self, more: usize) {
        let before = self.clients.committed();
        wait::until_within(PATIENCE, "more commits", || {
            match self.clients.committed() {
                now if now >= before + more => Ok(()),
                now => Err(now - before),
            }
        });
    }

    /// Waits until so many more requests have arrived.
    #[track_caller]
    pub fn wait_for_requests(&self, more: usize) {
        let before = self.receiver.request_count();
        wait::until_within(PATIENCE, "more requests", || {
            match self.receiver.request_count() {
                now if now >= before + more => Ok(()),
                now => Err(now - before),
            }
        });
    }

    /// Commits an event, without the clients.
    #[track_caller]
    pub fn emit(&mut self) -> Uuid {
        self.emit_to(0)
    }

    #[track_caller]
    pub fn emit_to(&mut self, endpoint: usize) -> Uuid {
        let event = (self.database).emit(&format!("chaos.n{endpoint}"), serde_json::json!({}));
        self.note_committed([event]);
        event
    }

    /// Notes events that the case itself has committed, beside those of the clients.
    pub fn note_committed(&self, events: impl IntoIterator<Item = Uuid>) {
        self.clients.ledger.lock().unwrap().committed.extend(events);
    }

    /// A sender is lost, and all its claims may be repeated.
    pub fn lose_sender(&mut self) {
        self.allow_repetition(MAX_CLAIMED);
    }

    /// Requests that an answer has asked for again.
    pub fn allow_repetition(&mut self, count: usize) {
        self.records.allow_repetition(count);
    }

    pub fn nothing_was_in_flight(&mut self) {
        self.records.forbid_repetition();
    }

    /// From now on the pace of deliveries is no promise.
    pub fn disturb(&mut self) {
        self.records.end_calm(Instant::now());
    }

    /// Something happens at once, and the time until deliveries go on is the sender's and the server's.
    pub fn strike(&mut self) {
        self.strike_at(Instant::now());
    }

    /// The same, told afterwards.
    pub fn strike_at(&mut self, moment: Instant) {
        self.records.end_calm(moment);
        self.records.begin_calm(moment);
    }

    /// The order of emission is that of the server's clock, and somebody sets it.
    pub fn forget_order(&mut self) {
        self.keeps_order = false;
    }

    /// From now on nothing stands in their way.
    pub fn mend(&mut self) {
        self.records.begin_calm(Instant::now());
    }

    /// From now on everybody uses another server, which has the same database; returns the one before.
    pub fn move_to(&mut self, cluster: Cluster) -> Cluster {
        self.clients.stop();
        self.database = cluster.existing_database(self.database.name());
        std::mem::replace(&mut self.cluster, cluster)
    }

    /// Connects as soon as the server lets it.
    #[track_caller]
    pub fn connect(&self) -> Client {
        let config = self.cluster.config(self.database.name());
        wait::until("a connection", || config.connect(NoTls))
    }

    /// A session that nothing of ours runs in: for commands that wait for the worker of this database.
    #[track_caller]
    pub fn maintenance(&self) -> Client {
        let config = self.cluster.config("postgres");
        wait::until("a connection", || config.connect(NoTls))
    }

    /// A command about the whole server, which then reads its configuration anew.
    #[track_caller]
    pub fn execute_anywhere(&self, sql: &str) {
        let mut session = self.maintenance();
        for sql in [
            "SET synchronous_commit = local",
            sql,
            "SELECT pg_reload_conf()",
        ] {
            let done = session.batch_execute(sql);
            done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
    }

    #[track_caller]
    pub fn worker_pid(&self) -> i32 {
        let mut session = self.connect();
        let find = "SELECT max(pid) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'webhook worker'";
        wait::until("a worker", || {
            let pid: Option<i32> = session
                .query_one(find, &[])
                .map_err(|e| e.to_string())?
                .get(0);
            pid.ok_or_else(|| "none".to_owned())
        })
    }

    /// With SIGKILL. The server takes the loss of a worker for a crash, and restarts all of its processes.
    pub fn kill_sender(&mut self) {
        self.kill_sender_and(|_| ());
    }

    /// The same, and ends the session that stands before a gate. The session of a relay outlives the relay there, and would
    /// commit when the gate opens.
    pub fn kill_sender_before_gate(&mut self, session: i32) {
        self.kill_sender_and(|scene| scene.end_session(session));
    }

    fn kill_sender_and(&mut self, end_session_of_relay: impl FnOnce(&Scene)) {
        self.lose_sender();
        match self.relay.take() {
            Some(relay) => {
                self.strike();
                relay.signal(libc::SIGKILL);
                relay.wait();
                end_session_of_relay(self);
                self.start_relay();
            }
            None => {
                let pid = self.worker_pid();
                self.strike();
                self.crash_by(pid);
            }
        }
    }

    #[track_caller]
    fn end_session(&self, pid: i32) {
        worker::terminate(&self.database, pid);
        self.database.wait_until(&format!(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})"
        ));
    }

    /// Kills a process of the server, and waits until the server has noticed.
    pub fn crash_by(&self, pid: i32) {
        let starts = || {
            self.cluster
                .log()
                .matches("ready to accept connections")
                .count()
        };
        let before = starts();
        worker::signal(pid, libc::SIGKILL);
        wait::until_true("the server to recover", || starts() > before);
    }

    pub fn start_relay(&mut self) {
        self.start_relay_at(self.cluster.port());
    }

    /// Starts a relay that connects by the port of a proxy.
    pub fn start_relay_at(&mut self, port: u16) {
        let connection = self.cluster.address(port, self.database.name());
        self.start_relay_with(&connection);
    }

    /// In place of the one that is there.
    pub fn start_relay_with(&mut self, connection: &str) {
        self.relay = None;
        let most = MAX_IN_FLIGHT.to_string();
        let options = ["--max-in-flight", &most];
        self.relay = Some(Relay::start(&relay_program(), connection, &options));
    }

    #[track_caller]
    pub fn wait_until_settled(&self) {
        let mut session = self.connect();
        wait::until_within(PATIENCE, "all to be settled", || {
            let left =
                "SELECT count(*) FROM webhook.delivery_queue WHERE event_type LIKE 'chaos.%'";
            match session.query_one(left, &[]).map(|row| row.get::<_, i64>(0)) {
                Ok(0) => Ok(()),
                left => Err(left.map_err(|error| error.to_string())),
            }
        });
    }
}
