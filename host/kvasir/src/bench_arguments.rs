//! The words of `kvasir bench kernels` and `kvasir bench layer`, and how they become options.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, Subcommand, ValueEnum};
use kvasir_operate::bench::contestant::{Implementation, MeasureOptions};
use kvasir_operate::bench::kernels::{KernelOptions, Shape, parse_format};
use kvasir_operate::bench::layer::LayerOptions;
use kvasir_operate::bench::{FORMATS, Format};

use crate::arguments::CommandLine;

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Measure experts alone: by format, shape, rows and implementation, beside the speed of memory.
    #[command(after_help = "\
Examples:
  kvasir bench kernels
  kvasir bench kernels --format Q4_K --shape 122b --rows 1,4,64 --threads 2
  kvasir bench kernels --all --seconds 1 --json")]
    Kernels(KernelArguments),
    /// Measure one layer's experts where tokens are spread over them at random.
    #[command(after_help = "\
Example:
  kvasir bench layer --shape 2048x768 --experts 128 --top 8 --tokens 1,4,32,128,512")]
    Layer(LayerArguments),
}

#[derive(Args)]
pub struct KernelArguments {
    #[command(flatten)]
    pub measure: MeasureArguments,
    /// Every format that is supported.
    #[arg(long, conflicts_with = "formats")]
    pub all: bool,
    /// Shape of the experts: 122b, 35b, atlas, or HIDDENxWIDTH; repeatable [default: the three].
    #[arg(long = "shape", value_parser = Shape::parse)]
    pub shapes: Vec<Shape>,
    /// Rows an expert is given at once [default: 1,4,16,64,512].
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<usize>,
    /// Seconds for each figure.
    #[arg(long, default_value_t = 0.2)]
    pub seconds: f64,
}

#[derive(Args)]
pub struct LayerArguments {
    #[command(flatten)]
    pub measure: MeasureArguments,
    /// Shape of the experts: 122b, 35b, atlas, or HIDDENxWIDTH.
    #[arg(long, default_value = "122b", value_parser = Shape::parse)]
    pub shape: Shape,
    /// Experts of the layer.
    #[arg(long, default_value_t = 128)]
    pub experts: usize,
    /// Experts that a token goes to.
    #[arg(long, default_value_t = 8)]
    pub top: usize,
    /// Tokens in a call.
    #[arg(long, value_delimiter = ',', default_value = "1,4,32,128,512")]
    pub tokens: Vec<usize>,
    /// Seconds for each figure.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
}

#[derive(Args)]
pub struct MeasureArguments {
    /// Format of the weights, as GGUF names it; repeatable.
    #[arg(long = "format", value_name = "FORMAT", value_parser = parse_format)]
    pub formats: Vec<Format>,
    /// What computes; repeatable.
    #[arg(long = "implementation", value_name = "NAME")]
    pub implementations: Vec<ImplementationArgument>,
    /// Threads that compute.
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    pub threads: usize,
    /// Package of the expert kernel.
    #[arg(long, env = "KVASIR_PLUGIN", value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' public keys.
    #[arg(long, env = "KVASIR_TRUST", value_name = "FOLDER")]
    pub trust: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ImplementationArgument {
    /// The scalar reference.
    Scalar,
    /// Every vector instruction set of this machine.
    Native,
    /// The signed kernel in the sandbox.
    Wasm,
    /// The plugin's shader on the GPU.
    Wgsl,
    /// One product alone, natively.
    Product,
}

/// Refuses an option of `kvasir bench` itself before `kernels` or `layer`, where it would do nothing. (clap's own rule for that
/// refuses `--json` there too.)
pub fn check_place(found: &ArgMatches) -> Result<(), clap::Error> {
    let Some(("bench", bench)) = found.subcommand() else { return Ok(()) };
    let Some(experts) = bench.subcommand_name() else { return Ok(()) };
    let own = ["model", "plugin", "trust", "threads", "memory", "prompt_tokens", "tokens", "runs"];
    match own.iter().find(|id| bench.value_source(id) == Some(ValueSource::CommandLine)) {
        None => Ok(()),
        Some(id) => {
            let option = id.replace('_', "-");
            let told =
                format!("--{option} before `{experts}` does nothing: see `kvasir bench {experts} --help`");
            Err(CommandLine::command().error(ErrorKind::ArgumentConflict, told))
        }
    }
}

impl MeasureArguments {
    fn options(&self, seconds: f64, all: bool) -> MeasureOptions {
        let implementation = |argument: &ImplementationArgument| match argument {
            ImplementationArgument::Scalar => Implementation::Scalar,
            ImplementationArgument::Native => Implementation::Native,
            ImplementationArgument::Wasm => Implementation::Wasm,
            ImplementationArgument::Wgsl => Implementation::Wgsl,
            ImplementationArgument::Product => Implementation::Product,
        };
        MeasureOptions {
            plugin: self.plugin.clone(),
            trust: self.trust.clone(),
            threads: Some(self.threads),
            seconds,
            implementations: self.implementations.iter().map(implementation).collect(),
            formats: if all { FORMATS.to_vec() } else { self.formats.clone() },
        }
    }
}

impl From<&KernelArguments> for KernelOptions {
    fn from(arguments: &KernelArguments) -> Self {
        KernelOptions {
            measure: arguments.measure.options(arguments.seconds, arguments.all),
            shapes: arguments.shapes.clone(),
            rows: arguments.rows.clone(),
        }
    }
}

impl From<&LayerArguments> for LayerOptions {
    fn from(arguments: &LayerArguments) -> Self {
        LayerOptions {
            measure: arguments.measure.options(arguments.seconds, false),
            shape: arguments.shape.clone(),
            experts: arguments.experts,
            top: arguments.top,
            tokens: arguments.tokens.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn an_option_in_the_wrong_place_is_refused_and_a_global_one_is_not() {
        let check = |words: &[&str]| {
            let all = [&["kvasir", "bench"], words].concat();
            CommandLine::command().try_get_matches_from(all).and_then(|found| check_place(&found))
        };
        assert!(check(&["--runs", "3"]).is_ok());
        assert!(check(&["--json", "kernels", "--threads", "2"]).is_ok());
        let told = check(&["--prompt-tokens", "3", "layer"]).err().map(|error| error.to_string());
        assert!(
            told.as_ref().is_some_and(|told| told.contains("--prompt-tokens before `layer`")),
            "{told:?}"
        );
        assert!(check(&["--threads", "2", "kernels"]).is_err());
    }

    #[test]
    fn lists_and_names_are_read() {
        let words = ["kvasir", "bench", "kernels", "--rows", "1,64", "--format", "q8_0", "--shape", "35b"];
        assert!(CommandLine::try_parse_from(words).is_ok());
        for wrong in [["--format", "Q0"], ["--shape", "x"], ["--rows", "1,"], ["--implementation", "cuda"]] {
            let words = [&["kvasir", "bench", "kernels"], &wrong[..]].concat();
            assert!(CommandLine::try_parse_from(words).is_err(), "{wrong:?}");
        }
        assert!(
            CommandLine::try_parse_from(["kvasir", "bench", "kernels", "--all", "--format", "F32"]).is_err()
        );
    }
}
