//! What a running worker or backbone hears of the plugin store: which plugin the operator made the active one, and which ones
//! are trusted. It looks every second at one small file and verifies a package only when that has changed.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail};
use kvasir_plugin::{Class, VerifiedPlugin};
use kvasir_plugin_store::{Store, StoreError};
use kvasir_wire::id::PluginDigest;
use kvasir_wire::limits::MAX_OFFERED_PLUGINS;
use kvasir_worker::{Event, EventSink, PluginSwitch};
use serde_json::{Value, json};

use crate::plugin_store::Granted;
use crate::settings::Settings;
use crate::setup;

/// How often the store is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most bytes of the record of changes.
const MAX_RECORD_BYTES: u64 = 4 << 20;
/// How often a watcher looks whether it is to end.
const PAUSE: Duration = Duration::from_millis(50);

/// A thread that watches; it ends when this is dropped.
pub struct Watching {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Calls `look` every second on a thread of its own, until the watcher is dropped. None where the system has no thread for it:
/// then what runs goes on with what it has.
fn watch(mut look: impl FnMut() + Send + 'static) -> Option<Watching> {
    let over = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&over);
    let watching = std::thread::Builder::new().name("kvasir-store".into()).spawn(move || {
        let mut waited = Duration::ZERO;
        while !theirs.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
            waited += PAUSE;
            if waited >= LOOK_EVERY {
                waited = Duration::ZERO;
                look();
            }
        }
    });
    match watching {
        Ok(thread) => Some(Watching { over, thread: Some(thread) }),
        Err(error) => {
            tracing::warn!(%error, "the plugin store is not watched: start again to change the plugin");
            None
        }
    }
}

/// Offers a worker whatever the active plugin is, as soon as it is another than `in_use`. `on_gpu`: it computes on a GPU. What is refused,
/// by trust, policy or revision, is told as a rejected candidate, once; what cannot be read at the moment is looked at again.
pub fn offer_active(
    settings: &Settings,
    in_use: kvasir_plugin::PluginDigest,
    switch: PluginSwitch,
    on_gpu: bool,
    events: EventSink,
) -> Option<Watching> {
    let store = settings.store();
    let mut known = Known { plugin: Some(in_use), delay: None };
    let mut trouble = None;
    watch(move || {
        let active = match store.active_state() {
            Ok(active) => active.digest,
            Err(error) => {
                let error = error.to_string();
                if trouble.as_ref() != Some(&error) {
                    tracing::warn!(error, "the plugin store cannot be read; the plugin in use stays");
                    trouble = Some(error);
                }
                return;
            }
        };
        trouble = None;
        match known.look(active, |digest| admitted(&store, digest, on_gpu)) {
            None => {}
            Some(Candidate::Admitted(granted)) => {
                let limits = granted.limits();
                switch.offer(granted.plugin, limits);
            }
            Some(Candidate::Refused { plugin, reason }) => {
                events(Event::CandidateRejected { plugin, reason })
            }
            Some(Candidate::Delayed { plugin, reason }) => {
                tracing::warn!(
                    plugin,
                    reason,
                    "the active plugin cannot be looked at now; it is tried again"
                );
            }
        }
    })
}

/// What a watcher knows of the active plugin.
struct Known {
    /// The latest one that was offered or refused.
    plugin: Option<kvasir_plugin::PluginDigest>,
    /// Why the present one could not be looked at, which is told once.
    delay: Option<String>,
}

/// What came of an active plugin that is another than the one known.
#[derive(Debug, PartialEq)]
enum Candidate<T> {
    /// It may be used.
    Admitted(T),
    /// It may not.
    Refused { plugin: String, reason: String },
    /// Nothing yet.
    Delayed { plugin: String, reason: String },
}

