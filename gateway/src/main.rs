//! The binary `kvasir-gateway`: command line and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvasir_gateway::command::main()
}
