//! `kvasir setup`: the kernel that comes with the program, signed by a publisher key of the user's own.
//!
//! No private key travels with the source, so whoever builds Kvasir is the publisher of what they built: the first set-up makes
//! a publisher key and a root key, signs a root that trusts the publisher key, signs the bundled component with it, and installs
//! and activates that.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use kvasir_plugin::{
    ANY_NAMESPACE, KeyId, Manifest, PackageContents, PluginDigest, RoleName, TrustStore, UnixSeconds,
    Validity, VerifiedPlugin,
};
use kvasir_plugin_store::{Store, StoreError};
use kvasir_wire::key::SecretKey;
use serde_json::{Value, json};

use crate::plugin_store::{self, keys, trust};
use crate::settings::Settings;
use crate::{files, key_file, output};

/// File name, in `plugins/`, of the package that this command wrote before there was a store.
const FORMER_PACKAGE_NAME: &str = "swiglu-0.2.0.kvp";
/// How long a signature of one's own holds.
const VALID_DAYS: u64 = 365;
/// A clock that runs a little behind must not refuse what was signed a moment ago.
const CLOCK_SLACK_SECONDS: u64 = 3600;

/// What `kvasir setup` may be told.
pub struct SetupOptions {
    /// Sign kernel, root and revocations again although they are valid.
    pub renew: bool,
    /// Files of root keys; those in their usual places where these are not enough.
    pub root_keys: Vec<PathBuf>,
}

