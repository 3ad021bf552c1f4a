//! A database that gets all rows by logical replication, and sends nothing.

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::cluster::Cluster;
use crate::worker::state_and_reason;

pub fn subscriber(stage: &mut Stage) {
    let mut scene = stage.scene_with(Sender::Worker, |builder| {
        builder.setting("wal_level = logical")
    });
    let elsewhere = Cluster::builder().purpose("chaos").setting("fsync = off");
    let elsewhere = elsewhere.start();
    let copy = elsewhere.database("copy");
    scene.begin_load();
    scene.wait_for_requests(10);
    scene.database.execute(
        "CREATE PUBLICATION webhooks FOR TABLE webhook.endpoint, webhook.secret, webhook.event, webhook.delivery",
    );
    copy.execute(&format!(
        "CREATE SUBSCRIPTION webhooks CONNECTION 'host=127.0.0.1 port={} user=postgres dbname={}' PUBLICATION webhooks",
        scene.cluster.port(),
        scene.database.name()
    ));
    copy.wait_until("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel");
    scene.mend();
    scene.wait_for_requests(scene.size());
    // It has deliveries that could be sent, and holds them.
    scene.database.pause_all();
    scene.wait_for_commits(10);
    copy.wait_until("SELECT EXISTS (SELECT FROM webhook.delivery_queue WHERE status = 'PENDING')");
    assert_eq!(state_and_reason(&copy).0, "held");
    scene.database.resume_all();
    scene.wait_for_requests(10);
    copy.execute("DROP SUBSCRIPTION webhooks");
    drop((copy, elsewhere));
    stage.reconcile(scene);
}
