//! The way out for attempts, and back for their outcomes.

use webhook_delivery::{Attempt, Key, Outcome, Pool};

/// Every attempt that is submitted comes back once as an outcome or is withdrawn. No method blocks.
pub trait Wire {
    /// At most so many attempts of each of these endpoints are under way at a time; the others wait. After a failure
    /// they wait for another limit.
    fn submit(&self, limits: &[(i32, usize)], attempts: Vec<Attempt>);
    fn take_outcomes(&self) -> Vec<Outcome>;
    /// Takes these attempts back, but for those of which a byte has gone out.
    fn withdraw(&self, which: &dyn Fn(&Key) -> bool) -> Vec<Key>;
    /// Interrupts all requests in flight; they come back as trouble of our own.
    fn abort(&self);
}

impl Wire for Pool {
    fn submit(&self, limits: &[(i32, usize)], attempts: Vec<Attempt>) {
        self.submit_within(limits, attempts);
    }

    fn take_outcomes(&self) -> Vec<Outcome> {
        Pool::take_outcomes(self)
    }

    fn withdraw(&self, which: &dyn Fn(&Key) -> bool) -> Vec<Key> {
        Pool::withdraw(self, which)
    }

    fn abort(&self) {
        Pool::abort(self);
    }
}
