//! Jobs, dispatches and submissions: work cut so that each submission takes a few milliseconds.

use std::time::{Duration, Instant};

use crate::device::Device;
use crate::failure::Failure;
use crate::shader::{JOB_BYTES, JOBS, JOBS_BYTES, Shader};

/// What a submission should take: long enough to hide the cost of submitting, short enough for others to use the device.
const TARGET: Duration = Duration::from_millis(4);
/// Nanoseconds of one multiply-add before any was measured: a processor's.
const FIRST_RATE: f64 = 1.0;
/// Slowest and fastest rate that is believed.
const RATES: (f64, f64) = (1e-6, 100.0);
/// Most workgroups in a dimension, by WebGPU's rules.
const MAX_WORKGROUPS: u32 = 65_535;
/// What a value of a step costs, in multiply-adds.
const STEP_COST: u32 = 64;
/// Submissions on their way: one runs while the next waits.
const IN_FLIGHT: usize = 2;

/// What one workgroup grid works on: the shader's struct `Job`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Job {
    /// First word in binding 1.
    pub weights: u32,
    /// Words between matrix rows.
    pub weights_stride: u32,
    /// First word in binding 2.
    pub rows: u32,
    /// Words between rows.
    pub rows_stride: u32,
    /// First word in binding 3.
    pub out: u32,
    /// Words between rows of the result.
    pub out_stride: u32,
    /// Outputs to make.
    pub outputs: u32,
    /// Columns.
    pub columns: u32,
    /// Rows.
    pub count: u32,
}

/// How a pipeline's workgroups cover a job.
#[derive(Clone, Copy)]
pub struct Grid {
    /// Outputs of a workgroup.
    pub outputs: u32,
    /// Rows of a workgroup.
    pub rows: u32,
    /// Words of the result for each output: one for a product.
    pub words: u32,
}

/// Jobs for one pipeline and one set of buffers.
pub struct Stage<'a> {
    /// The pipeline.
    pub pipeline: &'a wgpu::ComputePipeline,
    /// Bindings 1, 2 and 3.
    pub buffers: [&'a wgpu::Buffer; 3],
    /// How workgroups cover a job.
    pub grid: Grid,
    /// Whether a job may be cut into ranges of outputs: not a step, whose columns are its outputs.
    pub divisible: bool,
    /// The jobs; independent of each other.
    pub jobs: Vec<Job>,
}

/// Remembers how fast the device is.
pub struct Pace {
    nanoseconds_each: f64,
}

/// A grid over some jobs of a stage.
struct Dispatch<'a, 'b> {
    stage: &'b Stage<'a>,
    jobs: Vec<Job>,
    cost: f64,
}

impl Stage<'_> {
    /// About how many multiply-adds a job is worth.
    fn cost(&self, job: &Job) -> f64 {
        let each = if self.divisible { job.columns } else { STEP_COST };
        f64::from(job.outputs) * f64::from(each) * f64::from(job.count)
    }
}

