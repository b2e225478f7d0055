//! Where things are: the settings file, the environment, and the usual folders.
//!
//! Precedence: a flag, then `KVASIR_*` (both by way of the command line), then the settings file, then the default.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use etcetera::{AppStrategy, AppStrategyArgs, choose_app_strategy};
use kvasir_plugin_store::Store;
use serde::Deserialize;

use crate::choices::{AcceptChoice, DeviceChoice, IsolationChoice, VerifyChoice};
use crate::files;
use crate::probes::{ProbeOptions, ProbeRate};
use crate::serve::ServeSettings;

/// The settings file may not be larger: it is read whole.
const SETTINGS_BYTES_MAX: u64 = 64 * 1024;
/// Where evidence against workers goes, in the data folder.
const EVIDENCE_FOLDER: &str = "evidence";
/// The demo model, where a checkout is the working folder.
const CHECKOUT_MODEL: &str = "models/atlas/atlas-q4_k_m.gguf";

/// The settings file, `config.toml` in the configuration folder. Every field may be left out.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsFile {
    /// Model that `run`, `serve`, `bench` and `inspect` take where none is named.
    pub model: Option<PathBuf>,
    /// Package of the expert kernel; none means the active one of those installed.
    pub plugin: Option<PathBuf>,
    /// Folder of the publishers' public keys that are trusted, instead of whom the root trusts.
    pub trust: Option<PathBuf>,
    /// Threads of the forward pass.
    pub threads: Option<usize>,
    /// What computes experts on this machine: `cpu` or `gpu`.
    pub device: Option<DeviceChoice>,
    /// In which process `worker` runs kernels: `process` or `none`.
    pub isolation: Option<IsolationChoice>,
    /// The loosest class of results that `run` and `serve` accept from workers: `exact` or `tolerance`.
    pub accept: Option<AcceptChoice>,
    /// Which answers of workers `run` and `serve` compute again: `all`, `none`, `usual` or `FIRST,ONE_IN`.
    pub verify: Option<VerifyChoice>,
    /// Folder for the records of probes that `run` mixes in; none means that it mixes none in.
    pub probes: Option<PathBuf>,
    /// Passes of probes for each pass of one's own text, 0 to 1.
    pub probe_rate: Option<ProbeRate>,
    /// Prompts for probes instead of the bundled ones, one a line.
    pub probe_prompts: Option<PathBuf>,
    /// Folder for the records of all calls of `run` and `serve`, for its owner's own replay.
    pub keep_rows: Option<PathBuf>,
    /// Folder for evidence against workers whose answers `run` and `serve` found wrong; none means `evidence` in the data folder, an
    /// empty one that none is kept.
    pub evidence: Option<PathBuf>,
    /// What `serve` is told.
    #[serde(default)]
    pub serve: ServeSettings,
}

/// Folders and defaults of this user.
#[derive(Debug, Clone)]
pub struct Settings {
    file: SettingsFile,
    /// Holds `config.toml`, `trust/` and `keys/`.
    pub configuration_folder: PathBuf,
    /// Holds `plugins/` and `evidence/`.
    pub data_folder: PathBuf,
}

impl Settings {
    /// Read the settings: from `explicit` where given (it must exist), else from the usual place, where there may be none.
    ///
    /// # Errors
    /// Where the file is unreadable, too large, or holds a key that is not known.
    pub fn load(explicit: Option<&Path>, home: Option<&Path>) -> Result<Settings> {
        let (configuration_folder, data_folder) = match home {
            Some(home) => (home.join("config"), home.join("data")),
            None => {
                let program = AppStrategyArgs { app_name: "kvasir".to_owned(), ..AppStrategyArgs::default() };
                let folders = choose_app_strategy(program)
                    .context("no home folder is known: set HOME, or name one with --home")?;
                (folders.config_dir(), folders.data_dir())
            }
        };
        let usual = configuration_folder.join("config.toml");
        // A link that leads nowhere is a settings file that cannot be read, and none that is not there.
        let is_there = || usual.symlink_metadata().is_ok() || usual.try_exists().is_err();
        let file = match explicit {
            Some(path) => read_settings(path)?,
            None if is_there() => read_settings(&usual)?,
            None => SettingsFile::default(),
        };
        Ok(Settings { file, configuration_folder, data_folder })
    }