/// `kvasir setup`. Safe to repeat: what is there and valid stays, unless it is an earlier bundled kernel of one's own. A home of
/// before there was a store is taken over: its trusted keys into the root, its package into the store.
///
/// # Errors
/// Where a key, the root or the package cannot be written, or a package that was written does not verify.
pub fn command(settings: &Settings, options: &SetupOptions, json: bool) -> Result<()> {
    let key_path = keys::publisher_key(settings);
    let (key, new_key) = key_file::load_or_create(&key_path)?;
    let (_, new_root) = trust::ensure_root(settings)?;
    if let Some(folder) = settings.trust_folder(None) {
        with_own_key(&folder, &key)?;
    }
    if options.renew && !new_root {
        renew(settings, &options.root_keys)?;
    }
    trust_own_key(settings, &key, &options.root_keys)?;
    let store = settings.store();
    let former = install_former(settings, &key)?;
    let current = match store.active(now()) {
        Ok(active) => active,
        Err(
            error @ (StoreError::Refused { .. }
            | StoreError::NotInstalled { .. }
            | StoreError::WrongContent { .. }),
        ) => {
            tracing::warn!(%error, "the active plugin is given up for the bundled one");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let bundled_name = bundled_manifest()?.name;
    let own = KeyId::of(&key.signing_key().verifying_key());
    let current = current.filter(|plugin| {
        let replaceable = plugin.name() == bundled_name && plugin.publishers().contains(&own);
        !replaceable || (plugin.component() == BUNDLED_COMPONENT && !options.renew)
    });
    let signed = current.is_none();
    let plugin = match current {
        Some(plugin) => plugin,
        None => install_bundled(&store, &key)?,
    };
    let trust = store.trust()?;
    let root = trust.root().context("the root that was just made is gone")?;
    let package = store.places().package(plugin.digest());
    if json {
        return output::object(&json!({
            "publisher": key.public().to_string(), "new_key": new_key, "signed": signed,
            "package": package.display().to_string(), "plugin": plugin.digest().to_string(),
            "trust": store.places().trust().display().to_string(), "former": former.json(),
            "root": {"version": root.version(), "new": new_root, "expires": root.expires().0},
        }));
    }
    output::line(format!(
        "publisher  {} ({})\nroot       version {} ({}), valid until {}\npackage    {} ({})\nplugin     {} {} {}{}",
        key.public(),
        if new_key { "new" } else { "there already" },
        root.version(),
        if new_root { "new" } else { "there already" },
        root.expires(),
        package.display(),
        if signed { "signed" } else { "valid already" },
        plugin.name(),
        plugin.version(),
        plugin.digest(),
        former.line(),
    ))
}

/// What became of the package of a home of before there was a store.
enum Former {
    /// There is none, or something is active already.
    None,
    /// It is in the store.
    Installed(PluginDigest),
    /// It is refused, and stays where it is.
    Kept(String),
}

impl Former {
    fn json(&self) -> Value {
        match self {
            Former::None => Value::Null,
            Former::Installed(plugin) => json!({"installed": plugin.to_string()}),
            Former::Kept(reason) => json!({"kept": reason}),
        }
    }

    fn line(&self) -> String {
        match self {
            Former::None => String::new(),
            Former::Installed(plugin) => format!("\nformer     {plugin} is in the store"),
            Former::Kept(reason) => format!("\nformer     stays where it is: {reason}"),
        }
    }
}

/// Puts the package that earlier versions of this command wrote into the store, and makes it active where nothing is. One that is
/// refused now stays where it is.
fn install_former(settings: &Settings, key: &SecretKey) -> Result<Former> {
    let store = settings.store();
    let path = settings.data_folder.join("plugins").join(FORMER_PACKAGE_NAME);
    if store.active_digest()?.is_some() || path.symlink_metadata().is_err() {
        return Ok(Former::None);
    }
    let kept = |error: &dyn std::fmt::Display| Former::Kept(format!("{}: {error}", path.display()));
    let installed = match plugin_store::read_package(&path) {
        Ok(bytes) => store.install(&bytes, now()),
        Err(error) => return Ok(kept(&format!("{error:#}"))),
    };
    match installed {
        Ok(installed) => {
            let digest = installed.plugin.digest();
            let own = KeyId::of(&key.signing_key().verifying_key());
            if installed.plugin.component() == BUNDLED_COMPONENT
                || !installed.plugin.publishers().contains(&own)
            {
                store.activate(digest, &[], now())?;
            }
            // The store holds the same bytes now.
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            Ok(Former::Installed(digest))
        }
        Err(StoreError::Package(error)) => Ok(kept(&error)),
        Err(error @ (StoreError::Policy { .. } | StoreError::Downgrade { .. })) => Ok(kept(&error)),
        Err(error) => Err(error.into()),
    }
}

fn install_bundled(store: &Store, key: &SecretKey) -> Result<VerifiedPlugin> {
    let bytes = kvasir_plugin::pack(&bundled_kernel(), validity(VALID_DAYS), key.signing_key())?;
    let plugin = store.install(&bytes, now()).context("the package that was just signed is refused")?.plugin;
    Ok(store.activate(plugin.digest(), &[], now())?)
}

/// Gives the root, and the revocations if there are any, their validity anew.
fn renew(settings: &Settings, root_keys: &[PathBuf]) -> Result<()> {
    let store = settings.store();
    let trust = store.trust()?;
    let root = trust.root().context("there is no root to renew")?;
    let signers = keys::signers(settings, root, &RoleName::Root, root_keys)?;
    let signing: Vec<_> = signers.iter().map(SecretKey::signing_key).collect();
    store.change_root(&signing, "renewed", now(), |_| true)?;
    if trust.revocations().is_some() {
        let signers = keys::signers(settings, root, &RoleName::Revocation, root_keys)?;
        let signing: Vec<_> = signers.iter().map(SecretKey::signing_key).collect();
        store.revoke(&[], &signing, now())?;
    }
    Ok(())
}

/// Trusts one's own publisher key with the bundled kernel, where the root does not: for instance after the key was made anew.
fn trust_own_key(settings: &Settings, key: &SecretKey, root_keys: &[PathBuf]) -> Result<()> {
    let store = settings.store();
    let trust = store.trust()?;
    let root = trust.root().context("there is no root")?;
    let own = keys::public(key, "own");
    let id = KeyId::of(&own.key);
    let manifest = bundled_manifest()?;
    let namespaces = [manifest.namespace(), Some(ANY_NAMESPACE)];
    let mut roles = namespaces.into_iter().flatten().map(|name| RoleName::Publisher(name.to_owned()));
    let Some(role) = roles.clone().find(|role| root.root().roles.contains_key(role)).or(roles.next_back())
    else {
        return Ok(());
    };
    if root.root().roles.get(&role).is_some_and(|role| role.keys.contains(&id)) {
        return Ok(());
    }
    let signers = keys::signers(settings, root, &RoleName::Root, root_keys)
        .context("your publisher key is not trusted yet, and cannot be without the root key")?;
    let signing: Vec<_> = signers.iter().map(SecretKey::signing_key).collect();
    store.change_root(&signing, "own publisher key", now(), |root| root.grant(role, own))?;
    Ok(())
}

fn bundled_manifest() -> Result<Manifest> {
    Ok(Manifest::parse(BUNDLED_MANIFEST)?)
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

/// Puts the public half of `key` among the keys of `folder` as own.pub, unless it is there already under whatever name.
fn with_own_key(folder: &Path, key: &SecretKey) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let store = TrustStore::load_folder(folder)?;
    let own = key.signing_key().verifying_key();
    if store.keys().any(|(_, trusted)| trusted.key == own) {
        return Ok(());
    }
    files::write_whole(&folder.join("own.pub"), format!("{} own\n", key.public()).as_bytes())
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

    fn home() -> (tempfile::TempDir, Settings) {
        let home = tempfile::tempdir().unwrap();
        let settings = Settings::load(None, Some(home.path())).unwrap();
        (home, settings)
    }

    fn active(settings: &Settings) -> VerifiedPlugin {
        settings.store().active(now()).unwrap().unwrap()
    }

    fn earlier() -> PackageContents {
        PackageContents { component: b"\0asm an earlier one".to_vec(), ..bundled_kernel() }
    }

    const ONCE: SetupOptions = SetupOptions { renew: false, root_keys: Vec::new() };

    #[test]
    fn a_kernel_that_an_earlier_build_bundled_is_replaced_and_a_foreign_one_is_kept() {
        let (_home, settings) = home();
        command(&settings, &ONCE, true).unwrap();
        let first = active(&settings);
        command(&settings, &ONCE, true).unwrap();
        assert_eq!(active(&settings).digest(), first.digest(), "safe to repeat");

        let store = settings.store();
        let key = key_file::load(&keys::publisher_key(&settings)).unwrap();
        let install = |contents: &PackageContents, key: &SecretKey| {
            let package = kvasir_plugin::pack(contents, validity(1), key.signing_key()).unwrap();
            let digest = store.install(&package, now()).unwrap().plugin.digest();
            store.activate(digest, &[], now()).unwrap();
        };
        install(&earlier(), &key);
        command(&settings, &ONCE, true).unwrap();
        assert_eq!(active(&settings).component(), BUNDLED_COMPONENT);

        let other = SecretKey::from_seed([7; 32]);
        let add = trust::KeyOptions { key: Some(other.public().to_string()), ..Default::default() };
        trust::add(&settings, &add, true).unwrap();
        install(&earlier(), &other);
        command(&settings, &ONCE, true).unwrap();
        assert_eq!(active(&settings).component(), earlier().component);
    }

    #[test]
    fn a_home_of_before_there_was_a_store_is_taken_over() {
        let (home, settings) = home();
        let file = |name: &str| home.path().join(name);
        for folder in ["config/trust", "config/keys", "data/plugins"] {
            fs::create_dir_all(file(folder)).unwrap();
        }
        let own = key_file::create(&keys::publisher_key(&settings)).unwrap();
        let other = SecretKey::from_seed([7; 32]);
        fs::write(file("config/trust/own.pub"), format!("{} own\n", own.public())).unwrap();
        fs::write(file("config/trust/friend.pub"), format!("# a friend\n{} from the fair\n", other.public()))
            .unwrap();
        let package = kvasir_plugin::pack(&earlier(), validity(1), other.signing_key()).unwrap();
        let former = file("data/plugins").join(FORMER_PACKAGE_NAME);
        fs::write(&former, &package).unwrap();

        command(&settings, &ONCE, true).unwrap();
        let plugin = active(&settings);
        assert_eq!(plugin.component(), earlier().component);
        assert_eq!(settings.store().package(plugin.digest()).unwrap(), package, "byte for byte");
        assert!(!former.exists() && file("config/trust/friend.pub").exists());
        let trust = settings.store().trust().unwrap();
        let mut names: Vec<_> = trust.publishers().keys().filter_map(|(_, key)| key.name.clone()).collect();
        names.sort();
        assert_eq!(names, ["from the fair", "own"]);

        // One that is refused is not lost either.
        fs::write(&former, b"what an earlier version wrote").unwrap();
        fs::remove_file(settings.store().places().active()).unwrap();
        command(&settings, &ONCE, true).unwrap();
        assert_eq!(fs::read(&former).unwrap(), b"what an earlier version wrote");
        assert_eq!(active(&settings).component(), BUNDLED_COMPONENT);
    }

    #[test]
    fn renewing_signs_kernel_root_and_revocations_anew() {
        let (_home, settings) = home();
        command(&settings, &ONCE, true).unwrap();
        plugin_store::revoke::revoke(&settings, &"ab".repeat(32), &[], true).unwrap();
        command(&settings, &SetupOptions { renew: true, ..ONCE }, true).unwrap();
        let trust = settings.store().trust().unwrap();
        assert_eq!((trust.root().unwrap().version(), trust.revocations().unwrap().version()), (2, 2));
        assert_eq!(active(&settings).component(), BUNDLED_COMPONENT);
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
