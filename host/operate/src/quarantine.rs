//! Plugins that failed, remembered in files, so that a restart forgets none; and `kvasir plugin quarantine`, which shows and lifts.
//!
//! One file for each plugin in a folder of the data folder, `gpu-failures` or `kernel-failures`, one line for each failure: unix
//! seconds and what happened. Lines are appended, so that several programs may count at one time. Nothing is ever forgotten by
//! itself: who wants a plugin back lifts its quarantine.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use kvasir_experts::{FailureHistory, FailureKind, GpuOptions, KernelOptions, UNREADABLE_FAILURES};
use kvasir_plugin::PluginDigest;
use serde_json::json;

use crate::files::{self, Draft};
use crate::settings::Settings;
use crate::{output, setup};

/// Folder of the files of shaders, in the data folder.
const FOLDER: &str = "gpu-failures";
/// Folder of the files of WASM kernels in processes of their own.
const KERNEL_FOLDER: &str = "kernel-failures";
/// What the files' names end in.
const EXTENSION: &str = "failures";
/// Most bytes that are read of one file: a thousand times the lines that end a plugin's life.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Counts failures in files.
#[derive(Debug)]
pub struct FailureFiles {
    folder: PathBuf,
    /// What could not be written counts as well, as long as this program runs.
    unwritten: Mutex<HashMap<PluginDigest, u32>>,
}

impl FailureFiles {
    /// The files of shaders; their folder is made where it is missing.
    ///
    /// # Errors
    /// Where nothing can be written there: a quarantine would not outlive the program.
    pub fn open(settings: &Settings) -> Result<FailureFiles> {
        Self::in_folder(settings, FOLDER)
    }

    /// The files of WASM kernels in processes of their own.
    ///
    /// # Errors
    /// As [`FailureFiles::open`].
    pub fn of_kernels(settings: &Settings) -> Result<FailureFiles> {
        Self::in_folder(settings, KERNEL_FOLDER)
    }

    fn in_folder(settings: &Settings, folder: &str) -> Result<FailureFiles> {
        let folder = settings.data_folder.join(folder);
        files::writable_folder(&folder).context("failures of kernels could not be remembered")?;
        Ok(FailureFiles { folder, unwritten: Mutex::default() })
    }

    fn path(&self, plugin: PluginDigest) -> PathBuf {
        self.folder.join(format!("{plugin}.{EXTENSION}"))
    }
}

impl FailureHistory for FailureFiles {
    fn failures(&self, plugin: PluginDigest) -> u32 {
        let unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        let unwritten = unwritten.get(&plugin).copied().unwrap_or(0);
        let path = self.path(plugin);
        // A file that cannot be read may say anything: the plugin is not run.
        lines(&path).map_or_else(
            |error| {
                tracing::error!(%error, path = %path.display(), "cannot be read, so the plugin counts as failed");
                UNREADABLE_FAILURES
            },
            |lines| u32::try_from(lines.len()).unwrap_or(u32::MAX).saturating_add(unwritten),
        )
    }

    fn record(&self, plugin: PluginDigest, kind: FailureKind) -> u32 {
        let kind = match kind {
            FailureKind::Deadline => "killed at its deadline",
            FailureKind::Crash => "ended by itself",
            FailureKind::Trap => "trapped or exceeded a limit",
        };
        let path = self.path(plugin);
        if let Err(error) = append(&path, &format!("{} {kind}\n", setup::now().0)) {
            tracing::error!(%error, path = %path.display(), "a failure is remembered only until this program ends");
            let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
            let count = unwritten.entry(plugin).or_insert(0);
            *count = count.saturating_add(1);
        }
        self.failures(plugin)
    }
}

/// What to do about a plugin in quarantine; to be shown where one is the reason for something.
pub fn remedy(plugin: impl std::fmt::Display) -> String {
    format!(
        "a kernel of it ran too long, trapped or crashed, or the record of that is damaged: `kvasir plugin quarantine` says which, \
         where and how often; tell its publisher; `kvasir plugin quarantine --lift {plugin}` lets it run again, and if it was on the \
         GPU, `--device cpu` computes with its WASM kernel"
    )
}

