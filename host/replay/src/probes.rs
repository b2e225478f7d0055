//! Where published probe records come from: a folder, or an address that serves one.

use std::path::{Path, PathBuf};

use kvasir_wire::probe::{
    MAX_PROBE_FILE_BYTES, MAX_PROBE_INDEX_BYTES, PROBE_INDEX_PATH, ProbeError, ProbeFile, ProbeName,
};

use crate::error::ReplayError;

/// Most files of probe records that one audit looks at.
pub const MAX_PROBE_FILES: usize = 1_000_000;

/// A collection of probe records. What it holds is a stranger's.
pub trait ProbeSource {
    /// The files that there are, in any order.
    ///
    /// # Errors
    /// The list cannot be read or is none.
    fn list(&self) -> Result<Vec<ProbeName>, ReplayError>;

    /// The bytes of a file, at most [`MAX_PROBE_FILE_BYTES`]; nothing where there is none.
    ///
    /// # Errors
    /// It cannot be read, or is larger.
    fn read(&self, name: &ProbeName) -> Result<Option<Vec<u8>>, ReplayError>;

    /// A file, decoded; the reason where it is none.
    ///
    /// # Errors
    /// It cannot be read at all.
    fn file(&self, name: &ProbeName) -> Result<Result<ProbeFile, String>, ReplayError> {
        Ok(match self.read(name)? {
            None => Err("the file is listed and not there".to_owned()),
            Some(bytes) => ProbeFile::parse(&bytes).map_err(|error: ProbeError| error.to_string()),
        })
    }
}

/// A folder, as a backbone (`--probes`) or a payer (`--keep-rows`) writes it.
#[derive(Clone, Debug)]
pub struct FolderProbes {
    folder: PathBuf,
}

/// What a web server or a ledger serves of such a folder, with its list under `index`.
pub struct ServedProbes<F> {
    read: F,
}

impl FolderProbes {
    /// The records in `folder`.
    pub fn new(folder: &Path) -> Self {
        FolderProbes { folder: folder.to_path_buf() }
    }
}

impl<F: Fn(&str, usize) -> Result<Option<Vec<u8>>, String>> ServedProbes<F> {
    /// The records under an address: `read` gives what lies at a path there, at most so many bytes; nothing where there is
    /// nothing.
    pub fn new(read: F) -> Self {
        ServedProbes { read }
    }
}

impl ProbeSource for FolderProbes {
    fn list(&self) -> Result<Vec<ProbeName>, ReplayError> {
        let mut names = Vec::new();
        for session in entries(&self.folder)? {
            // Whatever else lies there is not meant.
            if !session.is_dir() {
                continue;
            }
            for file in entries(&session)? {
                let place = file.strip_prefix(&self.folder).ok().and_then(Path::to_str);
                if let Some(name) = place.and_then(|place| place.parse().ok()) {
                    names.push(name);
                }
                if names.len() > MAX_PROBE_FILES {
                    return Err(ReplayError::TooMany { what: "files", limit: MAX_PROBE_FILES });
                }
            }
        }
        Ok(names)
    }

    fn read(&self, name: &ProbeName) -> Result<Option<Vec<u8>>, ReplayError> {
        let path = self.folder.join(name.to_string());
        let failed =
            |what: &dyn std::fmt::Display| ReplayError::Probes(format!("{}: {what}", path.display()));
        let metadata = match path.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
            Ok(metadata) => metadata,
        };
        // A pipe or a device would never end.
        if !metadata.is_file() {
            return Err(failed(&"not a plain file"));
        }
        if metadata.len() > MAX_PROBE_FILE_BYTES as u64 {
            return Err(failed(&ProbeError::TooLong(metadata.len() as usize)));
        }
        std::fs::read(&path).map(Some).map_err(|error| failed(&error))
    }
}

impl<F: Fn(&str, usize) -> Result<Option<Vec<u8>>, String>> ProbeSource for ServedProbes<F> {
    fn list(&self) -> Result<Vec<ProbeName>, ReplayError> {
        let failed =
            |error: &dyn std::fmt::Display| ReplayError::Probes(format!("{PROBE_INDEX_PATH}: {error}"));
        let list = (self.read)(PROBE_INDEX_PATH, MAX_PROBE_INDEX_BYTES).map_err(|error| failed(&error))?;
        let list =
            list.ok_or_else(|| failed(&"there is none here; is this the address of probe records?"))?;
        let text = std::str::from_utf8(&list).map_err(|_| failed(&"it is not text"))?;
        let names = ProbeName::parse_list(text).map_err(|error| failed(&error))?;
        if names.len() > MAX_PROBE_FILES {
            return Err(ReplayError::TooMany { what: "files", limit: MAX_PROBE_FILES });
        }
        Ok(names)
    }

    fn read(&self, name: &ProbeName) -> Result<Option<Vec<u8>>, ReplayError> {
        let path = name.to_string();
        (self.read)(&path, MAX_PROBE_FILE_BYTES)
            .map_err(|error| ReplayError::Probes(format!("{path}: {error}")))
    }
}

fn entries(folder: &Path) -> Result<impl Iterator<Item = PathBuf>, ReplayError> {
    let failed = |error: std::io::Error| ReplayError::Probes(format!("{}: {error}", folder.display()));
    let paths: Result<Vec<PathBuf>, _> = std::fs::read_dir(folder)
        .map_err(failed)?
        .take(MAX_PROBE_FILES + 1)
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    Ok(paths.map_err(failed)?.into_iter())
}
