//! A list of experts in a file: what `kvasir plan --write` makes, and `kvasir run` and `kvasir serve` give away by.
//!
//! One line for some experts of a layer: the layer, numbers and ranges of experts, and `once` where no copies are to be made of
//! them (`--copies`). Empty lines and what follows `#` count for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::files;
use crate::remote::{LayerSelection, ranges};

/// A list may not be larger: one of every other expert of 48 layers of 256 has 50 KB.
const LIST_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Experts by layer and number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpertList {
    /// All of them.
    pub experts: BTreeSet<(u16, u16)>,
    /// Those of which no copies are to be made.
    pub once: BTreeSet<(u16, u16)>,
}

impl ExpertList {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Where it is missing, too large, or no list.
    pub fn read(path: &Path) -> Result<ExpertList> {
        let text = files::read_text_bounded(path, LIST_BYTES_MAX)
            .with_context(|| format!("cannot read the list of experts {}", path.display()))?;
        text.parse().with_context(|| format!("{} is no list of experts", path.display()))
    }

    /// Those of which copies are made; nothing where that is all of them.
    pub fn copied(&self) -> Option<BTreeSet<(u16, u16)>> {
        (!self.once.is_empty()).then(|| self.experts.difference(&self.once).copied().collect())
    }

    /// The text of a file.
    pub fn text(&self) -> String {
        let mut lines: BTreeMap<(u16, bool), Vec<u16>> = BTreeMap::new();
        for expert in &self.experts {
            lines.entry((expert.0, self.once.contains(expert))).or_default().push(expert.1);
        }
        let mut text = "# layer, experts\n".to_owned();
        for ((layer, once), experts) in lines {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{layer} {}{}", ranges(&experts), if once { " once" } else { "" });
        }
        text
    }
}

impl FromStr for ExpertList {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<ExpertList> {
        let mut list = ExpertList::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                list.take(line).with_context(|| format!("line {}", number + 1))?;
            }
        }
        if list.experts.is_empty() {
            bail!("there is no expert in it: write a layer and its experts, such as 0 0-7,12");
        }
        Ok(list)
    }
}

impl ExpertList {
    fn take(&mut self, line: &str) -> Result<()> {
        let mut words = line.split_whitespace();
        let (Some(layer), Some(experts)) = (words.next(), words.next()) else {
            bail!("{line:?} does not name a layer and experts, such as 0 0-7,12");
        };
        let layer: u16 = layer.parse().with_context(|| format!("{layer:?} is no layer"))?;
        let once = match words.next() {
            None => false,
            Some("once") => true,
            Some(other) => bail!("{other:?} is not known; only once may follow"),
        };
        if let Some(further) = words.next() {
            bail!("{further:?} is one word too many");
        }
        let LayerSelection::Some(numbers) = experts.parse::<LayerSelection>()? else {
            bail!("the experts of layer {layer} have to be named by number");
        };
        for expert in numbers {
            if !self.experts.insert((layer, expert)) {
                bail!("expert {expert} of layer {layer} is named twice");
            }
            if once {
                self.once.insert((layer, expert));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_as_it_was_written() {
        let list: ExpertList = "# tail\n0 0-2,7 once\n\n3 5 # alone\n".parse().unwrap();
        assert_eq!(list.experts, BTreeSet::from([(0, 0), (0, 1), (0, 2), (0, 7), (3, 5)]));
        assert_eq!(list.copied(), Some(BTreeSet::from([(3, 5)])));
        assert_eq!(list.text(), "# layer, experts\n0 0-2,7 once\n3 5\n");
        assert_eq!(list.text().parse::<ExpertList>().unwrap(), list);
        let all: ExpertList = "1 4".parse().unwrap();
        assert_eq!(all.copied(), None);
    }

    #[test]
    fn what_is_no_list_is_refused_by_line() {
        for (wrong, said) in [
            ("", "no expert"),
            ("# nothing\n", "no expert"),
            ("0\n", "line 1"),
            ("0 1\nx 1\n", "line 2"),
            ("0 all\n", "by number"),
            ("0 1 twice\n", "twice"),
            ("0 1 once more\n", "more"),
            ("0 1-3\n0 2\n", "named twice"),
            ("70000 1\n", "no layer"),
            ("0 5000\n", "beyond"),
        ] {
            let error = format!("{:#}", wrong.parse::<ExpertList>().unwrap_err());
            assert!(error.contains(said), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("list");
        std::fs::write(&path, vec![b'#'; LIST_BYTES_MAX as usize + 1]).unwrap();
        let error = format!("{:#}", ExpertList::read(&path).unwrap_err());
        assert!(error.contains("4194304"), "{error}");
    }
}
