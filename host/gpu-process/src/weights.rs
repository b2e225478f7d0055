//! Weights in device memory: a few large buffers, cut into pieces of matrices.

use std::collections::HashMap;

use kvasir_gpu::message::{ExpertShape, MatrixShape, Rows};

use crate::device::Device;
use crate::failure::Failure;
use crate::layout::{GROUP, interleave, weight_words};

/// The first buffer's bytes; each further one is twice as large as the one before, up to the largest.
const FIRST_BYTES: u64 = 16 << 20;
/// The largest buffer's bytes, if the device allows it.
const LARGEST_BYTES: u64 = 256 << 20;

/// All weights.
pub struct Weights {
    buffers: Vec<Store>,
    limit: u64,
    bytes: u64,
    experts: HashMap<u64, Expert>,
}

/// Gate, up and down of an expert that is loaded.
pub struct Expert {
    /// The matrices.
    pub matrices: [Matrix; 3],
}

/// One matrix.
pub struct Matrix {
    /// Shape and format.
    pub shape: MatrixShape,
    /// Words of a matrix row, padding included.
    pub stride: u32,
    /// Where its outputs lie.
    pub pieces: Vec<Piece>,
}

/// A range of a matrix's outputs in one buffer.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The buffer's number.
    pub buffer: usize,
    /// First word in it.
    pub start: u32,
    /// The first output.
    pub first: u32,
    /// How many outputs; a multiple of [`GROUP`] but for the last piece.
    pub outputs: u32,
    words: u32,
}

/// An expert whose weights are on their way.
pub struct Loading {
    number: u64,
    expert: Expert,
    matrix: usize,
    /// Outputs of the current matrix that are written.
    written: u32,
    /// Bytes that wait for a whole group of matrix rows.
    waiting: Vec<u8>,
    left: u64,
}

struct Store {
    buffer: wgpu::Buffer,
    words: u32,
    /// Free ranges (start, words), ascending, never adjacent.
    free: Vec<(u32, u32)>,
}

impl Weights {
    /// None yet; at most `limit` bytes of buffers.
    pub fn new(limit: u64) -> Self {
        Weights { buffers: Vec::new(), limit, bytes: 0, experts: HashMap::new() }
    }

    /// The expert with this number.
    pub fn expert(&self, number: u64) -> Option<&Expert> {
        self.experts.get(&number)
    }

    /// The buffer with this number.
    pub fn buffer(&self, number: usize) -> Option<&wgpu::Buffer> {
        self.buffers.get(number).map(|store| &store.buffer)
    }

    /// Finds room for an expert, in place of one with the same number. Nothing is kept where there is not enough.
    ///
    /// # Errors
    /// No room, or a matrix whose rows are too long.
    pub fn begin(&mut self, device: &Device, number: u64, shape: ExpertShape) -> Result<Loading, Failure> {
        self.remove(number);
        let left = shape.iter().map(|shape| u64::from(shape.outputs) * u64::from(shape.row_bytes)).sum();
        let matrices =
            shape.map(|shape| Matrix { stride: weight_words(shape.row_bytes), shape, pieces: Vec::new() });
        let mut expert = Expert { matrices };
        for matrix in &mut expert.matrices {
            if let Err(failure) = self.place(device, matrix) {
                self.free(&expert);
                return Err(failure);
            }
        }
        Ok(Loading { number, expert, matrix: 0, written: 0, waiting: Vec::new(), left })
    }

