//! Why a request has no answer; becomes a reply.

use kvasir_gpu::message::{Fault, Reply};

/// A fault and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    /// By whose fault.
    pub fault: Fault,
    /// What is wrong.
    pub reason: String,
}

impl Failure {
    /// There is no device that can be used.
    pub fn device(reason: impl Into<String>) -> Self {
        Failure { fault: Fault::NoDevice, reason: reason.into() }
    }

    /// The device has no room.
    pub fn room(reason: impl Into<String>) -> Self {
        Failure { fault: Fault::NoRoom, reason: reason.into() }
    }

    /// The shader is refused.
    pub fn shader(reason: impl Into<String>) -> Self {
        Failure { fault: Fault::Shader, reason: reason.into() }
    }

    /// The request makes no sense.
    pub fn request(reason: impl Into<String>) -> Self {
        Failure { fault: Fault::Request, reason: reason.into() }
    }

    /// As a reply.
    pub fn reply(self) -> Reply<'static> {
        Reply::Failed { fault: self.fault, reason: self.reason }
    }
}
