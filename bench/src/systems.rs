//! The systems that the comparison measures, each from committed events to settled deliveries.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use webhook_e2e::{Cluster, Database, worker};

use crate::measure::{cpu, server_cpu, wal_and_xids};
use crate::peer::{self, Peer, program};
use crate::redis::{self, Fsync, Redis};
use crate::report::{pg_config, said};
use crate::sink::Sink;
use crate::{drain, peer::script};

const KEY: &[u8; 32] = b"0123456789abcdef0123456789abcdef";

#[derive(Clone, Copy, PartialEq)]
pub enum System {
    Extension,
    Bare,
    BullMq(Fsync),
    Graphile,
    PgNet,
}

pub const SYSTEMS: [System; 6] = [
    System::Extension,
    System::Bare,
    System::BullMq(Fsync::EverySecond),
    System::BullMq(Fsync::Always),
    System::Graphile,
    System::PgNet,
];

/// The input and the findings of one run.
pub struct Run<'a> {
    pub cluster: &'a Cluster,
    pub sink: &'a Sink,
    pub events: u32,
    pub limit: Duration,
}

/// One run's figures.
#[derive(Clone)]
pub struct Sample {
    pub settled: u64,
    pub seconds: f64,
    /// CPU of the process that sends.
    pub sender_cpu: Duration,
    /// The same with the processes that store.
    pub all_cpu: Duration,
    /// Bytes of the WAL, or of the append-only file.
    pub log_bytes: Option<i64>,
    /// Transactions that have written.
    pub commits: Option<i64>,
}

impl Sample {
    pub fn rate(&self) -> f64 {
        self.settled as f64 / self.seconds
    }

    pub fn per_delivery(&self, total: f64) -> f64 {
        total / self.settled as f64
    }
}

impl System {
    pub fn name(self) -> String {
        match self {
            System::Extension => "webhook".to_owned(),
            System::Bare => "bare client".to_owned(),
            System::BullMq(fsync) => format!("BullMQ, {}", fsync.name()),
            System::Graphile => "graphile-worker".to_owned(),
            System::PgNet => "pg_net".to_owned(),
        }
    }

    /// The concurrencies to choose the best from; the extension is as installed, and pg_net too.
    pub fn concurrencies(self) -> &'static [u32] {
        match self {
            System::Extension | System::PgNet => &[0],
            System::Bare => &[64, 1000],
            System::BullMq(_) | System::Graphile => &[100, 500, 1000],
        }
    }

    /// The version that is there, or why it cannot be measured.
    pub fn version(self) -> Result<String, String> {
        let package = |name: &str| {
            let hint = format!("npm's {name} is not installed (make bench installs it)");
            peer::installed(name).ok_or(hint)
        };
        match self {
            System::Extension => Ok(env!("CARGO_PKG_VERSION").to_owned()),
            System::Bare => Ok("hyper 1".to_owned()),
            System::BullMq(_) => {
                let redis = redis::installed().ok_or("redis-server is not installed")?;
                Ok(format!("{} with Redis {redis}", package("bullmq")?))
            }
            System::Graphile => package("graphile-worker"),
            System::PgNet => {
                let share = said(&pg_config(), &["--sharedir"]);
                let control = Path::new(&share).join("extension/pg_net.control");
                let text = std::fs::read_to_string(control)
                    .map_err(|_| "pg_net is not installed in this server".to_owned())?;
                let line = text
                    .lines()
                    .find(|line| line.starts_with("default_version"));
                let version = line.and_then(|line| line.split('\'').nth(1));
                Ok(version.unwrap_or("unknown").to_owned())
            }
        }
    }

    /// A remark beside its figures.
    pub fn caveat(self) -> &'static str {
        match self {
            System::Extension => ", no setting changed but for the address and port of the sink",
            System::Bare => ", stores nothing",
            System::BullMq(Fsync::EverySecond) => {
                "; a crash of the machine may lose what was settled in the last second"
            }
            System::BullMq(Fsync::Always) => "; each write is on disk before Redis answers",
            System::Graphile => ", batched as its documentation recommends",
            System::PgNet => "; an unlogged queue, which a crash empties, and no retry",
        }
    }

    pub fn measure(self, run: &Run, concurrency: u32) -> Result<Sample, String> {
        match self {
            System::Extension => run.extension(),
            System::Bare => run.bare(concurrency),
            System::BullMq(fsync) => run.bullmq(fsync, concurrency),
            System::Graphile => run.graphile(concurrency),
            System::PgNet => run.pg_net(),
        }
    }
}

