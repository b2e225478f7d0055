//! What host and process say to each other. A request has one reply, in order; the weights of an expert follow its request in
//! frames of their own, which have none.

use crate::frame::{Malformed, Reader, Writer};
use crate::options::{Adapter, AdapterChoice, AdapterKind};

/// Longest shader source in bytes.
pub const MAX_SOURCE_BYTES: usize = 64 << 10;
/// Most formats of a shader.
pub const MAX_FORMATS: usize = 64;
/// Longest text in a reply; more is cut.
pub const MAX_REASON_BYTES: usize = 8 << 10;
/// Most bytes of weights in one frame.
pub const MAX_CHUNK_BYTES: usize = 8 << 20;
/// Most rows or columns of a matrix.
pub const MAX_DIMENSION: u32 = 1 << 24;
/// Most requests for experts in one call.
pub const MAX_PARTS: usize = 4096;
/// Most bytes of rows, and of results, in one call.
pub const MAX_CALL_BYTES: usize = 16 << 20;

/// How rows are stored, as on the wire: numbers and blocks of exact-v1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rows {
    /// f32 values.
    F32 = 0,
    /// Blocks of 32: f32 scale, 32 x i8.
    Q8 = 1,
    /// Blocks of 256: f32 scale, 256 x i8.
    Q8K = 2,
}

impl Rows {
    /// The row format with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Rows::F32, Rows::Q8, Rows::Q8K].into_iter().find(|rows| *rows as u8 == number)
    }

    /// Values in a block.
    pub fn block_len(self) -> usize {
        match self {
            Rows::F32 => 1,
            Rows::Q8 => 32,
            Rows::Q8K => 256,
        }
    }

    /// Bytes of a row of `columns` values; `None` where that is no whole number of blocks.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        let block_bytes = if self == Rows::F32 { 4 } else { 4 + self.block_len() };
        columns.is_multiple_of(self.block_len()).then(|| columns / self.block_len() * block_bytes)
    }
}

/// One matrix of an expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// GGUF's name of the weight format; one that the shader was loaded for.
    pub format: String,
    /// The rows that it is multiplied with.
    pub rows_format: Rows,
    /// Matrix rows: outputs.
    pub outputs: u32,
    /// Columns: inputs.
    pub columns: u32,
    /// Bytes of a matrix row.
    pub row_bytes: u32,
}

/// Gate, up and down.
pub type ExpertShape = [MatrixShape; 3];

/// Rows of a call for one expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The expert.
    pub expert: u64,
    /// Numbers of rows in the call.
    pub rows: Vec<u32>,
}

/// What the host asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Request<'a> {
    /// Open a device; once, before anything else.
    Open {
        /// Which one.
        adapter: AdapterChoice,
        /// Most bytes of weights.
        memory_bytes: u64,
        /// Largest binding; zero: what the device allows.
        binding_bytes: u32,
    },
    /// Check and compile a shader; once.
    Shader {
        /// WGSL.
        source: &'a str,
        /// Formats that it evaluates.
        formats: Vec<&'a str>,
    },
    /// Take an expert, whose weights follow: gate, up, down, each in frames of at most [`MAX_CHUNK_BYTES`] bytes.
    Load {
        /// Its number from now on.
        expert: u64,
        /// Its matrices.
        shape: ExpertShape,
    },
    /// The next weights of the expert being loaded.
    Weights(&'a [u8]),
    /// Free an expert.
    Unload {
        /// The expert.
        expert: u64,
    },
    /// Evaluate experts.
    Forward {
        /// How the rows are stored.
        format: Rows,
        /// Which expert is asked for which rows.
        parts: Vec<Part>,
        /// The rows.
        rows: &'a [u8],
    },
    /// The integer sums of the blocks of one matrix: for the comparison with the definition.
    Accumulators {
        /// The expert.
        expert: u64,
        /// 0 gate, 1 up, 2 down.
        matrix: u8,
        /// Sums of one output and row.
        sums: u32,
        /// Rows in the matrix's row format.
        rows: &'a [u8],
    },
    /// Measure how fast the device reads its memory.
    Bandwidth {
        /// Bytes to read.
        bytes: u64,
    },
}

