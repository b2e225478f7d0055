//! The words of `kvasir audit`, and how they become options.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kvasir_operate::audit::AuditOptions;

use crate::arguments::parse_duration;

#[derive(Args)]
pub struct AuditArguments {
    /// Address or folder of the ledger's public log.
    #[arg(value_name = "URL|DIR", required_unless_present = "evidence_file")]
    pub log: Option<String>,
    /// The log's key, as in the file log.vkey: the text, or the file.
    #[arg(long, value_name = "VKEY|FILE", required_unless_present_any = ["policy", "evidence_file"], requires = "log")]
    pub log_key: Option<String>,
    /// Policy file: logs, witnesses and quorum.
    #[arg(long, value_name = "FILE", requires = "log")]
    pub policy: Option<PathBuf>,
    /// The only treasury key that the log may believe.
    #[arg(long, value_name = "KEY")]
    pub treasury: Option<String>,
    /// Draw so many published calls and compute each again.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub replay: usize,
    /// Address or folder of probe records, or of rows that a payer kept [default: `probes` under the log].
    #[arg(long, value_name = "URL|DIR")]
    pub probes: Option<String>,
    /// Draw by this checkpoint, kept from earlier, instead of the log's latest.
    #[arg(long, value_name = "FILE", requires = "log")]
    pub checkpoint: Option<PathBuf>,
    /// GGUF file or Hugging Face folder; repeatable. Its digest has to be the receipt's.
    #[arg(short, long = "model", value_name = "PATH")]
    pub models: Vec<PathBuf>,
    /// Package of the expert kernel [default: the installed one that a receipt names].
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    #[arg(long, env = "KVASIR_TRUST", value_name = "FOLDER")]
    pub trust: Option<PathBuf>,
    /// Threads that compute [default: one a core].
    #[arg(short, long, env = "KVASIR_THREADS", value_name = "N")]
    pub threads: Option<usize>,
    /// Time for one expert in one engine [default: 120s].
    #[arg(long, value_parser = parse_duration)]
    pub deadline: Option<Duration>,
    /// Most multiplications of a call that is replayed [default: 68719476736].
    #[arg(long, value_name = "N")]
    pub max_work: Option<u64>,
    /// Sign what is found with this key, as notes for `kvasir-ledger submit`.
    #[arg(long, value_name = "FILE", requires = "log")]
    pub sign_key: Option<PathBuf>,
    /// Folder for these notes.
    #[arg(long, value_name = "FOLDER", default_value = ".", requires = "sign_key")]
    pub statements: PathBuf,
    /// Write what anybody needs to repeat a conviction into this folder, as `kvasir-ledger convict` reads it.
    #[arg(long, value_name = "FOLDER")]
    pub evidence: Option<PathBuf>,
    /// Compute the calls of this file of evidence again, from the file alone, instead of auditing a log. Where a log is named,
    /// the file's receipt has to stand in it, and --sign-key states what is found.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["treasury", "probes", "evidence"])]
    pub evidence_file: Option<PathBuf>,
}

impl From<&AuditArguments> for AuditOptions {
    fn from(words: &AuditArguments) -> Self {
        AuditOptions {
            log: words.log.clone().unwrap_or_default(),
            log_key: words.log_key.clone(),
            policy: words.policy.clone(),
            treasury: words.treasury.clone(),
            replay: words.replay,
            probes: words.probes.clone(),
            checkpoint: words.checkpoint.clone(),
            models: words.models.clone(),
            plugin: words.plugin.clone(),
            trust: words.trust.clone(),
            threads: words.threads,
            deadline: words.deadline,
            max_work: words.max_work,
            sign_key: words.sign_key.clone(),
            statements: words.statements.clone(),
            evidence: words.evidence.clone(),
        }
    }
}
