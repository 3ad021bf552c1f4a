//! Prints docs/reference.md; with the argument `api` the list of public names and signatures, with `portable` the
//! script that webhook-relay executes to install.

use webhook_e2e::{Cluster, Database, reference, released, scripts};

fn main() {
    let text = match std::env::args().nth(1).as_deref() {
        Some("portable") => scripts::portable(),
        Some("api") => of_database(released::list),
        _ => of_database(reference::markdown),
    };
    print!("{text}");
}

fn of_database(text: fn(&Database) -> String) -> String {
    let cluster = Cluster::start();
    let database = cluster.plain_database("reference");
    database.execute("CREATE EXTENSION webhook");
    text(&database)
}
