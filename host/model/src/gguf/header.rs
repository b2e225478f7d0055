//! The header of one GGUF file: magic, version, key-value pairs, tensor directory.

use std::path::Path;

use kvasir_numerics::Format;

use super::SharedFile;
use super::cursor::Cursor;
use super::formats::{format_name, type_info};
use super::keys::Keys;
use super::value::Value;
use crate::error::ModelError;
use crate::limits;
use crate::mapping::MappedFile;
use crate::stored::{Directory, Entry, EntryFormat};

/// Alignment of tensor data where `general.alignment` says nothing.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A checked header. Borrows strings from the mapped file.
pub(super) struct Header<'a> {
    pub(super) keys: Keys<'a>,
    tensors: Vec<TensorInfo<'a>>,
}

/// One entry of the tensor directory, its range checked against the file and the other entries.
struct TensorInfo<'a> {
    name: &'a str,
    /// Outermost dimension first.
    shape: Vec<usize>,
    format: EntryFormat,
    /// Where the entry stands in the file.
    entry_offset: usize,
    /// Tensor data: offset from the start of the file, length.
    start: u64,
    bytes: u64,
}

impl<'a> Header<'a> {
    /// Read and check everything before the tensor data.
    pub(super) fn read(file: &'a MappedFile) -> Result<Header<'a>, ModelError> {
        let mut cursor = Cursor::new(file.path(), file.bytes());
        let (tensor_count, key_count) = read_counts(&mut cursor)?;
        let keys = read_keys(&mut cursor, file.path(), key_count)?;
        let alignment = alignment(&keys)?;
        let mut tensors = Vec::with_capacity(tensor_count);
        for index in 0..tensor_count {
            cursor.enter(format!("entry {index} of the tensor directory"));
            tensors.push(read_tensor_info(&mut cursor, alignment)?);
        }
        place_tensors(&cursor, &mut tensors, alignment, file.bytes().len() as u64)?;
        Ok(Header { keys, tensors })
    }

    /// Number of tensors in this file.
    pub(super) fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// Add this file's tensors to the model's.
    pub(super) fn add_tensors(&self, file: &SharedFile, directory: &mut Directory) -> Result<(), ModelError> {
        for tensor in &self.tensors {
            let entry = Entry {
                file: file.clone(),
                format: tensor.format.clone(),
                shape: tensor.shape.clone(),
                // Checked to end inside the file, whose length fits usize.
                range: tensor.start as usize..(tensor.start + tensor.bytes) as usize,
            };
            if !directory.insert(tensor.name, entry) {
                let mut cursor = Cursor::new(file.path(), file.bytes());
                cursor.enter(format!("tensor {}", tensor.name));
                return Err(cursor.damaged(tensor.entry_offset, "a second tensor of this name"));
            }
        }
        Ok(())
    }
}

/// Magic and version; then the numbers of tensors and of keys, each small enough to count with.
fn read_counts(cursor: &mut Cursor<'_>) -> Result<(usize, usize), ModelError> {
    if cursor.take(4, "the magic number")? != b"GGUF" {
        return Err(cursor.damaged(0, "the first four bytes are not GGUF"));
    }
    let version = cursor.u32("version")?;
    if version != 3 {
        let what = match version.swap_bytes() {
            1..=3 => "a big-endian GGUF file".to_owned(),
            _ => format!("GGUF version {version} (only version 3 is)"),
        };
        return Err(ModelError::Unsupported { at: cursor.place(4), what });
    }
    let tensor_count = counted(cursor, "number of tensors", limits::MAX_TENSORS, 24)?;
    let key_count = counted(cursor, "number of keys", limits::MAX_KEYS, 13)?;
    Ok((tensor_count, key_count))
}

/// A count of things that take at least `least_bytes` each, so that a count alone reserves no memory.
fn counted(
    cursor: &mut Cursor<'_>,
    what: &'static str,
    limit: u64,
    least_bytes: u64,
) -> Result<usize, ModelError> {
    let at = cursor.offset();
    let count = cursor.u64(what)?;
    if count > limit {
        return Err(cursor.over_limit(at, what, count, limit));
    }
    if count * least_bytes > cursor.left() {
        return Err(cursor.damaged(at, format!("{what} is {count}, but only {} bytes follow", cursor.left())));
    }
    Ok(count as usize)
}

fn read_keys<'a>(cursor: &mut Cursor<'a>, path: &'a Path, count: usize) -> Result<Keys<'a>, ModelError> {
    let mut keys = Keys::new(path);
    for index in 0..count {
        cursor.enter(format!("key number {index}"));
        let start = cursor.offset();
        let key = cursor.string("key", limits::MAX_NAME_BYTES)?;
        cursor.enter(format!("key {key}"));
        let value_at = cursor.offset() as u64;
        let value = Value::read(cursor)?;
        if !keys.insert(key, value_at, value) {
            return Err(cursor.damaged(start, "a second value for this key"));
        }
    }
    Ok(keys)
}

fn alignment(keys: &Keys<'_>) -> Result<u64, ModelError> {
    let key = "general.alignment";
    let Some(alignment) = keys.optional_integer(key)? else { return Ok(DEFAULT_ALIGNMENT) };
    if !alignment.is_power_of_two() || !(8..=limits::MAX_ALIGNMENT).contains(&alignment) {
        let why = format!("must be a power of two from 8 to {}", limits::MAX_ALIGNMENT);
        return Err(keys.configuration(key, alignment, &why));
    }
    Ok(alignment)
}

/// Name, dimensions (innermost first), type, offset from the start of the data.
fn read_tensor_info<'a>(cursor: &mut Cursor<'a>, alignment: u64) -> Result<TensorInfo<'a>, ModelError> {
    let entry_offset = cursor.offset();
    let name = cursor.string("tensor name", limits::MAX_NAME_BYTES)?;
    cursor.enter(format!("tensor {name}"));
    let rank_at = cursor.offset();
    let rank = cursor.u32("number of dimensions")?;
    if rank == 0 {
        return Err(cursor.damaged(rank_at, "a tensor without dimensions"));
    }
    if rank > limits::MAX_RANK {
        let limit = u64::from(limits::MAX_RANK);
        return Err(cursor.over_limit(rank_at, "number of dimensions", u64::from(rank), limit));
    }
    let mut shape = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        let at = cursor.offset();
        let dimension = cursor.u64("dimension")?;
        if dimension == 0 {
            return Err(cursor.damaged(at, "a dimension of 0"));
        }
        if dimension > limits::MAX_DIMENSION {
            return Err(cursor.over_limit(at, "dimension", dimension, limits::MAX_DIMENSION));
        }
        shape.insert(0, dimension as usize);
    }
    let type_at = cursor.offset();
    let number = cursor.u32("tensor type")?;
    let Some(info) = type_info(number) else {
        let what = format!("tensor type {number} ({})", format_name(number));
        return Err(ModelError::Unsupported { at: cursor.place(type_at), what });
    };
    let format = match Format::from_number(number) {
        Some(format) => EntryFormat::Known(format),
        None => EntryFormat::Other(format!("{} (GGUF type {number})", info.name)),
    };
    let innermost = shape.last().copied().unwrap_or(1) as u64;
    if !innermost.is_multiple_of(info.block_len) {
        let why =
            format!("rows of {innermost} weights are not whole {} blocks of {}", info.name, info.block_len);
        return Err(cursor.damaged(rank_at + 4, why));
    }
    // Four dimensions of at most 2^24 times at most 292 bytes overflow u64, so multiply with care.
    let bytes = (shape.iter())
        .try_fold(1u64, |product, &dimension| product.checked_mul(dimension as u64))
        .and_then(|weights| (weights / info.block_len).checked_mul(info.block_bytes));
    let Some(bytes) = bytes else {
        return Err(cursor.damaged(rank_at + 4, "the dimensions multiply to more than any file can hold"));
    };
    let offset_at = cursor.offset();
    let start = cursor.u64("tensor offset")?;
    if !start.is_multiple_of(alignment) {
        return Err(cursor.damaged(offset_at, format!("offset {start} is not a multiple of {alignment}")));
    }
    Ok(TensorInfo { name, shape, format, entry_offset, start, bytes })
}

