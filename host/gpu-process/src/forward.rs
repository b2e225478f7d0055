//! A call: rows into device memory, three stages of work, results back.

use std::time::Instant;

use kvasir_gpu::message::{MAX_CALL_BYTES, Part, Rows};

use crate::device::Device;
use crate::failure::Failure;
use crate::layout::{lay_row, row_words};
use crate::leave::{EXIT_DEVICE_LOST, exit};
use crate::shader::Shader;
use crate::weights::{Expert, Matrix, Weights};
use crate::work::{Grid, Job, Pace, Stage, run};

/// One row at a time: a workgroup makes 32 outputs.
const ONE_ROW: Grid = Grid { outputs: 32, rows: 1, words: 1 };
/// Several rows: a workgroup makes 64 outputs of four.
const MANY_ROWS: Grid = Grid { outputs: 64, rows: 4, words: 1 };
/// A workgroup makes 256 values of h.
const STEP: Grid = Grid { outputs: 256, rows: 1, words: 1 };
/// The words of `Scratch::blank`: a NaN.
const BLANK: u32 = 0x7fc0_0bad;
/// Largest buffer for rows or results; a call that needs more is done in several waves.
const MAX_WAVE_BYTES: u64 = 64 << 20;

/// The buffers of a call, kept for the next one.
#[derive(Default)]
pub struct Scratch {
    rows: Option<wgpu::Buffer>,
    products: Option<wgpu::Buffer>,
    hidden: Option<wgpu::Buffer>,
    out: Option<wgpu::Buffer>,
    back: Option<wgpu::Buffer>,
    /// Words that are no numbers, laid over what the last call left, so that work that a driver drops without a word shows.
    blank: Option<wgpu::Buffer>,
    pace: Pace,
}

/// What came out.
#[derive(Default)]
pub struct Answer {
    /// Words of four bytes, little-endian.
    pub bytes: Vec<u8>,
    /// Nanoseconds on the device.
    pub nanoseconds: u64,
    /// Submissions.
    pub submissions: u32,
}

/// A part of a wave, and where its rows lie in each buffer (first word).
struct Placed<'a> {
    expert: &'a Expert,
    rows: &'a [u32],
    row_words: u32,
    in_start: u32,
    gate_start: u32,
    up_start: u32,
    hidden_words: u32,
    hidden_start: u32,
    out_start: u32,
}

/// Words in each buffer of a wave.
#[derive(Clone, Copy, Default)]
struct Words {
    rows: u64,
    products: u64,
    hidden: u64,
    out: u64,
}

impl Words {
    fn largest(self) -> u64 {
        self.rows.max(self.products).max(self.hidden).max(self.out)
    }
}

/// Evaluates experts: for each part and each of its rows in order, the expert's output.
///
/// # Errors
/// A request that does not fit what is loaded, or a device that fails.
pub fn forward(
    device: &Device,
    shader: &Shader,
    weights: &Weights,
    scratch: &mut Scratch,
    format: Rows,
    parts: &[Part],
    rows: &[u8],
) -> Result<Answer, Failure> {
    let mut answer = Answer::default();
    let mut wave = Vec::new();
    let mut words = Words::default();
    let most_words = MAX_WAVE_BYTES.min(device.binding_bytes) / 4;
    check(weights, format, parts, rows)?;
    for part in parts {
        let expert = find(weights, part.expert)?;
        let mut rest = part.rows.as_slice();
        while !rest.is_empty() {
            let each = words_of_row(expert);
            let left = most_words.saturating_sub(words.largest());
            let fitting = (left / each.largest().max(1)).min(rest.len() as u64) as usize;
            if fitting == 0 {
                if wave.is_empty() {
                    let (bytes, limit) = (each.largest() * 4, most_words * 4);
                    let reason = format!("one row needs a buffer of {bytes} bytes, the limit is {limit}");
                    return Err(Failure::request(reason));
                }
                finish(device, shader, weights, scratch, format, &wave, words, rows, &mut answer)?;
                wave.clear();
                words = Words::default();
                continue;
            }
            let (now, later) = rest.split_at(fitting);
            rest = later;
            wave.push(place(expert, now, &mut words));
        }
    }
    if !wave.is_empty() {
        finish(device, shader, weights, scratch, format, &wave, words, rows, &mut answer)?;
    }
    Ok(answer)
}

