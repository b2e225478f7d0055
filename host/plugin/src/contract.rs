//! Versions of the contract between a host and a kernel: which one a plugin was built for, and whether this host speaks it.
//!
//! A version is a folder of `wit/`, frozen once released. A host speaks the newest and the one before. It does not guess:
//! a version that it was not built with is refused, and the refusal says which side is to be updated. What a version
//! means is the sandbox's to know.

use crate::version::Version;

/// The versions of the contract that this host speaks, oldest first: the newest released one and the one before it.
pub const CONTRACTS: &[Version] = &[Version { major: 0, minor: 1, patch: 0 }];

/// The world, without its version.
const WORLD: &str = "kvasir:expert/expert-kernel@";

/// Why a plugin's contract is not one that this host speaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// Not a world of kernels, or no version at its end.
    #[error(
        "the plugin names the world {found:?}; this host runs kernels of the world \"{WORLD}MAJOR.MINOR.PATCH\": write that \
         into plugin.toml, with the version of the contract that the kernel was built for"
    )]
    NotAKernel {
        /// The world in the manifest.
        found: String,
    },
    /// Built for a contract that came after this host.
    #[error("the kernel was built for contract {asked}, this host speaks {}: update kvasir", list(.spoken))]
    HostTooOld {
        /// The version that the kernel was built for.
        asked: Version,
        /// The versions that this host speaks, oldest first.
        spoken: Vec<Version>,
    },
    /// Built for a contract that this host no longer speaks.
    #[error(
        "the kernel was built for contract {asked}, this host speaks {}: {asked} is too old, ask the publisher for a newer \
         build", list(.spoken)
    )]
    KernelTooOld {
        /// The version that the kernel was built for.
        asked: Version,
        /// The versions that this host speaks, oldest first.
        spoken: Vec<Version>,
    },
    /// Between two versions that this host speaks, and neither of them: a later repair of the older, or never released.
    #[error(
        "the kernel was built for contract {asked}, this host speaks {} and nothing between: update kvasir, or ask the \
         publisher for a build for one of these", list(.spoken)
    )]
    Unknown {
        /// The version that the kernel was built for.
        asked: Version,
        /// The versions that this host speaks, oldest first.
        spoken: Vec<Version>,
    },
}

/// The world of a version of the contract, as `plugin.toml` and a component's type name it.
pub fn contract_world(version: Version) -> String {
    format!("{WORLD}{version}")
}

/// The version of the contract that `world` names, if it is one of `spoken` (oldest first; [`CONTRACTS`] but in tests).
pub fn negotiate(world: &str, spoken: &[Version]) -> Result<Version, ContractError> {
    let Some(asked) = world.strip_prefix(WORLD).and_then(|version| version.parse::<Version>().ok()) else {
        return Err(ContractError::NotAKernel { found: world.to_owned() });
    };
    if spoken.contains(&asked) {
        return Ok(asked);
    }
    let newer = spoken.iter().any(|version| *version > asked);
    let older = spoken.iter().any(|version| *version < asked);
    let spoken = spoken.to_vec();
    Err(match (older, newer) {
        (true, true) => ContractError::Unknown { asked, spoken },
        (false, true) => ContractError::KernelTooOld { asked, spoken },
        (_, false) => ContractError::HostTooOld { asked, spoken },
    })
}

/// Whether `newer` claims that what was built for `older` works with it: the same major version, and before 1.0 the same
/// minor version.
pub fn claims_compatibility(older: Version, newer: Version) -> bool {
    older <= newer && older.major == newer.major && (older.major > 0 || older.minor == newer.minor)
}

fn list(versions: &[Version]) -> String {
    let texts: Vec<String> = versions.iter().map(Version::to_string).collect();
    match texts.split_last() {
        None => "none".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn answer(asked: &str, spoken: &[&str]) -> Result<Version, String> {
        let spoken: Vec<Version> = spoken.iter().map(|text| version(text)).collect();
        negotiate(&format!("{WORLD}{asked}"), &spoken).map_err(|error| error.to_string())
    }

    #[test]
    fn the_newest_and_the_one_before_are_spoken_and_no_other() {
        let spoken = ["0.1.0", "0.2.0"];
        assert_eq!(answer("0.1.0", &spoken), Ok(version("0.1.0")));
        assert_eq!(answer("0.2.0", &spoken), Ok(version("0.2.0")));
        assert_eq!(
            answer("0.3.0", &spoken).unwrap_err(),
            "the kernel was built for contract 0.3.0, this host speaks 0.1.0 and 0.2.0: update kvasir"
        );
        assert_eq!(
            answer("0.1.0", &["0.2.0", "0.3.0"]).unwrap_err(),
            "the kernel was built for contract 0.1.0, this host speaks 0.2.0 and 0.3.0: 0.1.0 is too old, ask the publisher \
             for a newer build"
        );
        assert_eq!(
            answer("0.1.1", &spoken).unwrap_err(),
            "the kernel was built for contract 0.1.1, this host speaks 0.1.0 and 0.2.0 and nothing between: update kvasir, \
             or ask the publisher for a build for one of these"
        );
        assert_eq!(
            answer("0.2.0", &["0.1.0"]).unwrap_err(),
            "the kernel was built for contract 0.2.0, this host speaks 0.1.0: update kvasir"
        );
    }

    #[test]
    fn a_text_that_names_no_version_of_the_world_is_told_so() {
        for world in [
            "",
            "kvasir:expert/expert-kernel",
            "kvasir:expert/expert-kernel@",
            "kvasir:expert/expert-kernel@0.1",
            "kvasir:expert/expert-kernel@0.1.0-rc1",
            "kvasir:expert/expert-kernel@0.1.0 ",
            "kvasir:expert/other@0.1.0",
            "wasi:cli/command@0.2.0",
        ] {
            let refused = negotiate(world, CONTRACTS).unwrap_err();
            assert_eq!(refused, ContractError::NotAKernel { found: world.to_owned() });
        }
    }

    #[test]
    fn compatibility_is_claimed_as_cargo_reads_versions() {
        for (older, newer, claimed) in [
            ("0.1.0", "0.1.1", true),
            ("0.1.0", "0.2.0", false),
            ("0.1.1", "0.1.0", false),
            ("1.0.0", "1.4.0", true),
            ("1.4.0", "2.0.0", false),
            ("0.9.0", "1.0.0", false),
        ] {
            assert_eq!(claims_compatibility(version(older), version(newer)), claimed, "{older} {newer}");
        }
    }

    #[test]
    fn a_host_speaks_two_versions_at_most_in_order() {
        assert!((1..=2).contains(&CONTRACTS.len()));
        assert!(CONTRACTS.is_sorted_by(|a, b| a < b));
        assert_eq!(contract_world(CONTRACTS[0]), "kvasir:expert/expert-kernel@0.1.0");
    }
}
