//! pg_upgrade keeps the installation: the new server goes on where the old one stopped.

use serde_json::json;
use webhook_e2e::worker::{self, state_and_reason};
use webhook_e2e::{Cluster, Receiver};

#[test]
#[ignore = "needs servers of two versions: make upgradetest"]
fn an_upgraded_server_goes_on_and_a_copy_of_it_is_held() {
    let mut old = Cluster::builder().version_of("OLD_PG_CONFIG").start();
    let receiver = Receiver::start();
    let source = old.database("upgraded");
    source.execute("CREATE ROLE emitter; SELECT webhook_grant('emitter', 'emit')");
    let secret = source.add_endpoint("orders", &receiver.url("/orders"));
    let sent = source.emit("order.created", json!({}));
    source.wait_for_status(sent, "SENT");
    source.execute("SELECT webhook_pause('orders')");
    let kept_back = source.emit("order.created", json!({}));
    old.stop();

    let mut new = Cluster::builder().start_upgrade_of(&old);
    let database = new.existing_database(source.name());
    assert_eq!(receiver.request_count(), 1);
    worker::pid(&database);
    assert_eq!(state_and_reason(&database).0, "running");
    database.execute("SELECT webhook_resume('orders')");
    database.wait_for_status(kept_back, "SENT");
    let kept: String = database.query_one_value("SELECT secret FROM webhook.secret");
    assert_eq!(kept, secret);
    database.execute("SET ROLE emitter; SELECT webhook_emit('order.created')");
    receiver.wait_for_requests(3);

    new.restart();
    worker::pid(&database);
    assert_eq!(state_and_reason(&database).0, "running");
    new.stop();
    new.change_system_identifier();
    new.start_server();
    worker::pid(&database);
    assert_eq!(state_and_reason(&database).0, "held");
}
