//! A sender whose connection breaks between the server's commit and the answer does not know whether its outcomes are
//! settled: it settles again in another session, and nothing is counted, logged or sent twice.

use std::rc::Rc;
use std::time::Duration;

use postgres::NoTls;
use serde_json::json;
use tokio::runtime::{self, Runtime};
use webhook_delivery::{Network, Pool, RequireHttps, Roots, Setup};
use webhook_e2e::{Answer, Cluster, Database, Receiver, TcpProxy, wait};
use webhook_engine::{
    Config, Connection, Engine, Hold, Identity, Notice, Parameter, SqlStore, Trouble, Value, Wake,
};
use webhook_relay::Session;

/// Its session goes through a proxy, which loses the answer of an exchange when it is told to.
struct Broken {
    session: Session,
    proxy: Rc<TcpProxy>,
    loses_answer: bool,
    /// Outcomes that each exchange has handed in.
    handed_in: Vec<usize>,
}

impl Connection for Broken {
    fn run(
        &mut self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Vec<Value>>, Trouble> {
        if let Some(Parameter::Uuids(events)) = parameters.first()
            && statement.contains("webhook.exchange(")
        {
            self.handed_in.push(events.len());
            if std::mem::take(&mut self.loses_answer) {
                self.proxy.lose_next_answer();
            }
        }
        self.session.run(statement, parameters)
    }
}

/// A sender outside of the server.
struct Sender<'a> {
    cluster: &'a Cluster,
    database: &'a Database,
    runtime: Rc<Runtime>,
    engine: Engine<SqlStore<Broken>, Pool>,
    notices: Vec<Notice>,
}

impl<'a> Sender<'a> {
    fn start(cluster: &'a Cluster, database: &'a Database) -> Sender<'a> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Rc::new(runtime.expect("a runtime can be made"));
        let proxy = Rc::new(TcpProxy::start(cluster));
        let connection = Broken {
            session: connect(&runtime, &proxy, cluster, database),
            proxy,
            loses_answer: false,
            handed_in: Vec::new(),
        };
        let network = Network {
            allow: "127.0.0.0/8".parse().expect("it is a network"),
            ports: "1-65535".parse().expect("these are ports"),
            require_https: RequireHttps::Off,
            ..Network::default()
        };
        let roots = Roots::default();
        let config = Config {
            max_in_flight: 100,
            poll_interval: Duration::from_secs(60),
            stale_after: Duration::from_secs(300),
        };
        let oid = "SELECT oid::text FROM pg_extension WHERE extname = 'webhook'";
        let engine = Engine::new(
            SqlStore::new(
                connection,
                Identity {
                    kind: "relay",
                    host: None,
                    version: env!("CARGO_PKG_VERSION"),
                },
            ),
            Pool::start(Setup { network, roots }).expect("a thread can be started"),
            config,
            database.query_one_value(oid),
            database.name().to_owned(),
        );
        Sender {
            cluster,
            database,
            runtime,
            engine,
            notices: Vec::new(),
        }
    }

    fn connection(&mut self) -> &mut Broken {
        &mut self.engine.store().connection
    }

    fn turn(&mut self) {
        self.engine.turn().expect("nothing ends the engine");
        self.notices.extend(self.engine.take_notices());
    }

    #[track_caller]
    fn turn_until(&mut self, awaited: &str, is_so: impl Fn(&mut Self) -> bool) {
        wait::until_true(awaited, || {
            self.turn();
            is_so(self)
        });
    }

    /// Takes all outcomes, and settles none.
    #[track_caller]
    fn collect(&mut self) {
        self.engine.hold(Some(Hold::Writing));
        self.turn_until("the outcomes", |sender| sender.engine.in_flight() == 0);
        self.engine.hold(None);
    }

    #[track_caller]
    fn turn_without_answer(&mut self) {
        self.connection().loses_answer = true;
        let before = self.notices.len();
        self.turn_until("the connection to be lost", |sender| {
            sender.connection().session.is_over()
        });
        let told = &self.notices[before..];
        let is_loss = |notice: &Notice| matches!(notice, Notice::Error(message) if message.starts_with("the connection to the database was lost"));
        assert!(told.iter().any(is_loss), "{told:?}");
    }

    fn reconnect(&mut self) {
        let proxy = Rc::clone(&self.connection().proxy);
        self.connection().session = connect(&self.runtime, &proxy, self.cluster, self.database);
        self.connection().handed_in.clear();
        self.engine.begin_session();
    }
}

#[track_caller]
fn connect(
    runtime: &Rc<Runtime>,
    proxy: &TcpProxy,
    cluster: &Cluster,
    database: &Database,
) -> Session {
    let config = cluster.address(proxy.port(), database.name());
    let config = config.parse().expect("the address is valid");
    let session = Session::begin(runtime, &config, NoTls);
    session.unwrap_or_else(|trouble| panic!("{}", trouble.message))
}

