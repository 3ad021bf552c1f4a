//! What an event says of a row.

use super::options::Options;
use super::projection::{self, Attribute, Row, Shape};
use super::{Firing, as_utf8};
use crate::notice;
use pgrx::pg_sys::{self, Datum};
use pgrx::{PgMemoryContexts, PgSqlErrorCode};
use std::cell::OnceCell;

/// In the memory of the row that it was made of.
pub struct Event {
    /// jsonb
    pub payload: Datum,
    /// text
    pub tenant: Option<Datum>,
}

pub struct Payloads {
    options: Options,
    context: pg_sys::MemoryContext,
    to_jsonb: *mut pg_sys::FmgrInfo,
    payload: pg_sys::TupleDesc,
    choice: OnceCell<Choice>,
}

/// The columns of the table, by what they are for.
struct Choice {
    shown: Shape,
    compared: Option<Shape>,
    tenant: Option<Tenant>,
    /// So many columns, from the first one on, have all that are needed.
    wanted: usize,
}

struct Tenant {
    shape: Shape,
    place: usize,
    name: Datum,
}

impl Payloads {
    /// All that is prepared lives in this context.
    pub fn new(options: Options, context: pg_sys::MemoryContext) -> Payloads {
        // SAFETY: the context outlives this.
        let (to_jsonb, payload) = unsafe {
            PgMemoryContexts::For(context).switch_to(|_| {
                let payload = projection::record_of(&[
                    (c"type", pg_sys::TEXTOID),
                    (c"schema", pg_sys::TEXTOID),
                    (c"table", pg_sys::TEXTOID),
                    (c"record", pg_sys::RECORDOID),
                    (c"old_record", pg_sys::RECORDOID),
                ]);
                (to_jsonb_of_records(), payload)
            })
        };
        Payloads {
            options,
            context,
            to_jsonb,
            payload,
            choice: OnceCell::new(),
        }
    }

    /// How many columns of a row are read. Columns are chosen at the first row, so that a statement without rows needs none.
    pub fn wanted_columns(&self, firing: &Firing<'_>, has_rows: bool) -> usize {
        if !has_rows {
            return 0;
        }
        let choose = || {
            // SAFETY: the context outlives what is made in it.
            unsafe {
                PgMemoryContexts::For(self.context)
                    .switch_to(|_| choose(&self.options, firing.table().rd_att))
            }
        };
        self.choice.get_or_init(choose).wanted
    }

    /// `None` where none of the columns has changed of which one must.
    ///
    /// # Safety
    /// The rows are of the firing's table, and have the wanted columns.
    pub unsafe fn event(
        &self,
        firing: &Firing<'_>,
        new: Option<Row<'_>>,
        old: Option<Row<'_>>,
    ) -> Option<Event> {
        let text = |text: &std::ffi::CStr| {
            // SAFETY: copied.
            Datum::from(unsafe { pg_sys::cstring_to_text(text.as_ptr()) })
        };
        let choice = self.choice.get();
        // SAFETY: the shapes are of the table's columns; each value is of its attribute's type.
        unsafe {
            if let Some(choice) = choice
                && let Some(compared) = &choice.compared
                && let (Some(new), Some(old)) = (new, old)
                && self.are_equal(compared, new, old)
            {
                return None;
            }
            let record = |row: Option<Row<'_>>| {
                let record = row.zip(choice).map(|(row, choice)| choice.shown.form(row));
                (record.unwrap_or(Datum::null()), record.is_none())
            };
            let ((record, no_record), (old_record, no_old_record)) = (record(new), record(old));
            let mut values = [
                text(firing.operation()),
                text(firing.schema_name()),
                text(firing.table_name()),
                record,
                old_record,
            ];
            let mut nulls = [false, false, false, no_record, no_old_record];
            let payload = self.as_json(projection::form(self.payload, &mut values, &mut nulls));
            let tenant = choice.and_then(|choice| choice.tenant.as_ref());
            Some(Event {
                payload,
                tenant: tenant
                    .zip(new.or(old))
                    .and_then(|(tenant, row)| self.tenant(tenant, row)),
            })
        }
    }

    /// # Safety
    /// The rows have the columns of the shape.
    unsafe fn are_equal(&self, shape: &Shape, new: Row<'_>, old: Row<'_>) -> bool {
        // SAFETY: as above; jsonb is a header and its root.
        unsafe {
            let root = |row| {
                let json: *mut pg_sys::Jsonb = self.as_json(shape.form(row)).cast_mut_ptr();
                &raw mut (*json).root
            };
            pg_sys::compareJsonbContainers(root(new), root(old)) == 0
        }
    }

    /// As `->>` has it.
    ///
    /// # Safety
    /// The row has the column.
    unsafe fn tenant(&self, tenant: &Tenant, row: Row<'_>) -> Option<Datum> {
        // SAFETY: as above.
        unsafe {
            if tenant.shape.is_text() {
                return row.value(tenant.place);
            }
            pgrx::direct_function_call_as_datum(
                pg_sys::jsonb_object_field_text,
                &[
                    Some(self.as_json(tenant.shape.form(row))),
                    Some(tenant.name),
                ],
            )
        }
    }

    /// # Safety
    /// It is a record.
    unsafe fn as_json(&self, record: Datum) -> Datum {
        // SAFETY: as prepared.
        unsafe { pg_sys::FunctionCall1Coll(self.to_jsonb, pg_sys::InvalidOid, record) }
    }
}

