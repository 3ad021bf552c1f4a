//! The trigger function `webhook_trigger()`: changes of a table become events.
//!
//! A role that writes the table needs no level of ours, so the events are recorded with the rights of the extension's
//! owner. No code of a user may run with those rights, and no name that a user chose may be looked up with them.
//! Hence two phases:
//!
//! 1. With the writer's rights, rows become JSON. They come from the server's TriggerData: the tuples of a row
//!    trigger, or the transition tables of a statement trigger, whatever those are called. `projection` makes values
//!    of built-in types of them, and the server's `to_jsonb()` makes JSON of those. Columns that nothing needs are
//!    not read. How values are written is not up to the writer's session: with fewer digits of a float, say, a change
//!    of it would not even be seen.
//! 2. With the owner's rights, a batch of JSON goes to `webhook.emit_changes()` in one call: data, and nothing but
//!    data. No setting of the session finds it another function, or prints its plans with the rows in them.
//!
//! The old and the new rows of an update are paired by their places. The server writes both down as it updates a row,
//! so they are in the same order, and no key is needed: a table may have none, and an update may change it. The one
//! exception is a row on its way to another partition that a BEFORE trigger there drops; then their numbers differ,
//! and none is paired.

mod batch;
mod key;
mod options;
mod payload;
mod projection;
mod rows;

use crate::memory;
use crate::notice;
use crate::settings;
use batch::Batch;
use options::Options;
use payload::{Event, Payloads};
use pgrx::PgTryBuilder;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::prelude::*;
use projection::Row;
use rows::{Slot, TransitionTable};
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

const TRIGGER_PROTOCOL_VIOLATED: PgSqlErrorCode =
    PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED;

const READABLE_VALUES: &[(&CStr, &CStr)] = &[
    (c"TimeZone", c"UTC"),
    (c"DateStyle", c"ISO"),
    (c"IntervalStyle", c"postgres"),
    (c"bytea_output", c"hex"),
    (c"extra_float_digits", c"1"),
];

/// The bytes that the arguments of a trigger may have: as many as webhook_watch() writes.
const MAX_EVENT_TYPE: usize = 200;
const MAX_OPTIONS: usize = 256 * 1024;
/// The memory that each byte of the options may take while they are parsed.
const OPTIONS_GROW_TO: usize = 128;

/// # Safety
/// Called by the server as a trigger function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn webhook_trigger(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by the server, and nothing is left to drop.
    unsafe { memory::call(capture, fcinfo) }
}

#[pg_guard]
unsafe extern "C-unwind" fn capture(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: a trigger's context is its TriggerData. An error on the way restores the settings with the
    // (sub)transaction that it aborts.
    unsafe {
        if !pgrx::trigger_support::called_as_trigger(fcinfo) {
            refuse(
                "it is not called by a trigger",
                "Name it in CREATE TRIGGER.",
            );
        }
        let firing = Firing {
            data: &*(*fcinfo).context.cast(),
        };
        let capture = Capture::of(&firing, (*fcinfo).flinfo);
        settings::with_values(READABLE_VALUES, || capture.emit(&firing));
        pg_sys::Datum::null()
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn pg_finfo_webhook_trigger() -> &'static pg_sys::Pg_finfo_record {
    const VERSION_1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &VERSION_1
}

fn refuse(problem: &str, remedy: &str) -> ! {
    notice::refuse(
        TRIGGER_PROTOCOL_VIOLATED,
        format!("invalid use of webhook_trigger(): {problem}"),
        remedy,
    )
}

/// One call of the trigger.
struct Firing<'a> {
    data: &'a pg_sys::TriggerData,
}