/// All rows that settling writes, except alerts, which the sender tells and removes.
fn settled_state(database: &Database) -> String {
    database.query_one_value(
        "SELECT concat_ws(E'\\n',
             (SELECT jsonb_agg(d ORDER BY d.event_id, d.endpoint_id) FROM webhook.delivery d),
             (SELECT jsonb_agg(a ORDER BY a.event_id, a.endpoint_id, a.claim_seq) FROM webhook.attempt a),
             (SELECT jsonb_agg(b ORDER BY b.endpoint_id) FROM webhook.breaker b),
             (SELECT jsonb_agg(t ORDER BY t.endpoint_id, t.grain, t.begins_at) FROM webhook.stat t))",
    )
}

#[test]
fn outcomes_of_a_lost_answer_are_settled_again_and_change_nothing() {
    let cluster = Cluster::relayed();
    let database = cluster.database("unknown");
    let receiver = Receiver::start();
    receiver.respond("/bad", |_, _| Answer::status(500));
    database.add_guarding_policy("guarding", 5, "failure_threshold = 2");
    database.add_endpoint("good", &receiver.url("/good"));
    database.add_endpoint_with("bad", &receiver.url("/bad"), "policy => 'guarding'");
    for _ in 0..2 {
        database.emit("order.created", json!({}));
    }
    let mut sender = Sender::start(cluster, &database);
    receiver.hold("/good");
    receiver.hold("/bad");
    sender.turn_until("four requests", |sender| sender.engine.in_flight() == 4);
    receiver.wait_for_requests(4);
    receiver.release("/good");
    receiver.release("/bad");
    sender.collect();
    sender.turn_without_answer();
    assert_eq!(sender.connection().handed_in.last(), Some(&4));
    let settled = settled_state(&database);
    assert_eq!(
        database.query_one_value::<String>(
            "SELECT concat_ws(' ', (SELECT count(*) FROM webhook.delivery WHERE status = 'SENT'),
                                   (SELECT count(*) FROM webhook.attempt), state, consecutive_failures, trips)
             FROM webhook.breaker"
        ),
        "2 2 OPEN 2 1"
    );

    sender.reconnect();
    sender.turn_until("the outcomes to be handed in again", |sender| {
        sender.connection().handed_in.iter().sum::<usize>() == 4
    });
    assert_eq!(settled_state(&database), settled);

    // The alert that the breaker has opened is told once.
    let opened = |sender: &mut Sender| {
        let is_opened = |notice: &&Notice| matches!(notice, Notice::Warning { message, .. } if message.contains("breaker opened"));
        sender.notices.iter().filter(is_opened).count()
    };
    sender.turn_until("the alert", |sender| opened(sender) > 0);
    database.wait_until("SELECT count(*) = 0 FROM webhook.alert");
    assert_eq!(opened(&mut sender), 1);
    assert_eq!(receiver.request_count(), 4);
}

#[test]
fn claims_of_a_lost_answer_are_recovered_and_sent() {
    let cluster = Cluster::relayed();
    let database = cluster.database("claimed");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let mut sender = Sender::start(cluster, &database);
    // Prepares the exchange, so that the answer that is lost is that of its execution.
    let first = database.emit("order.created", json!({}));
    sender.turn_until("the first to be sent", |_| {
        database.delivery_status(first).as_deref() == Some("SENT")
    });

    let second = database.emit("order.created", json!({}));
    sender.engine.tell_of_commit(Wake::Anything);
    sender.turn_without_answer();
    assert_eq!(
        database.delivery_status(second).as_deref(),
        Some("SENDING"),
        "the server has not committed"
    );
    assert_eq!(receiver.request_count(), 1);

    sender.reconnect();
    sender.turn_until("the second to be sent", |_| {
        database.delivery_status(second).as_deref() == Some("SENT")
    });
    assert_eq!(receiver.request_count(), 2);
}

#[test]
fn requests_in_flight_when_a_session_is_lost_are_settled_by_the_next_and_not_sent_again() {
    let cluster = Cluster::relayed();
    let database = cluster.database("in_flight");
    let receiver = Receiver::start();
    receiver.hold("/orders");
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    let mut sender = Sender::start(cluster, &database);
    sender.turn_until("a request", |_| receiver.request_count() == 1);
    sender.connection().proxy.cut();
    sender.turn_until("the connection to be lost", |sender| {
        sender.connection().session.is_over()
    });

    sender.reconnect();
    // Only that of the new session is left: recovery has been through the queue.
    sender.turn_until("the run of the lost session to be ended", |_| {
        database.query_one_value("SELECT count(*) = 1 FROM webhook.sender")
    });
    assert_eq!(database.delivery_status(event).as_deref(), Some("SENDING"));
    receiver.release("/orders");
    sender.turn_until("it to be sent", |_| {
        database.delivery_status(event).as_deref() == Some("SENT")
    });
    let attempts = "SELECT attempts FROM webhook.delivery";
    assert_eq!(database.query_one_value::<i32>(attempts), 1);
    assert_eq!(receiver.request_count(), 1);
}
