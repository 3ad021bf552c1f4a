//! The shares of senders, whoever comes and goes.

use std::time::{Duration, Instant};

use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;
use serde_json::json;
use webhook_e2e::{Cluster, Database, Receiver, database, engine, wait, worker};

const NOTHING: [i32; 0] = [];

/// A session that has registered as a sender, as a relay does.
struct Sender {
    session: Client,
    id: i32,
}

impl Sender {
    fn begin(database: &Database) -> Sender {
        Sender::begin_as(database, "relay", &[])
    }

    fn begin_as(database: &Database, kind: &str, earlier: &[i32]) -> Sender {
        let mut session = database.connect();
        let begin = "SELECT webhook.begin_sender($1, 'elsewhere', '0.1.0', $2)";
        let id = session.query_one(begin, &[&kind, &earlier]).unwrap().get(0);
        Sender { session, id }
    }

    /// The shares to serve, and the shares to give up.
    fn shares(&mut self) -> (Vec<i32>, Vec<i32>) {
        let take = "SELECT kept, given_up FROM webhook.take_shares($1, 0)";
        let row = self.session.query_one(take, &[&self.id]).unwrap();
        (row.get(0), row.get(1))
    }

    fn kept(&mut self) -> Vec<i32> {
        let (kept, given_up) = self.shares();
        assert_eq!(given_up, NOTHING);
        kept
    }

    #[track_caller]
    fn wait_for(&mut self, shares: &[i32]) {
        wait::until("the shares of a lost sender", || match self.kept() {
            kept if kept == shares => Ok(()),
            kept => Err(kept),
        });
    }

    fn release(&mut self, numbers: &[i32]) {
        let release = "SELECT webhook.release_shares($1, $2)";
        self.session
            .execute(release, &[&self.id, &numbers])
            .unwrap();
    }

    fn pid(&mut self) -> i32 {
        let row = self.session.query_one("SELECT pg_backend_pid()", &[]);
        row.unwrap().get(0)
    }

    /// Its session is over as soon as the server knows it.
    fn die(mut self, database: &Database) {
        let pid = self.pid();
        drop(self);
        database.wait_until(&format!(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})"
        ));
    }
}

/// Without a worker, and in so many shares.
fn divided(senders: i32) -> Cluster {
    Cluster::builder()
        .setting("webhook.max_in_flight = 0")
        .setting(&format!("webhook.senders = {senders}"))
        .start()
}

#[test]
fn one_sender_serves_all_endpoints_and_others_wait_until_it_is_gone() {
    let cluster = divided(1);
    let database = cluster.database("one");
    let mut first = Sender::begin(&database);
    let mut second = Sender::begin(&database);
    assert_eq!(first.kept(), [0]);
    assert_eq!(second.kept(), NOTHING);
    assert_eq!(first.kept(), [0], "whoever has it keeps it");
    first.die(&database);
    second.wait_for(&[0]);
}

#[test]
fn a_relay_that_is_lost_keeps_its_share_and_its_claims_until_it_cannot_send_any_more() {
    let cluster = divided(1);
    let database = cluster.database("silent");
    let endpoint = engine::add_endpoint(&database);
    let event = database.emit("order.created", json!({}));
    let mut first = Sender::begin(&database);
    let mut second = Sender::begin(&database);
    assert_eq!(first.kept(), [0]);
    let id = first.id;
    assert_eq!(engine::claim_of(&mut first.session, id, endpoint).len(), 1);
    first.die(&database);

    let noticed = Instant::now();
    let longest = "SELECT (extract(epoch FROM webhook.longest_silence()) * 1000)::int";
    let longest = Duration::from_millis(database.query_one_value::<i32>(longest) as u64);
    let recover = format!("SELECT webhook.recover({}, '{{}}', '{{}}')", second.id);
    wait::until_within(Duration::from_secs(5), "the share", || {
        let kept = second.kept();
        if noticed.elapsed() < longest {
            assert_eq!(kept, NOTHING);
            second.session.batch_execute(&recover).unwrap();
            assert_eq!(database.delivery_status(event).as_deref(), Some("SENDING"));
        }
        (kept == [0]).then_some(()).ok_or(kept)
    });
    assert!(noticed.elapsed() >= longest);
    second.session.batch_execute(&recover).unwrap();
    assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
}

