//! What SQL and the server have from the library.

use uuid::Uuid;
use webhook_e2e::Cluster;

#[test]
fn new_ids_are_version_7_and_in_order() {
    let database = Cluster::shared().database("ids");
    let rows = database
        .connect()
        .query("SELECT webhook.new_id() FROM generate_series(1, 1000)", &[]);
    let ids: Vec<Uuid> = rows.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(ids.len(), 1000);
    assert!(ids.iter().all(|id| id.get_version_num() == 7));
    assert!(ids.is_sorted_by(|one, next| one < next));
}

#[test]
fn the_library_is_preloaded_and_exactly_one_launcher_runs() {
    let database = Cluster::shared().database("launched");
    assert!(database.query_one_value::<bool>("SELECT webhook.is_preloaded()"));
    // The server takes connections before all of its workers run.
    let launchers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'webhook launcher'";
    database.wait_until(&format!("SELECT ({launchers}) > 0"));
    assert_eq!(database.query_one_value::<i64>(launchers), 1);
}

#[test]
fn an_invalid_event_type_is_refused() {
    let database = Cluster::shared().database("types");
    let refusal = database.refusal("SELECT webhook_emit('no spaces')");
    assert_eq!(refusal.message(), "event type \"no spaces\" is not valid");
}
