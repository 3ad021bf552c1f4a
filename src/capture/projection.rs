//! Rows in built-in types alone, so that the server's `to_jsonb()` finds no cast of a user to run.
//!
//! `to_jsonb()` looks casts up as it meets types, and a cast to json of a user's type is code of that type's owner.
//! So the rows that it gets have no such type, at any depth: domains are their base types, composite values anonymous
//! records. Any other user-defined value goes through a cast of a superuser (those of hstore or PostGIS are such), or
//! else becomes its text, which `to_jsonb()` would have taken too. Checking the casts and then handing over the value
//! itself would leave a gap in which the owner makes another.

use crate::{memory, notice, pg_compat};
use pgrx::PgMemoryContexts;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CStr;

/// A row that is taken apart: each column has its place in both.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub values: &'a [Datum],
    pub nulls: &'a [bool],
}

impl Row<'_> {
    pub fn value(&self, place: usize) -> Option<Datum> {
        (!self.nulls[place]).then_some(self.values[place])
    }
}

/// How values of a type become values of a built-in one. The functions live in the memory context that it was made
/// in.
pub enum Projection {
    Keep(Oid),
    /// By the output function of the type.
    Text(*mut pg_sys::FmgrInfo),
    /// By a cast that belongs to a superuser.
    Json(*mut pg_sys::FmgrInfo),
    Array {
        element: Box<Projection>,
        from: Element,
        to: Element,
    },
    Composite {
        description: pg_sys::TupleDesc,
        shape: Shape,
    },
}

/// How elements of an array are stored.
pub struct Element {
    oid: Oid,
    length: i16,
    by_value: bool,
    alignment: std::ffi::c_char,
}

impl Element {
    fn of(oid: Oid) -> Element {
        let (mut length, mut by_value, mut alignment) = (0, false, 0);
        // SAFETY: a lookup in the catalog.
        unsafe {
            pg_sys::get_typlenbyvalalign(oid, &mut length, &mut by_value, &mut alignment);
        }
        Element {
            oid,
            length,
            by_value,
            alignment,
        }
    }
}

impl Projection {
    /// Follows the rules of `json_categorize_type()` in the server, but for the owner of the cast.
    pub fn of(type_oid: Oid) -> Projection {
        // SAFETY: lookups in the catalog, about a type of a table that is in use.
        unsafe {
            pg_sys::check_stack_depth();
            let base = pg_sys::getBaseType(type_oid);
            let is_built_in = base.to_u32() < pg_sys::FirstNormalObjectId;
            let element_type = pg_sys::get_element_type(base);
            if element_type != pg_sys::InvalidOid {
                return match Projection::of(element_type) {
                    Projection::Keep(_) if is_built_in => Projection::Keep(base),
                    Projection::Keep(_) => Projection::Keep(pg_sys::ANYARRAYOID),
                    element => Projection::Array {
                        from: Element::of(element_type),
                        to: Element::of(element.type_oid()),
                        element: Box::new(element),
                    },
                };
            }
            if pg_sys::type_is_rowtype(base) {
                let description = pg_sys::lookup_rowtype_tupdesc_copy(base, -1);
                let shape = Shape::new(attributes(description));
                return Projection::Composite { description, shape };
            }
            if is_built_in {
                return Projection::Keep(base);
            }
            match cast_of_a_superuser(base) {
                Some(cast) => Projection::Json(prepare(cast)),
                None => {
                    let (mut output, mut is_variable) = (pg_sys::InvalidOid, false);
                    pg_sys::getTypeOutputInfo(base, &mut output, &mut is_variable);
                    Projection::Text(prepare(output))
                }
            }
        }
    }

    /// The type of the result. Elements of arrays say their type themselves, and not every type has arrays.
    pub fn type_oid(&self) -> Oid {
        match self {
            Projection::Keep(oid) => *oid,
            Projection::Text(_) => pg_sys::TEXTOID,
            Projection::Json(_) => pg_sys::JSONOID,
            Projection::Array { .. } => pg_sys::ANYARRAYOID,
            Projection::Composite { .. } => pg_sys::RECORDOID,
        }
    }

