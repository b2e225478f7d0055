//! Contract 0.2.0 of `tests/wit`, which was never released: proof that the traits carry a version that differs.

use std::sync::Arc;

use kvasir_plugin::Version;
use wasmtime::Store;
use wasmtime::component::{InstancePre, ResourceAny};

use super::{Answer, Bound, Prepared, Spoken, plain};
use crate::error::Fault;
use crate::instance::State;
use crate::shape::{ExpertShape, MatrixShape};
use bindings::exports::kvasir::expert::kernel as contract;

mod bindings {
    wasmtime::component::bindgen!({ path: "../../tests/wit/0.2.0", world: "expert-kernel" });
}

/// This version.
pub(super) const SPOKEN: Spoken =
    Spoken { version: Version { major: 0, minor: 2, patch: 0 }, prepare: |found| prepare(found) };

fn prepare(found: InstancePre<State>) -> wasmtime::Result<Arc<dyn Prepared>> {
    Ok(Arc::new(bindings::ExpertKernelPre::new(found)?))
}

impl Prepared for bindings::ExpertKernelPre<State> {
    fn instantiate(&self, store: &mut Store<State>) -> wasmtime::Result<Box<dyn Bound>> {
        Ok(Box::new(self.instantiate(store)?))
    }
}

impl Bound for bindings::ExpertKernel {
    fn load(
        &self,
        store: &mut Store<State>,
        shape: &ExpertShape,
        [gate, up, down]: [&[u8]; 3],
    ) -> Answer<ResourceAny> {
        let Some(shape) = named(shape) else {
            return Ok(Err(Fault::Unsupported("contract 0.2.0 has no name for the format".to_owned())));
        };
        let answer = self.kvasir_expert_kernel().expert().call_load(store, shape, gate, up, down)?;
        Ok(answer.map_err(Fault::from))
    }

    fn forward(
        &self,
        store: &mut Store<State>,
        expert: ResourceAny,
        rows: &[u8],
        count: u32,
    ) -> Answer<Vec<f32>> {
        let answer = self.kvasir_expert_kernel().expert().call_forward(store, expert, count, rows)?;
        Ok(answer.map_err(Fault::from))
    }
}

impl From<contract::Fault> for Fault {
    fn from(fault: contract::Fault) -> Self {
        match fault {
            contract::Fault::Unsupported(text) => Fault::Unsupported(plain(&text)),
            contract::Fault::MalformedWeights => Fault::MalformedWeights,
            contract::Fault::MalformedRows => Fault::MalformedRows,
            contract::Fault::NotFinite => Fault::NotFinite,
            contract::Fault::OutOfMemory => Fault::Unsupported("out of memory".to_owned()),
        }
    }
}

fn named(shape: &ExpertShape) -> Option<contract::Shape> {
    let matrix = |matrix: MatrixShape| {
        let format = match matrix.format.number() {
            0 => contract::Format::Float32,
            8 => contract::Format::Q80,
            12 => contract::Format::Q4K,
            _ => return None,
        };
        Some(contract::Matrix { format, rows: matrix.rows, columns: matrix.columns })
    };
    Some(contract::Shape { gate: matrix(shape.gate)?, up: matrix(shape.up)?, down: matrix(shape.down)? })
}
