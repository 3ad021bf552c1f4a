//! Prints docs/reference.md.

use webhook_e2e::{Cluster, reference};

fn main() {
    let cluster = Cluster::start();
    let database = cluster.plain_database("reference");
    database.execute("CREATE EXTENSION webhook");
    print!("{}", reference::markdown(&database));
}