impl Run<'_> {
    fn extension(&self) -> Result<Sample, String> {
        let database = self.cluster.plain_database("webhook");
        database.execute("CREATE EXTENSION webhook");
        let urls = self.sink.urls();
        drain::add_endpoints(&database, &urls);
        database.execute("CHECKPOINT");
        drain::pile_up(&database, self.events, urls.len());
        let worker = worker::pid(&database);

        let settled = "SELECT count(*) FROM webhook.delivery_history WHERE status = 'SENT'";
        let is_empty = "SELECT NOT EXISTS (SELECT FROM webhook.delivery_queue)";
        let mut client = database.connect();
        let mut ask = |sql: &str| client.query_one(sql, &[]).expect("the server answers");
        let meter = Meter::start(self.cluster, &database, worker);
        let requests = self.sink.counts().requests;
        let begun = Instant::now();
        drain::resume(&database);
        drain::wait_for_requests(self.sink, requests, self.events, begun, self.limit);
        while begun.elapsed() < self.limit && !ask(is_empty).get::<_, bool>(0) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let settled = ask(settled).get::<_, i64>(0) as u64;
        Ok(meter.stop(settled, seconds))
    }

    fn order(&self, concurrency: u32) -> serde_json::Value {
        json!({
            "events": self.events,
            "urls": self.sink.urls(),
            "concurrency": concurrency,
            "secret": BASE64.encode(KEY),
            "body_bytes": drain::BODY_BYTES,
        })
    }

    fn bare(&self, concurrency: u32) -> Result<Sample, String> {
        let order = self.order(concurrency);
        let mut peer = Peer::start(Command::new(program("bare")), &order)?;
        let before = cpu(peer.pid());
        let (settled, seconds) = peer.go(self.limit)?;
        let used = cpu(peer.pid()).saturating_sub(before);
        Ok(Sample {
            settled,
            seconds,
            sender_cpu: used,
            all_cpu: used,
            log_bytes: None,
            commits: None,
        })
    }

    fn bullmq(&self, fsync: Fsync, concurrency: u32) -> Result<Sample, String> {
        let redis = Redis::start(fsync);
        let mut order = self.order(concurrency);
        order["redis_port"] = redis.port.into();
        let mut peer = Peer::start(script("bullmq.js"), &order)?;
        let (cpu_before, store_before) = (cpu(peer.pid()), cpu(redis.pid()));
        let size_before = redis.file_size();
        let (settled, seconds) = peer.go(self.limit)?;
        let used = cpu(peer.pid()).saturating_sub(cpu_before);
        let stored = cpu(redis.pid()).saturating_sub(store_before);
        Ok(Sample {
            settled,
            seconds,
            sender_cpu: used,
            all_cpu: used + stored,
            log_bytes: redis
                .file_size()
                .zip(size_before)
                .map(|(after, before)| after - before),
            commits: None,
        })
    }

    fn graphile(&self, concurrency: u32) -> Result<Sample, String> {
        let database = self.cluster.plain_database("graphile");
        database.execute("CHECKPOINT");
        let port = self.cluster.config("postgres").get_ports()[0];
        let mut order = self.order(concurrency);
        order["database"] =
            format!("postgres://postgres@127.0.0.1:{port}/{}", database.name()).into();
        let mut peer = Peer::start(script("graphile.js"), &order)?;
        let meter = Meter::start(self.cluster, &database, peer.pid());
        let (settled, seconds) = peer.go(self.limit)?;
        let mut sample = meter.stop(settled, seconds);
        sample.all_cpu += sample.sender_cpu;
        Ok(sample)
    }

    /// pg_net as installed: it stores its queue in an unlogged table, and signs nothing itself, so the signatures are
    /// made when the requests are queued.
    fn pg_net(&self) -> Result<Sample, String> {
        let cluster = Cluster::builder()
            .purpose("bench")
            .setting("shared_preload_libraries = 'pg_net'")
            .start();
        // Its worker is in this database, as installed.
        let database = std::mem::ManuallyDrop::new(cluster.existing_database("postgres"));
        database.execute("CREATE EXTENSION pg_net");
        database.execute(&hmac_function());
        let urls = self.sink.urls();
        let bare = r#"{"filler": "", "number": 12345}"#.len();
        let filler = "x".repeat(drain::BODY_BYTES - bare);
        let queue = format!(
            "SELECT count(net.http_post(
                 url => (ARRAY['{}'])[1 + n % {}], body => body, timeout_milliseconds => 15000,
                 headers => jsonb_build_object('content-type', 'application/json', 'webhook-id', 'msg_' || n,
                     'webhook-timestamp', stamp, 'webhook-signature',
                         'v1,' || sign('msg_' || n || '.' || stamp || '.' || body))))
             FROM generate_series(1, {}) n,
                  LATERAL (SELECT jsonb_build_object('number', n, 'filler', '{filler}'),
                                  extract(epoch FROM now())::bigint::text) AS event (body, stamp)",
            urls.join("', '"),
            urls.len(),
            self.events
        );
        let mut client = database.connect();
        client.batch_execute("BEGIN").expect("the server is well");
        client
            .batch_execute(&queue)
            .map_err(|error| format!("{error:?}"))?;
        let worker = "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE '%pg_net%'";
        let worker: Option<i32> = client
            .query_opt(worker, &[])
            .ok()
            .flatten()
            .map(|row| row.get(0));
        let meter = Meter::start(&cluster, &database, worker.ok_or("pg_net has no worker")?);
        let requests = self.sink.counts().requests;
        let begun = Instant::now();
        client.batch_execute("COMMIT").expect("the server is well");
        drain::wait_for_requests(self.sink, requests, self.events, begun, self.limit);
        let answered = || -> i64 {
            database
                .query_one_value("SELECT count(*) FROM net._http_response WHERE status_code = 200")
        };
        while begun.elapsed() < self.limit && answered() < i64::from(self.events) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let settled = answered() as u64;
        Ok(meter.stop(settled, seconds))
    }
}

