//! What the values of a chat template may consist of: counted without recursion, before anything walks them.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use crate::limits;

/// How a value beyond the limits is told from the engine's own errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TooLarge(pub(crate) String);

/// The value itself, if it is within the limits. Steps of the count are paid for.
pub(crate) fn guard(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    check(state, &value)?;
    Ok(value)
}

/// Refuse a value of too many parts, bytes of text or levels. A part that occurs twice counts twice, as it does for
/// whoever prints the value.
pub(crate) fn check(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let (mut parts, mut bytes) = (0usize, 0usize);
    let mut waiting = vec![(value.clone(), 1usize)];
    while let Some((value, depth)) = waiting.pop() {
        parts += 1;
        bytes = bytes
            .saturating_add(value.as_str().map_or_else(|| value.as_bytes().map_or(0, <[u8]>::len), str::len));
        within("levels", depth, limits::MAX_TEMPLATE_VALUE_DEPTH)?;
        within("bytes of text", bytes, limits::MAX_TEMPLATE_VALUE_BYTES)?;
        let keyed = value.kind() == ValueKind::Map;
        if keyed || matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            for item in value.try_iter()? {
                if keyed {
                    waiting.push((value.get_item(&item)?, depth + 1));
                }
                waiting.push((item, depth + 1));
                within("parts", parts + waiting.len(), limits::MAX_TEMPLATE_VALUE_PARTS)?;
            }
        }
        if parts.is_multiple_of(PARTS_PER_FUEL) {
            state.consume_fuel(1)?;
        }
    }
    Ok(())
}

/// Parts counted for one step of the template's budget.
const PARTS_PER_FUEL: usize = 16;

fn within(what: &'static str, count: usize, limit: usize) -> Result<(), Error> {
    if count <= limit {
        return Ok(());
    }
    let why = format!("a value of more than {limit} {what}");
    Err(Error::new(ErrorKind::InvalidOperation, why.clone()).with_source(TooLarge(why)))
}
