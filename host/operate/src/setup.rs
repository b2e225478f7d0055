//! `kvasir setup`: the kernel that comes with the program, signed by a publisher key of the user's own.
//!
//! No private key travels with the source, so whoever builds Kvasir is the publisher of what they built: the first set-up makes
//! a key, signs the bundled component with it, and puts its public half among the trusted ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use kvasir_plugin::{KeyId, PackageContents, TrustStore, UnixSeconds, Validity, VerifiedPlugin};
use kvasir_wire::key::SecretKey;
use serde_json::json;

use crate::files::{self, Replaceable};
use crate::local::PACKAGE_BYTES_MAX;
use crate::settings::Settings;
use crate::{key_file, output};

/// File name of the package that [`command`] writes.
pub const BUNDLED_PACKAGE_NAME: &str = "swiglu-0.2.0.kvp";
/// How long a signature of one's own holds.
const VALID_DAYS: u64 = 365;
/// A clock that runs a little behind must not refuse what was signed a moment ago.
const CLOCK_SLACK_SECONDS: u64 = 3600;

/// What `kvasir setup` may be told.
pub struct SetupOptions {
    /// Sign again although a valid package is there.
    pub renew: bool,
}

/// `kvasir setup`. Safe to repeat: what is there and valid stays, unless it is an earlier bundled kernel of one's own.
///
/// # Errors
/// Where a key, the package or the trusted key cannot be written, or a package that was written does not verify.
pub fn command(settings: &Settings, options: &SetupOptions, json: bool) -> Result<()> {
    let key_path = settings.configuration_folder.join("keys/publisher.key");
    let package = settings.plugin(None);
    let trust = settings.trust(None);
    let (key, new_key) = key_file::load_or_create(&key_path)?;
    let store = with_own_key(&trust, &key)?;
    let own = KeyId::of(&key.signing_key().verifying_key());
    let current = files::read_bounded(&package, PACKAGE_BYTES_MAX)
        .ok()
        .and_then(|bytes| kvasir_plugin::verify(&bytes, &store, now()).ok())
        .filter(|plugin| plugin.component() == BUNDLED_COMPONENT || plugin.publisher() != own);
    let signed = options.renew || current.is_none();
    let plugin = match current {
        Some(plugin) if !options.renew => plugin,
        _ => write_package(&package, (&key_path, &key), &store)?,
    };
    if json {
        output::object(&json!({
            "publisher": key.public().to_string(), "new_key": new_key, "signed": signed,
            "package": package.display().to_string(), "plugin": plugin.digest().to_string(),
            "trust": trust.display().to_string(),
        }))
    } else {
        output::line(format!(
            "publisher  {} ({})\npackage    {} ({})\nplugin     {} {} {}",
            key.public(),
            if new_key { "new" } else { "there already" },
            package.display(),
            if signed { "signed" } else { "valid already" },
            plugin.name(),
            plugin.version(),
            plugin.digest()
        ))
    }
}

/// The bundled kernel, ready to be packed.
pub fn bundled_kernel() -> PackageContents {
    let files = |bundled: &[(&str, &[u8])]| -> BTreeMap<String, Vec<u8>> {
        bundled.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
    };
    PackageContents {
        manifest: BUNDLED_MANIFEST.to_vec(),
        component: BUNDLED_COMPONENT.to_vec(),
        shaders: files(BUNDLED_SHADERS),
        vectors: files(BUNDLED_VECTORS),
        sbom: Vec::new(),
    }
}

/// Seconds since 1970 by this machine's clock.
pub fn now() -> UnixSeconds {
    UnixSeconds(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// The trusted publishers in `folder`; the public half of `key` is put among them as own.pub, unless it is there already under
/// whatever name.
fn with_own_key(folder: &Path, key: &SecretKey) -> Result<TrustStore> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let store = TrustStore::load_folder(folder)?;
    let own = key.signing_key().verifying_key();
    if store.keys().any(|(_, trusted)| trusted.key == own) {
        return Ok(store);
    }
    files::write_whole(&folder.join("own.pub"), format!("{} own\n", key.public()).as_bytes())?;
    Ok(TrustStore::load_folder(folder)?)
}

fn write_package(
    path: &Path,
    (key_path, key): (&Path, &SecretKey),
    store: &TrustStore,
) -> Result<VerifiedPlugin> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let inputs = [key_path];
    Replaceable { inputs: &inputs, may: files::is_package, what: "kernel package", force: false }
        .check(path)?;
    let bytes = kvasir_plugin::pack(&bundled_kernel(), validity(VALID_DAYS), key.signing_key())?;
    let plugin = kvasir_plugin::verify(&bytes, store, now())
        .context("the package that was just signed does not verify")?;
    files::write_whole(path, &bytes)?;
    Ok(plugin)
}

