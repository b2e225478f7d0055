//! `cargo bench -p kvasir-numerics`: the hot loop, one product of 256 outputs, by format, instruction set and rows. The matrix
//! stays in the caches: this measures instructions; `kvasir bench kernels` measures what memory makes of them.
//!
//! `cargo bench -p kvasir-numerics -- Q4_K/avx2` measures a part.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]
#![allow(clippy::unwrap_used, reason = "a measurement that cannot be set up has nothing to say")]

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvasir_numerics::{Format, InstructionSet, Matrix, product};

#[path = "../tests/random/mod.rs"]
mod random;

use random::{Random, Scales};

const OUTPUTS: usize = 256;
const COLUMNS: usize = 2048;

fn products(criterion: &mut Criterion) {
    for format in Format::ALL {
        let weights = random::weights(&mut Random(1), format, OUTPUTS, COLUMNS, Scales::Usual);
        let matrix = Matrix::new(format, OUTPUTS, COLUMNS, &weights).unwrap();
        for isa in InstructionSet::available() {
            let mut group = criterion.benchmark_group(format!("{format}/{isa}"));
            for count in [1usize, 4, 16] {
                let rows = random::rows(&mut Random(2), format.row_format(), COLUMNS, count);
                let mut out = vec![0.0; OUTPUTS * count];
                group.throughput(Throughput::Elements((OUTPUTS * COLUMNS * count) as u64));
                group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
                    bencher.iter(|| product(isa, matrix, 0..OUTPUTS, &rows, count, &mut out));
                });
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500)).without_plots();
    targets = products
}
criterion_main!(benches);
