//! `cargo bench -p kvasir-experts`: calls of the released kernel in the sandbox, with all that the runner adds, and the same
//! arithmetic natively, on one thread. Few experts, so in the caches: `kvasir bench kernels` measures them from memory.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]
#![allow(clippy::unwrap_used, reason = "a measurement that cannot be set up has nothing to say")]

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::num::NonZeroUsize;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvasir_experts::measure::{
    Bench, Evaluator, ExpertShape, MadeUpExperts, made_up_rows, on_threads, window,
};
use kvasir_experts::{ExpertRunner, Format, InstructionSet, RunnerOptions};
use kvasir_sandbox::{CompiledKernel, Engine};

const EXPERTS: usize = 4;

fn forward(criterion: &mut Criterion) {
    let folder = plugin::root().join("plugins/swiglu");
    let verified = plugin::verified(&kvasir_plugin::PackageContents {
        manifest: std::fs::read(folder.join("plugin.toml")).unwrap(),
        component: std::fs::read(folder.join("release/swiglu-0.2.0.wasm")).unwrap(),
        ..Default::default()
    });
    let kernel = CompiledKernel::compile(&Engine::shared().unwrap(), &verified).unwrap();
    let options = RunnerOptions { instances: NonZeroUsize::MIN, ..RunnerOptions::default() };
    let runner = ExpertRunner::from_kernel(kernel, options);
    for format in [Format::Q4K, Format::Q6K, Format::Q8_0, Format::F16] {
        let shape = ExpertShape { format, hidden: 2048, width: 512 };
        let experts = MadeUpExperts::new(shape, EXPERTS, 64).unwrap();
        let rows = made_up_rows(&experts).unwrap();
        experts.load(&runner).unwrap();
        let native = InstructionSet::detect();
        for (name, evaluator) in
            [("wasm", Evaluator::Runner(&runner)), (native.name(), Evaluator::Native(native))]
        {
            let bench = Bench::new(evaluator, &experts, &rows);
            let mut group = criterion.benchmark_group(format!("{format}/{name}"));
            for count in [1usize, 4, 64] {
                let requests = window(0, EXPERTS, EXPERTS, count);
                let work = evaluator.multiply_adds(shape) * (EXPERTS * count) as u64;
                group.throughput(Throughput::Elements(work));
                group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
                    on_threads(NonZeroUsize::MIN, || bencher.iter(|| bench.call(&requests).unwrap()))
                        .unwrap();
                });
            }
            group.finish();
        }
        experts.unload(&runner);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500)).without_plots();
    targets = forward
}
criterion_main!(benches);
