//! `kvasir plugin pack` and `unpack`: between a folder and a package.
//!
//! The folder of a kernel holds `plugin.toml`, the component as `build/kernel.wasm` (or `kernel.wasm`), `vectors/`, `shaders/`
//! where the manifest names a shader, and perhaps `sbom.cdx.json`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kvasir_plugin::{KeyId, Manifest, PackageContents, PublisherKey, TrustStore, Unverified, VerifiedPlugin};
use kvasir_wire::key::SecretKey;
use serde_json::json;

use crate::files::{self, Replaceable};
use crate::local::PACKAGE_BYTES_MAX;
use crate::plugin_check::{self, Proven, Trial, checked_text, shader_object};
use crate::plugin_tool::{read, read_folder};
use crate::settings::Settings;
use crate::standing::{self, Standing};
use crate::{key_file, output, setup};

/// Where a folder's component is looked for, in this order.
const COMPONENTS: [&str; 2] = ["build/kernel.wasm", "kernel.wasm"];

/// Folders of a kernel's folder in which every file goes into a package or its component.
const SOURCES: [&str; 3] = ["vectors", "shaders", "src"];
/// Files beside them from which a component is built.
const BUILT_FROM: [&str; 3] = [kvasir_author::RECIPE, "Cargo.toml", "Cargo.lock"];

/// What `kvasir plugin pack` may be told.
pub struct PackOptions {
    /// The folder of a kernel.
    pub folder: PathBuf,
    /// Secret key file of the publisher; without it the package is not signed.
    pub key: Option<PathBuf>,
    /// Package to write; `<name>-<version>.kvp` in the folder where none is named.
    pub out: Option<PathBuf>,
    /// Days until the signature expires.
    pub days: u32,
    /// Replace a file that is no package, or a package that others signed.
    pub force: bool,
}

/// A folder that was read, and what came of its checks.
pub(crate) struct Checked {
    pub contents: PackageContents,
    pub plugin: VerifiedPlugin,
    pub proven: Proven,
}

/// `kvasir plugin pack`: the folder as a package, after the checks that `verify` makes; signed if a key is named.
///
/// # Errors
/// Where a file is missing, the manifest is malformed, or the kernel fails its own vectors; nothing is written then.
pub fn pack(options: &PackOptions, json: bool) -> Result<()> {
    let PackOptions { folder, days, .. } = options;
    let key = options.key.as_deref().map(key_file::load).transpose()?;
    let kernel = Folder::read(folder)?;
    let out = match &options.out {
        Some(out) => out.clone(),
        None => folder.join(file_name(&kernel.contents)?),
    };
    let there = Standing::at(&out)?;
    kernel.writable(&out, options.key.as_deref(), options.force)?;
    let signers: Vec<KeyId> = key.iter().map(|key| KeyId::of(&key.signing_key().verifying_key())).collect();
    keeps_signatures(&out, &signers, None, options.force)?;
    let unfit = || format!("{} cannot be packed", folder.display());
    let checked = check(kernel.contents, setup::validity(u64::from(*days)), None).with_context(unfit)?;
    let package = match &key {
        Some(key) => {
            kvasir_plugin::pack(&checked.contents, setup::validity(u64::from(*days)), key.signing_key())
        }
        None => kvasir_plugin::pack_unsigned(&checked.contents),
    };
    let package = package.with_context(unfit)?;
    standing::write_over(&out, &there, &package)?;
    let (plugin, proven) = (&checked.plugin, &checked.proven);
    if json {
        output::object(&json!({
            "package": out.display().to_string(), "bytes": package.len(),
            "publisher": key.as_ref().map(|key| key.public().to_string()),
            "plugin": key.as_ref().map(|_| plugin.digest().to_string()), "vectors": proven.vectors,
            "shader": shader_object(plugin, proven.shader.as_ref()),
        }))
    } else {
        let signed = match &key {
            Some(key) => format!("signed by {}", key.public()),
            None => format!("not signed: kvasir plugin sign {}", out.display()),
        };
        output::line(format!("{}: {} bytes, {}, {signed}", out.display(), package.len(), proof(&checked)))
    }
}