    /// # Safety
    /// `value` is of the type that this was made for.
    pub unsafe fn apply(&self, value: Datum) -> Datum {
        // SAFETY: what is read from a value is as its type says.
        unsafe {
            match self {
                Projection::Keep(_) => value,
                Projection::Text(output) => {
                    pg_sys::cstring_to_text(pg_sys::OutputFunctionCall(*output, value)).into()
                }
                Projection::Json(cast) => {
                    pg_sys::FunctionCall1Coll(*cast, pg_sys::InvalidOid, value)
                }
                Projection::Array { element, from, to } => map_array(value, element, from, to),
                Projection::Composite { description, shape } => {
                    pg_sys::check_stack_depth();
                    let header = pg_compat::composite(value);
                    let mut tuple = pg_sys::HeapTupleData {
                        t_len: pgrx::varsize(header.cast()) as u32,
                        t_data: header,
                        ..Default::default()
                    };
                    let places = (**description).natts as usize;
                    let mut values = vec![Datum::null(); places];
                    let mut nulls = vec![true; places];
                    pg_sys::heap_deform_tuple(
                        &mut tuple,
                        *description,
                        values.as_mut_ptr(),
                        nulls.as_mut_ptr(),
                    );
                    shape.form(Row {
                        values: &values,
                        nulls: &nulls,
                    })
                }
            }
        }
    }
}

/// # Safety
/// `value` is an array of elements like `from`.
unsafe fn map_array(value: Datum, element: &Projection, from: &Element, to: &Element) -> Datum {
    // SAFETY: the server takes the array apart, and puts the new one together; its dimensions follow its header.
    unsafe {
        let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(value.cast_mut_ptr()).cast();
        let dimensions = (*array).ndim;
        let lengths: *mut i32 = array.add(1).cast();
        let (mut elements, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            from.oid,
            from.length.into(),
            from.by_value,
            from.alignment,
            &mut elements,
            &mut nulls,
            &mut count,
        );
        for place in 0..count as usize {
            if !*nulls.add(place) {
                *elements.add(place) = element.apply(*elements.add(place));
            }
        }
        let mapped = pg_sys::construct_md_array(
            elements,
            nulls,
            dimensions,
            lengths,
            lengths.add(dimensions as usize),
            to.oid,
            to.length.into(),
            to.by_value,
            to.alignment,
        );
        Datum::from(mapped)
    }
}

/// The function of the cast to json that `to_jsonb()` would use, where a superuser answers for it.
fn cast_of_a_superuser(type_oid: Oid) -> Option<Oid> {
    // SAFETY: lookups in the catalog; a row of a cache is read before it is released.
    unsafe {
        let mut function = pg_sys::InvalidOid;
        let path = pg_sys::find_coercion_pathway(
            pg_sys::JSONOID,
            type_oid,
            pg_sys::CoercionContext::COERCION_EXPLICIT,
            &mut function,
        );
        if path != pg_sys::CoercionPathType::COERCION_PATH_FUNC || function == pg_sys::InvalidOid {
            return None;
        }
        let row = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::PROCOID as i32,
            Datum::from(function),
        );
        if row.is_null() {
            return None;
        }
        let procedure: *const pg_sys::FormData_pg_proc = pg_sys::GETSTRUCT(row).cast();
        let owner = (*procedure).proowner;
        // A function that takes any type would ask for a type that it is not told.
        let is_for_this_type = (*procedure).pronargs == 1
            && (*procedure).proargtypes.values.as_slice(1)[0] == type_oid;
        pg_sys::ReleaseSysCache(row);
        (is_for_this_type && pg_sys::superuser_arg(owner)).then_some(function)
    }
}