/// The integer sums behind a matrix's product with each row of `rows`.
///
/// # Errors
/// A format without them, a request that does not fit what is loaded, or a device that fails.
#[allow(clippy::too_many_arguments, reason = "what is there, and what is asked")]
pub fn accumulators(
    device: &Device,
    shader: &Shader,
    weights: &Weights,
    scratch: &mut Scratch,
    expert: u64,
    matrix: u8,
    sums: u32,
    rows: &[u8],
) -> Result<Answer, Failure> {
    let matrix = find(weights, expert)?
        .matrices
        .get(usize::from(matrix))
        .ok_or_else(|| Failure::request("an expert has three matrices"))?;
    let shape = &matrix.shape;
    let pipeline = shader.products(&shape.format)?.accumulators.as_ref().ok_or_else(|| {
        Failure::request(format!("the shader gives no integer sums for weights of {}", shape.format))
    })?;
    let (count, row_bytes) = count_rows(shape.rows_format, shape.columns, rows)?;
    let stride = row_words(shape.rows_format, shape.columns);
    let out_stride = u64::from(shape.outputs) * u64::from(sums);
    let bytes = out_stride * u64::from(count) * 4;
    let most = device.binding_bytes.min(MAX_CALL_BYTES as u64);
    if sums == 0 || bytes > most || u64::from(stride) * u64::from(count) * 4 > most {
        return Err(Failure::request(format!("integer sums of {bytes} bytes, the limit is {most}")));
    }
    let mut laid = Vec::new();
    rows.chunks_exact(row_bytes).for_each(|row| lay_row(shape.rows_format, shape.columns, row, &mut laid));
    let words = Words { rows: laid.len() as u64, out: bytes / 4, ..Words::default() };
    scratch.grow(device, words)?;
    let (input, out, back) = (part_of(&scratch.rows)?, part_of(&scratch.out)?, part_of(&scratch.back)?);
    write_words(device, input, &laid);
    let mut stages = Vec::new();
    for piece in &matrix.pieces {
        let job = Job {
            weights: piece.start,
            weights_stride: matrix.stride,
            rows: 0,
            rows_stride: stride,
            out: piece.first * sums,
            out_stride: out_stride as u32,
            outputs: piece.outputs,
            columns: shape.columns,
            count,
        };
        let buffer = weights.buffer(piece.buffer).ok_or_else(|| Failure::request("a buffer is missing"))?;
        stages.push(Stage {
            pipeline,
            buffers: [buffer, input, out],
            grid: Grid { outputs: 64, rows: 1, words: sums },
            divisible: true,
            jobs: vec![job],
        });
    }
    let begin = Instant::now();
    blank_out(device, part_of(&scratch.blank)?, &[(out, words.out)]);
    let submissions = run(device, shader, &mut scratch.pace, &stages, (out, bytes, back))?;
    let nanoseconds = begin.elapsed().as_nanos() as u64;
    let bytes = read_back(device, back, bytes)?;
    Ok(Answer { bytes, nanoseconds, submissions })
}

/// Everything that can be known before any work.
fn check(weights: &Weights, format: Rows, parts: &[Part], rows: &[u8]) -> Result<(), Failure> {
    let mut out_bytes = 0u64;
    for part in parts {
        let expert = find(weights, part.expert)?;
        if expert.rows_format() != format {
            let reason =
                format!("rows of {format:?}, expert {} reads {:?}", part.expert, expert.rows_format());
            return Err(Failure::request(reason));
        }
        let (count, _) = count_rows(format, expert.hidden(), rows)?;
        if let Some(row) = part.rows.iter().find(|row| **row >= count) {
            return Err(Failure::request(format!("row {row} of {count}")));
        }
        out_bytes += part.rows.len() as u64 * u64::from(expert.hidden()) * 4;
    }
    if out_bytes > MAX_CALL_BYTES as u64 {
        return Err(Failure::request(format!("results of {out_bytes} bytes, the limit is {MAX_CALL_BYTES}")));
    }
    Ok(())
}

fn find(weights: &Weights, expert: u64) -> Result<&Expert, Failure> {
    weights.expert(expert).ok_or_else(|| Failure::request(format!("expert {expert} is not loaded")))
}

fn count_rows(format: Rows, columns: u32, rows: &[u8]) -> Result<(u32, usize), Failure> {
    let row_bytes = format.row_bytes(columns as usize).filter(|bytes| *bytes > 0);
    match row_bytes {
        Some(row_bytes) if rows.len().is_multiple_of(row_bytes) => {
            Ok(((rows.len() / row_bytes) as u32, row_bytes))
        }
        _ => Err(Failure::request(format!("{} bytes are no rows of {columns} values", rows.len()))),
    }
}

