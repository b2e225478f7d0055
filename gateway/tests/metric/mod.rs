//! Lines of the metrics, as an operator reads them.

#![allow(dead_code)] // each test binary uses a part of it

use std::time::Duration;

use kvasir_gateway::operations::Served;

/// Waits until the metrics have this line; a minute counts as never.
pub async fn appears(served: &dyn Served, line: &str) {
    let appears = async {
        while !has(served, line) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), appears).await;
    assert!(waited.is_ok(), "no {line} in:\n{}", served.metrics());
}

/// Whether the metrics have this line now.
pub fn has(served: &dyn Served, line: &str) -> bool {
    served.metrics().lines().any(|found| found == line)
}
