//! The message of a commit to the worker: endpoints that have something new, each with the earliest time at which it
//! is due; and, with a minus before their ids, endpoints that have changed themselves. The backend gathers it, and
//! adds it to the slot of the database when the transaction commits. It is plain data of a fixed size: nothing here
//! allocates, so that nothing can fail after a commit. A message that does not fit asks for a look at everything.

use pgrx::pg_sys;

const MOST: usize = 64;

#[derive(Clone, Copy)]
pub struct Told {
    count: usize,
    endpoints: [(i32, pg_sys::TimestampTz); MOST],
    anything: bool,
}

impl Told {
    pub const NOTHING: Self = Told {
        count: 0,
        endpoints: [(0, 0); MOST],
        anything: false,
    };
    pub const ANYTHING: Self = Told {
        anything: true,
        ..Self::NOTHING
    };

    pub fn is_anything(&self) -> bool {
        self.anything
    }

    pub fn is_nothing(&self) -> bool {
        self.count == 0 && !self.anything
    }

    pub fn endpoints(&self) -> &[(i32, pg_sys::TimestampTz)] {
        &self.endpoints[..self.count]
    }

    pub fn add_endpoint(&mut self, endpoint: i32, due_at: pg_sys::TimestampTz) {
        let known = self.endpoints[..self.count].iter_mut();
        if let Some((_, known)) = known.into_iter().find(|(id, _)| *id == endpoint) {
            *known = due_at.min(*known);
        } else if self.count < MOST {
            self.endpoints[self.count] = (endpoint, due_at);
            self.count += 1;
        } else {
            self.anything = true;
        }
    }

    pub fn add(&mut self, more: &Told) {
        self.anything |= more.anything;
        for (endpoint, due_at) in more.endpoints() {
            self.add_endpoint(*endpoint, *due_at);
        }
    }
}
