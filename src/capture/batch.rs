//! Events on their way to the queue, with the rights of the extension's owner.

use super::Event;
use crate::{memory, owner, store};
use pgrx::PgMemoryContexts;
use pgrx::pg_sys::{self, Datum};
use std::ffi::CStr;

const MAX_EVENTS: usize = 1000;
const MAX_BYTES: usize = 16 * 1024 * 1024;

pub struct Batch<'a> {
    event_type: &'a CStr,
    only_warns: bool,
    /// The memory of the events below.
    context: PgMemoryContexts,
    events: Vec<Event>,
    bytes: usize,
    /// How many events could not be emitted, and why the last of them.
    pub lost: i64,
    pub problem: Option<String>,
}

impl<'a> Batch<'a> {
    pub fn new(event_type: &'a CStr, only_warns: bool) -> Self {
        Batch {
            event_type,
            only_warns,
            context: PgMemoryContexts::new("webhook batch"),
            events: Vec::new(),
            bytes: 0,
            lost: 0,
            problem: None,
        }
    }

    /// # Safety
    /// The event's payload is jsonb, the rest text.
    pub unsafe fn push(&mut self, event: Event) {
        // SAFETY: copied into memory of our own, detoasted.
        unsafe {
            let copy = |value: Datum| -> Datum {
                pg_sys::pg_detoast_datum_copy(value.cast_mut_ptr()).into()
            };
            let event = (self.context).switch_to(|_| Event {
                payload: copy(event.payload),
                tenant: event.tenant.map(copy),
                ordering_key: event.ordering_key.map(copy),
                coalesce_key: event.coalesce_key.map(copy),
            });
            self.bytes += pgrx::varsize(event.payload.cast_mut_ptr::<pg_sys::varlena>());
            self.events.push(event);
        }
    }

    pub fn is_full(&self) -> bool {
        self.events.len() >= MAX_EVENTS || self.bytes >= MAX_BYTES
    }

    pub fn emit(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.events);
        let (lost, problem) = (self.lost, self.problem.take());
        // SAFETY: arrays and their elements live until the context is reset.
        let emitted = unsafe {
            let changes = self.context.switch_to(|_| store::Changes {
                event_type: pg_sys::cstring_to_text(self.event_type.as_ptr()).into(),
                payloads: array(events.iter().map(|e| Some(e.payload)), pg_sys::JSONBOID),
                tenants: texts(&events, |event| event.tenant),
                ordering_keys: texts(&events, |event| event.ordering_key),
                coalesce_keys: texts(&events, |event| event.coalesce_key),
            });
            owner::with_rights(|| match self.only_warns {
                false => store::emit_changes(&changes).map(|()| (lost, problem)),
                true => store::emit_possible_changes(&changes, lost, problem),
            })
        };
        // Errors of events may have been caught.
        memory::require_reserve();
        (self.lost, self.problem) = emitted.unwrap_or_else(|error| pgrx::error!("{error}"));
        self.bytes = 0;
        // SAFETY: nothing in it is used any more.
        unsafe { self.context.reset() };
    }
}

/// None where no event has such a text.
///
/// # Safety
/// They are text.
unsafe fn texts(events: &[Event], field: impl Fn(&Event) -> Option<Datum>) -> Option<Datum> {
    // SAFETY: as above.
    (events.iter().any(|event| field(event).is_some()))
        .then(|| unsafe { array(events.iter().map(&field), pg_sys::TEXTOID) })
}

/// # Safety
/// The elements are of the type, which is of variable length.
unsafe fn array(elements: impl Iterator<Item = Option<Datum>>, type_oid: pg_sys::Oid) -> Datum {
    let (mut values, mut nulls): (Vec<_>, Vec<_>) = elements
        .map(|element| (element.unwrap_or(Datum::null()), element.is_none()))
        .unzip();
    let (mut length, mut first) = (values.len() as i32, 1);
    // SAFETY: as many values as it says.
    unsafe {
        pg_sys::construct_md_array(
            values.as_mut_ptr(),
            nulls.as_mut_ptr(),
            1,
            &mut length,
            &mut first,
            type_oid,
            -1,
            false,
            pg_sys::TYPALIGN_INT as std::ffi::c_char,
        )
        .into()
    }
}
