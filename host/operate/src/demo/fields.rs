//! Fields of the JSON that other programs report.

use anyhow::{Result, anyhow};
use serde_json::Value;

/// The whole number called `name`.
pub(super) fn number(value: &Value, name: &str) -> Result<u64> {
    value.get(name).and_then(Value::as_u64).ok_or_else(|| anyhow!("no number {name:?} in {value}"))
}

/// The text called `name`.
pub(super) fn text(value: &Value, name: &str) -> Result<String> {
    value
        .get(name)
        .and_then(Value::as_str)
        .map(str::to_owned)
        .ok_or_else(|| anyhow!("no text {name:?} in {value}"))
}