impl Firing<'_> {
    fn operation(&self) -> &'static CStr {
        match self.data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => c"INSERT",
            pg_sys::TRIGGER_EVENT_DELETE => c"DELETE",
            pg_sys::TRIGGER_EVENT_UPDATE => c"UPDATE",
            _ => c"TRUNCATE",
        }
    }

    fn is_for_row(&self) -> bool {
        self.data.tg_event & pg_sys::TRIGGER_EVENT_ROW != 0
    }

    /// The type of the event, and the options if there are any; `None` if it has other arguments.
    fn arguments(&self) -> Option<(&CStr, Option<&CStr>)> {
        // SAFETY: as many strings as the trigger says.
        unsafe {
            let trigger = &*self.data.tg_trigger;
            let argument = |number: usize| CStr::from_ptr(*trigger.tgargs.add(number));
            match trigger.tgnargs {
                1 => Some((argument(0), None)),
                2 => Some((argument(0), Some(argument(1)))),
                _ => None,
            }
        }
    }

    fn table(&self) -> &pg_sys::RelationData {
        // SAFETY: open as long as the trigger runs.
        unsafe { &*self.data.tg_relation }
    }

    fn schema_name(&self) -> &CStr {
        // SAFETY: the schema of a table that is in use cannot go; the name is a copy in this call's memory.
        unsafe {
            CStr::from_ptr(pg_sys::get_namespace_name(
                (*self.table().rd_rel).relnamespace,
            ))
        }
    }

    fn table_name(&self) -> &CStr {
        // SAFETY: a name ends with a NUL.
        unsafe { CStr::from_ptr((*self.table().rd_rel).relname.data.as_ptr()) }
    }

    fn warn(&self, event_type: &CStr, problem: &str, detail: Option<String>) {
        let message = format!(
            "{} of table \"{}.{}\" not emitted: {problem}",
            event_type.to_string_lossy(),
            self.schema_name().to_string_lossy(),
            self.table_name().to_string_lossy()
        );
        let mut report =
            ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, function_name!());
        if let Some(detail) = detail {
            report = report.set_detail(detail);
        }
        report.report(PgLogLevel::WARNING);
    }
}

/// A trigger, as far as it can be prepared for all its calls in a statement.
struct Capture {
    trigger: pg_sys::Oid,
    event_type: std::ffi::CString,
    only_warns: bool,
    payloads: Payloads,
}

impl Capture {
    /// # Safety
    /// `function` is that of the call, and this trigger's alone, as the server has it.
    unsafe fn of<'a>(firing: &Firing<'_>, function: *mut pg_sys::FmgrInfo) -> &'a Capture {
        // SAFETY: what is in `fn_extra` is ours, and lives as long as the memory context that it says.
        unsafe {
            let known: *mut Capture = (*function).fn_extra.cast();
            if !known.is_null() && (*known).trigger == (*firing.data.tg_trigger).tgoid {
                return &*known;
            }
            let mut context = pgrx::PgMemoryContexts::For((*function).fn_mcxt);
            let capture = Capture::new(firing, context.value());
            let capture = context.leak_and_drop_on_delete(capture);
            (*function).fn_extra = capture.cast();
            &*capture
        }
    }

    fn new(firing: &Firing<'_>, context: pg_sys::MemoryContext) -> Capture {
        if firing.data.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK != pg_sys::TRIGGER_EVENT_AFTER {
            let is_before = firing.data.tg_event & pg_sys::TRIGGER_EVENT_BEFORE != 0;
            refuse(
                &format!(
                    "it is called {} the operation",
                    if is_before { "BEFORE" } else { "INSTEAD OF" }
                ),
                "Make it an AFTER trigger, of a table.",
            );
        }
        let arguments = firing.arguments().and_then(|(event_type, options)| {
            let options = match options {
                None => Options::default(),
                Some(options) => parse_options(options)?,
            };
            (event_type.count_bytes() <= MAX_EVENT_TYPE).then_some((event_type, options))
        });
        let Some((event_type, options)) = arguments else {
            refuse(
                "its arguments are not the type of an event and options that it knows",
                "Such as webhook_trigger('order.updated', '{\"changed\": [\"status\"]}'); webhook_watch() makes a trigger for you.",
            );
        };
        Capture {
            // SAFETY: the trigger of the call.
            trigger: unsafe { (*firing.data.tg_trigger).tgoid },
            event_type: event_type.to_owned(),
            only_warns: options.only_warns,
            payloads: Payloads::new(options, context),
        }
    }

    /// # Safety
    /// The firing is one of this trigger.
    unsafe fn emit(&self, firing: &Firing<'_>) {
        let mut batch = Batch::new(&self.event_type, self.only_warns);
        // SAFETY: the tuples and transition tables are those of the call, and in the row type of its table.
        unsafe {
            let data = firing.data;
            if firing.is_for_row() {
                let (first, second) = (Slot(data.tg_trigslot), Slot(data.tg_newslot));
                let (new, old) = match data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
                    pg_sys::TRIGGER_EVENT_INSERT => (Some(first), None),
                    pg_sys::TRIGGER_EVENT_UPDATE => (Some(second), Some(first)),
                    _ => (None, Some(first)),
                };
                self.add(firing, new, old, &mut batch);
            } else {
                let description = firing.table().rd_att;
                let new = TransitionTable::open(data.tg_newtable, description);
                let old = TransitionTable::open(data.tg_oldtable, description);
                if let (Some(new), Some(old)) = (&new, &old)
                    && new.count() != old.count()
                {
                    let problem = "a row that was to move to another partition was dropped on the way, by a trigger there";
                    if !self.only_warns {
                        refuse(
                            problem,
                            "Let that trigger raise an error instead, or make this one FOR EACH ROW.",
                        );
                    }
                    firing.warn(&self.event_type, problem, None);
                } else if new.is_none() && old.is_none() {
                    self.add(firing, None, None, &mut batch);
                } else {
                    let mut row = pgrx::PgMemoryContexts::new("webhook row");
                    // A table that is not there has no end.
                    let next = |table: &Option<TransitionTable>| match table {
                        Some(table) => table.next().map(Some),
                        None => Some(None),
                    };
                    while let Some(new) = next(&new)
                        && let Some(old) = next(&old)
                    {
                        pgrx::check_for_interrupts!();
                        row.switch_to(|_| self.add(firing, new, old, &mut batch));
                        row.reset();
                        if batch.is_full() {
                            batch.emit();
                        }
                    }
                }
                new.into_iter().chain(old).for_each(TransitionTable::close);
            }
        }
        batch.emit();
        if batch.lost > 0 {
            let detail = (batch.problem.as_deref()).map(|p| format!("The last of them: {p}"));
            firing.warn(&self.event_type, &format!("{} events", batch.lost), detail);
        }
    }

    /// # Safety
    /// The slots hold rows of the trigger's table.
    unsafe fn add(
        &self,
        firing: &Firing<'_>,
        new: Option<Slot>,
        old: Option<Slot>,
        batch: &mut Batch<'_>,
    ) {
        // SAFETY: as above.
        let event = || unsafe {
            let wanted = self
                .payloads
                .wanted_columns(firing, new.is_some() || old.is_some());
            let row = |slot: Slot| slot.row(wanted);
            let (new, old): (Option<Row<'_>>, Option<Row<'_>>) = (new.map(row), old.map(row));
            self.payloads.event(firing, new, old)
        };
        let event = if self.only_warns {
            attempt(event)
        } else {
            Ok(event())
        };
        match event {
            // SAFETY: made just now, as it says.
            Ok(Some(event)) => unsafe { batch.push(event) },
            Ok(None) => {}
            Err(problem) => {
                batch.lost += 1;
                batch.problem = Some(problem);
            }
        }
    }
}

