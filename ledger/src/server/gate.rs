//! What must hold before a note is taken: asked by the writer, before anything of a group is written.

use kvasir_wire::key::SecretKey;
use tracing::info;

use crate::clock_watch::ClockWatch;
use crate::refusal::LedgerError;
use crate::space::SpaceMark;
use crate::store::Store;

#[derive(Default)]
pub(super) struct Gate {
    pub space: Option<SpaceMark>,
    pub watch: Option<ClockWatch>,
    /// Signs what the settings say about keys and the entries do not say yet.
    pub undeclared: Option<SecretKey>,
}

impl Gate {
    /// Whether notes may be taken at `clock` (Unix seconds). Keys that could not be written down before are written down now:
    /// nothing may rest on them earlier.
    pub(super) fn check(&mut self, store: &mut Store, clock: u64) -> Result<(), LedgerError> {
        self.check_clock(store, clock)?;
        if let Some(space) = &self.space {
            space.check()?;
        }
        if let Some(key) = &self.undeclared {
            let new = store.declare_keys(key, clock).map_err(|error| match error {
                // It is no verdict on the notes that wait behind it.
                LedgerError::Refused(_) => {
                    LedgerError::Busy("the keys of the settings cannot be written down now")
                }
                error => error,
            })?;
            info!(new, "keys written down");
            self.undeclared = None;
        }
        Ok(())
    }

    /// Whether `clock` may be believed.
    pub(super) fn check_clock(&mut self, store: &Store, clock: u64) -> Result<(), LedgerError> {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        let latest = if watch.has_begun() { 0 } else { store.latest_time()? };
        Ok(watch.check(clock, latest)?)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::account::KeyRole;
    use kvasir_wire::note::NetworkName;

    use super::*;
    use crate::store::Keys;

    #[test]
    fn keys_that_found_no_room_are_written_down_before_the_first_note() {
        let network: NetworkName = "atlas".parse().unwrap();
        let hubs: Vec<_> = (1..100).map(|seed| SecretKey::from_seed([seed; 32]).public()).collect();
        let keys = Keys { hubs: hubs.clone(), ..Keys::default() };
        let mut store = Store::in_memory(&network, keys).unwrap();
        store.limit_size(1).unwrap();
        let mut gate = Gate { undeclared: Some(SecretKey::from_seed([200; 32])), ..Gate::default() };
        for _ in 0..2 {
            let (status, body) = gate.check(&mut store, 1).unwrap_err().answer();
            assert_eq!((status, body.code.as_str()), (507, "disk_full"));
        }
        store.limit_size(1 << 30).unwrap();
        gate.check(&mut store, 1).unwrap();
        let believed = store.beliefs().unwrap();
        assert!(hubs.iter().all(|hub| believed.contains(&(KeyRole::Hub, *hub))));
        // Once is enough.
        store.limit_size(1).unwrap();
        gate.check(&mut store, 1).unwrap();
        assert_eq!(store.answers().head().unwrap().0, 1 + hubs.len() as u64);
    }
}
