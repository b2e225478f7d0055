//! Words that stand on the command line, in `KVASIR_*` variables and in the settings file alike.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use kvasir_dispatch::{Verify, VerifyTextError};
use kvasir_experts::{Device, GpuOptions, Isolation, KernelOptions};
use kvasir_wire::handshake::Class;
use serde::Deserialize;

use crate::quarantine::FailureFiles;
use crate::settings::Settings;

/// Folder of compiled kernels, in the data folder.
const COMPILED_FOLDER: &str = "compiled-kernels";

/// The loosest class of results that a backbone accepts from workers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptChoice {
    /// Bit for bit alone: workers that compute on a GPU are refused.
    #[default]
    Exact,
    /// Within the plugin's stated tolerance as well.
    Tolerance,
}

impl AcceptChoice {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            AcceptChoice::Exact => "exact",
            AcceptChoice::Tolerance => "tolerance",
        }
    }
}

/// Which answers of workers are computed again here: `all`, `none`, `usual`, or `FIRST,ONE_IN`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct VerifyChoice(pub Verify);

impl FromStr for VerifyChoice {
    type Err = VerifyTextError;

    fn from_str(text: &str) -> Result<VerifyChoice, VerifyTextError> {
        text.parse().map(VerifyChoice)
    }
}

impl TryFrom<String> for VerifyChoice {
    type Error = VerifyTextError;

    fn try_from(text: String) -> Result<VerifyChoice, VerifyTextError> {
        text.parse()
    }
}

/// What computes experts on this machine.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// The plugin's WASM kernel on the processor, bit for bit.
    #[default]
    Cpu,
    /// The plugin's WGSL kernel on a GPU, within its stated tolerance.
    Gpu,
}

impl DeviceChoice {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceChoice::Cpu => "cpu",
            DeviceChoice::Gpu => "gpu",
        }
    }

    /// The device for a runner. The GPU's failures are remembered in files of the data folder.
    ///
    /// # Errors
    /// Where these cannot be written.
    pub fn open(self, settings: &Settings) -> Result<Device> {
        Ok(match self {
            DeviceChoice::Cpu => Device::Cpu,
            DeviceChoice::Gpu => {
                let history = Arc::new(FailureFiles::open(settings)?);
                Device::Gpu(GpuOptions { history, ..GpuOptions::default() })
            }
        })
    }
}

/// In which process the kernels of a plugin compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IsolationChoice {
    /// In a confined process of the plugin's own.
    Process,
    /// In this program's, behind the WebAssembly engine alone.
    None,
}

impl IsolationChoice {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            IsolationChoice::Process => "process",
            IsolationChoice::None => "none",
        }
    }

    /// The isolation for a kernel that is tried once: nothing is kept, and nothing remembered.
    pub fn for_a_trial(self) -> Isolation {
        match self {
            IsolationChoice::None => Isolation::InProcess,
            IsolationChoice::Process => Isolation::Process(KernelOptions::default()),
        }
    }

    /// The isolation for a runner. Compiled kernels are kept, and failures remembered, in the data folder.
    ///
    /// # Errors
    /// Where these cannot be written.
    pub fn open(self, settings: &Settings) -> Result<Isolation> {
        Ok(match self {
            IsolationChoice::None => Isolation::InProcess,
            IsolationChoice::Process => Isolation::Process(KernelOptions {
                cache: Some(settings.data_folder.join(COMPILED_FOLDER)),
                history: Arc::new(FailureFiles::of_kernels(settings)?),
                ..KernelOptions::default()
            }),
        })
    }
}

impl From<AcceptChoice> for Class {
    fn from(choice: AcceptChoice) -> Class {
        match choice {
            AcceptChoice::Exact => Class::Exact,
            AcceptChoice::Tolerance => Class::Tolerance,
        }
    }
}
