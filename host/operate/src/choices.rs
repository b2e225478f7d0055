//! Words that stand on the command line, in `KVASIR_*` variables and in the settings file alike.

use kvasir_wire::handshake::Class;
use serde::Deserialize;

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

impl From<AcceptChoice> for Class {
    fn from(choice: AcceptChoice) -> Class {
        match choice {
            AcceptChoice::Exact => Class::Exact,
            AcceptChoice::Tolerance => Class::Tolerance,
        }
    }
}
