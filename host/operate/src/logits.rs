//! The file of raw logits that `kvasir run --logits` writes: f32, little-endian, every generated position after the other.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::files::{self, Draft, Replaceable};

/// Logits on their way to a file, which is there once they all are.
pub struct LogitsFile {
    path: PathBuf,
    sink: Sink,
}

enum Sink {
    Draft(BufWriter<Draft>),
    /// Such as /dev/null; there is nothing to replace.
    Device(BufWriter<File>),
}

impl LogitsFile {
    /// Begin the file. It may replace another of its kind, but neither the model (of whatever parts) nor any of `inputs`.
    ///
    /// # Errors
    /// Where one of these stands there, or something that is neither a plain file nor a character device.
    pub fn create(path: &Path, model: &Path, inputs: &[&Path]) -> Result<LogitsFile> {
        let unwritable = || format!("cannot write {}", path.display());
        let sink = if fs::metadata(path).is_ok_and(|there| there.file_type().is_char_device()) {
            let device = OpenOptions::new().write(true).open(path).with_context(unwritable)?;
            Sink::Device(BufWriter::new(device))
        } else {
            let parts = parts(model);
            let inputs: Vec<&Path> =
                parts.iter().map(PathBuf::as_path).chain(inputs.iter().copied()).collect();
            Replaceable { inputs: &inputs, may: files::is_foreign, what: "file of logits", force: false }
                .check(path)?;
            Sink::Draft(BufWriter::new(Draft::begin(path)?))
        };
        Ok(LogitsFile { path: path.to_path_buf(), sink })
    }

    /// Add the logits of one position.
    ///
    /// # Errors
    /// Where the disk is full.
    pub fn write(&mut self, logits: &[f32]) -> Result<()> {
        let sink: &mut dyn Write = match &mut self.sink {
            Sink::Draft(draft) => draft,
            Sink::Device(device) => device,
        };
        logits
            .iter()
            .try_for_each(|value| sink.write_all(&value.to_le_bytes()))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Put the file in its place.
    ///
    /// # Errors
    /// Where the disk is full.
    pub fn finish(self) -> Result<()> {
        let unwritable = || format!("cannot write {}", self.path.display());
        match self.sink {
            Sink::Draft(draft) => {
                let draft =
                    draft.into_inner().map_err(|error| error.into_error()).with_context(unwritable)?;
                draft.finish()
            }
            Sink::Device(mut device) => device.flush().with_context(unwritable),
        }
    }
}

/// The files that a model may consist of: itself, and what lies in its folder or, for one that is split, beside it.
fn parts(model: &Path) -> Vec<PathBuf> {
    let folder = if model.is_dir() { model } else { model.parent().unwrap_or(model) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let beside = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_part = |path: &PathBuf| model.is_dir() || path.extension() == model.extension();
    std::iter::once(model.to_path_buf()).chain(beside.filter(is_part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_there_once_they_are_whole() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("l.f32");
        let mut file = LogitsFile::create(&path, Path::new("nowhere.gguf"), &[]).unwrap();
        file.write(&[1.0, -2.5]).unwrap();
        assert!(!path.exists());
        file.finish().unwrap();
        let expected: Vec<u8> = [1.0f32, -2.5].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(fs::read(&path).unwrap(), expected);
        LogitsFile::create(&path, Path::new("nowhere.gguf"), &[]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected, "an unfinished file replaces nothing");
    }

    #[test]
    fn the_model_its_parts_and_other_inputs_are_never_the_place() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for name in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "k.kvp"] {
            fs::write(path(name), b"precious").unwrap();
        }
        fs::hard_link(path("m-00001-of-00002.gguf"), path("other-name")).unwrap();
        let (model, plugin) = (path("m-00001-of-00002.gguf"), path("k.kvp"));
        for name in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "k.kvp", "other-name"] {
            let error = LogitsFile::create(&path(name), &model, &[&plugin]).err().unwrap();
            assert!(error.to_string().contains("itself"), "{name}: {error:#}");
            assert_eq!(fs::read(path(name)).unwrap(), b"precious");
        }
        // A folder of several files is a model as well.
        assert!(LogitsFile::create(&path("k.kvp"), place.path(), &[]).is_err());
    }

    #[test]
    fn a_full_device_is_an_error() {
        let mut file = LogitsFile::create(Path::new("/dev/full"), Path::new("m.gguf"), &[]).unwrap();
        file.write(&[1.0]).unwrap();
        assert!(file.finish().is_err());
    }
}
