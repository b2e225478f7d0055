//! The program `kvasir-gpu`, started by a host process and talked to over its standard input and output. By hand it checks a shader:
//! `kvasir-gpu check FILE` prints one JSON object and exits with 0 if the shader is accepted and with 1 if it is refused.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [command, file] if command == "check" => {
            match kvasir_gpu_process::check_command::run(Path::new(file)) {
                Ok((object, accepted)) => {
                    println!("{object}");
                    if accepted { ExitCode::SUCCESS } else { ExitCode::from(1) }
                }
                Err(error) => {
                    eprintln!("error: {error:#}");
                    ExitCode::from(2)
                }
            }
        }
        [] => kvasir_gpu_process::serve::run(),
        _ => {
            eprintln!("usage: kvasir-gpu check FILE");
            ExitCode::from(2)
        }
    }
}