/// Of columns that are kept out, the ones that nothing needs are not read: nothing in them can be too large, or fail to be
/// JSON. A column that is not there may have another name now: rather no event than one with what was to be kept out.
///
/// # Safety
/// The description is that of the table.
unsafe fn choose(options: &Options, description: pg_sys::TupleDesc) -> Choice {
    // SAFETY: as above.
    let attributes = || unsafe { projection::attributes(description) };
    let is_choosy = options.columns().next().is_some()
        || options.include.is_some()
        || options.changed.is_some();
    let names: Vec<String> = match is_choosy {
        true => attributes().iter().map(|a| as_utf8(a.name)).collect(),
        false => Vec::new(),
    };
    if let Some(missing) = options.columns().find(|column| !names.contains(column)) {
        notice::refuse(
            PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
            format!("column \"{missing}\" does not exist any more"),
            "The table is watched by the names of its columns: call webhook_watch() again.",
        );
    }
    // A virtual column has no value in a tuple.
    let select = |is_wanted: &dyn Fn(&String) -> bool| -> Vec<Attribute<'_>> {
        (attributes().into_iter().enumerate())
            .filter(|(number, a)| !a.is_virtual && (!is_choosy || is_wanted(&names[*number])))
            .map(|(_, attribute)| attribute)
            .collect()
    };
    let shown = Shape::new(select(&|column| options.shows(column)));
    let compared =
        (options.changed.as_ref()).map(|changed| Shape::new(select(&|c| changed.contains(c))));
    let tenant = (options.tenant_column.as_ref())
        .and_then(|column| select(&|c| c == column).pop())
        .map(|attribute| Tenant {
            place: attribute.place,
            // SAFETY: copied.
            name: Datum::from(unsafe { pg_sys::cstring_to_text(attribute.name.as_ptr()) }),
            shape: Shape::new([attribute]),
        });
    let wanted = (shown.places())
        .chain(compared.iter().flat_map(Shape::places))
        .chain(tenant.iter().map(|tenant| tenant.place))
        .max();
    Choice {
        wanted: wanted.map_or(0, |place| place + 1),
        shown,
        compared,
        tenant,
    }
}

/// `to_jsonb(record)`: it asks the expression that it is called by for the type of its argument.
fn to_jsonb_of_records() -> *mut pg_sys::FmgrInfo {
    // SAFETY: nodes in the current memory context, and a function that every server has.
    unsafe {
        let mut context = PgMemoryContexts::CurrentMemoryContext;
        let function = context.palloc0_struct::<pg_sys::FmgrInfo>();
        pg_sys::fmgr_info_cxt(pg_sys::F_TO_JSONB.into(), function, context.value());
        let argument = pg_sys::makeNullConst(pg_sys::RECORDOID, -1, pg_sys::InvalidOid);
        (*function).fn_expr = pg_sys::makeFuncExpr(
            pg_sys::F_TO_JSONB.into(),
            pg_sys::JSONBOID,
            pg_sys::lappend(std::ptr::null_mut(), argument.cast()),
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            pg_sys::CoercionForm::COERCE_EXPLICIT_CALL,
        )
        .cast();
        function
    }
}