impl Job {
    fn bytes(&self) -> [u8; JOB_BYTES] {
        let words = [
            self.weights,
            self.weights_stride,
            self.rows,
            self.rows_stride,
            self.out,
            self.out_stride,
            self.outputs,
            self.columns,
            self.count,
        ];
        let mut bytes = [0; JOB_BYTES];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// Cut so that no part costs more than `budget`, as far as workgroups allow it.
    fn cut(self, grid: Grid, divisible: bool, budget: f64, parts: &mut Vec<Job>) {
        let (mut outputs, mut count) = (self.outputs, self.count);
        if divisible {
            let outputs_cost = f64::from(self.columns) * f64::from(count);
            let fitting = (budget / outputs_cost).min(f64::from(MAX_WORKGROUPS * grid.outputs)) as u32;
            // Groups of 64: both grids and the layout of the weights divide them.
            outputs = (fitting / 64 * 64).clamp(64, outputs.max(64));
        }
        let rows_cost = f64::from(self.columns) * f64::from(outputs.min(self.outputs));
        let fitting = (budget / rows_cost).min(f64::from(MAX_WORKGROUPS * grid.rows)) as u32;
        count = (fitting / grid.rows * grid.rows).clamp(grid.rows, count.max(grid.rows));
        for first in (0..self.outputs).step_by(outputs as usize) {
            for row in (0..self.count).step_by(count as usize) {
                parts.push(Job {
                    // A step reads rows in both bindings.
                    weights: self.weights + if divisible { first } else { row } * self.weights_stride,
                    rows: self.rows + row * self.rows_stride,
                    out: self.out + row * self.out_stride + first * grid.words,
                    outputs: outputs.min(self.outputs - first),
                    count: count.min(self.count - row),
                    ..self
                });
            }
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Pace { nanoseconds_each: FIRST_RATE }
    }
}

impl Pace {
    /// Multiply-adds for one submission.
    fn budget(&self) -> f64 {
        TARGET.as_nanos() as f64 / self.nanoseconds_each
    }

    fn learn(&mut self, cost: f64, time: Duration) {
        if cost > 0.0 {
            let measured = (time.as_nanos() as f64 / cost).clamp(RATES.0, RATES.1);
            self.nanoseconds_each = (self.nanoseconds_each + measured) / 2.0;
        }
    }
}

/// Runs stages one after the other, then copies `copy` (source, bytes, target). Returns the number of submissions.
///
/// # Errors
/// The device's.
pub fn run(
    device: &Device,
    shader: &Shader,
    pace: &mut Pace,
    stages: &[Stage<'_>],
    copy: (&wgpu::Buffer, u64, &wgpu::Buffer),
) -> Result<u32, Failure> {
    let budget = pace.budget();
    let dispatches = dispatches(stages, budget);
    let jobs = jobs_buffer(device, &dispatches)?;
    let mut submissions: Vec<(f64, wgpu::SubmissionIndex)> = Vec::new();
    let mut rest = dispatches.as_slice();
    let mut number = 0;
    let mut waited = 0;
    let mut last_end = Instant::now();
    let mut measured: Vec<(f64, Duration)> = Vec::new();
    while !rest.is_empty() {
        // At least one dispatch, else as many as the budget allows.
        let mut cost = 0.0;
        let mut taken = 0;
        while taken < rest.len() && (taken == 0 || cost + rest[taken].cost <= budget) {
            cost += rest[taken].cost;
            taken += 1;
        }
        let (now, later) = rest.split_at(taken);
        rest = later;
        let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for dispatch in now {
                encode(device, shader, &mut pass, dispatch, &jobs, number);
                number += 1;
            }
        }
        if rest.is_empty() {
            let (source, bytes, target) = copy;
            encoder.copy_buffer_to_buffer(source, 0, target, 0, bytes);
        }
        submissions.push((cost, device.queue.submit([encoder.finish()])));
        if submissions.len() - waited == IN_FLIGHT {
            device.wait(submissions[waited].1.clone())?;
            measured.push((submissions[waited].0, last_end.elapsed()));
            last_end = Instant::now();
            waited += 1;
        }
    }
    for (cost, index) in &submissions[waited..] {
        device.wait(index.clone())?;
        measured.push((*cost, last_end.elapsed()));
        last_end = Instant::now();
    }
    let (cost, time) = measured.iter().fold((0.0, Duration::ZERO), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    pace.learn(cost, time);
    Ok(submissions.len() as u32)
}

fn dispatches<'a, 'b>(stages: &'b [Stage<'a>], budget: f64) -> Vec<Dispatch<'a, 'b>> {
    let mut dispatches = Vec::new();
    for stage in stages {
        let mut parts = Vec::new();
        for job in stage.jobs.iter().filter(|job| job.count > 0 && job.outputs > 0) {
            job.cut(stage.grid, stage.divisible, budget, &mut parts);
        }
        let mut rest = parts.as_slice();
        while !rest.is_empty() {
            let mut cost = 0.0;
            let mut taken = 0;
            while taken < rest.len().min(JOBS) && (taken == 0 || cost + stage.cost(&rest[taken]) <= budget) {
                cost += stage.cost(&rest[taken]);
                taken += 1;
            }
            let (now, later) = rest.split_at(taken);
            rest = later;
            dispatches.push(Dispatch { stage, jobs: now.to_vec(), cost });
        }
    }
    dispatches
}

/// The jobs of each dispatch, at a distance of [`JOBS_BYTES`].
fn jobs_buffer(device: &Device, dispatches: &[Dispatch<'_, '_>]) -> Result<wgpu::Buffer, Failure> {
    let mut bytes = vec![0; (dispatches.len().max(1) as u64 * JOBS_BYTES) as usize];
    for (dispatch, bytes) in dispatches.iter().zip(bytes.chunks_exact_mut(JOBS_BYTES as usize)) {
        for (job, bytes) in dispatch.jobs.iter().zip(bytes.chunks_exact_mut(JOB_BYTES)) {
            bytes.copy_from_slice(&job.bytes());
        }
    }
    let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    let buffer = device.buffer(bytes.len() as u64, usage)?;
    device.queue.write_buffer(&buffer, 0, &bytes);
    Ok(buffer)
}

fn encode(
    device: &Device,
    shader: &Shader,
    pass: &mut wgpu::ComputePass<'_>,
    dispatch: &Dispatch<'_, '_>,
    jobs: &wgpu::Buffer,
    number: u64,
) {
    let Stage { pipeline, buffers, grid, .. } = dispatch.stage;
    let jobs = wgpu::BufferBinding {
        buffer: jobs,
        offset: number * JOBS_BYTES,
        size: wgpu::BufferSize::new(JOBS_BYTES),
    };
    let group = device.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &shader.layout,
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(jobs) },
            wgpu::BindGroupEntry { binding: 1, resource: buffers[0].as_entire_binding() },
            wgpu::BindGroupEntry { binding: 2, resource: buffers[1].as_entire_binding() },
            wgpu::BindGroupEntry { binding: 3, resource: buffers[2].as_entire_binding() },
        ],
    });
    let across = |size: fn(&Job) -> u32, each: u32| {
        dispatch.jobs.iter().map(size).max().unwrap_or_default().div_ceil(each)
    };
    let x = across(|job| job.outputs, grid.outputs);
    let y = across(|job| job.count, grid.rows);
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(x, y, dispatch.jobs.len() as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_job_covers_every_output_of_every_row_once() {
        let grid = Grid { outputs: 64, rows: 4, words: 1 };
        for (outputs, count, budget) in [(100, 33, 1.0), (1000, 5, 1e5), (64, 1, 1e9), (70_000, 9, 3e6)] {
            let job = Job {
                outputs,
                count,
                columns: 256,
                weights_stride: 40,
                rows_stride: 1000,
                out_stride: outputs,
                ..Job::default()
            };
            let mut parts = Vec::new();
            job.cut(grid, true, budget, &mut parts);
            let mut made = vec![0u8; (outputs * count) as usize];
            for part in &parts {
                let cost = f64::from(part.outputs) * f64::from(part.columns) * f64::from(part.count);
                assert!(cost <= budget.max(256.0 * 64.0 * 4.0));
                assert_eq!(part.weights / 40 % 64, 0);
                for row in 0..part.count {
                    for output in 0..part.outputs {
                        made[(part.out + row * part.out_stride + output) as usize] += 1;
                    }
                }
                assert_eq!(part.rows / 1000, part.out / outputs);
            }
            assert!(made.iter().all(|&times| times == 1));
        }
        let step = Job {
            outputs: 300,
            columns: 300,
            count: 9,
            weights_stride: 7,
            rows_stride: 11,
            ..Job::default()
        };
        let mut parts = Vec::new();
        step.cut(Grid { outputs: 256, rows: 1, words: 1 }, false, 1.0, &mut parts);
        assert_eq!(parts.len(), 9);
        assert!(parts.iter().all(|part| part.weights / 7 == part.rows / 11 && part.outputs == 300));
    }
}
