//! The program `kvasir-kernel`, started by a host process with two descriptors and nothing else. `serve` runs a compiled kernel over
//! shared memory, `compile` compiles a component. By hand, `kvasir-kernel probe` puts the same walls around itself, tries what a
//! kernel must not do, and prints one JSON object that says what was refused.

mod compile;
mod confine;
mod leave;
mod probe;
mod serve;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match (words.next().as_deref().and_then(|word| word.to_str()), words.next()) {
        (Some("serve"), None) => serve::run(),
        (Some("compile"), None) => compile::run(),
        (Some("probe"), None) => probe::run(),
        _ => {
            eprintln!(
                "usage: kvasir-kernel probe\n(a host program starts it with `serve` and `compile`, and descriptors 3 and 4)"
            );
            ExitCode::from(2)
        }
    }
}
