//! The words of `kvasir serve`, and how they become options.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use kvasir_operate::probes::ProbeOptions;
use kvasir_operate::serve::{ServeOptions, ServeSettings};

use crate::arguments::{ComputeArguments, SwarmArguments, folder_or_none};

#[derive(Args)]
pub struct ServeArguments {
    #[command(flatten)]
    pub compute: ComputeArguments,
    /// Address to listen on [default: 127.0.0.1:8080].
    #[arg(long, env = "KVASIR_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// File of API keys, one a line, that its owner alone can read [default: whoever reaches the address may ask].
    #[arg(long, env = "KVASIR_API_KEYS", value_name = "FILE")]
    pub api_keys: Option<PathBuf>,
    /// Name by which clients ask for the model, repeatable; answers say the first [default: the model's own].
    #[arg(long = "name", env = "KVASIR_MODEL_NAMES", value_name = "NAME", value_delimiter = ',')]
    pub names: Vec<String>,
    /// Origin whose pages may use the service (CORS), such as `https://chat.example`, repeatable; `*` for all [default: none].
    #[arg(long = "cors-origin", env = "KVASIR_CORS_ORIGINS", value_name = "ORIGIN", value_delimiter = ',')]
    pub cors_origins: Vec<String>,
    /// Texts written at once at most [default: 256].
    #[arg(long, env = "KVASIR_MAX_TEXTS", value_name = "N")]
    pub max_texts: Option<usize>,
    /// Texts that may wait beyond those; one more is told to come back [default: 256].
    #[arg(long, env = "KVASIR_MAX_QUEUE", value_name = "N")]
    pub max_queue: Option<usize>,
    /// Groups of texts of which one computes while others wait for workers, at most [default: 16].
    #[arg(long, env = "KVASIR_MAX_WAVES", value_name = "N")]
    pub max_waves: Option<usize>,
    /// Rows of prompts that are read beside the other texts' tokens at once, at most; changes no bit [default: 128].
    #[arg(long, env = "KVASIR_PREFILL_ROWS", value_name = "N")]
    pub prefill_rows: Option<usize>,
    /// Memory for texts, in MiB [default: a quarter of what is free].
    #[arg(long, env = "KVASIR_TEXT_MEMORY", value_name = "MIB")]
    pub text_memory: Option<u64>,
    /// Tokens that a prompt and its text may have together [default: the model's, and what a quarter of the memory holds].
    #[arg(long, env = "KVASIR_CONTEXT", value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Measure for a few seconds, before serving, how fast this machine writes one text without workers; the page shows it.
    #[arg(long)]
    pub measure_local: bool,
    #[command(flatten)]
    pub swarm: SwarmArguments,
    /// Write all calls to this folder, for your own replay. They are derived from prompts: only you can read the files
    /// [default: keep none].
    #[arg(long, env = "KVASIR_KEEP_ROWS", value_name = "FOLDER")]
    pub keep_rows: Option<PathBuf>,
    /// Folder for a file of evidence against each worker whose answer is found wrong. It holds rows of calls, from which text can be
    /// recovered: only you can read it. An empty value ('') keeps none [default: `evidence` in the data folder].
    #[arg(long, env = "KVASIR_EVIDENCE", value_name = "FOLDER", value_parser = folder_or_none())]
    pub evidence: Option<PathBuf>,
}

impl TryFrom<&ServeArguments> for ServeOptions {
    type Error = anyhow::Error;

    fn try_from(arguments: &ServeArguments) -> anyhow::Result<Self> {
        let probes = ProbeOptions {
            rows: arguments.keep_rows.clone(),
            evidence: arguments.evidence.clone(),
            ..ProbeOptions::default()
        };
        Ok(ServeOptions {
            compute: (&arguments.compute).into(),
            remote: arguments.swarm.remote(probes)?,
            measure_local: arguments.measure_local,
            told: ServeSettings {
                listen: arguments.listen,
                api_keys: arguments.api_keys.clone(),
                names: arguments.names.clone(),
                cors_origins: arguments.cors_origins.clone(),
                max_texts: arguments.max_texts,
                max_queue: arguments.max_queue,
                max_waves: arguments.max_waves,
                prefill_rows: arguments.prefill_rows,
                text_memory: arguments.text_memory,
                context: arguments.context,
            },
        })
    }
}