impl Known {
    /// Asks `admit` of the active plugin where that is another than the one known; nothing where there is nothing new to tell.
    fn look<T>(
        &mut self,
        active: Option<kvasir_plugin::PluginDigest>,
        admit: impl FnOnce(kvasir_plugin::PluginDigest) -> Result<T>,
    ) -> Option<Candidate<T>> {
        let former_delay = self.delay.take();
        if active == self.plugin {
            return None;
        }
        let Some(digest) = active else {
            self.plugin = None;
            return None;
        };
        let error = match admit(digest) {
            Ok(admitted) => {
                self.plugin = active;
                return Some(Candidate::Admitted(admitted));
            }
            Err(error) => error,
        };
        let (plugin, reason) = (digest.to_string(), format!("{error:#}"));
        if !error.downcast_ref::<StoreError>().is_some_and(may_pass) {
            self.plugin = active;
            return Some(Candidate::Refused { plugin, reason });
        }
        self.delay = Some(reason.clone());
        (former_delay.as_ref() != Some(&reason)).then_some(Candidate::Delayed { plugin, reason })
    }
}

/// Whether an error says nothing of the plugin, so that the same look may go well later: all but those in which the plugin itself was
/// looked at and refused. A policy that is being edited, or a file of the store that is put back, is trouble of a moment.
fn may_pass(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::Package(_)
            | StoreError::Refused { .. }
            | StoreError::Policy { .. }
            | StoreError::Downgrade { .. }
            | StoreError::Override { .. }
    )
}

/// What a worker that changes over is doing, as an object for a line of its own; nothing for other events.
pub fn as_json(event: &Event) -> Option<Value> {
    Some(match event {
        Event::CandidateOffered { plugin, name, active } => json!({
            "event": "candidate_offered", "plugin": plugin, "name": name, "active": active,
        }),
        Event::CandidateRejected { plugin, reason } => {
            json!({"event": "candidate_rejected", "plugin": plugin, "reason": reason})
        }
        Event::CandidatePassed { plugin, calls, side_by_side, reason } => json!({
            "event": "candidate_passed", "plugin": plugin, "calls": calls, "side_by_side": side_by_side,
            "reason": reason,
        }),
        Event::Switched { from, to } => json!({"event": "switched", "from": from, "to": to}),
        Event::Unloaded { plugin } => json!({"event": "unloaded", "plugin": plugin}),
        _ => return None,
    })
}