#[test]
fn nobody_waits_for_a_worker_that_is_gone() {
    let cluster = divided(1);
    let database = cluster.database("gone");
    let mut worker = Sender::begin_as(&database, "worker", &[]);
    let mut relay = Sender::begin(&database);
    assert_eq!((worker.kept(), relay.kept()), (vec![0], vec![]));
    worker.die(&database);
    assert_eq!(relay.kept(), [0]);
}

#[test]
fn a_relay_that_is_back_takes_the_shares_of_its_earlier_run_at_once() {
    let cluster = divided(2);
    let database = cluster.database("back");
    let mut first = Sender::begin(&database);
    assert_eq!(first.kept(), [0, 1]);
    let earlier = first.id;
    first.die(&database);
    let mut again = Sender::begin_as(&database, "relay", &[earlier]);
    assert_eq!(again.kept(), [0, 1]);
    let dead: Vec<i32> = database.query_one_value("SELECT webhook.dead_senders()");
    assert_eq!(dead, [earlier]);
}

#[test]
fn a_sender_that_is_alone_serves_all_shares_and_gives_up_a_part_of_them_when_another_comes() {
    let cluster = divided(4);
    let database = cluster.database("parts");
    let mut first = Sender::begin(&database);
    assert_eq!(first.kept(), [0, 1, 2, 3]);
    let mut second = Sender::begin(&database);
    assert_eq!(second.kept(), NOTHING, "nothing is free yet");
    assert_eq!(first.shares(), (vec![0, 1], vec![2, 3]));
    assert_eq!(second.kept(), NOTHING, "it may have requests in flight");
    first.release(&[2, 3]);
    assert_eq!(second.kept(), [2, 3]);
    assert_eq!(first.kept(), [0, 1]);
    let mut third = Sender::begin(&database);
    assert_eq!(third.kept(), NOTHING, "two of two are not too many");
    second.die(&database);
    third.wait_for(&[2, 3]);
}

#[test]
fn more_senders_than_shares_stand_by() {
    let cluster = divided(2);
    let database = cluster.database("stand_by");
    let mut senders: Vec<Sender> = (0..4).map(|_| Sender::begin(&database)).collect();
    let kept: Vec<Vec<i32>> = senders.iter_mut().map(Sender::kept).collect();
    assert_eq!(kept, [vec![0], vec![1], vec![], vec![]]);
}

#[test]
fn another_number_of_shares_is_taken_only_when_all_old_ones_are_given_up() {
    let mut cluster = divided(2);
    let database = cluster.database("divided_anew");
    let mut first = Sender::begin(&database);
    let mut second = Sender::begin(&database);
    assert_eq!((first.kept(), second.kept()), (vec![0], vec![1]));
    cluster.configure("webhook.senders = 3");
    cluster.reload();
    for session in [&mut first.session, &mut second.session] {
        let read = "SELECT current_setting('webhook.senders')";
        wait::until_true("the session has read the setting", || {
            session.query_one(read, &[]).unwrap().get::<_, String>(0) == "3"
        });
    }
    assert_eq!(first.shares(), (vec![], vec![0]));
    first.release(&[0]);
    assert_eq!(
        first.kept(),
        NOTHING,
        "the other one still has half of the endpoints"
    );
    assert_eq!(second.shares(), (vec![], vec![1]));
    second.release(&[1]);
    assert_eq!(first.kept(), [0, 1]);
    assert_eq!(second.kept(), [2]);
}

