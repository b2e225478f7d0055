//! A host that speaks two versions of the contract runs a kernel built for either, and refuses others by name of the side
//! that is to be updated.

use std::time::Duration;

use kvasir_plugin::{CONTRACTS, ContractError, PackageContents, Version, contract_world};

use super::{SPOKEN, Spoken, v0_1_0, v0_2_0};
use crate::{
    CompiledKernel, Engine, ExpertShape, Fault, KernelLimits, MatrixShape, SandboxError, WeightFormat,
};

#[path = "../../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

const HIDDEN: u32 = 8;
const WIDTH: u32 = 4;
const TWO: &[Spoken] = &[v0_1_0::SPOKEN, v0_2_0::SPOKEN];
const LIMITS: KernelLimits = KernelLimits {
    memory_bytes: 64 << 20,
    fuel_per_call: 10_000_000,
    rows_per_call: u32::MAX,
    deadline: Duration::from_secs(60),
};

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

/// Compiles a kernel whose component was made for contract `component` and whose plugin.toml says `manifest`.
fn compile(spoken: &[Spoken], component: &str, manifest: &str) -> Result<CompiledKernel, SandboxError> {
    let text = String::from_utf8(plugin::manifest(64 << 20, 10_000_000)).unwrap();
    let world = contract_world(version("0.1.0"));
    let contents = PackageContents {
        manifest: text.replace(&world, &contract_world(version(manifest))).into_bytes(),
        component: match component {
            "0.1.0" => plugin::kernel("honest"),
            _ => plugin::kernel_of("honest-0.2.0", &plugin::root().join("tests/wit/0.2.0/expert.wit")),
        },
        ..PackageContents::default()
    };
    CompiledKernel::compile_speaking(spoken, &Engine::shared().unwrap(), &plugin::verified(&contents))
}

fn shape(format: u32) -> ExpertShape {
    let format = WeightFormat::from_gguf(format).unwrap();
    let wide = MatrixShape { format, rows: WIDTH, columns: HIDDEN };
    ExpertShape { gate: wide, up: wide, down: MatrixShape { format, rows: HIDDEN, columns: WIDTH } }
}

/// Two rows through a fresh instance.
fn two_rows(kernel: &CompiledKernel) -> Vec<f32> {
    let mut instance = kernel.instantiate(LIMITS).unwrap();
    let weights = vec![0; (HIDDEN * WIDTH * 4) as usize];
    let expert = instance.load(shape(0), &weights, &weights, &weights).unwrap();
    let values = instance.forward(&expert, &vec![0; (2 * HIDDEN * 4) as usize], 2).unwrap();
    instance.unload(expert).unwrap();
    values
}

#[test]
fn a_host_of_two_versions_runs_a_kernel_of_each() {
    for (contract, value) in [("0.1.0", 1.0), ("0.2.0", 2.0)] {
        let kernel = compile(TWO, contract, contract).unwrap();
        assert_eq!(kernel.contract(), version(contract));
        assert_eq!(two_rows(&kernel), vec![value; 16]);
    }
}

#[test]
fn what_a_version_cannot_name_is_a_fault_and_no_trap() {
    let kernel = compile(TWO, "0.2.0", "0.2.0").unwrap();
    let mut instance = kernel.instantiate(LIMITS).unwrap();
    let refused = instance.load(shape(2), &[], &[], &[]).unwrap_err();
    let fault = Fault::Unsupported("contract 0.2.0 has no name for the format".to_owned());
    assert_eq!(refused, SandboxError::Fault { call: "load", fault });
    assert!(!instance.is_poisoned());
}

#[test]
fn other_versions_are_refused_with_the_side_to_update() {
    let refused = |spoken, contract: &str| compile(spoken, contract, contract).err().unwrap();
    let (old, new) = (version("0.1.0"), version("0.2.0"));
    assert_eq!(
        refused(SPOKEN, "0.2.0"),
        ContractError::HostTooOld { asked: new, spoken: CONTRACTS.to_vec() }.into()
    );
    let later: &[Spoken] = &[v0_2_0::SPOKEN];
    assert_eq!(refused(later, "0.1.0"), ContractError::KernelTooOld { asked: old, spoken: vec![new] }.into());
    assert_eq!(
        refused(TWO, "0.3.0").to_string(),
        "the kernel was built for contract 0.3.0, this host speaks 0.1.0 and 0.2.0: update kvasir"
    );
}

#[test]
fn a_component_of_another_version_than_its_manifest_says_is_refused() {
    for (component, manifest) in [("0.1.0", "0.2.0"), ("0.2.0", "0.1.0")] {
        let refused = compile(TWO, component, manifest).err().unwrap();
        let SandboxError::WrongWorld { world, .. } = &refused else { panic!("{refused}") };
        assert_eq!(*world, contract_world(version(manifest)));
    }
}

#[test]
fn the_versions_with_bindings_are_those_that_the_package_format_names() {
    let bound: Vec<Version> = SPOKEN.iter().map(|contract| contract.version).collect();
    assert_eq!(bound, CONTRACTS);
}
