//! The program `kvasir-ledger`: its command line is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvasir_ledger::command::main()
}
