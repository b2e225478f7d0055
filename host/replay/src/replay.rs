//! The second pass: the items drawn, computed again and judged.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kvasir_ledger::evidence::{Evidence, EvidenceError, WorkFraud};
use kvasir_model::Model;
use kvasir_plugin::VerifiedPlugin;
use kvasir_wire::handshake::Class;
use kvasir_wire::id::{ModelDigest, PluginDigest};
use kvasir_wire::message::Call;
use kvasir_wire::probe::{ProbeFile, ProbeRecord};
use kvasir_wire::receipt::Receipt;
use kvasir_wire::work::WorkItem;

use crate::engines::{EngineKind, Engines, Limits};
use crate::error::ReplayError;
use crate::probes::ProbeSource;
use crate::receipts::{LoggedReceipt, LoggedReceipts};
use crate::survey::{Place, checked};
use crate::verdict::{Verdict, judge};

/// Most plugins that are compiled for one audit, each once for every model that it was asked for: receipts of strangers name them.
pub const MAX_PLUGINS: usize = 8;

/// Finds a plugin by its digest, verified; the reason where there is none.
pub type FindPlugin<'a> = &'a dyn Fn(PluginDigest) -> Result<VerifiedPlugin, String>;

/// Computes items again: models, and the engines of the plugins that were needed so far.
pub struct Replayer<'a> {
    models: Vec<(ModelDigest, Model)>,
    find: FindPlugin<'a>,
    /// Of each model its own: what is loaded into an engine's runner is known by the expert's name alone.
    engines: BTreeMap<(PluginDigest, ModelDigest), Result<Engines, String>>,
    limits: Limits,
}

/// One item, judged.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which.
    pub place: Place,
    /// Index of the receipt's leaf in the log.
    pub leaf: u64,
    /// The receipt.
    pub receipt: Receipt,
    /// The work item.
    pub item: WorkItem,
    /// Experts of the call.
    pub experts: usize,
    /// Row requests of the call.
    pub requests: usize,
    /// What was found.
    pub verdict: Verdict,
    /// Of a conviction: everything that anybody needs to repeat it but the model and the plugin, as `kvasir-ledger convict` reads it.
    pub evidence: Option<Evidence>,
    /// What each engine took; nothing where none was asked.
    pub times: Vec<(EngineKind, Duration)>,
}

impl<'a> Replayer<'a> {
    /// Digests the models, which reads every weight once; plugins are asked for by need.
    ///
    /// # Errors
    /// A model that cannot be digested.
    pub fn new(models: Vec<Model>, find: FindPlugin<'a>, limits: Limits) -> Result<Self, ReplayError> {
        let digested = |model: Model| {
            let digest = ModelDigest(model.digests()?.model.0);
            Ok((digest, model))
        };
        let models = models.into_iter().map(digested).collect::<Result<_, ReplayError>>()?;
        Ok(Replayer { models, find, engines: BTreeMap::new(), limits })
    }

    /// The models at hand.
    pub fn models(&self) -> impl Iterator<Item = ModelDigest> {
        self.models.iter().map(|(digest, _)| *digest)
    }

    /// Reads a drawn item again and replays it; the reason where its file changed since the survey.
    ///
    /// # Errors
    /// The file cannot be read at all.
    pub fn replay_at(
        &mut self,
        probes: &dyn ProbeSource,
        receipts: &LoggedReceipts,
        place: Place,
    ) -> Result<Result<Report, String>, ReplayError> {
        let (file, receipt) = match checked(probes, receipts, &place.name)? {
            Ok(checked) => checked,
            Err(reason) => return Ok(Err(reason)),
        };
        let Some(record) = file.records.iter().find(|record| record.index == place.index) else {
            return Ok(Err(format!("the record of work item {} is gone", place.index)));
        };
        Ok(self.replay(receipt, file.size, record))
    }