    /// The model to use: `named`, the settings file's, or atlas where the working folder is a checkout.
    ///
    /// # Errors
    /// Where none is named and none is found.
    pub fn model(&self, named: Option<&Path>) -> Result<PathBuf> {
        if let Some(path) = named.map(Path::to_path_buf).or_else(|| self.file.model.clone()) {
            return Ok(path);
        }
        let atlas = PathBuf::from(CHECKOUT_MODEL);
        if atlas.exists() {
            return Ok(atlas);
        }
        bail!(
            "no model is named: use --model FILE, set KVASIR_MODEL, or write `model = \"...\"` to {}",
            self.configuration_folder.join("config.toml").display()
        )
    }

    /// The kernel package that is named, on the command line or in the settings file; where none is, the active one is used.
    pub fn plugin(&self, named: Option<&Path>) -> Option<PathBuf> {
        named.map(Path::to_path_buf).or_else(|| self.file.plugin.clone())
    }

    /// The folder of trusted publishers' keys that is named, on the command line or in the settings file; where none is, the root
    /// says who is trusted.
    pub fn trust_folder(&self, named: Option<&Path>) -> Option<PathBuf> {
        named.map(Path::to_path_buf).or_else(|| self.file.trust.clone())
    }

    /// Installed plugins, and whom the operator trusts.
    pub fn store(&self) -> Store {
        Store::open(&self.data_folder, &self.configuration_folder)
    }

    /// Threads of the forward pass; none means one a core.
    pub fn threads(&self, named: Option<usize>) -> Option<usize> {
        named.or(self.file.threads)
    }

    /// What computes experts on this machine.
    pub fn device(&self, named: Option<DeviceChoice>) -> DeviceChoice {
        named.or(self.file.device).unwrap_or_default()
    }

    /// In which process a worker runs kernels and foreign ones are tried: in one of their own, unless somebody says otherwise.
    pub fn isolation(&self, named: Option<IsolationChoice>) -> IsolationChoice {
        named.or(self.file.isolation).unwrap_or(IsolationChoice::Process)
    }

    /// What is probed and kept: what was told, else what the settings file says. Evidence is kept unless its folder is named as empty.
    pub fn probes(&self, told: &ProbeOptions) -> ProbeOptions {
        let told = told.clone();
        ProbeOptions {
            folder: told.folder.or_else(|| self.file.probes.clone()),
            rate: told.rate.or(self.file.probe_rate),
            prompts: told.prompts.or_else(|| self.file.probe_prompts.clone()),
            rows: told.rows.or_else(|| self.file.keep_rows.clone()),
            evidence: told
                .evidence
                .or_else(|| self.file.evidence.clone())
                .or_else(|| Some(self.data_folder.join(EVIDENCE_FOLDER)))
                .filter(|folder| !folder.as_os_str().is_empty()),
        }
    }

    /// Which answers of workers are computed again here.
    pub fn verify(&self, named: Option<VerifyChoice>) -> VerifyChoice {
        named.or(self.file.verify).unwrap_or_default()
    }

    /// What the settings file says of `serve`.
    pub fn serve(&self) -> &ServeSettings {
        &self.file.serve
    }

    /// The loosest class of results that is accepted from workers.
    pub fn accept(&self, named: Option<AcceptChoice>) -> AcceptChoice {
        named.or(self.file.accept).unwrap_or_default()
    }
}