/// What the process answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<'a> {
    /// To `Open`.
    Opened(Adapter),
    /// To `Shader`, `Load`, `Unload`.
    Done,
    /// To `Forward`: f32 values, part by part, row by row; to `Accumulators`: i32, row by row, output by output, block by block.
    Values {
        /// Nanoseconds from the first submission to the end of the last.
        nanoseconds: u64,
        /// Submissions.
        submissions: u32,
        /// Words of four bytes.
        bytes: &'a [u8],
    },
    /// To `Bandwidth`.
    Bandwidth {
        /// Bytes read.
        bytes: u64,
        /// Nanoseconds taken.
        nanoseconds: u64,
    },
    /// The request failed, the process goes on.
    Failed {
        /// By whose fault.
        fault: Fault,
        /// A sentence.
        reason: String,
    },
}

/// By whose fault a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// No usable device.
    NoDevice = 0,
    /// Not enough memory.
    NoRoom = 1,
    /// The shader.
    Shader = 2,
    /// The request.
    Request = 3,
}

impl Request<'_> {
    /// Whether the request has a reply.
    pub fn has_reply(&self) -> bool {
        !matches!(self, Request::Weights(_))
    }

    /// What it is called in errors.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Open { .. } => "opening the device",
            Request::Shader { .. } => "compiling the shader",
            Request::Load { .. } | Request::Weights(_) => "loading an expert",
            Request::Unload { .. } => "freeing an expert",
            Request::Forward { .. } => "a call",
            Request::Accumulators { .. } => "the integer sums",
            Request::Bandwidth { .. } => "measuring the memory",
        }
    }

    /// As a frame.
    ///
    /// # Errors
    /// Too long for one.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let mut writer;
        match self {
            Request::Open { adapter, memory_bytes, binding_bytes } => {
                writer = Writer::new(0);
                writer.u8(*adapter as u8).u64(*memory_bytes).u32(*binding_bytes);
            }
            Request::Shader { source, formats } => {
                writer = Writer::new(1);
                writer.bytes(source.as_bytes()).u32(formats.len() as u32);
                for format in formats {
                    writer.bytes(format.as_bytes());
                }
            }
            Request::Load { expert, shape } => {
                writer = Writer::new(2);
                writer.u64(*expert);
                for matrix in shape {
                    writer.bytes(matrix.format.as_bytes()).u8(matrix.rows_format as u8);
                    writer.u32(matrix.outputs).u32(matrix.columns).u32(matrix.row_bytes);
                }
            }
            Request::Weights(bytes) => {
                writer = Writer::new(3);
                writer.rest(bytes);
            }
            Request::Unload { expert } => {
                writer = Writer::new(4);
                writer.u64(*expert);
            }
            Request::Forward { format, parts, rows } => {
                writer = Writer::new(5);
                writer.u8(*format as u8).u32(parts.len() as u32);
                for part in parts {
                    writer.u64(part.expert).u32(part.rows.len() as u32);
                    for row in &part.rows {
                        writer.u32(*row);
                    }
                }
                writer.rest(rows);
            }
            Request::Accumulators { expert, matrix, sums, rows } => {
                writer = Writer::new(6);
                writer.u64(*expert).u8(*matrix).u32(*sums).rest(rows);
            }
            Request::Bandwidth { bytes } => {
                writer = Writer::new(7);
                writer.u64(*bytes);
            }
        }
        writer.finish()
    }
}