    /// Replays one record of a logged receipt whose session has `size` work items; the reason where the record is none.
    ///
    /// # Errors
    /// What [`ProbeRecord::check`] says.
    pub fn replay(
        &mut self,
        receipt: &LoggedReceipt,
        size: u64,
        record: &ProbeRecord,
    ) -> Result<Report, String> {
        let logged = receipt.signed.receipt();
        let item = record.check(size, &logged.counters.work).map_err(|error| error.to_string())?;
        let call = record.call().map_err(|error| error.to_string())?;
        let (verdict, times) = self.judged(logged, &item, &call, &record.rows);
        let evidence = matches!(verdict, Verdict::Convicted(_)).then(|| evidence(receipt, size, record));
        Ok(Report {
            place: Place {
                name: kvasir_wire::probe::ProbeName { session: logged.terms.session, seq: logged.seq },
                index: record.index,
            },
            leaf: receipt.leaf,
            receipt: logged.clone(),
            item,
            experts: call.experts.len(),
            requests: call.requests(),
            verdict,
            evidence,
            times,
        })
    }

    /// Replays the calls in a file of evidence, each with its index: no log is needed, the worker's signature on the receipt
    /// binds it.
    ///
    /// # Errors
    /// The file does not hold what its receipt signs, or no call.
    pub fn replay_evidence(&mut self, work: &WorkFraud) -> Result<Vec<(u64, Verdict)>, EvidenceError> {
        let receipt = work.verified()?;
        let mut judged = Vec::with_capacity(work.record.records.len());
        for record in &work.record.records {
            let item = record.check(work.record.size, &receipt.counters.work)?;
            let (verdict, _) = self.judged(&receipt, &item, &record.call()?, &record.rows);
            judged.push((record.index, verdict));
        }
        Ok(judged)
    }

    fn judged(
        &mut self,
        receipt: &Receipt,
        item: &WorkItem,
        call: &Call<'_>,
        rows: &[u8],
    ) -> (Verdict, Vec<(EngineKind, Duration)>) {
        let terms = &receipt.terms;
        let unknown = |reason: String| (Verdict::Unknown { reason }, Vec::new());
        let Some((_, model)) = self.models.iter().find(|(digest, _)| *digest == terms.model) else {
            return unknown(format!(
                "the receipt's model {} is not here; give its file with --model",
                terms.model
            ));
        };
        let of = (terms.plugin, terms.model);
        if !self.engines.contains_key(&of) && self.engines.len() >= MAX_PLUGINS {
            return unknown(format!(
                "the receipts name more than {MAX_PLUGINS} plugins, counted once for each model; audit them apart"
            ));
        }
        let (find, limits) = (self.find, self.limits);
        let engines = self.engines.entry(of).or_insert_with(|| {
            let plugin = find(terms.plugin)?;
            if plugin.digest().0 != terms.plugin.0 {
                return Err(format!(
                    "the plugin found is {}, the receipt names {}",
                    plugin.digest(),
                    terms.plugin
                ));
            }
            Engines::new(&plugin, limits).map_err(|error| error.to_string())
        });
        let engines = match engines {
            Ok(engines) => engines,
            Err(reason) => return unknown(reason.clone()),
        };
        let mut times = Vec::with_capacity(EngineKind::ALL.len());
        let answers = EngineKind::ALL.map(|kind| {
            let started = Instant::now();
            let answer = engines.answer(kind, model, call);
            times.push((kind, started.elapsed()));
            (kind, answer)
        });
        let columns = call.columns().unwrap_or(0);
        (judge(item, terms.class, rows, columns, &answers), times)
    }
}

/// The receipt and the one record, in a file of evidence.
fn evidence(receipt: &LoggedReceipt, size: u64, record: &ProbeRecord) -> Evidence {
    let logged = receipt.signed.receipt();
    Evidence::Work(WorkFraud {
        keys: receipt.keys,
        receipt: receipt.signed.note().clone(),
        record: ProbeFile {
            session: logged.terms.session,
            seq: logged.seq,
            receipt: logged.id(),
            size,
            root: logged.counters.work,
            records: vec![record.clone()],
        },
    })
}

/// Whether bytes can convict in a session of this class.
pub const fn convictable(class: Class) -> bool {
    matches!(class, Class::Exact)
}
