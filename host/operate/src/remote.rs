//! Options of remote experts: which layers leave the house, and how they are dealt over workers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvasir_dispatch::Placement;

/// Layer numbers beyond this are a typing error; no model has as many.
const LAYER_NUMBER_MAX: u16 = 4095;

/// How a backbone finds workers.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// `ws://HOST:PORT` of the hub.
    pub hub: String,
    /// Ticket file.
    pub ticket: PathBuf,
    /// Secret key file that the ticket names.
    pub key: PathBuf,
    /// Workers to wait for before the first prompt.
    pub workers: usize,
    /// Layers whose experts are remote.
    pub layers: LayerSelection,
    /// How experts are dealt over workers.
    pub placement: PlacementChoice,
    /// Longest wait for one call; none means from measured latency.
    pub deadline: Option<Duration>,
}

/// How experts are dealt over workers, as named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementChoice {
    /// Whole layers in turn.
    Layers,
    /// The experts of every layer in turn.
    Experts,
}

impl PlacementChoice {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PlacementChoice::Layers => "layers",
            PlacementChoice::Experts => "experts",
        }
    }
}

impl From<PlacementChoice> for Placement {
    fn from(choice: PlacementChoice) -> Placement {
        match choice {
            PlacementChoice::Layers => Placement::WholeLayers,
            PlacementChoice::Experts => Placement::Experts,
        }
    }
}

/// `all`, or numbers and ranges: `0,2-3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerSelection {
    /// Every layer.
    All,
    /// These, ascending.
    Some(BTreeSet<u16>),
}

impl FromStr for LayerSelection {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<LayerSelection> {
        if text == "all" {
            return Ok(LayerSelection::All);
        }
        let mut layers = BTreeSet::new();
        for part in text.split(',') {
            let number = |text: &str| -> Result<u16> {
                let number = text.trim().parse::<u16>().with_context(|| {
                    format!("{part:?} is no layer: write all, or numbers and ranges such as 0,2-3")
                })?;
                if number > LAYER_NUMBER_MAX {
                    bail!("layer {number} is beyond {LAYER_NUMBER_MAX}");
                }
                Ok(number)
            };
            match part.split_once('-') {
                None => {
                    layers.insert(number(part)?);
                }
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        bail!("the range {part:?} runs backwards");
                    }
                    layers.extend(first..=last);
                }
            }
        }
        Ok(LayerSelection::Some(layers))
    }
}

impl LayerSelection {
    /// The selected layers of a model that has `layers`, ascending.
    ///
    /// # Errors
    /// Where a selected layer does not exist.
    pub fn of(&self, layers: u32) -> Result<Vec<u16>> {
        match self {
            LayerSelection::All => (0..layers).map(|layer| u16::try_from(layer).context("too many layers")).collect(),
            LayerSelection::Some(selected) => {
                if let Some(missing) = selected.iter().find(|layer| u32::from(**layer) >= layers) {
                    bail!("the model has layers 0 to {}; there is no layer {missing}", layers.saturating_sub(1));
                }
                Ok(selected.iter().copied().collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_are_gathered_in_order() {
        let selection: LayerSelection = "3,0-1,1".parse().unwrap();
        assert_eq!(selection.of(4).unwrap(), [0, 1, 3]);
        assert_eq!("all".parse::<LayerSelection>().unwrap().of(3).unwrap(), [0, 1, 2]);
    }

    #[test]
    fn what_is_no_selection_or_not_there_is_refused() {
        for wrong in ["", "x", "1-", "3-1", "0-70000", "4096", "1,,2"] {
            assert!(wrong.parse::<LayerSelection>().is_err(), "{wrong:?}");
        }
        let beyond: LayerSelection = "4".parse().unwrap();
        assert!(beyond.of(4).unwrap_err().to_string().contains("0 to 3"));
    }
}
