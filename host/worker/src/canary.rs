//! A candidate beside the plugin in use: it computes the same live calls, and its answers are compared bit for bit.
//!
//! Off the critical path: a thread of its own loads the candidate's experts and computes, after the active kernel's answer
//! has been sent; calls that come faster than it computes are let pass. Nothing that it computes leaves this machine. What
//! both hold is bounded by the worker's one budget: a candidate that finds no room for an expert is compared on the others.

use std::sync::mpsc as jobs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvasir_experts::{ExpertRows, ExpertRunner, LayerIndex, RowFormat, RunnerError};
use kvasir_wire::id::{ModelDigest, PluginDigest};
use kvasir_wire::message::{Call, ExpertName, Mode};
use tokio::sync::mpsc;

use crate::changeover::News;
use crate::serving::requests;
use crate::store::Store;
use crate::version::Version;

/// Calls that may wait to be compared; further ones are let pass.
const MAX_WAITING_CALLS: usize = 4;
/// Bytes of calls and answers that may wait to be compared.
const MAX_WAITING_BYTES: usize = 16 << 20;

/// A candidate that is being watched.
pub(crate) struct Canary {
    pub(crate) plugin: PluginDigest,
    pub(crate) store: Arc<Store>,
    runner: Arc<ExpertRunner>,
    wanted: u32,
    jobs: jobs::Sender<Job>,
    progress: Mutex<Progress>,
    tell: mpsc::UnboundedSender<News>,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Progress {
    compared: u32,
    waiting_calls: usize,
    waiting_bytes: usize,
    over: bool,
}

/// What came of the comparison.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// So many live calls were answered alike.
    Alike(u32),
    /// The candidate failed or differed; why.
    Unfit(String),
}

impl Canary {
    /// A candidate that has to answer `wanted` calls alike. Its verdict goes to `tell`.
    pub(crate) fn start(
        version: &Version,
        wanted: u32,
        tell: mpsc::UnboundedSender<News>,
    ) -> std::io::Result<Option<Arc<Self>>> {
        let plugin = version.plugin();
        let Some(runner) = version.runners.get(&plugin).cloned() else { return Ok(None) };
        let (jobs, queue) = jobs::channel::<Job>();
        // Not joined: a job may hold the last of what it works for, and none outlasts the sandbox's deadline by much.
        std::thread::Builder::new()
            .name("kvasir-shadow".into())
            .spawn(move || queue.into_iter().for_each(|job| job()))?;
        let store = Arc::clone(&version.store);
        let progress = Mutex::default();
        Ok(Some(Arc::new(Self { plugin, store, runner, wanted, jobs, progress, tell })))
    }

    /// The session whose calls are computed is about this model.
    pub(crate) fn begin(&self, model: ModelDigest) {
        self.store.begin(self.plugin, model, &self.runner);
    }

    /// Queues something for the candidate's thread, such as the loading of an expert.
    pub(crate) fn work(&self, job: impl FnOnce() + Send + 'static) {
        if self.jobs.send(Box::new(job)).is_err() {
            self.judge(Verdict::Unfit("its thread ended: the candidate's runner panicked".to_owned()));
        }
    }

    /// Takes a call that the active kernel has answered, if there is room; it is compared some time.
    pub(crate) fn compare(self: &Arc<Self>, active: &Arc<ExpertRunner>, payload: &[u8], answer: Vec<f32>) {
        let bytes = payload.len() + answer.len() * 4;
        {
            let mut progress = self.progress();
            let enough = progress.compared as usize + progress.waiting_calls >= self.wanted as usize;
            let full = progress.waiting_calls >= MAX_WAITING_CALLS
                || progress.waiting_bytes + bytes > MAX_WAITING_BYTES;
            if progress.over || enough || full {
                return;
            }
            progress.waiting_calls += 1;
            progress.waiting_bytes += bytes;
        }
        let (own, active, payload) = (Arc::clone(self), Arc::clone(active), payload.to_vec());
        self.work(move || {
            let outcome =
                if own.progress().over { Ok(false) } else { own.computes_alike(&active, &payload, &answer) };
            let verdict = {
                let mut progress = own.progress();
                progress.waiting_calls -= 1;
                progress.waiting_bytes -= bytes;
                match outcome {
                    Ok(counts) => {
                        progress.compared += u32::from(counts);
                        (progress.compared >= own.wanted).then(|| Verdict::Alike(progress.compared))
                    }
                    Err(why) => Some(Verdict::Unfit(why)),
                }
            };
            if let Some(verdict) = verdict {
                own.judge(verdict);
            }
        });
    }