/// Turn offsets from the start of the data into offsets from the start of the file, and check that every tensor lies
/// inside the file and apart from the others.
fn place_tensors(
    cursor: &Cursor<'_>,
    tensors: &mut [TensorInfo<'_>],
    alignment: u64,
    file_bytes: u64,
) -> Result<(), ModelError> {
    let damaged = |tensor: &TensorInfo<'_>, why: String| {
        let mut place = cursor.place(tensor.entry_offset);
        place.part = format!("tensor {}", tensor.name);
        ModelError::Damaged { at: place, why }
    };
    let data = (cursor.offset() as u64).next_multiple_of(alignment);
    for tensor in tensors.iter_mut() {
        let end = data.checked_add(tensor.start).and_then(|start| start.checked_add(tensor.bytes));
        match end {
            Some(end) if end <= file_bytes => tensor.start += data,
            _ => {
                let why = format!(
                    "its {} bytes at data offset {} reach beyond the file's {file_bytes} bytes",
                    tensor.bytes, tensor.start
                );
                return Err(damaged(tensor, why));
            }
        }
    }
    let mut order: Vec<&TensorInfo<'_>> = tensors.iter().collect();
    order.sort_by_key(|tensor| (tensor.start, tensor.bytes));
    for pair in order.windows(2) {
        if let [before, after] = pair
            && before.start + before.bytes > after.start
        {
            let why = format!("its bytes from {} overlap those of tensor {}", after.start, before.name);
            return Err(damaged(after, why));
        }
    }
    Ok(())
}