    /// Takes the next bytes; `true` once the expert is complete, which is then loaded.
    ///
    /// # Errors
    /// More bytes than the expert has, or a device that fails.
    pub fn take(
        &mut self,
        device: &Device,
        loading: &mut Loading,
        mut bytes: &[u8],
    ) -> Result<bool, Failure> {
        loading.left = loading
            .left
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| Failure::request("more weights than the expert has"))?;
        let mut words = Vec::new();
        while !bytes.is_empty()
            && let Some(matrix) = loading.expert.matrices.get(loading.matrix)
        {
            let row_bytes = matrix.shape.row_bytes as usize;
            let rows_left = (matrix.shape.outputs - loading.written) as usize;
            let wanted = (rows_left * row_bytes).saturating_sub(loading.waiting.len());
            let (now, later) = bytes.split_at(wanted.min(bytes.len()));
            loading.waiting.extend_from_slice(now);
            bytes = later;
            let complete = loading.waiting.len() == rows_left * row_bytes;
            let whole = match complete {
                true => rows_left,
                false => loading.waiting.len() / row_bytes / GROUP as usize * GROUP as usize,
            };
            let ready = &loading.waiting[..whole * row_bytes];
            self.write(device, matrix, loading.written, ready, &mut words);
            loading.waiting.drain(..whole * row_bytes);
            loading.written += whole as u32;
            if complete {
                loading.matrix += 1;
                loading.written = 0;
            }
        }
        // Writes wait in memory of the host's side until something is submitted.
        device.wait(device.queue.submit([]))?;
        Ok(loading.left == 0)
    }

    /// Makes a complete expert one that can be asked.
    pub fn keep(&mut self, loading: Loading) {
        self.experts.insert(loading.number, loading.expert);
    }

    /// Gives up on an expert that is not complete.
    pub fn abandon(&mut self, loading: Loading) {
        self.free(&loading.expert);
    }

    /// Frees an expert, if it is there.
    pub fn remove(&mut self, number: u64) {
        if let Some(expert) = self.experts.remove(&number) {
            self.free(&expert);
        }
    }

    /// Writes whole groups of matrix rows from output `first` on.
    fn write(&self, device: &Device, matrix: &Matrix, first: u32, rows: &[u8], words: &mut Vec<u32>) {
        let row_bytes = matrix.shape.row_bytes as usize;
        let last = first + (rows.len() / row_bytes) as u32;
        for piece in &matrix.pieces {
            let (from, to) = (piece.first.max(first), (piece.first + piece.outputs).min(last));
            if from >= to {
                continue;
            }
            words.clear();
            let range = (from - first) as usize * row_bytes..(to - first) as usize * row_bytes;
            interleave(&rows[range], row_bytes, words);
            let at = u64::from(piece.start + (from - piece.first) * matrix.stride) * 4;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            device.queue.write_buffer(&self.buffers[piece.buffer].buffer, at, &bytes);
        }
    }

    fn place(&mut self, device: &Device, matrix: &mut Matrix) -> Result<(), Failure> {
        let largest = LARGEST_BYTES.min(device.binding_bytes);
        let group_bytes = u64::from(matrix.stride) * u64::from(GROUP) * 4;
        let groups_at_once = (largest / group_bytes) as u32;
        if groups_at_once == 0 {
            return Err(Failure::request(format!(
                "{GROUP} matrix rows of {} bytes do not fit into one binding of {largest} bytes",
                matrix.shape.row_bytes
            )));
        }
        let groups = matrix.shape.outputs.div_ceil(GROUP);
        let mut first_group = 0;
        while first_group < groups {
            let now = groups_at_once.min(groups - first_group);
            let words = now * GROUP * matrix.stride;
            let (buffer, start) = self.allocate(device, words, largest)?;
            let first = first_group * GROUP;
            let outputs = (now * GROUP).min(matrix.shape.outputs - first);
            matrix.pieces.push(Piece { buffer, start, first, outputs, words });
            first_group += now;
        }
        Ok(())
    }

    fn allocate(&mut self, device: &Device, words: u32, largest: u64) -> Result<(usize, u32), Failure> {
        for (number, store) in self.buffers.iter_mut().enumerate() {
            if let Some(range) = store.free.iter_mut().find(|range| range.1 >= words) {
                let start = range.0;
                *range = (start + words, range.1 - words);
                store.free.retain(|range| range.1 > 0);
                return Ok((number, start));
            }
        }
        let needed = u64::from(words) * 4;
        let left = self.limit.saturating_sub(self.bytes);
        let grown = self.buffers.last().map_or(FIRST_BYTES, |store| u64::from(store.words) * 8);
        let bytes = grown.min(largest).min(left & !0xff).max(needed);
        if needed > left {
            let (held, limit) = (self.bytes, self.limit);
            return Err(Failure::room(format!("{needed} bytes beside {held} in use, the limit is {limit}")));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = device.buffer(bytes, usage)?;
        self.bytes += bytes;
        let all = (bytes / 4) as u32;
        let free = if all > words { vec![(words, all - words)] } else { Vec::new() };
        self.buffers.push(Store { buffer, words: all, free });
        Ok((self.buffers.len() - 1, 0))
    }

    fn free(&mut self, expert: &Expert) {
        for piece in expert.matrices.iter().flat_map(|matrix| &matrix.pieces) {
            self.buffers[piece.buffer].release(piece.start, piece.words);
        }
    }
}

impl Loading {
    /// Bytes that have not come yet.
    pub fn left(&self) -> u64 {
        self.left
    }
}

impl Store {
    fn release(&mut self, start: u32, words: u32) {
        let at = self.free.partition_point(|range| range.0 < start);
        self.free.insert(at, (start, words));
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(self.free.len());
        for &(start, words) in &self.free {
            match merged.last_mut() {
                Some(last) if last.0 + last.1 == start => last.1 += words,
                _ => merged.push((start, words)),
            }
        }
        self.free = merged;
    }
}

impl Expert {
    /// Values of a row in and out.
    pub fn hidden(&self) -> u32 {
        self.matrices[2].shape.outputs
    }

    /// Values between the matrices.
    pub fn width(&self) -> u32 {
        self.matrices[0].shape.outputs
    }

    /// The rows that gate and up read.
    pub fn rows_format(&self) -> Rows {
        self.matrices[0].shape.rows_format
    }
}
