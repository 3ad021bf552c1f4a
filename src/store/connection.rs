//! Statements of the engine over SPI.

use super::transaction;
use crate::memory;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::{self, OwnedPreparedStatement, SpiHeapTupleData};
use std::collections::HashMap;
use webhook_engine::{Connection, Parameter, Trouble, Value};

/// Plans each statement once, and keeps the plan as long as it lives.
#[derive(Default)]
pub struct SpiConnection {
    plans: HashMap<&'static str, OwnedPreparedStatement>,
}

impl Connection for SpiConnection {
    fn run(
        &mut self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Vec<Value>>, Trouble> {
        let done = transaction(|client| {
            let arguments: Vec<DatumWithOid<'_>> = parameters.iter().map(datum).collect();
            if !self.plans.contains_key(statement) {
                let types: Vec<PgOid> = arguments.iter().map(|a| PgOid::from(a.oid())).collect();
                let plan = client.prepare(statement, &types)?.keep();
                self.plans.insert(statement, plan);
            }
            // Run like a SELECT that writes nothing: it takes a transaction id only when one of its functions writes.
            let rows = client.select(&self.plans[statement], None, &arguments)?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let types = (1..=rows.columns()?).map(|ordinal| rows.column_type_oid(ordinal));
            let types: Vec<PgOid> = types.collect::<Result<_, _>>()?;
            rows.map(|row| {
                let values = types.iter().enumerate();
                let values = values.map(|(index, oid)| value(&row, index + 1, oid.value()));
                values.collect()
            })
            .collect()
        });
        done.inspect_err(|trouble| {
            if trouble.is_out_of_memory() {
                memory::run_short();
            }
        })
    }
}

fn datum<'a>(parameter: &'a Parameter<'_>) -> DatumWithOid<'a> {
    match parameter {
        Parameter::Int(number) => (*number).into(),
        Parameter::BigInt(number) => (*number).into(),
        Parameter::Text(text) => (*text).into(),
        Parameter::Ints(numbers) => numbers.clone().into(),
        Parameter::BigInts(numbers) => numbers.clone().into(),
        Parameter::Uuids(ids) => {
            let ids = ids.iter().map(|id| pgrx::Uuid::from_bytes(*id.as_bytes()));
            ids.collect::<Vec<_>>().into()
        }
        Parameter::Texts(texts) => texts.clone().into(),
        Parameter::NullableInts(numbers) => numbers.clone().into(),
        Parameter::NullableTexts(texts) => texts.clone().into(),
        Parameter::NullableFloats(numbers) => numbers.clone().into(),
    }
}

fn value(
    row: &SpiHeapTupleData<'_>,
    ordinal: usize,
    oid: pg_sys::Oid,
) -> Result<Value, spi::Error> {
    let value = match oid {
        pg_sys::BOOLOID => row.get::<bool>(ordinal)?.map(Value::Bool),
        pg_sys::INT4OID => row.get::<i32>(ordinal)?.map(Value::Int),
        pg_sys::INT8OID => row.get::<i64>(ordinal)?.map(Value::BigInt),
        pg_sys::UUIDOID => row
            .get::<pgrx::Uuid>(ordinal)?
            .map(|id| Value::Uuid(uuid::Uuid::from_bytes(*id.as_bytes()))),
        pg_sys::TEXTOID => row.get::<&str>(ordinal)?.map(|text| {
            let copied = memory::copy(text);
            copied.map_or(Value::TooLarge, Value::Text)
        }),
        _ => None,
    };
    Ok(value.unwrap_or(Value::Null))
}
