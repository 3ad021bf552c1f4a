//! The rows of a trigger's call, where the server has them.

use super::projection::Row;
use pgrx::pg_sys;

#[derive(Clone, Copy)]
pub struct Slot(pub *mut pg_sys::TupleTableSlot);

impl Slot {
    /// This many columns, from the first one on. Values that are stored out of line are not fetched.
    ///
    /// # Safety
    /// The slot holds a row of at least as many columns, and outlives the result.
    pub unsafe fn row<'a>(self, columns: usize) -> Row<'a> {
        // SAFETY: the server takes the tuple apart as far as it is asked to.
        unsafe {
            let slot = self.0;
            if ((*slot).tts_nvalid as usize) < columns {
                pg_sys::slot_getsomeattrs_int(slot, columns as i32);
            }
            Row {
                values: std::slice::from_raw_parts((*slot).tts_values, columns),
                nulls: std::slice::from_raw_parts((*slot).tts_isnull, columns),
            }
        }
    }
}

/// A transition table, read from its beginning. Other triggers of the statement read it too, each with a pointer of
/// its own.
pub struct TransitionTable {
    store: *mut pg_sys::Tuplestorestate,
    pointer: i32,
    slot: *mut pg_sys::TupleTableSlot,
}

impl TransitionTable {
    /// # Safety
    /// `store` is null, or has rows of this description; both outlive the table.
    pub unsafe fn open(
        store: *mut pg_sys::Tuplestorestate,
        description: pg_sys::TupleDesc,
    ) -> Option<Self> {
        if store.is_null() {
            return None;
        }
        // SAFETY: as above.
        unsafe {
            let rewind = pg_sys::EXEC_FLAG_REWIND as i32;
            let pointer = pg_sys::tuplestore_alloc_read_pointer(store, rewind);
            pg_sys::tuplestore_select_read_pointer(store, pointer);
            pg_sys::tuplestore_rescan(store);
            let kind = &raw const pg_sys::TTSOpsMinimalTuple;
            let slot = pg_sys::MakeSingleTupleTableSlot(description, kind);
            Some(TransitionTable {
                store,
                pointer,
                slot,
            })
        }
    }

    pub fn count(&self) -> i64 {
        // SAFETY: the store is there as long as the trigger runs.
        unsafe { pg_sys::tuplestore_tuple_count(self.store) }
    }

    /// The row is there until the next call, which must be made in the same memory context.
    pub fn next(&self) -> Option<Slot> {
        // SAFETY: as above.
        unsafe {
            pg_sys::tuplestore_select_read_pointer(self.store, self.pointer);
            pg_sys::tuplestore_gettupleslot(self.store, true, false, self.slot)
                .then_some(Slot(self.slot))
        }
    }

    /// An error does without: the slot goes with its memory.
    pub fn close(self) {
        // SAFETY: as above.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::tuplestore_select_read_pointer(self.store, 0);
        }
    }
}
