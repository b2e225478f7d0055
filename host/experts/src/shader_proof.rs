//! Proves a plugin's shader on the golden vectors inside its signature: integer sums equal, outputs within the manifest's tolerance.

use std::collections::{BTreeMap, BTreeSet};

use kvasir_gpu::message::Part;
use kvasir_gpu::{Gpu, GpuError, GpuOptions};
use kvasir_numerics::golden::{GoldenVector, Outcome};
use kvasir_numerics::{Matrix, RowFormat, Swiglu, block_sums, quantise_row, sums_per_block};
use kvasir_plugin::{Shader, Tolerance, VerifiedPlugin};

use crate::conformance::{Clock, ConformanceError, PROOF_TIME};
use crate::error::RunnerError;
use crate::gpu_lane::{GpuLane, check_weights, gpu_rows, load, takes};

/// The number under which a vector's expert is loaded.
const NUMBER: u64 = u64::MAX;
/// Rows whose integer sums are compared, in each matrix of each vector.
const SUM_ROWS: usize = 2;

/// What was proven of a shader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShaderReport {
    /// Golden vectors computed; those of formats that the shader does not evaluate are left out.
    pub vectors: usize,
    /// Rows computed, each in its batch and once more alone.
    pub rows: usize,
    /// Integer sums compared; all were equal.
    pub sums: usize,
    /// How far outputs were from the definition's, by the format of the gate matrix; all were within the tolerance.
    pub formats: Vec<FormatDeviation>,
}

/// How far the outputs of one weight format were from the definition's.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatDeviation {
    /// GGUF's name of the format.
    pub format: String,
    /// Values compared.
    pub values: usize,
    /// Values with other bits.
    pub differing: usize,
    /// Largest difference.
    pub max_abs: f64,
    /// Largest difference in proportion to the largest value of its row.
    pub max_rel: f64,
    /// Least cosine between two rows.
    pub cosine: f64,
}

/// Starts the plugin's shader on the GPU and proves it, without keeping it.
///
/// # Errors
/// No GPU, no shader, or one that is not what it promises to be.
pub fn shader_conformance(plugin: &VerifiedPlugin, options: GpuOptions) -> Result<ShaderReport, RunnerError> {
    let mut lane = GpuLane::new(plugin, options)?;
    Ok(prove_shader(plugin, lane.gpu())?)
}

/// As [`shader_conformance`], with a shader that was started from `plugin`.
pub(crate) fn prove_shader(plugin: &VerifiedPlugin, gpu: &mut Gpu) -> Result<ShaderReport, ConformanceError> {
    gpu.begin_proof();
    let report = prove_vectors(plugin, gpu);
    gpu.end_proof();
    report
}

fn prove_vectors(plugin: &VerifiedPlugin, gpu: &mut Gpu) -> Result<ShaderReport, ConformanceError> {
    let clock = Clock::new(PROOF_TIME);
    let mut report = ShaderReport::default();
    let mut formats: BTreeMap<&'static str, FormatDeviation> = BTreeMap::new();
    let mut proven: BTreeSet<&'static str> = BTreeSet::new();
    let Some(shader) = plugin.shader() else { return Err(ConformanceError::NoVectors) };
    for (file, bytes) in plugin.vectors() {
        let vector = GoldenVector::parse(bytes)
            .map_err(|source| ConformanceError::Vector { file: file.clone(), source })?;
        let expert = Swiglu::new(vector.gate, vector.up, vector.down)
            .map_err(|source| ConformanceError::Expert { file: file.clone(), source })?;
        // What the host refuses before a GPU sees it is the host's own promise, tested elsewhere.
        let refused = matches!(vector.outcome, Outcome::MalformedWeights | Outcome::MalformedRows);
        if refused || !takes(shader, &expert) || check_weights(&expert).is_err() {
            continue;
        }
        let mut proof = Proof { gpu, shader, file, expert: &expert, clock: &clock };
        let deviation = proof.vector(&vector, &mut report)?;
        report.vectors += 1;
        report.rows += vector.count;
        let Some(deviation) = deviation else { continue };
        for matrix in [vector.gate, vector.up, vector.down] {
            proven.insert(matrix.format().name());
        }
        formats
            .entry(vector.gate.format().name())
            .and_modify(|all| all.join(&deviation))
            .or_insert(deviation);
    }
    if report.vectors == 0 {
        return Err(ConformanceError::NoVectors);
    }
    if let Some(format) = shader.formats().iter().find(|format| !proven.contains(format.as_str())) {
        return Err(ConformanceError::FormatUnproven { format: format.clone() });
    }
    report.formats = formats.into_values().collect();
    Ok(report)
}