impl<'a> Request<'a> {
    /// From a frame's kind and body.
    ///
    /// # Errors
    /// Anything but exactly one request.
    pub fn decode(kind: u8, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let request = match kind {
            0 => Request::Open {
                adapter: match reader.u8()? {
                    0 => AdapterChoice::Any,
                    1 => AdapterChoice::Hardware,
                    2 => AdapterChoice::Software,
                    _ => return Err(Malformed("an unknown choice of device")),
                },
                memory_bytes: reader.u64()?,
                binding_bytes: reader.u32()?,
            },
            1 => {
                let source = reader.text()?;
                let count = reader.u32()? as usize;
                if source.len() > MAX_SOURCE_BYTES || count > MAX_FORMATS {
                    return Err(Malformed("the shader is too long or has too many formats"));
                }
                let formats = (0..count).map(|_| reader.text()).collect::<Result<_, _>>()?;
                Request::Shader { source, formats }
            }
            2 => Request::Load {
                expert: reader.u64()?,
                shape: [matrix(&mut reader)?, matrix(&mut reader)?, matrix(&mut reader)?],
            },
            3 => Request::Weights(reader.rest()),
            4 => Request::Unload { expert: reader.u64()? },
            5 => {
                let format = Rows::from_number(reader.u8()?).ok_or(Malformed("an unknown row format"))?;
                let count = reader.u32()? as usize;
                if count > MAX_PARTS {
                    return Err(Malformed("a call for too many experts"));
                }
                let mut parts = Vec::with_capacity(count);
                for _ in 0..count {
                    let expert = reader.u64()?;
                    let rows = reader.u32()? as usize;
                    let numbers = reader.take(rows.saturating_mul(4))?.as_chunks().0;
                    let rows = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
                    parts.push(Part { expert, rows });
                }
                Request::Forward { format, parts, rows: reader.rest() }
            }
            6 => Request::Accumulators {
                expert: reader.u64()?,
                matrix: reader.u8()?,
                sums: reader.u32()?,
                rows: reader.rest(),
            },
            7 => Request::Bandwidth { bytes: reader.u64()? },
            _ => return Err(Malformed("an unknown request")),
        };
        reader.end()?;
        Ok(request)
    }
}

fn matrix(reader: &mut Reader<'_>) -> Result<MatrixShape, Malformed> {
    let format = reader.text()?.to_owned();
    let rows_format = Rows::from_number(reader.u8()?).ok_or(Malformed("an unknown row format"))?;
    let (outputs, columns, row_bytes) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let range = 1..=MAX_DIMENSION;
    if !range.contains(&outputs) || !range.contains(&columns) || row_bytes == 0 {
        return Err(Malformed("a matrix of impossible size"));
    }
    Ok(MatrixShape { format, rows_format, outputs, columns, row_bytes })
}

impl Reply<'_> {
    /// As a frame.
    ///
    /// # Errors
    /// Too long for one.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let mut writer;
        match self {
            Reply::Opened(adapter) => {
                writer = Writer::new(0);
                writer.bytes(adapter.name.as_bytes()).bytes(adapter.driver.as_bytes());
                writer.u8(adapter.kind as u8).u64(adapter.binding_bytes).u64(adapter.buffer_bytes);
            }
            Reply::Done => writer = Writer::new(1),
            Reply::Values { nanoseconds, submissions, bytes } => {
                writer = Writer::new(2);
                writer.u64(*nanoseconds).u32(*submissions).rest(bytes);
            }
            Reply::Bandwidth { bytes, nanoseconds } => {
                writer = Writer::new(3);
                writer.u64(*bytes).u64(*nanoseconds);
            }
            Reply::Failed { fault, reason } => {
                writer = Writer::new(4);
                let end = reason.floor_char_boundary(MAX_REASON_BYTES);
                writer.u8(*fault as u8).bytes(&reason.as_bytes()[..end]);
            }
        }
        writer.finish()
    }
}

impl<'a> Reply<'a> {
    /// From a frame's kind and body.
    ///
    /// # Errors
    /// Anything but exactly one reply.
    pub fn decode(kind: u8, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let reply = match kind {
            0 => Reply::Opened(Adapter {
                name: readable(reader.text()?),
                driver: readable(reader.text()?),
                kind: match reader.u8()? {
                    0 => AdapterKind::Discrete,
                    1 => AdapterKind::Integrated,
                    2 => AdapterKind::Virtual,
                    3 => AdapterKind::Software,
                    4 => AdapterKind::Other,
                    _ => return Err(Malformed("an unknown kind of device")),
                },
                binding_bytes: reader.u64()?,
                buffer_bytes: reader.u64()?,
            }),
            1 => Reply::Done,
            2 => {
                let (nanoseconds, submissions) = (reader.u64()?, reader.u32()?);
                Reply::Values { nanoseconds, submissions, bytes: reader.rest() }
            }
            3 => Reply::Bandwidth { bytes: reader.u64()?, nanoseconds: reader.u64()? },
            4 => Reply::Failed {
                fault: match reader.u8()? {
                    0 => Fault::NoDevice,
                    1 => Fault::NoRoom,
                    2 => Fault::Shader,
                    3 => Fault::Request,
                    _ => return Err(Malformed("an unknown fault")),
                },
                reason: readable(reader.text()?),
            },
            _ => return Err(Malformed("an unknown reply")),
        };
        reader.end()?;
        Ok(reply)
    }
}