/// `kvasir plugin unpack`: the files of a package in a folder, from which `pack` makes the same package again. Nothing is
/// verified: the files are data until somebody checks them.
///
/// # Errors
/// Where the package is malformed, or the folder is there and not empty.
pub fn unpack(package: &Path, folder: Option<&Path>, json: bool) -> Result<()> {
    let bytes = read_package(package)?;
    let found =
        Unverified::read(&bytes).with_context(|| format!("{} cannot be unpacked", package.display()))?;
    let name = PathBuf::from(stem(&found.manifest));
    let folder = folder.unwrap_or(&name);
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is there already and not empty: name another folder", folder.display());
    }
    // Every name was checked against the few that a package may hold, so none leads out of the folder.
    for (name, bytes) in files_of(&found.contents) {
        let path = folder.join(&name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        files::write_whole(&path, bytes)?;
    }
    if json {
        output::object(&json!({
            "folder": folder.display().to_string(), "files": found.files.len(), "name": found.manifest.name,
            "version": found.manifest.version.to_string(), "verified": false,
        }))
    } else {
        output::line(format!("{}: {} files, not verified", folder.display(), found.files.len()))
    }
}

/// The files of a kernel's folder.
pub(crate) struct Folder {
    pub contents: PackageContents,
    folder: PathBuf,
}

impl Folder {
    /// Refuses to write a package to `out` where that would write over what the package or the component is made of, or over `key`, or
    /// else as [`writable`].
    pub(crate) fn writable(&self, out: &Path, key: Option<&Path>, force: bool) -> Result<()> {
        let files = ["plugin.toml", "sbom.cdx.json"].into_iter().chain(COMPONENTS).chain(BUILT_FROM);
        let files: Vec<PathBuf> = files.map(|file| self.folder.join(file)).collect();
        let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).chain(key).collect();
        // Links on the way are followed: what counts is where it would be written.
        let place = files::folder_of(out).canonicalize();
        let within = SOURCES.iter().find(|part| {
            let part = self.folder.join(part).canonicalize();
            matches!((&place, &part), (Ok(place), Ok(part)) if place.starts_with(part))
        });
        if let Some(part) = within {
            bail!(
                "{} is in {}, where every file belongs to the kernel: write to another folder",
                out.display(),
                self.folder.join(part).display()
            );
        }
        writable(out, &inputs, force)
    }

    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let manifest = folder.join("plugin.toml");
        let places = COMPONENTS.map(|place| folder.join(place));
        let Some(component) = places.iter().find(|place| place.exists()) else {
            bail!(
                "there is no component at {} nor at {}: run `kvasir plugin build`",
                places[0].display(),
                places[1].display()
            );
        };
        let bill = folder.join("sbom.cdx.json");
        let contents = PackageContents {
            manifest: read(&manifest)?,
            component: read(component)?,
            shaders: read_folder(&folder.join("shaders"))?,
            vectors: read_folder(&folder.join("vectors"))?,
            sbom: if bill.exists() { read(&bill)? } else { Vec::new() },
        };
        Ok(Folder { contents, folder: folder.to_owned() })
    }
}

/// The checks that `verify` makes, before anything is signed with a key that counts. `others` is given where others made the kernel.
pub(crate) fn check(
    contents: PackageContents,
    validity: kvasir_plugin::Validity,
    others: Option<&Others<'_>>,
) -> Result<Checked> {
    let plugin = signed_for_the_occasion(&contents, validity)?;
    let trial = others.map(|others| others.trial(&plugin)).transpose()?;
    let proven = plugin_check::prove(&plugin, trial.as_ref())?;
    Ok(Checked { contents, plugin, proven })
}

/// A package that others made.
pub(crate) struct Others<'a> {
    pub settings: &'a Settings,
    pub package: &'a [u8],
    /// Whose signatures it says it carries.
    pub signed_by: Vec<KeyId>,
}

impl<'a> Others<'a> {
    /// Within what it is tried before it is signed: what it would get if it were run, where it would be; else what the policy grants to
    /// those who say that they signed it, as far as that is not more than anybody gets.
    fn trial(&self, plugin: &VerifiedPlugin) -> Result<Trial<'a>> {
        let store = self.settings.store();
        let trust = store.trust().ok();
        let verified = trust
            .and_then(|trust| kvasir_plugin::verify(self.package, trust.publishers(), setup::now()).ok());
        let grant = match verified {
            Some(verified) => store.grant(&verified)?,
            None => store.grant_claimed(plugin, &self.signed_by)?,
        };
        Ok(Trial { settings: self.settings, grant })
    }
}

