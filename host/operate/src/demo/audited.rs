//! What `kvasir audit` found of the demo's calls, read back from its JSON.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::fields::number;

/// An audit by replay.
#[derive(Debug, Clone, Serialize)]
pub struct Audited {
    /// Calls whose rows were kept.
    pub records: u64,
    /// Calls that were drawn and computed again.
    pub drawn: u64,
    /// Of those: right bit for bit.
    pub right: u64,
    /// Wrong.
    pub convicted: u64,
    /// Not to be judged by bytes.
    pub tolerance: u64,
    /// What is wrong with the first wrong one.
    pub first_finding: Option<String>,
}

impl Audited {
    /// From the JSON report.
    ///
    /// # Errors
    /// Where it does not hold what `kvasir audit` writes.
    pub fn read(value: &Value) -> Result<Audited> {
        let drawn = value.get("drawn").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let first =
            drawn.iter().find(|item| item.get("verdict").and_then(Value::as_str) == Some("convicted"));
        let reason = first.and_then(|item| item.get("reason")).and_then(Value::as_str);
        Ok(Audited {
            records: number(value, "records")?,
            drawn: drawn.len() as u64,
            right: number(value, "right")?,
            convicted: number(value, "convicted")?,
            tolerance: number(value, "tolerance")?,
            first_finding: reason.map(str::to_owned),
        })
    }

    /// Whether everything that was drawn is right, or not to be judged by bytes.
    pub fn is_well(&self) -> bool {
        self.drawn > 0 && self.drawn == self.right + self.tolerance
    }
}