/// HMAC-SHA256 with our key, in SQL that needs no other extension.
fn hmac_function() -> String {
    let mut block = [0; 64];
    block[..KEY.len()].copy_from_slice(KEY);
    let pad = |byte: u8| -> String { block.iter().map(|k| format!("{:02x}", k ^ byte)).collect() };
    format!(
        "CREATE FUNCTION sign(content text) RETURNS text LANGUAGE sql IMMUTABLE
         RETURN encode(sha256('\\x{}'::bytea || sha256('\\x{}'::bytea || convert_to(content, 'UTF8'))), 'base64')",
        pad(0x5c),
        pad(0x36)
    )
}

/// The cost of a run for the sender's process and the server.
struct Meter<'a> {
    cluster: &'a Cluster,
    client: postgres::Client,
    sender: i32,
    before: Reading,
}

struct Reading {
    sender: Duration,
    server: Duration,
    wal: i64,
    xids: i64,
}

impl<'a> Meter<'a> {
    fn start(cluster: &'a Cluster, database: &Database, sender: i32) -> Meter<'a> {
        let mut client = database.connect();
        let before = Reading::take(cluster, &mut client, sender);
        Meter {
            cluster,
            client,
            sender,
            before,
        }
    }

    fn stop(mut self, settled: u64, seconds: f64) -> Sample {
        let after = Reading::take(self.cluster, &mut self.client, self.sender);
        let before = self.before;
        Sample {
            settled,
            seconds,
            sender_cpu: after.sender.saturating_sub(before.sender),
            all_cpu: after.server.saturating_sub(before.server),
            log_bytes: Some(after.wal - before.wal),
            commits: Some(after.xids - before.xids),
        }
    }
}

impl Reading {
    fn take(cluster: &Cluster, client: &mut postgres::Client, sender: i32) -> Reading {
        let (wal, xids) = wal_and_xids(client);
        Reading {
            sender: cpu(sender),
            server: server_cpu(cluster),
            wal,
            xids,
        }
    }
}