struct Proof<'a> {
    gpu: &'a mut Gpu,
    shader: &'a Shader,
    file: &'a str,
    expert: &'a Swiglu<'a>,
    clock: &'a Clock,
}

impl Proof<'_> {
    fn vector(
        &mut self,
        vector: &GoldenVector<'_>,
        report: &mut ShaderReport,
    ) -> Result<Option<FormatDeviation>, ConformanceError> {
        load(self.gpu, NUMBER, self.expert).map_err(|source| self.failed(source))?;
        let hidden = vector.down.rows();
        let all: Vec<u32> = (0..vector.count as u32).collect();
        let mut deviation = None;
        match vector.outcome {
            Outcome::Output(output) => {
                let due: Vec<f32> =
                    output.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                let mut found = FormatDeviation::none(vector.gate.format().name());
                // In the batch, then each row alone: two different kernels.
                self.compare(vector, &all, &due, &mut found)?;
                for (row, due) in all.iter().zip(due.chunks_exact(hidden)) {
                    self.compare(vector, &[*row], due, &mut found)?;
                }
                deviation = Some(found);
            }
            _ => {
                let answer = self.forward(vector, &all)?;
                if answer.iter().all(|value| value.is_finite()) {
                    return Err(ConformanceError::Outcome {
                        file: self.file.to_owned(),
                        expected: "a value that is not finite",
                        found: "the shader answered with numbers".to_owned(),
                    });
                }
            }
        }
        for (index, (name, matrix)) in
            [("gate", vector.gate), ("up", vector.up), ("down", vector.down)].into_iter().enumerate()
        {
            report.sums += self.sums(index as u8, name, matrix)?;
        }
        self.gpu.unload(NUMBER).map_err(|source| self.failed(source))?;
        Ok(deviation)
    }

    fn forward(&mut self, vector: &GoldenVector<'_>, rows: &[u32]) -> Result<Vec<f32>, ConformanceError> {
        self.clock.check(self.file)?;
        let format = gpu_rows(vector.gate.row_format());
        let mut out = vec![0.0; rows.len() * vector.down.rows()];
        let parts = [Part { expert: NUMBER, rows: rows.to_vec() }];
        self.gpu
            .forward(format, vector.gate.columns(), vector.rows, &parts, &mut out)
            .map_err(|source| self.failed(source))?;
        Ok(out)
    }

    fn compare(
        &mut self,
        vector: &GoldenVector<'_>,
        rows: &[u32],
        due: &[f32],
        deviation: &mut FormatDeviation,
    ) -> Result<(), ConformanceError> {
        let found = self.forward(vector, rows)?;
        let tolerance = self.tolerance();
        let hidden = vector.down.rows();
        for ((&row, found), due) in rows.iter().zip(found.chunks_exact(hidden)).zip(due.chunks_exact(hidden))
        {
            let row = row as usize;
            for (index, (&a, &b)) in found.iter().zip(due).enumerate() {
                let (a, b) = (f64::from(a), f64::from(b));
                // A NaN is within no tolerance.
                let within = (a - b).abs() <= tolerance.max_abs + tolerance.max_rel * b.abs();
                if !within {
                    let file = self.file.to_owned();
                    let (found, expected) = (a.to_string(), b.to_string());
                    return Err(ConformanceError::Deviates { file, row, index, found, expected });
                }
            }
            let cosine = deviation.add(found, due);
            if cosine.is_nan() || cosine < tolerance.cosine {
                let (found, least) = (cosine.to_string(), tolerance.cosine.to_string());
                return Err(ConformanceError::Turned { file: self.file.to_owned(), row, found, least });
            }
        }
        Ok(())
    }

    /// Of an expert in several formats: what covers each of them.
    fn tolerance(&self) -> Tolerance {
        let none = Tolerance { max_abs: 0.0, max_rel: 0.0, cosine: 1.0 };
        [self.expert.gate(), self.expert.up(), self.expert.down()]
            .iter()
            .filter_map(|matrix| self.shader.tolerance(matrix.format().name()))
            .fold(none, |all, one| Tolerance {
                max_abs: all.max_abs.max(one.max_abs),
                max_rel: all.max_rel.max(one.max_rel),
                cosine: all.cosine.min(one.cosine),
            })
    }

    /// Compares the integer sums of a matrix with rows of every value that a row may hold; returns how many.
    fn sums(&mut self, index: u8, name: &'static str, matrix: Matrix<'_>) -> Result<usize, ConformanceError> {
        let sums = matrix.columns() / matrix.format().block_len() * sums_per_block(matrix.format());
        let format = matrix.row_format();
        let Some(row_bytes) = format.row_bytes(matrix.columns()).filter(|_| format != RowFormat::Float32)
        else {
            return Ok(0);
        };
        let mut rows = vec![0; row_bytes * SUM_ROWS];
        for (number, bytes) in rows.chunks_exact_mut(row_bytes).enumerate() {
            let values: Vec<f32> = (0..matrix.columns())
                .map(|column| ((column * (37 + 2 * number) + number) % 255) as f32 - 127.0)
                .collect();
            // Whole numbers of at most 127 are finite.
            let _ = quantise_row(&values, format, bytes);
        }
        let found =
            self.gpu.accumulators(NUMBER, index, sums as u32, &rows).map_err(|source| self.failed(source))?;
        let mut due = vec![0; matrix.rows() * sums * SUM_ROWS];
        for (row, due) in rows.chunks_exact(row_bytes).zip(due.chunks_exact_mut(matrix.rows() * sums)) {
            for (output, due) in due.chunks_exact_mut(sums).enumerate() {
                block_sums(matrix, output, row, due);
            }
        }
        let differs = found.iter().zip(&due).position(|(found, due)| found != due);
        if let Some(at) = differs.or((found.len() != due.len()).then_some(found.len().min(due.len()))) {
            return Err(ConformanceError::Sums {
                file: self.file.to_owned(),
                matrix: name,
                index: at,
                found: found.get(at).copied().unwrap_or_default(),
                expected: due.get(at).copied().unwrap_or_default(),
            });
        }
        Ok(due.len())
    }

    fn failed(&self, source: GpuError) -> ConformanceError {
        ConformanceError::Gpu { file: self.file.to_owned(), source }
    }
}

