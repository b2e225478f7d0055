//! A model split over several GGUF files, as ggml's `gguf-split` writes them: `NAME-00001-of-00004.gguf`, each with
//! `split.no`, `split.count` and `split.tensors.count`. The first part holds the configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SharedFile;
use super::header::Header;
use crate::error::ModelError;
use crate::limits;
use crate::mapping::MappedFile;

/// Map the file, and the other parts beside it when its name says that it is the first of several.
pub(super) fn open_parts(path: &Path) -> Result<Vec<SharedFile>, ModelError> {
    let Some((stem, number, count)) = part_of(path) else {
        return Ok(vec![Arc::new(MappedFile::open(path)?)]);
    };
    if count > limits::MAX_SPLIT_FILES || number == 0 || number > count {
        let why = format!("its name counts parts wrongly (at most {})", limits::MAX_SPLIT_FILES);
        return Err(ModelError::NotAModel { path: path.to_owned(), why });
    }
    if number != 1 {
        let first = part_path(path, &stem, 1, count);
        let why = format!("it is part {number} of {count}; open the first part, {}", first.display());
        return Err(ModelError::NotAModel { path: path.to_owned(), why });
    }
    (1..=count)
        .map(|number| Ok(Arc::new(MappedFile::open(&part_path(path, &stem, number, count))?)))
        .collect()
}

/// Check that the parts say of themselves what their names say.
pub(super) fn check(headers: &[Header<'_>]) -> Result<(), ModelError> {
    let parts = headers.len() as u64;
    let total: u64 = headers.iter().map(|header| header.tensor_count() as u64).sum();
    for (index, Header { keys, .. }) in headers.iter().enumerate() {
        let count = keys.optional_integer("split.count")?.unwrap_or(1).max(1);
        if count != parts {
            let why = if parts == 1 {
                "the model is split; name its files NAME-00001-of-0000N.gguf and open the first".to_owned()
            } else {
                format!("must be {parts}, the number in the file's name")
            };
            return Err(keys.configuration("split.count", count, &why));
        }
        if parts == 1 {
            continue;
        }
        let number = keys.integer("split.no")?;
        if number.value != index as u64 {
            return Err(keys.configuration(
                "split.no",
                number.value,
                &format!("must be {index}, counted from 0"),
            ));
        }
        let tensors = keys.integer("split.tensors.count")?;
        if tensors.value != total {
            let why = format!("the {parts} parts hold {total} tensors");
            return Err(keys.configuration("split.tensors.count", tensors.value, &why));
        }
    }
    Ok(())
}

/// `(NAME, 1, 4)` of `NAME-00001-of-00004.gguf`.
fn part_of(path: &Path) -> Option<(String, u64, u64)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse::<u64>().ok()).flatten();
    Some((name.to_owned(), digits(number)?, digits(count)?))
}

fn part_path(path: &Path, stem: &str, number: u64, count: u64) -> PathBuf {
    path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names() {
        let of = |name: &str| part_of(Path::new(name));
        assert_eq!(of("x/a-b-00002-of-00004.gguf"), Some(("a-b".to_owned(), 2, 4)));
        assert_eq!(of("a.gguf"), None);
        assert_eq!(of("a-1-of-4.gguf"), None);
        assert_eq!(of("a-00001-of-0000x.gguf"), None);
        assert_eq!(part_path(Path::new("x/y.gguf"), "y", 3, 12), Path::new("x/y-00003-of-00012.gguf"));
    }
}
