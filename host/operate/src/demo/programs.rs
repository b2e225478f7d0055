//! The programs of this build, as commands that report JSON and see none of the caller's own settings.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The programs of this build.
pub(super) struct Programs {
    folder: PathBuf,
    home: PathBuf,
}

impl Programs {
    /// The programs lie in the folder of the running one.
    pub(super) fn beside_this_one(home: &Path) -> Result<Programs> {
        let this = std::env::current_exe().context("this program does not know where it lies")?;
        let mut folder = this.parent().map(Path::to_path_buf).context("this program lies in no folder")?;
        if folder.ends_with("deps") {
            folder.pop();
        }
        for name in ["kvasir", "kvasir-gateway", "kvasir-ledger"] {
            if !folder.join(name).exists() {
                bail!(
                    "{name} is missing in {}: build it with cargo build --workspace --bins",
                    folder.display()
                );
            }
        }
        Ok(Programs { folder, home: home.to_path_buf() })
    }

    pub(super) fn kvasir(&self) -> Command {
        let mut command = self.program("kvasir");
        command.arg("--home").arg(&self.home);
        command
    }

    pub(super) fn gateway(&self) -> Command {
        self.program("kvasir-gateway")
    }

    pub(super) fn ledger(&self) -> Command {
        self.program("kvasir-ledger")
    }

    /// A program that reports as JSON and sees none of the caller's own settings.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.folder.join(name));
        for (variable, _) in std::env::vars_os() {
            if variable.to_str().is_some_and(|name| name.starts_with("KVASIR_") && name != "KVASIR_LOG") {
                command.env_remove(&variable);
            }
        }
        command.arg("--json");
        command
    }
}