impl FormatDeviation {
    fn none(format: &str) -> Self {
        FormatDeviation {
            format: format.to_owned(),
            values: 0,
            differing: 0,
            max_abs: 0.0,
            max_rel: 0.0,
            cosine: 1.0,
        }
    }

    /// Adds a row and returns its cosine; two rows of zeros point the same way.
    fn add(&mut self, found: &[f32], due: &[f32]) -> f64 {
        let largest = due.iter().fold(0f64, |largest, value| largest.max(f64::from(value.abs())));
        let (mut product, mut left, mut right) = (0f64, 0f64, 0f64);
        for (&a, &b) in found.iter().zip(due) {
            self.values += 1;
            self.differing += usize::from(a.to_bits() != b.to_bits());
            let (a, b) = (f64::from(a), f64::from(b));
            self.max_abs = self.max_abs.max((a - b).abs());
            if largest > 0.0 {
                self.max_rel = self.max_rel.max((a - b).abs() / largest);
            }
            product += a * b;
            left += a * a;
            right += b * b;
        }
        let cosine = match (left == 0.0, right == 0.0) {
            (true, true) => 1.0,
            (true, false) | (false, true) => 0.0,
            (false, false) => product / (left * right).sqrt(),
        };
        self.cosine = self.cosine.min(cosine);
        cosine
    }

    fn join(&mut self, other: &FormatDeviation) {
        self.values += other.values;
        self.differing += other.differing;
        self.max_abs = self.max_abs.max(other.max_abs);
        self.max_rel = self.max_rel.max(other.max_rel);
        self.cosine = self.cosine.min(other.cosine);
    }
}