/// The table's owner may have written anything there.
fn parse_options(text: &CStr) -> Option<Options> {
    if text.count_bytes() > MAX_OPTIONS {
        return None;
    }
    if !memory::has_room(OPTIONS_GROW_TO * text.count_bytes()) {
        notice::out_of_memory("The options of the trigger could not be parsed.");
    }
    Options::parse(&as_utf8(text))
}

/// Runs the body in a subtransaction; an error undoes it, and comes back as a message. Nothing is written in there,
/// so it takes no transaction id.
fn attempt<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    // SAFETY: as the server's own languages do it: context and resource owner are those of before, however it ends.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = PgTryBuilder::new(AssertUnwindSafe(|| Ok(body())))
            .catch_others(|caught| Err(Box::new(caught)))
            .catch_rust_panic(|caught| Err(Box::new(caught)))
            .execute();
        pg_sys::MemoryContextSwitchTo(context);
        match result {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result.map_err(|caught: Box<CaughtError>| {
            let (CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic {
                ereport: report, ..
            }) = &*caught;
            // The statement is to end: this is not about the row.
            if report.sql_error_code() == PgSqlErrorCode::ERRCODE_QUERY_CANCELED {
                caught.rethrow();
            }
            memory::require_reserve();
            report.message().to_owned()
        })
    }
}

/// Names are compared as UTF-8, whatever the database's encoding is.
fn as_utf8(text: &CStr) -> String {
    const PG_UTF8: i32 = pg_sys::pg_enc::PG_UTF8 as i32;
    // SAFETY: in the encoding of the database; what the server returns ends with a NUL, and may be the text itself.
    unsafe {
        let length = text.count_bytes() as i32;
        let converted = pg_sys::pg_server_to_any(text.as_ptr(), length, PG_UTF8);
        CStr::from_ptr(converted).to_string_lossy().into_owned()
    }
}