    /// No more comparing: gives the calls compared so far, unless the verdict is out already.
    pub(crate) fn close(&self) -> Option<u32> {
        let mut progress = self.progress();
        (!std::mem::replace(&mut progress.over, true)).then_some(progress.compared)
    }

    /// The verdict; the first one counts.
    pub(crate) fn judge(&self, verdict: Verdict) {
        if std::mem::replace(&mut self.progress().over, true) {
            return;
        }
        // Fails only when the worker has ended.
        let _ = self.tell.send(News::Verdict { plugin: self.plugin, verdict });
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes what it can of a call; whether that was anything. The error says what is wrong with the candidate.
    fn computes_alike(&self, active: &ExpertRunner, payload: &[u8], answer: &[f32]) -> Result<bool, String> {
        // The active kernel answered it, so it is well-formed.
        let Ok(call) = Call::decode(payload) else { return Ok(false) };
        let (Some(format), Some(hidden)) = (RowFormat::from_number(call.row_format as u8), call.columns())
        else {
            return Ok(false);
        };
        let held =
            |rows: &ExpertRows| self.store.holds(ExpertName { layer: call.layer, expert: rows.expert.0 });
        let mut asked = requests(&call);
        let all = asked.len();
        asked.retain(held);
        if asked.is_empty() {
            return Ok(false);
        }
        let layer = LayerIndex(call.layer);
        let each = |runner: &ExpertRunner| runner.each(layer, format, call.data, hidden, &asked);
        let (found, due) = if asked.len() < all {
            // Of a sum there is only the whole; so both compute these experts' rows.
            let Ok(due) = each(active) else { return Ok(false) };
            (each(&self.runner), due)
        } else if call.mode == Mode::Sum {
            (self.runner.sum(layer, format, call.data, hidden, &asked), answer.to_vec())
        } else {
            (each(&self.runner), answer.to_vec())
        };
        let found = match found {
            Ok(found) => found,
            // It was released in the meantime.
            Err(RunnerError::NotHeld { .. }) => return Ok(false),
            Err(error) => {
                return Err(format!(
                    "it failed on live call {}, which the plugin in use answered: {error}",
                    call.call
                ));
            }
        };
        match differs(&found, &due) {
            None => Ok(true),
            Some((index, found, due)) => Err(format!(
                "it differs from the plugin in use on live call {} (layer {layer}): value {index} has the bits {found:#010x}, the \
                 plugin in use gave {due:#010x}",
                call.call
            )),
        }
    }
}

/// The first value whose bits differ: its index, and both.
fn differs(found: &[f32], due: &[f32]) -> Option<(usize, u32, u32)> {
    if found.len() != due.len() {
        return Some((found.len().min(due.len()), 0, 0));
    }
    let mut pairs = found.iter().zip(due).map(|(found, due)| (found.to_bits(), due.to_bits())).enumerate();
    pairs.find(|(_, (found, due))| found != due).map(|(index, (found, due))| (index, found, due))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_compared_and_not_values() {
        assert_eq!(differs(&[1.0, 2.0], &[1.0, 2.0]), None);
        assert_eq!(differs(&[1.0, 0.0], &[1.0, -0.0]), Some((1, 0, 0x8000_0000)));
        assert!(differs(&[1.0], &[1.0, 2.0]).is_some());
    }
}