fn words_of_row(expert: &Expert) -> Words {
    Words {
        rows: u64::from(row_words(expert.rows_format(), expert.hidden())),
        products: 2 * u64::from(expert.width().next_multiple_of(4)),
        hidden: u64::from(row_words(expert.matrices[2].shape.rows_format, expert.width())),
        out: u64::from(expert.hidden()),
    }
}

fn place<'a>(expert: &'a Expert, rows: &'a [u32], words: &mut Words) -> Placed<'a> {
    let each = words_of_row(expert);
    let count = rows.len() as u64;
    let gate_start = words.products as u32;
    let placed = Placed {
        expert,
        rows,
        row_words: each.rows as u32,
        in_start: words.rows as u32,
        gate_start,
        up_start: gate_start + (each.products / 2 * count) as u32,
        hidden_words: each.hidden as u32,
        hidden_start: words.hidden as u32,
        out_start: words.out as u32,
    };
    words.rows += each.rows * count;
    words.products += each.products * count;
    words.hidden += each.hidden * count;
    words.out += each.out * count;
    placed
}

#[allow(clippy::too_many_arguments, reason = "what is there, and what is asked")]
fn finish(
    device: &Device,
    shader: &Shader,
    weights: &Weights,
    scratch: &mut Scratch,
    format: Rows,
    wave: &[Placed<'_>],
    words: Words,
    rows: &[u8],
    answer: &mut Answer,
) -> Result<(), Failure> {
    scratch.grow(device, words)?;
    let (input, products) = (part_of(&scratch.rows)?, part_of(&scratch.products)?);
    let (hidden, out, back) = (part_of(&scratch.hidden)?, part_of(&scratch.out)?, part_of(&scratch.back)?);
    let mut laid = Vec::with_capacity(words.rows as usize);
    for placed in wave {
        let columns = placed.expert.hidden();
        let row_bytes = format.row_bytes(columns as usize).unwrap_or_default();
        for &row in placed.rows {
            lay_row(format, columns, &rows[row as usize * row_bytes..][..row_bytes], &mut laid);
        }
    }
    write_words(device, input, &laid);

    let mut stages = Vec::new();
    for placed in wave {
        let width = placed.expert.width();
        for (matrix, start) in placed.expert.matrices.iter().zip([placed.gate_start, placed.up_start]) {
            let job = Job {
                rows: placed.in_start,
                rows_stride: placed.row_words,
                out: start,
                out_stride: width.next_multiple_of(4),
                count: placed.rows.len() as u32,
                ..Job::default()
            };
            add_product(shader, weights, &mut stages, matrix, job, input, products)?;
        }
    }
    for placed in wave {
        let down = &placed.expert.matrices[2].shape;
        let stride = placed.expert.width().next_multiple_of(4);
        let job = Job {
            weights: placed.gate_start,
            weights_stride: stride,
            rows: placed.up_start,
            rows_stride: stride,
            out: placed.hidden_start,
            out_stride: placed.hidden_words,
            outputs: down.columns,
            columns: down.columns,
            count: placed.rows.len() as u32,
        };
        let stage = Stage {
            pipeline: shader.step(down.rows_format)?,
            buffers: [products, products, hidden],
            grid: STEP,
            divisible: false,
            jobs: vec![job],
        };
        add(&mut stages, stage);
    }
    for placed in wave {
        let job = Job {
            rows: placed.hidden_start,
            rows_stride: placed.hidden_words,
            out: placed.out_start,
            out_stride: placed.expert.hidden(),
            count: placed.rows.len() as u32,
            ..Job::default()
        };
        add_product(shader, weights, &mut stages, &placed.expert.matrices[2], job, hidden, out)?;
    }
    let bytes = words.out * 4;
    let begin = Instant::now();
    let blank = part_of(&scratch.blank)?;
    blank_out(device, blank, &[(products, words.products), (hidden, words.hidden), (out, words.out)]);
    answer.submissions += run(device, shader, &mut scratch.pace, &stages, (out, bytes, back))?;
    answer.nanoseconds += begin.elapsed().as_nanos() as u64;
    answer.bytes.extend(read_back(device, back, bytes)?);
    Ok(())
}

/// Jobs for every piece of a matrix; `job` has rows and results.
fn add_product<'a>(
    shader: &'a Shader,
    weights: &'a Weights,
    stages: &mut Vec<Stage<'a>>,
    matrix: &Matrix,
    job: Job,
    rows: &'a wgpu::Buffer,
    out: &'a wgpu::Buffer,
) -> Result<(), Failure> {
    let products = shader.products(&matrix.shape.format)?;
    let (pipeline, grid) = match job.count {
        1 => (&products.one_row, ONE_ROW),
        _ => (&products.many_rows, MANY_ROWS),
    };
    for piece in &matrix.pieces {
        let buffer = weights.buffer(piece.buffer).ok_or_else(|| Failure::request("a buffer is missing"))?;
        let job = Job {
            weights: piece.start,
            weights_stride: matrix.stride,
            out: job.out + piece.first,
            outputs: piece.outputs,
            columns: matrix.shape.columns,
            ..job
        };
        add(stages, Stage { pipeline, buffers: [buffer, rows, out], grid, divisible: true, jobs: vec![job] });
    }
    Ok(())
}