/// From now, with some slack for clocks, for `days`.
pub fn validity(days: u64) -> Validity {
    let now = now().0;
    Validity {
        not_before: UnixSeconds(now.saturating_sub(CLOCK_SLACK_SECONDS)),
        expires: UnixSeconds(now.saturating_add(days.saturating_mul(86_400))),
    }
}

const BUNDLED_MANIFEST: &[u8] = include_bytes!("../../../plugins/swiglu/plugin.toml");
const BUNDLED_COMPONENT: &[u8] = include_bytes!("../../../plugins/swiglu/release/swiglu-0.2.0.wasm");

/// The WGSL that the manifest names, as (name, bytes).
const BUNDLED_SHADERS: &[(&str, &[u8])] =
    &[("swiglu.wgsl", include_bytes!("../../../plugins/swiglu/shaders/swiglu.wgsl"))];

/// The named files of the plugin's folder `vectors`, as (name, bytes).
macro_rules! vectors {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../plugins/swiglu/vectors/", $name)))),*]
    };
}

const BUNDLED_VECTORS: &[(&str, &[u8])] = vectors![
    "bf16.vector",
    "f16.vector",
    "f32.vector",
    "iq4_nl.vector",
    "iq4_xs.vector",
    "mxfp4-infinite-weight.vector",
    "mxfp4.vector",
    "q2_k.vector",
    "q3_k.vector",
    "q4_0-with-q8_0.vector",
    "q4_0.vector",
    "q4_1.vector",
    "q4_k-with-q6_k.vector",
    "q4_k.vector",
    "q5_0.vector",
    "q5_1.vector",
    "q5_k-with-q3_k.vector",
    "q5_k.vector",
    "q6_k.vector",
    "q8_0-infinite-scale.vector",
    "q8_0-overflow.vector",
    "q8_0-row-128.vector",
    "q8_0-row-nan-scale.vector",
    "q8_0-weight-128.vector",
    "q8_0.vector",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_an_earlier_build_bundled_is_replaced_and_a_foreign_one_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let settings = Settings::load(None, Some(home.path())).unwrap();
        let once = SetupOptions { renew: false };
        command(&settings, &once, true).unwrap();
        let package = settings.plugin(None);
        let component = |path: &Path| {
            let store = TrustStore::load_folder(&settings.trust(None)).unwrap();
            kvasir_plugin::verify(&fs::read(path).unwrap(), &store, now()).unwrap().component().to_vec()
        };
        let earlier = || PackageContents { component: b"\0asm an earlier one".to_vec(), ..bundled_kernel() };
        let key = key_file::load(&settings.configuration_folder.join("keys/publisher.key")).unwrap();
        fs::write(&package, kvasir_plugin::pack(&earlier(), validity(1), key.signing_key()).unwrap())
            .unwrap();
        command(&settings, &once, true).unwrap();
        assert_eq!(component(&package), BUNDLED_COMPONENT);

        let other = SecretKey::from_seed([7; 32]);
        fs::write(settings.trust(None).join("other.pub"), format!("{}\n", other.public())).unwrap();
        fs::write(&package, kvasir_plugin::pack(&earlier(), validity(1), other.signing_key()).unwrap())
            .unwrap();
        command(&settings, &once, true).unwrap();
        assert_eq!(component(&package), earlier().component);
    }

    #[test]
    fn every_vector_file_of_the_plugin_is_bundled() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/swiglu/vectors");
        let mut there: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        let bundled: Vec<&str> = BUNDLED_VECTORS.iter().map(|(name, _)| *name).collect();
        assert_eq!(bundled, there);
    }
}