fn read_settings(path: &Path) -> Result<SettingsFile> {
    let text = files::read_text_bounded(path, SETTINGS_BYTES_MAX)
        .with_context(|| format!("cannot read the settings file {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("the settings file {} is not understood", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let home = tempfile::tempdir().unwrap();
        let none = Settings::load(None, Some(home.path())).unwrap();
        assert_eq!((none.plugin(None), none.trust_folder(None)), (None, None));
        fs::create_dir_all(home.path().join("config")).unwrap();
        let text = "plugin = '/elsewhere/k.kvp'\nthreads = 3\ndevice = 'gpu'\naccept = 'tolerance'\nisolation = 'none'\nverify = '9,2'\n";
        fs::write(home.path().join("config/config.toml"), text).unwrap();
        let some = Settings::load(None, Some(home.path())).unwrap();
        assert_eq!(some.plugin(None), Some(PathBuf::from("/elsewhere/k.kvp")));
        assert_eq!(some.plugin(Some(Path::new("/flag.kvp"))), Some(PathBuf::from("/flag.kvp")));
        assert_eq!(some.threads(None), Some(3));
        assert_eq!((none.device(None), none.accept(None)), (DeviceChoice::Cpu, AcceptChoice::Exact));
        assert_eq!((some.device(None), some.accept(None)), (DeviceChoice::Gpu, AcceptChoice::Tolerance));
        assert_eq!(none.verify(None), "256,64".parse().unwrap());
        assert_eq!(some.verify(None), "9,2".parse().unwrap());
        assert_eq!(some.verify(Some("all".parse().unwrap())), "all".parse().unwrap());
        assert_eq!(none.isolation(None), IsolationChoice::Process);
        assert_eq!(some.isolation(None), IsolationChoice::None);
        assert_eq!(some.isolation(Some(IsolationChoice::Process)), IsolationChoice::Process);
        assert_eq!(some.device(Some(DeviceChoice::Cpu)), DeviceChoice::Cpu);
        assert_eq!(some.accept(Some(AcceptChoice::Exact)), AcceptChoice::Exact);
    }

    #[test]
    fn probes_have_settings_too() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("c.toml");
        fs::write(&path, "probes = '/p'\nprobe_rate = 0.5\nkeep_rows = '/r'\n").unwrap();
        let settings = Settings::load(Some(&path), Some(home.path())).unwrap();
        let told = ProbeOptions { folder: Some("/flag".into()), ..ProbeOptions::default() };
        let probes = settings.probes(&told);
        assert_eq!((probes.folder, probes.rows), (Some("/flag".into()), Some("/r".into())));
        assert_eq!(probes.rate.map(ProbeRate::get), Some(0.5));
        assert_eq!(probes.evidence, Some(home.path().join("data/evidence")));
        fs::write(&path, "evidence = '/e'\n").unwrap();
        let settings = Settings::load(Some(&path), Some(home.path())).unwrap();
        assert_eq!(settings.probes(&ProbeOptions::default()).evidence, Some("/e".into()));
        // Nothing is kept where an empty folder is told, and a folder that is told goes before an empty one in the file.
        let told = |folder: &str| ProbeOptions { evidence: Some(folder.into()), ..ProbeOptions::default() };
        assert_eq!(settings.probes(&told("")).evidence, None);
        fs::write(&path, "evidence = ''\n").unwrap();
        let settings = Settings::load(Some(&path), Some(home.path())).unwrap();
        assert_eq!(settings.probes(&ProbeOptions::default()).evidence, None);
        assert_eq!(settings.probes(&told("/e")).evidence, Some("/e".into()));
        fs::write(&path, "probe_rate = 1.5\n").unwrap();
        let error = format!("{:#}", Settings::load(Some(&path), Some(home.path())).unwrap_err());
        assert!(error.contains("between 0 and 1"), "{error}");
    }

    #[test]
    fn a_settings_file_that_leads_nowhere_is_an_error_and_one_that_is_not_there_is_none() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("config");
        assert!(Settings::load(None, Some(home.path())).is_ok());
        fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink("gone.toml", folder.join("config.toml")).unwrap();
        let error = format!("{:#}", Settings::load(None, Some(home.path())).unwrap_err());
        assert!(error.contains("cannot read the settings file") && error.contains("config.toml"), "{error}");
        fs::write(folder.join("gone.toml"), "threads = 3\n").unwrap();
        assert_eq!(Settings::load(None, Some(home.path())).unwrap().threads(None), Some(3));
    }

    #[test]
    fn an_unknown_setting_and_an_oversized_file_are_refused_by_name() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("c.toml");
        fs::write(&path, "modle = 'x'\n").unwrap();
        let error = format!("{:#}", Settings::load(Some(&path), Some(home.path())).unwrap_err());
        assert!(error.contains("modle"), "{error}");
        fs::write(&path, vec![b'#'; SETTINGS_BYTES_MAX as usize + 1]).unwrap();
        let error = format!("{:#}", Settings::load(Some(&path), Some(home.path())).unwrap_err());
        assert!(error.contains("65536"), "{error}");
    }
}
