//! The commands of `kvasir-ledger`. With `--json` each prints one JSON object on standard output, all else goes to
//! standard error. Exit code 0: done; 1: failed, refused, or found wrong; 2: wrong usage; 3: no verdict. Of the commands that judge
//! something `audit` and `verify` accuse with 1: what was read is wrong, and nothing else. `check-proof` and `convict` say with it that the
//! file proves nothing under the keys that were given, whoever is to blame.

mod ask;
mod audit;
mod check;
mod evidence;
mod export;
mod keep;
mod public_log;
mod sign;
mod statement;
mod submit;
mod table;
mod witness;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{CommandFactory, Parser, Subcommand};
use serde::Serialize;
use serde_json::json;
use thiserror::Error;

use crate::plain_text::printable;

/// Receipts, credit and settlements of a Kvasir network.
#[derive(Debug, Parser)]
#[command(
    name = "kvasir-ledger",
    version,
    propagate_version = true,
    max_term_width = 110,
    after_help = "Exit codes: 0 done; 1 failed, refused, or found wrong; 2 wrong usage; 3 no verdict: what `audit`, `verify`, `check-proof`\n\
                  or `convict` was to judge could not be read, or says nothing before it is computed again."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object on standard output
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // one value in a process's life
enum Command {
    /// Make a new ledger: a folder with ledger.toml and an empty database
    Init(keep::Init),
    /// Serve the HTTP API until SIGTERM or Ctrl-C
    Serve(keep::Serve),
    /// Make a secret key file and print its public key
    Key(sign::MakeKey),
    /// Set the price of a metered byte (treasury)
    Price(sign::SetPrice),
    /// Put credit into a paying account (treasury)
    Fund(sign::MakeFund),
    /// Allow sessions to be billed to a backbone's account (backbone)
    Grant(sign::MakeGrant),
    /// Let a worker's key earn for a wallet (wallet)
    Delegate(sign::MakeDelegation),
    /// Reverse a settlement while it is pending (treasury)
    Correct(sign::MakeCorrection),
    /// Publish a measure against a worker, with its reason and evidence (treasury)
    Penalty(sign::MakePenalty),
    /// Answer a penalty (worker)
    Appeal(sign::MakeAppeal),
    /// Send a note that somebody signed elsewhere
    Submit(submit::Submit),
    /// Show a wallet's credit
    Wallet(ask::ShowWallet),
    /// Show a paying account
    Account(ask::ShowAccount),
    Statement(statement::ShowStatement),
    /// List receipts
    Receipts(ask::ListReceipts),
    /// Re-verify everything in the database and recompute all balances
    Verify(check::Verify),
    /// Write a table as CSV or JSON
    Export(export::Export),
    Audit(audit::AuditLog),
    Prove(evidence::Prove),
    CheckProof(evidence::CheckProof),
    Fraud(evidence::Fraud),
    Convict(evidence::Convict),
    Publish(public_log::Publish),
    Backup(public_log::Backup),
    Restore(public_log::Restore),
    Witness(witness::WitnessCommand),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  kvasir-ledger completions bash > /etc/bash_completion.d/kvasir-ledger"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Nothing is known about what was to be judged, since something that is needed for it could not be read or written, or is not
/// computed here.
#[derive(Debug, Error)]
#[error("no verdict")]
struct NoVerdict;

impl NoVerdict {
    /// Exit code, apart from that of a fault that was found.
    const EXIT_CODE: u8 = 3;
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let CommandLine { command, json } = CommandLine::parse();
    let is_about_a_proof = matches!(command, Command::CheckProof(_) | Command::Convict(_));
    let result = match command {
        Command::Init(command) => command.run(json),
        Command::Serve(command) => command.run(json),
        Command::Key(command) => command.run(json),
        Command::Price(command) => command.run(json),
        Command::Fund(command) => command.run(json),
        Command::Grant(command) => command.run(json),
        Command::Delegate(command) => command.run(json),
        Command::Correct(command) => command.run(json),
        Command::Penalty(command) => command.run(json),
        Command::Appeal(command) => command.run(json),
        Command::Submit(command) => command.run(json),
        Command::Wallet(command) => command.run(json),
        Command::Account(command) => command.run(json),
        Command::Statement(command) => command.run(json),
        Command::Receipts(command) => command.run(json),
        Command::Verify(command) => command.run(json),
        Command::Export(command) => command.run(json),
        Command::Audit(command) => command.run(json),
        Command::Prove(command) => command.run(json),
        Command::CheckProof(command) => command.run(json),
        Command::Fraud(command) => command.run(json),
        Command::Convict(command) => command.run(json),
        Command::Publish(command) => command.run(json),
        Command::Backup(command) => command.run(json),
        Command::Restore(command) => command.run(json),
        Command::Witness(command) => command.run(json),
        Command::Completions { shell } => {
            let mut command = CommandLine::command();
            // Into memory first: the generator panics where its stream fails.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "kvasir-ledger", &mut script);
            print(&script)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough (`| head`) is no failure of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("kvasir-ledger: {}", said_once(error.chain()));
            // Where nobody can hear it the exit code says it.
            let _ = writeln!(std::io::stderr(), "{}", printable(&text));
            if !error.is::<NoVerdict>() {
                if json && is_about_a_proof {
                    let _ = report(true, &json!({ "ok": false, "reason": said_once(error.chain()) }), "");
                }
                return ExitCode::FAILURE;
            }
            if json {
                // Neither true nor false.
                let _ = report(true, &json!({ "ok": null, "reason": said_once(error.chain().skip(1)) }), "");
            }
            ExitCode::from(NoVerdict::EXIT_CODE)
        }
    }
}

/// The causes of an error, without those that what is said before tells already.
fn said_once<'a>(causes: impl Iterator<Item = &'a (dyn std::error::Error + 'static)>) -> String {
    causes.map(ToString::to_string).fold(String::new(), |said, cause| match said.is_empty() {
        true => cause,
        false if said.contains(&cause) => said,
        false => format!("{said}: {cause}"),
    })
}

/// Prints a result: the object with `--json`, the sentence without.
fn report(json: bool, object: &impl Serialize, sentence: &str) -> Result<()> {
    let line =
        if json { serde_json::to_string(object)? } else { printable(sentence.trim_end()).into_owned() };
    print(format!("{line}\n").as_bytes())
}

/// Writes to standard output, and says so where that fails: what is lost there must not look like success.
fn print(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("standard output cannot be written")
}

/// Whether standard output has no reader. A broken connection to a log's server is none of this: it comes with a type of its own.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

fn unix_now() -> u64 {
    crate::server::system_clock()()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_of_ours_that_left_is_no_failure() {
        let broken = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::from(broken())));
        assert!(is_broken_pipe(&anyhow::Error::from(broken()).context("standard output").context(NoVerdict)));
        // A log's server that hangs up must never make an audit end with 0.
        let file = crate::log::SourceError::File { place: "checkpoint".into(), source: broken() };
        assert!(!is_broken_pipe(&crate::audit::AuditError::from(file).into()));
    }

    #[test]
    fn a_cause_is_told_once() {
        let disk = || std::io::Error::other("no such disk");
        let source = crate::log::SourceError::File { place: "x".into(), source: disk() };
        let error = anyhow::Error::from(source).context("while reading");
        assert_eq!(said_once(error.chain()), "while reading: x cannot be read: no such disk");
        assert_eq!(said_once(anyhow::Error::from(disk()).context("x").chain()), "x: no such disk");
    }

    #[test]
    fn the_command_line_is_well_formed_and_every_command_has_an_example() {
        CommandLine::command().debug_assert();
        for command in CommandLine::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("kvasir-ledger"), "{} has no example", command.get_name());
        }
    }
}
