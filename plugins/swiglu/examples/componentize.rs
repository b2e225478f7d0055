//! `componentize MODULE COMPONENT`: wraps the built core module as a component, after checking that it imports nothing from a host and
//! holds no relaxed instruction but the two integer dots that are exact under the seven-bit rule. Used by
//! `scripts/build-plugins`; a host makes the same checks of its own before it runs any kernel.

use std::process::ExitCode;

use wasmparser::{Operator, Parser, Payload};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [module, component] = arguments.as_slice() else {
        eprintln!("usage: componentize MODULE COMPONENT");
        return ExitCode::from(2);
    };
    match run(module, component) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{module}: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(module_path: &str, component_path: &str) -> Result<String, String> {
    let module = std::fs::read(module_path).map_err(|error| error.to_string())?;
    let dots = check(&module)?;
    let component = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|encoder| encoder.encode())
        .map_err(|error| format!("no component can be made of it: {error:#}"))?;
    std::fs::write(component_path, &component).map_err(|error| format!("{component_path}: {error}"))?;
    Ok(format!("{component_path}: {} bytes, no imports, {dots} relaxed dots", component.len()))
}

/// The number of relaxed dots in the module, or what is wrong with it.
fn check(module: &[u8]) -> Result<usize, String> {
    let mut dots = 0;
    for payload in Parser::new(0).parse_all(module) {
        match payload.map_err(|error| error.to_string())? {
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    let import = import.map_err(|error| error.to_string())?;
                    // The handles of a resource that the module itself exports come from the component around it.
                    if !import.module.starts_with("[export]kvasir:expert/kernel@") {
                        return Err(format!(
                            "it imports {} {}; a kernel has none",
                            import.module, import.name
                        ));
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                let mut operators = body.get_operators_reader().map_err(|error| error.to_string())?;
                while !operators.eof() {
                    match operators.read().map_err(|error| error.to_string())? {
                        Operator::I16x8RelaxedDotI8x16I7x16S | Operator::I32x4RelaxedDotI8x16I7x16AddS => {
                            dots += 1
                        }
                        operator if format!("{operator:?}").contains("Relaxed") => {
                            return Err(format!("it holds {operator:?}, which differs between processors"));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(dots)
}
