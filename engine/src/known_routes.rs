//! Routes that a store has read, and keeps until SQL says that they have changed.

use std::collections::HashMap;
use std::sync::Arc;

use webhook_delivery::Route;

#[derive(Default)]
pub struct KnownRoutes(HashMap<i32, Known>);

struct Known {
    /// As `webhook.route_stamp()` has made it.
    stamp: String,
    route: Arc<Route>,
    is_used: bool,
}

impl KnownRoutes {
    pub fn stamp(&self, endpoint_id: i32) -> Option<&str> {
        self.0.get(&endpoint_id).map(|known| &*known.stamp)
    }

    pub fn learn(&mut self, stamp: String, route: Route) {
        let known = Known {
            stamp,
            route: Arc::new(route),
            is_used: true,
        };
        self.0.insert(known.route.endpoint_id, known);
    }

    pub fn of(&mut self, endpoint_id: i32) -> Option<Arc<Route>> {
        let known = self.0.get_mut(&endpoint_id)?;
        known.is_used = true;
        Some(Arc::clone(&known.route))
    }

    /// Routes that were not used since the last call go: there may be many, and secrets are in them.
    pub fn forget_unused(&mut self) {
        self.0.retain(|_, known| std::mem::take(&mut known.is_used));
    }
}
