//! Named points that a transaction of a sender can be stopped at: triggers that wait for as long as a gate is closed.

use crate::database::Database;
use crate::wait;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Before a claim commits.
    Claim,
    /// Before a settlement commits.
    Settle,
}

impl Gate {
    fn name(self) -> &'static str {
        match self {
            Gate::Claim => "claim",
            Gate::Settle => "settle",
        }
    }

    pub fn close(self, database: &Database) {
        database.execute(&format!("INSERT INTO gate VALUES ('{}')", self.name()));
    }

    pub fn open(self, database: &Database) {
        database.execute(&format!("DELETE FROM gate WHERE name = '{}'", self.name()));
    }

    /// Waits until a sender stands before the gate, and returns the pid of its session.
    pub fn wait_for_sender(self, database: &Database) -> i32 {
        let mut session = database.connect();
        let standing = "SELECT max(pid) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event = 'PgSleep'";
        let awaited = format!("a sender before the gate {}", self.name());
        wait::until(&awaited, || {
            let standing = session.query_one(standing, &[]).expect("it is readable");
            standing.get::<_, Option<i32>>(0).ok_or("none")
        })
    }
}

/// The triggers wait at the end of a transaction, when all is done but the commit.
pub fn build(database: &Database) {
    database.execute(
        "CREATE TABLE gate (name text PRIMARY KEY);
         GRANT SELECT ON gate TO PUBLIC;
         CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             WHILE EXISTS (SELECT FROM public.gate g WHERE g.name = TG_ARGV[0]) LOOP
                 PERFORM pg_catalog.pg_sleep(0.05);
             END LOOP;
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER claim AFTER UPDATE ON webhook.delivery_queue DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW WHEN (OLD.status = 'PENDING' AND NEW.status = 'SENDING') EXECUTE FUNCTION pass_gate('claim');
         CREATE CONSTRAINT TRIGGER settle AFTER INSERT ON webhook.delivery_history DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION pass_gate('settle')",
    );
}
