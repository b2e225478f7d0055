//! The program `kvasir-gpu`, started by a host process and talked to over its standard input and output. By hand it checks a shader:
//! `kvasir-gpu check FILE` prints one JSON object and exits with 0 if the shader is accepted and with 1 if it is refused.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [command, file] if command == "check" => {
            match kvasir_gpu_process::check_command::run(Path::new(file)) {
                Ok((object, accepted)) => match writeln!(io::stdout(), "{object}") {
                    Ok(()) => ExitCode::from(u8::from(!accepted)),
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(141),
                    Err(error) => failed(&format!("standard output: {error}")),
                },
                Err(error) => failed(&format!("{error:#}")),
            }
        }
        [] => kvasir_gpu_process::serve::run(),
        _ => failed("usage: kvasir-gpu check FILE"),
    }
}

/// Says why, in one line without what a terminal would obey; where nobody listens, the exit code is all there is.
fn failed(reason: &str) -> ExitCode {
    let shown: String = reason.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let _ = writeln!(io::stderr(), "kvasir-gpu: {shown}");
    ExitCode::from(2)
}
