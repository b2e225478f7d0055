//! What the program `kvasir` does, apart from its command line: settings, keys, the local model, the demo.
//!
//! The command line (`host/kvasir`) turns words into the option structs found here and prints what comes back. Other
//! programs (gateway, ledger) are driven as processes, through the same `--json` that people can use.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at the first surprise"))]

pub mod audit;
pub mod bench;
pub mod choices;
pub mod delay;
pub mod demo;
pub mod doctor;
pub mod evidence;
pub mod expert_list;
pub mod files;
pub mod inspect;
pub mod key_file;
pub mod local;
pub mod logging;
pub mod logits;
pub mod memory;
pub mod output;
pub mod plan;
pub mod plugin_bench;
pub mod plugin_check;
pub mod plugin_inspect;
pub mod plugin_pack;
pub mod plugin_project;
pub mod plugin_push_pull;
pub mod plugin_rebuild;
pub mod plugin_sign;
pub mod plugin_store;
pub mod plugin_subject;
pub mod plugin_test;
pub mod plugin_tool;
pub mod probes;
pub mod process;
pub mod progress;
pub mod quarantine;
pub mod remote;
pub mod run;
pub mod serve;
pub mod serve_worker;
pub mod settings;
pub mod setup;
pub mod shader_check;
mod signals;
pub mod standing;
pub mod watch_store;