/// Whether the WASM kernel of `plugin` is in quarantine, and whether its shader is. Writes nothing, and makes no folder.
pub fn quarantined(settings: &Settings, plugin: PluginDigest) -> (bool, bool) {
    let in_quarantine = |folder: &str, after: u32| {
        let path = settings.data_folder.join(folder).join(format!("{plugin}.{EXTENSION}"));
        match lines(&path) {
            Ok(lines) => lines.len() >= after as usize,
            // It may say anything: the plugin is not run.
            Err(_) => true,
        }
    };
    (
        in_quarantine(KERNEL_FOLDER, KernelOptions::default().quarantine_after),
        in_quarantine(FOLDER, GpuOptions::default().quarantine_after),
    )
}

/// `kvasir plugin quarantine`: the plugins that failed, or the end of one's quarantine.
///
/// # Errors
/// Where a file cannot be read or removed, or the plugin to lift is not among them.
pub fn command(settings: &Settings, lift: Option<&str>, json: bool) -> Result<()> {
    let folders = [FOLDER, KERNEL_FOLDER].map(|folder| settings.data_folder.join(folder));
    if let Some(digest) = lift {
        let Some(plugin) = PluginDigest::from_hex(digest) else {
            bail!(
                "{digest:?} is no plugin digest: give 64 lower-case hexadecimal digits, as the list shows them"
            );
        };
        let mut lifted = false;
        for folder in &folders {
            let path = folder.join(format!("{plugin}.{EXTENSION}"));
            // Whatever lies there, an empty folder too, keeps the plugin from running.
            let removed = if path.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) };
            match removed {
                Ok(()) => lifted = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let what =
                        format!("the failures of plugin {plugin} in {} cannot be removed", folder.display());
                    return Err(error).context(what);
                }
            }
        }
        if !lifted {
            bail!("no failure of plugin {plugin} is remembered in {}", settings.data_folder.display());
        }
        return if json {
            output::object(&json!({"lifted": plugin.to_string()}))
        } else {
            output::line(format!("plugin {plugin} may run again; restart the worker"))
        };
    }
    let after = GpuOptions::default().quarantine_after;
    let mut plugins = Vec::new();
    for (folder, kernel) in folders.iter().zip(["shader", "wasm"]) {
        for (plugin, failures) in all(folder)? {
            let (lines, quarantined) = match failures {
                Ok(lines) => {
                    let quarantined = lines.len() >= after as usize;
                    (lines, quarantined)
                }
                Err(error) => (vec![format!("cannot be read and counts as failed: {error}")], true),
            };
            plugins.push(json!({
                "plugin": plugin.to_string(), "kernel": kernel, "failures": lines, "quarantined": quarantined,
            }));
        }
    }
    if json {
        return output::object(&json!({"quarantined_after": after, "plugins": plugins}));
    }
    if plugins.is_empty() {
        return output::line("no plugin has failed");
    }
    let mut text = Vec::new();
    for plugin in &plugins {
        let state = if plugin["quarantined"] == true { "in quarantine" } else { "may still run" };
        let kernel = plugin["kernel"].as_str().unwrap_or_default();
        text.push(format!("{}  its {kernel} kernel {state}", plugin["plugin"].as_str().unwrap_or_default()));
        let lines = plugin["failures"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
        text.extend(lines.map(|line| format!("  {line}")));
    }
    output::line(text.join("\n"))
}

/// Every plugin with a file, and its lines or why there are none, by digest.
fn all(folder: &Path) -> Result<Vec<(PluginDigest, io::Result<Vec<String>>)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        let digest = path.file_stem().and_then(|stem| stem.to_str()).and_then(PluginDigest::from_hex);
        let Some(plugin) = digest.filter(|_| path.extension().is_some_and(|found| found == EXTENSION)) else {
            continue;
        };
        all.push((plugin, lines(&path)));
    }
    all.sort_by_key(|(plugin, _)| plugin.0);
    Ok(all)
}