/// `contents` as a plugin that a host would run, by a key that is thrown away: the digest of a plugin does not depend on who signs.
pub(crate) fn signed_for_the_occasion(
    contents: &PackageContents,
    validity: kvasir_plugin::Validity,
) -> Result<VerifiedPlugin> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).context("the operating system gives no randomness")?;
    let key = SecretKey::from_seed(seed);
    let package = kvasir_plugin::pack(contents, validity, key.signing_key())?;
    let own = PublisherKey { key: key.signing_key().verifying_key(), name: None };
    Ok(kvasir_plugin::verify(&package, &TrustStore::from_keys([own])?, setup::now())?)
}

/// What the checks showed, for people.
pub(crate) fn proof(checked: &Checked) -> String {
    let shader = checked.plugin.shader().map_or("no shader".to_owned(), |shader| {
        format!("shader {} {}", shader.file(), checked_text(checked.proven.shader.as_ref()))
    });
    format!("{} vectors agree bit for bit, {shader}", checked.proven.vectors)
}

/// `<name>-<version>.kvp`, the namespace left out.
pub(crate) fn file_name(contents: &PackageContents) -> Result<String> {
    Ok(format!("{}.kvp", stem(&Manifest::parse(&contents.manifest)?)))
}

pub(crate) fn writable(out: &Path, inputs: &[&Path], force: bool) -> Result<()> {
    let what = "kernel package (--force replaces it)";
    Replaceable { inputs, may: files::is_package, what, force }.check(out)
}

/// Refuses to write a package in the place of one, at `out`, that carries signatures which would be lost: what somebody else's key made
/// cannot be made again here. `own` are the keys that sign now, so that theirs can be. `kept` are the bytes of a package all of whose
/// signatures the new one carries too: only these very bytes may be replaced for that, since which keys a package names takes no key
/// to forge.
pub(crate) fn keeps_signatures(out: &Path, own: &[KeyId], kept: Option<&[u8]>, force: bool) -> Result<()> {
    let Some(there) = not_to_lose(out, force)? else { return Ok(()) };
    if kept == Some(there.as_slice()) {
        return Ok(());
    }
    let there = match Unverified::read(&there) {
        Ok(there) => there,
        Err(error) => bail!(
            "{} is there already and cannot be read, so that nothing shows whether its signatures would be lost ({error}): write to \
             another file with --out, or replace it with --force",
            out.display()
        ),
    };
    let lost: Vec<String> = there
        .claims
        .iter()
        .flat_map(|claims| &claims.signed_by)
        .filter(|key| !own.contains(key))
        .map(ToString::to_string)
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    bail!(
        "{out} is signed by {keys}, and what would take its place is not: write to another file with --out, or drop the signatures \
         with --force (`kvasir plugin sign {out}` adds a signature to the package as it is)",
        out = out.display(),
        keys = lost.join(", ")
    )
}

/// Refuses to write `package`, which nobody has verified, in the place of other bytes at `out`: whatever it says of its signatures, it
/// may be a forgery of what is there.
pub(crate) fn replaces_only_itself(out: &Path, package: &[u8], force: bool) -> Result<()> {
    match not_to_lose(out, force)? {
        Some(there) if there != package => bail!(
            "{} is there already and is another package: write to another file with --out, or replace it with --force",
            out.display()
        ),
        _ => Ok(()),
    }
}

/// The bytes at `out`, where there are any that may be worth keeping.
fn not_to_lose(out: &Path, force: bool) -> Result<Option<Vec<u8>>> {
    if force || !out.exists() {
        return Ok(None);
    }
    Ok(Some(read_package(out)?).filter(|there| !there.is_empty()))
}

pub(crate) fn read_package(path: &Path) -> Result<Vec<u8>> {
    files::read_bounded(path, PACKAGE_BYTES_MAX)
        .with_context(|| format!("cannot read the kernel package {}", path.display()))
}

pub(crate) fn stem(manifest: &Manifest) -> String {
    let name = manifest.name.rsplit(':').next().unwrap_or(&manifest.name);
    format!("{name}-{}", manifest.version)
}

fn files_of(contents: &PackageContents) -> Vec<(String, &[u8])> {
    let mut files = vec![
        ("plugin.toml".to_owned(), contents.manifest.as_slice()),
        (COMPONENTS[0].to_owned(), &contents.component),
        ("sbom.cdx.json".to_owned(), &contents.sbom),
    ];
    for (folder, named) in [("shaders", &contents.shaders), ("vectors", &contents.vectors)] {
        files.extend(named.iter().map(|(name, bytes)| (format!("{folder}/{name}"), bytes.as_slice())));
    }
    files
}
