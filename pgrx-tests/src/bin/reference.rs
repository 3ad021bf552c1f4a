//! Prints docs/reference.md, or with the argument `api` the list of public names and signatures.

use webhook_e2e::{Cluster, reference, released};

fn main() {
    let cluster = Cluster::start();
    let database = cluster.plain_database("reference");
    database.execute("CREATE EXTENSION webhook");
    match std::env::args().nth(1).as_deref() {
        Some("api") => print!("{}", released::list(&database)),
        _ => print!("{}", reference::markdown(&database)),
    }
}