/// The failures in a file; none where there is no file.
fn lines(path: &Path) -> io::Result<Vec<String>> {
    let file = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        // A pipe could wait for ever.
        Ok(metadata) if !metadata.is_file() => return Err(io::Error::other("it is not a plain file")),
        Ok(_) => fs::File::open(path)?,
    };
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let is_failure = |line: &str| {
        let (when, what) = line.split_once(' ').unwrap_or((line, ""));
        when.parse::<u64>().is_ok() && !what.is_empty() && !line.contains(output::is_unwelcome)
    };
    if text.is_empty() || !text.lines().all(is_failure) {
        return Err(io::Error::other("it is damaged: a line is no failure, or there is none"));
    }
    Ok(text.lines().map(str::to_owned).collect())
}

/// A file is never there without a line: a reader would take it for a damaged one.
fn append(path: &Path, line: &str) -> io::Result<()> {
    if !path.exists() {
        let mut first = Draft::secret(path).map_err(io::Error::other)?;
        first.write_all(line.as_bytes())?;
        match first.finish_new() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            finished => return finished,
        }
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLUGIN: PluginDigest = PluginDigest([0xab; 32]);

    fn settings(home: &Path) -> Settings {
        Settings::load(None, Some(home)).unwrap()
    }

    #[test]
    fn failures_outlive_whoever_counted_them_and_are_lifted_by_name() {
        let home = tempfile::tempdir().unwrap();
        let settings = settings(home.path());
        let files = FailureFiles::open(&settings).unwrap();
        assert_eq!(files.failures(PLUGIN), 0);
        assert_eq!(files.record(PLUGIN, FailureKind::Deadline), 1);
        assert_eq!(files.record(PLUGIN, FailureKind::Crash), 2);
        let kernels = FailureFiles::of_kernels(&settings).unwrap();
        assert_eq!(kernels.failures(PLUGIN), 0, "the shader's failures are not the kernel's");
        assert_eq!(kernels.record(PLUGIN, FailureKind::Trap), 1);
        let again = FailureFiles::open(&settings).unwrap();
        assert_eq!(again.failures(PLUGIN), 2);
        assert_eq!(again.failures(PluginDigest([1; 32])), 0);
        assert_eq!(all(&settings.data_folder.join(FOLDER)).unwrap()[0].1.as_ref().unwrap().len(), 2);

        command(&settings, Some(&PLUGIN.to_string()), true).unwrap();
        assert_eq!((again.failures(PLUGIN), kernels.failures(PLUGIN)), (0, 0));
        for wrong in [PLUGIN.to_string(), "../../elsewhere".to_owned(), "AB".repeat(32)] {
            assert!(command(&settings, Some(&wrong), true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_read_keeps_the_plugin_from_running() {
        let home = tempfile::tempdir().unwrap();
        let files = FailureFiles::open(&settings(home.path())).unwrap();
        fs::create_dir(files.path(PLUGIN)).unwrap();
        assert_eq!(files.failures(PLUGIN), UNREADABLE_FAILURES);
        assert_eq!(files.record(PLUGIN, FailureKind::Crash), UNREADABLE_FAILURES);
    }

    #[test]
    fn a_damaged_file_lifts_no_quarantine() {
        let home = tempfile::tempdir().unwrap();
        let files = FailureFiles::open(&settings(home.path())).unwrap();
        for text in [
            "",
            "\n",
            "garbage",
            "\0\0\0\0",
            "1 ended by itself\n\n",
            "1 ended by itself\n2",
            "x ended by itself\n",
        ] {
            fs::write(files.path(PLUGIN), text).unwrap();
            assert_eq!(files.failures(PLUGIN), UNREADABLE_FAILURES, "{text:?}");
        }
        fs::write(files.path(PLUGIN), "1 ended by itself\n2 killed at its deadline\n").unwrap();
        assert_eq!(files.failures(PLUGIN), 2);
    }

    #[test]
    fn a_file_larger_than_the_limit_is_read_to_the_limit() {
        let home = tempfile::tempdir().unwrap();
        let files = FailureFiles::open(&settings(home.path())).unwrap();
        fs::write(files.path(PLUGIN), "1 x\n".repeat(MAX_FILE_BYTES as usize)).unwrap();
        assert_eq!(u64::from(files.failures(PLUGIN)), MAX_FILE_BYTES / 4);
    }
}