fn prepare(function: Oid) -> *mut pg_sys::FmgrInfo {
    // SAFETY: in the context of the projection, which outlives no call of it.
    unsafe {
        let mut context = PgMemoryContexts::CurrentMemoryContext;
        let prepared = context.palloc0_struct::<pg_sys::FmgrInfo>();
        pg_sys::fmgr_info_cxt(function, prepared, context.value());
        prepared
    }
}

pub struct Attribute<'a> {
    pub place: usize,
    pub name: &'a CStr,
    pub type_oid: Oid,
    pub is_virtual: bool,
}

/// The columns that there are; dropped columns keep their places.
///
/// # Safety
/// `description` is valid, and outlives the names.
pub unsafe fn attributes<'a>(description: pg_sys::TupleDesc) -> Vec<Attribute<'a>> {
    // SAFETY: as many attributes as it says.
    unsafe {
        let attributes = pg_compat::attributes(description);
        (attributes.iter().enumerate())
            .filter(|(_, attribute)| !attribute.attisdropped)
            .map(|(place, attribute)| Attribute {
                place,
                name: CStr::from_ptr(attribute.attname.data.as_ptr()),
                type_oid: attribute.atttypid,
                is_virtual: attribute.attgenerated == b'v' as std::ffi::c_char,
            })
            .collect()
    }
}

/// A record of some columns of a row, in built-in types.
pub struct Shape {
    columns: Vec<(usize, Projection)>,
    description: pg_sys::TupleDesc,
}

impl Shape {
    pub fn new<'a>(attributes: impl IntoIterator<Item = Attribute<'a>>) -> Shape {
        let attributes = attributes.into_iter();
        let (least, most) = attributes.size_hint();
        let mut columns = memory::list(most.unwrap_or(least))
            .unwrap_or_else(|_| notice::out_of_memory("The table has many columns."));
        let mut fields = Vec::new();
        for attribute in attributes {
            let projection = Projection::of(attribute.type_oid);
            fields.push((attribute.name, projection.type_oid()));
            columns.push((attribute.place, projection));
        }
        let description = record_of(&fields);
        Shape {
            columns,
            description,
        }
    }

    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.columns.iter().map(|(place, _)| *place)
    }

    /// Whether it has one column, whose values are text as they are.
    pub fn is_text(&self) -> bool {
        matches!(
            &self.columns[..],
            [(_, Projection::Keep(pg_sys::TEXTOID | pg_sys::VARCHAROID))]
        )
    }

    /// # Safety
    /// The row has the columns that this was made for.
    pub unsafe fn form(&self, row: Row<'_>) -> Datum {
        let (mut values, mut nulls): (Vec<_>, Vec<_>) = (self.columns.iter())
            .map(|(place, projection)| match row.value(*place) {
                // SAFETY: of the type of the column.
                Some(value) => (unsafe { projection.apply(value) }, false),
                None => (Datum::null(), true),
            })
            .unzip();
        // SAFETY: one value for each attribute.
        unsafe { form(self.description, &mut values, &mut nulls) }
    }
}

/// The description of a record, kept by the server as long as the session lives, like that of any `ROW(..)`.
pub fn record_of(fields: &[(&CStr, Oid)]) -> pg_sys::TupleDesc {
    // SAFETY: the names are copied; the types exist.
    unsafe {
        let description = pg_sys::CreateTemplateTupleDesc(fields.len() as i32);
        for (number, (name, type_oid)) in (1..).zip(fields) {
            pg_sys::TupleDescInitEntry(description, number, name.as_ptr(), *type_oid, -1, 0);
        }
        pg_sys::BlessTupleDesc(description)
    }
}

/// A composite value that is only read, in memory: values that are stored out of line stay there until they are
/// needed.
///
/// # Safety
/// One value for each attribute of the description, which is that of a record.
pub unsafe fn form(
    description: pg_sys::TupleDesc,
    values: &mut [Datum],
    nulls: &mut [bool],
) -> Datum {
    // SAFETY: as above.
    unsafe {
        let tuple = pg_sys::heap_form_tuple(description, values.as_mut_ptr(), nulls.as_mut_ptr());
        Datum::from((*tuple).t_data)
    }
}
