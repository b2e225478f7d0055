//! Contract 0.1.0: bindings generated from its frozen text, and what its names mean here.

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
    wasmtime::component::bindgen!({ path: "../../wit/0.1.0", world: "expert-kernel" });
}

/// This version.
pub(super) const SPOKEN: Spoken =
    Spoken { version: Version { major: 0, minor: 1, patch: 0 }, prepare: |found| prepare(found) };

/// Whether the contract has a name for the weight format with a GGUF type number.
pub(crate) fn names_format(number: u32) -> bool {
    format(number).is_some()
}

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
            return Ok(Err(Fault::Unsupported("contract 0.1.0 has no name for the format".to_owned())));
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
        let answer = self.kvasir_expert_kernel().expert().call_forward(store, expert, rows, count)?;
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
        }
    }
}

fn named(shape: &ExpertShape) -> Option<contract::Shape> {
    let matrix = |matrix: MatrixShape| {
        let MatrixShape { format: number, rows, columns } = matrix;
        Some(contract::Matrix { format: format(number.number())?, rows, columns })
    };
    Some(contract::Shape { gate: matrix(shape.gate)?, up: matrix(shape.up)?, down: matrix(shape.down)? })
}

fn format(number: u32) -> Option<contract::Format> {
    use contract::Format;
    Some(match number {
        0 => Format::Float32,
        1 => Format::Float16,
        2 => Format::Q40,
        3 => Format::Q41,
        6 => Format::Q50,
        7 => Format::Q51,
        8 => Format::Q80,
        10 => Format::Q2K,
        11 => Format::Q3K,
        12 => Format::Q4K,
        13 => Format::Q5K,
        14 => Format::Q6K,
        20 => Format::Iq4Nl,
        23 => Format::Iq4Xs,
        30 => Format::Bfloat16,
        39 => Format::Mxfp4,
        _ => return None,
    })
}
