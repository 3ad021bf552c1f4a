//! The payload of an event of a row.

use super::key::Key;
use super::options::Options;
use super::projection::{self, Attribute, Row, Shape};
use super::{Firing, as_utf8};
use crate::notice;
use pgrx::pg_sys::{self, Datum};
use pgrx::{FromDatum, PgMemoryContexts, PgSqlErrorCode};
use std::borrow::Cow;
use std::cell::OnceCell;

/// An event lives in the memory of the row that it was made of.
pub struct Event {
    /// jsonb
    pub payload: Datum,
    /// text, as are the keys
    pub tenant: Option<Datum>,
    pub ordering_key: Option<Datum>,
    pub coalesce_key: Option<Datum>,
}

pub struct Payloads {
    options: Options,
    context: pg_sys::MemoryContext,
    to_jsonb: *mut pg_sys::FmgrInfo,
    payload: pg_sys::TupleDesc,
    choice: OnceCell<Choice>,
}

/// The columns of the table, by their use.
struct Choice {
    shown: Shape,
    compared: Option<Shape>,
    tenant: Option<TextColumn>,
    ordering_key: Option<Vec<TextColumn>>,
    coalesce_key: Option<Vec<TextColumn>>,
    /// How many columns, from the first one on, include all that are needed.
    wanted: usize,
}

/// A column whose values are read as text.
struct TextColumn {
    shape: Shape,
    place: usize,
    name: Datum,
}

impl Payloads {
    /// The context holds everything that is prepared for the statement.
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

    /// How many columns of a row are read. Columns are chosen at the first row, so that a statement without rows
    /// needs none.
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

    /// None where an update has changed none of the columns of which one must change.
    ///
    /// # Safety
    /// The rows are of the firing's table, and have the wanted columns.
    pub unsafe fn event(
        &self,
        firing: &Firing<'_>,
        new: Option<Row<'_>>,
        old: Option<Row<'_>>,
    ) -> Option<Event> {
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
                text(&as_utf8(firing.operation())),
                text(&self.schema_name(firing)),
                text(&self.table_name(firing)),
                record,
                old_record,
            ];
            let mut nulls = [false, false, false, no_record, no_old_record];
            let payload = self.as_json(projection::form(self.payload, &mut values, &mut nulls));
            let mut event = Event {
                payload,
                tenant: None,
                ordering_key: None,
                coalesce_key: None,
            };
            if let Some((choice, row)) = choice.zip(new.or(old)) {
                let tenant = choice.tenant.as_ref();
                event.tenant = tenant.and_then(|column| self.text_of(column, row));
                let key = |columns: &Option<Vec<TextColumn>>| {
                    let columns = columns.as_ref()?;
                    self.key(firing, columns, row)
                };
                event.ordering_key = key(&choice.ordering_key);
                event.coalesce_key = key(&choice.coalesce_key);
            }
            Some(event)
        }
    }

    fn schema_name<'a>(&'a self, firing: &'a Firing<'_>) -> Cow<'a, str> {
        let reported = self.options.schema.as_deref();
        reported.map_or_else(|| as_utf8(firing.schema_name()).into(), Cow::from)
    }

    fn table_name<'a>(&'a self, firing: &'a Firing<'_>) -> Cow<'a, str> {
        let reported = self.options.table.as_deref();
        reported.map_or_else(|| as_utf8(firing.table_name()).into(), Cow::from)
    }

    /// None where one of the values is null.
    ///
    /// # Safety
    /// The row has the columns.
    unsafe fn key(
        &self,
        firing: &Firing<'_>,
        columns: &[TextColumn],
        row: Row<'_>,
    ) -> Option<Datum> {
        let mut key = Key::default();
        key.add(&self.schema_name(firing));
        key.add(&self.table_name(firing));
        for column in columns {
            // SAFETY: as above; what it returns is text, which is borrowed from the memory of the row.
            key.add(unsafe { <&str>::from_datum(self.text_of(column, row)?, false)? });
        }
        Some(text(&key.finish()))
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

    /// Text as `->>` has it.
    ///
    /// # Safety
    /// The row has the column.
    unsafe fn text_of(&self, column: &TextColumn, row: Row<'_>) -> Option<Datum> {
        // SAFETY: as above.
        unsafe {
            if column.shape.is_text() {
                return row.value(column.place);
            }
            pgrx::direct_function_call_as_datum(
                pg_sys::jsonb_object_field_text,
                &[
                    Some(self.as_json(column.shape.form(row))),
                    Some(column.name),
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

/// Columns that are kept out and that nothing else needs are not read: nothing in them can be too large, or fail to
/// be JSON. A column that is not there may have another name now: no event is better than one with values that were
/// to be kept out.
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
    let as_text = |column: &String| {
        let attribute = select(&|c| c == column).pop()?;
        Some(TextColumn {
            place: attribute.place,
            name: text(&as_utf8(attribute.name)),
            shape: Shape::new([attribute]),
        })
    };
    let tenant = options.tenant_column.as_ref().and_then(as_text);
    let key = |columns: &Option<Vec<String>>| -> Option<Vec<TextColumn>> {
        columns.as_ref()?.iter().map(as_text).collect()
    };
    let (ordering_key, coalesce_key) = (key(&options.ordering_key), key(&options.coalesce_key));
    let keys = ordering_key.iter().chain(&coalesce_key).flatten();
    let wanted = (shown.places())
        .chain(compared.iter().flat_map(Shape::places))
        .chain(tenant.iter().chain(keys).map(|column| column.place))
        .max();
    Choice {
        wanted: wanted.map_or(0, |place| place + 1),
        shown,
        compared,
        tenant,
        ordering_key,
        coalesce_key,
    }
}

fn text(text: &str) -> Datum {
    // SAFETY: copied, as long as it says.
    unsafe { pg_sys::cstring_to_text_with_len(text.as_ptr().cast(), text.len() as i32) }.into()
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