/// Passes events on, and keeps those of changes of the plugin in `changeovers.jsonl` in the data folder, with the time.
pub fn recorded(settings: &Settings, events: EventSink) -> EventSink {
    let path = settings.data_folder.join("changeovers.jsonl");
    Arc::new(move |event| {
        if let Some(mut line) = as_json(&event) {
            line["unix_seconds"] = setup::now().0.into();
            if let Err(error) = append(&path, &line.to_string()) {
                tracing::warn!(%error, path = %path.display(), "a change of the plugin is not recorded");
            }
        }
        events(event);
    })
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if file.metadata()?.len() >= MAX_RECORD_BYTES {
        let problem = format!("it has {MAX_RECORD_BYTES} bytes, the most that are kept: move it away");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    file.write_all(format!("{line}\n").as_bytes())
}

/// An installed plugin, verified now, and what the policy grants it.
fn admitted(store: &Store, digest: kvasir_plugin::PluginDigest, on_gpu: bool) -> Result<Granted> {
    let plugin = store.load(digest, setup::now())?;
    let grant = store.grant(&plugin)?;
    if on_gpu && plugin.shader().is_some() && !grant.gpu {
        bail!(
            "the policy does not let {} run on the GPU, on which this worker computes: set `gpu = true` in {}, or start the worker \
             with --device cpu",
            plugin.name(),
            store.places().policy().display()
        );
    }
    Ok(Granted { plugin, grant })
}

/// The plugins that workers may compute with for a backbone that computes with `own`: that one, and the installed exact versions of it
/// that this host trusts now. A worker that changes over to one of them is then asked on.
pub fn accepted(settings: &Settings, own: &VerifiedPlugin) -> Vec<PluginDigest> {
    let mut accepted = vec![PluginDigest(own.digest().0)];
    if own.manifest().class != Class::Exact {
        return accepted;
    }
    let store = settings.store();
    let installed = store.digests().unwrap_or_else(|error| {
        tracing::warn!(%error, "the plugin store cannot be read; workers may compute with {} alone", own.digest());
        Vec::new()
    });
    for digest in installed.into_iter().filter(|digest| *digest != own.digest()) {
        match store.examine(digest, setup::now()) {
            Ok(plugin) if plugin.name() == own.name() && plugin.manifest().class == Class::Exact => {
                accepted.push(PluginDigest(digest.0));
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%digest, %error, "an installed plugin is not accepted of workers"),
        }
        if accepted.len() == MAX_OFFERED_PLUGINS {
            break;
        }
    }
    accepted
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_candidate_is_looked_at_again_after_an_error_that_may_pass_and_not_after_a_refusal() {
        let digest = |digits: &str| kvasir_plugin::PluginDigest::from_hex(&digits.repeat(32)).unwrap();
        let (in_use, next) = (digest("ab"), digest("cd"));
        let mut known = Known { plugin: Some(in_use), delay: None };
        let locked = |_| -> Result<u32> {
            Err(StoreError::Locked { path: "lock".into(), waited: Duration::from_secs(30) }.into())
        };
        let never = |_| -> Result<u32> { panic!("it is known") };
        assert_eq!(known.look(Some(in_use), never), None);
        assert!(matches!(known.look(Some(next), locked), Some(Candidate::Delayed { .. })));
        // The same trouble is told once, and the candidate is still looked at.
        assert_eq!(known.look(Some(next), locked), None);
        assert_eq!(known.look(Some(next), |_| Ok(1)), Some(Candidate::Admitted(1)));
        assert_eq!(known.look(Some(next), never), None);
        let refused = known.look(Some(in_use), |_| -> Result<u32> { bail!("it is revoked") });
        let (plugin, reason) = (in_use.to_string(), "it is revoked".to_owned());
        assert_eq!(refused, Some(Candidate::Refused { plugin, reason }));
        assert_eq!(known.look(Some(in_use), never), None);
        assert_eq!(known.look(None, never), None);
    }

    #[test]
    fn damage_of_a_moment_is_waited_for_and_a_refusal_of_the_plugin_is_not() {
        let digest = kvasir_plugin::PluginDigest([7; 32]);
        let corrupt =
            |path: &str| StoreError::Corrupt { path: path.into(), reason: "cut".into(), remedy: "" };
        let policy = kvasir_plugin::Policy::parse(b"[defualt]").unwrap_err();
        for passes in [
            StoreError::PolicyFile { path: "policy.toml".into(), source: policy },
            corrupt("seen.json"),
            StoreError::NotPlain { path: "root.json".into(), kind: "a folder", wanted: "plain file" },
            StoreError::TooLarge { path: "seen.json".into(), limit: 1 },
            StoreError::RootMissing { path: "root.json".into(), copy: "root.json".into() },
            StoreError::SeenLost { path: "seen.json".into(), twin: "seen.json".into() },
            StoreError::NotInstalled { digest },
        ] {
            assert!(may_pass(&passes), "{passes:?}");
        }
        let revoked = || kvasir_plugin::PluginError::RevokedPackage { plugin: digest };
        for stays in [
            StoreError::Package(revoked()),
            StoreError::Refused { digest, source: revoked(), remedy: "" },
            StoreError::Override { path: "x".into(), reason: "it expired".into() },
        ] {
            assert!(!may_pass(&stays), "{stays:?}");
        }
    }

    #[test]
    fn changes_are_passed_on_and_recorded_and_nothing_else_is_recorded() {
        let home = tempfile::tempdir().unwrap();
        let settings = Settings::load(None, Some(home.path())).unwrap();
        std::fs::create_dir_all(&settings.data_folder).unwrap();
        let seen = Arc::new(Mutex::new(0));
        let theirs = Arc::clone(&seen);
        let events = recorded(&settings, Arc::new(move |_| *theirs.lock().unwrap() += 1));
        events(Event::Drained);
        events(Event::CandidateRejected { plugin: "ab".to_owned(), reason: "it differs".to_owned() });
        assert_eq!(*seen.lock().unwrap(), 2);
        let record = std::fs::read_to_string(settings.data_folder.join("changeovers.jsonl")).unwrap();
        let [line] = record.lines().collect::<Vec<_>>()[..] else { panic!("{record}") };
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["event"], &line["reason"]), (&json!("candidate_rejected"), &json!("it differs")));
        assert!(line["unix_seconds"].as_u64().unwrap() > 0);
    }
}