/// Joins a stage to the one before it where both are the same work on other data.
fn add<'a>(stages: &mut Vec<Stage<'a>>, stage: Stage<'a>) {
    let joined =
        stages.iter_mut().find(|other| other.pipeline == stage.pipeline && other.buffers == stage.buffers);
    match joined {
        Some(other) => other.jobs.extend(stage.jobs),
        None => stages.push(stage),
    }
}

impl Scratch {
    /// Makes every buffer large enough.
    fn grow(&mut self, device: &Device, words: Words) -> Result<(), Failure> {
        use wgpu::BufferUsages as Usage;
        let usage = [
            (&mut self.rows, words.rows, Usage::STORAGE | Usage::COPY_DST),
            (&mut self.products, words.products, Usage::STORAGE | Usage::COPY_DST),
            (&mut self.hidden, words.hidden, Usage::STORAGE | Usage::COPY_DST),
            (&mut self.out, words.out, Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST),
            (&mut self.back, words.out, Usage::MAP_READ | Usage::COPY_DST),
        ];
        for (buffer, words, usage) in usage {
            // Never empty, and in steps, so that a little more does not mean a new one.
            let bytes =
                (words * 4).next_power_of_two().clamp(4096, device.binding_bytes.max(4096)).max(words * 4);
            if buffer.as_ref().is_none_or(|buffer| buffer.size() < words * 4) {
                *buffer = Some(device.buffer(bytes, usage)?);
            }
        }
        let longest =
            [&self.products, &self.hidden, &self.out].into_iter().flatten().map(wgpu::Buffer::size).max();
        let longest = longest.unwrap_or_default();
        if self.blank.as_ref().is_none_or(|blank| blank.size() < longest) {
            let blank = device.buffer(longest, Usage::COPY_SRC | Usage::COPY_DST)?;
            write_words(device, &blank, &vec![BLANK; (longest / 4) as usize]);
            self.blank = Some(blank);
        }
        Ok(())
    }
}

/// Lays what is no number over the first words of each buffer.
fn blank_out(device: &Device, blank: &wgpu::Buffer, buffers: &[(&wgpu::Buffer, u64)]) {
    let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    for (buffer, words) in buffers.iter().filter(|(_, words)| *words > 0) {
        encoder.copy_buffer_to_buffer(blank, 0, buffer, 0, words * 4);
    }
    device.queue.submit([encoder.finish()]);
}

fn part_of(buffer: &Option<wgpu::Buffer>) -> Result<&wgpu::Buffer, Failure> {
    buffer.as_ref().ok_or_else(|| Failure::request("a buffer is missing"))
}

fn write_words(device: &Device, buffer: &wgpu::Buffer, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    device.queue.write_buffer(buffer, 0, &bytes);
}

/// The first `bytes` of a buffer that the last submission wrote. A device that gives nothing back has nothing more to give, and its
/// buffer may still be mapped: the process ends.
fn read_back(device: &Device, buffer: &wgpu::Buffer, bytes: u64) -> Result<Vec<u8>, Failure> {
    let out = match mapped_bytes(device, buffer, bytes) {
        Ok(out) => out,
        Err(error) => {
            eprintln!("reading results back: {error}");
            exit(EXIT_DEVICE_LOST)
        }
    };
    device.check()?;
    Ok(out)
}

fn mapped_bytes(
    device: &Device,
    buffer: &wgpu::Buffer,
    bytes: u64,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    buffer.map_async(wgpu::MapMode::Read, 0..bytes, move |mapped| drop(sender.send(mapped)));
    device.device.poll(wgpu::PollType::wait_indefinitely())?;
    receiver.recv()??;
    let view = buffer.get_mapped_range(0..bytes)?;
    let out = view.to_vec();
    drop(view);
    buffer.unmap();
    Ok(out)
}