#[test]
fn a_lock_that_another_session_holds_keeps_no_sender_alive() {
    let cluster = divided(1);
    let database = cluster.database("pretended");
    let mut sender = Sender::begin(&database);
    assert_eq!(sender.kept(), [0]);
    let id = sender.id;
    sender.die(&database);
    let mut stranger = database.connect();
    stranger
        .batch_execute(&format!("SELECT pg_advisory_lock(2003133032, {id})"))
        .unwrap();
    let mut next = Sender::begin(&database);
    next.wait_for(&[0]);
}

#[test]
fn a_sender_that_has_lost_its_session_to_a_pooler_is_refused() {
    let cluster = divided(1);
    let database = cluster.database("pooled");
    let sender = Sender::begin(&database);
    let mut other = database.connect();
    let take = format!("SELECT webhook.take_shares({}, 0)", sender.id);
    let refusal = database::refusal(&mut other, &take);
    assert_eq!(refusal.code().code(), "55000");
    assert!(refusal.hint().unwrap_or_default().contains("pooler"));
}

#[test]
fn a_sender_that_keeps_its_shares_writes_nothing() {
    let cluster = divided(2);
    let database = cluster.database("at_rest");
    let mut sender = Sender::begin(&database);
    sender.kept();
    let wrote =
        "SELECT pg_current_xact_id_if_assigned() IS NOT NULL FROM webhook.take_shares($1, 0)";
    for _ in 0..3 {
        let row = sender.session.query_one(wrote, &[&sender.id]).unwrap();
        assert!(!row.get::<_, bool>(0));
    }
}

#[test]
fn the_worker_gives_its_endpoints_up_where_it_may_have_nothing_in_flight_and_takes_them_back() {
    let mut cluster = Cluster::start();
    let database = cluster.database("out");
    let receiver = Receiver::start();
    database.add_endpoint("orders", &receiver.url("/orders"));
    let event = database.emit("order.created", json!({}));
    database.wait_for_status(event, "SENT");
    let pid = worker::pid(&database);
    cluster.configure("webhook.max_in_flight = 0");
    cluster.reload();
    database.wait_until("SELECT NOT EXISTS (SELECT FROM webhook.sender)");
    let (state, reason) = worker::state_and_reason(&database);
    assert_eq!(state, "held");
    assert!(reason.contains("webhook.max_in_flight"), "{reason}");
    let mut relay = Sender::begin(&database);
    assert_eq!(relay.kept(), [0]);
    database.wait_until(
        r#"SELECT state = 'running' AND senders @> '[{"kind": "relay", "host": "elsewhere", "in_flight": 0, "shares": 1}]'
           FROM webhook_status()"#,
    );
    let event = database.emit("order.created", json!({}));

    cluster.configure("webhook.max_in_flight = 10");
    cluster.reload();
    database.wait_until("SELECT count(*) = 2 FROM webhook.sender");
    assert_eq!(database.delivery_status(event).as_deref(), Some("PENDING"));
    drop(relay);
    database.wait_for_status(event, "SENT");
    assert_eq!(worker::pid(&database), pid);
}

#[test]
fn the_worker_tells_relays_of_commits_and_emitters_do_not() {
    let cluster = divided(1);
    let database = cluster.database("told");
    database.add_endpoint("orders", &Receiver::closed_url());
    database.wait_until("SELECT state = 'held' FROM webhook_status()");
    let mut relay = Sender::begin(&database);
    assert_eq!(relay.kept(), [0]);
    relay.session.batch_execute("LISTEN webhook_due").unwrap();

    let mut emitter = database.connect();
    let emitter_pid: i32 = emitter
        .query_one("SELECT pg_backend_pid()", &[])
        .unwrap()
        .get(0);
    database::emit(&mut emitter, "order.created", json!({}));
    let told = wait::until("a relay is told", || {
        relay.session.is_valid(Duration::from_secs(5)).unwrap();
        relay
            .session
            .notifications()
            .iter()
            .next()
            .unwrap()
            .ok_or("not yet")
    });
    assert_eq!((told.channel(), told.payload()), ("webhook_due", ""));
    assert_ne!(told.process_id(), emitter_pid);
}
