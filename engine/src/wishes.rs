//! The claims that an exchange asks for: endpoints with something due, as many deliveries as admission and memory
//! allow.

use std::collections::HashSet;
use std::time::Instant;

use crate::admission::Asking;
use crate::agenda::{self, Wake};
use crate::engine::Engine;
use crate::settling;
use crate::store::{Store, Wishes};
use crate::trouble::Trouble;
use crate::wire::Wire;

impl<S: Store, W: Wire> Engine<S, W> {
    pub(crate) fn wishes(&mut self, cautious: bool, now: Instant) -> Result<Wishes, Trouble> {
        // A sender claims under its number.
        self.sender()?;
        if let Some(after) = self.agenda.look_after(now) {
            let begun = Instant::now();
            let page = self.store.agenda(after, agenda::PAGE)?;
            for due in &page.due {
                self.learn(due, now);
            }
            let took = begun.elapsed();
            self.agenda
                .looked_at(&page, now, took, self.config.poll_interval);
        }
        let asking: Vec<Asking> = self.agenda.asking(now).collect();
        let mut unknown: HashSet<i32> = (asking.iter().map(|asking| asking.endpoint_id))
            .filter(|id| !self.admission.has_learnt_of(*id))
            .collect();
        let wishes = self.wishes_of(asking, cautious, now)?;
        // There is no room for newcomers, and there may be none for long.
        for wish in &wishes.of_endpoints {
            unknown.remove(&wish.endpoint_id);
        }
        for id in unknown {
            self.agenda.wake(Wake::Changed { id }, now);
        }
        Ok(wishes)
    }

    pub(crate) fn wishes_of(
        &mut self,
        asking: Vec<Asking>,
        cautious: bool,
        now: Instant,
    ) -> Result<Wishes, Trouble> {
        let sender = self.sender()?;
        let mut wishes = match self.ledger.kept_bytes() < settling::MOST_BYTES {
            true => (self.admission).wishes(asking, &self.ledger, &self.budget, now),
            false => Vec::new(),
        };
        let widened = self.admission.take_widened();
        self.tell_limits(widened);
        if cautious {
            // One at a time, each turn another one: a delivery that cannot be claimed must not stop the rest.
            wishes.truncate(1);
            wishes
                .iter_mut()
                .for_each(|wish| wish.count = wish.count.min(1));
        }
        Ok(Wishes {
            sender: Some(sender),
            of_endpoints: wishes,
            byte_room: self.budget.room(self.ledger.bytes_out()),
            ..Wishes::default()
        })
    }
}