/// What a process may have filled with anything, as far as it is kept, without control characters.
fn readable(text: &str) -> String {
    let kept = &text[..text.floor_char_boundary(MAX_REASON_BYTES)];
    kept.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> ExpertShape {
        std::array::from_fn(|index| MatrixShape {
            format: "Q4_K".to_owned(),
            rows_format: Rows::Q8K,
            outputs: 3 + index as u32,
            columns: 256,
            row_bytes: 144,
        })
    }

    #[test]
    fn every_message_comes_back() {
        let part = Part { expert: 9, rows: vec![2, 0, 1] };
        for request in [
            Request::Open { adapter: AdapterChoice::Software, memory_bytes: 1 << 40, binding_bytes: 7 },
            Request::Shader { source: "fn", formats: vec!["Q4_K", "F16"] },
            Request::Load { expert: 3, shape: shape() },
            Request::Weights(b"weights"),
            Request::Unload { expert: 4 },
            Request::Forward { format: Rows::Q8, parts: vec![part.clone(), part], rows: b"rows" },
            Request::Accumulators { expert: 5, matrix: 2, sums: 8, rows: b"rows" },
            Request::Bandwidth { bytes: 6 },
        ] {
            let frame = request.encode().unwrap();
            assert_eq!(Request::decode(frame[4], &frame[5..]).unwrap(), request);
            for cut in 5..frame.len() {
                // A cut message is refused or, where its end is open, another one; it never panics.
                let _ = Request::decode(frame[4], &frame[5..cut]);
            }
        }
        let adapter = Adapter {
            name: "a".to_owned(),
            driver: "b".to_owned(),
            kind: AdapterKind::Software,
            binding_bytes: 1,
            buffer_bytes: 2,
        };
        for reply in [
            Reply::Opened(adapter),
            Reply::Done,
            Reply::Values { nanoseconds: 1, submissions: 2, bytes: b"1234" },
            Reply::Bandwidth { bytes: 3, nanoseconds: 4 },
            Reply::Failed { fault: Fault::Shader, reason: "no".to_owned() },
        ] {
            let frame = reply.encode().unwrap();
            assert_eq!(Reply::decode(frame[4], &frame[5..]).unwrap(), reply);
            for cut in 5..frame.len() {
                let _ = Reply::decode(frame[4], &frame[5..cut]);
            }
        }
        assert!(Request::decode(99, &[]).is_err() && Reply::decode(99, &[]).is_err());
    }

    #[test]
    fn counts_and_sizes_from_outside_are_bounded() {
        let mut parts = vec![2];
        parts.extend((MAX_PARTS as u32 + 1).to_le_bytes());
        assert!(Request::decode(5, &parts).is_err());
        let mut rows = vec![2];
        rows.extend(1u32.to_le_bytes());
        rows.extend(0u64.to_le_bytes());
        rows.extend(u32::MAX.to_le_bytes());
        assert!(Request::decode(5, &rows).is_err());
        let mut wrong = shape();
        wrong[1].outputs = MAX_DIMENSION + 1;
        let frame = Request::Load { expert: 0, shape: wrong }.encode().unwrap();
        assert!(Request::decode(frame[4], &frame[5..]).is_err());
        let source = "x".repeat(MAX_SOURCE_BYTES + 1);
        let frame = Request::Shader { source: &source, formats: Vec::new() }.encode().unwrap();
        assert!(Request::decode(frame[4], &frame[5..]).is_err());
        let reason = "é".repeat(MAX_REASON_BYTES);
        let frame = Reply::Failed { fault: Fault::Request, reason }.encode().unwrap();
        assert!(
            matches!(Reply::decode(frame[4], &frame[5..]), Ok(Reply::Failed { reason, .. }) if reason.len() <= MAX_REASON_BYTES)
        );
    }
}
