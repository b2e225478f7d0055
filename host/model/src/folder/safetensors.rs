//! The header of a safetensors file: u64 length, JSON that maps names to type, shape and byte range, then the data.
//!
//! Format: `huggingface/safetensors:README.md`. Kept to the letter: no duplicate names, no holes, no overlaps, nothing
//! after the data. The library of that name is not used to read it, because its errors name no tensor and no offset.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use kvasir_numerics::Format;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};

use super::json::stopped_at;
use crate::error::{ModelError, Place};
use crate::limits;
use crate::mapping::MappedFile;
use crate::stored::{Directory, Entry, EntryFormat};

/// The one name that is no tensor.
const METADATA: &str = "__metadata__";
/// Dimensions of any tensor, used or not.
const MAX_STORED_RANK: usize = 8;
/// Bytes before the JSON.
const LENGTH_BYTES: usize = 8;

/// Types that a file may hold: name, bits of an element, the format that has arithmetic.
const TYPES: &[(&str, u64, Option<Format>)] = &[
    ("F32", 32, Some(Format::F32)),
    ("F16", 16, Some(Format::F16)),
    ("BF16", 16, Some(Format::BF16)),
    ("BOOL", 8, None),
    ("F4", 4, None),
    ("F6_E2M3", 6, None),
    ("F6_E3M2", 6, None),
    ("U8", 8, None),
    ("I8", 8, None),
    ("F8_E5M2", 8, None),
    ("F8_E4M3", 8, None),
    ("F8_E8M0", 8, None),
    ("F8_E4M3FNUZ", 8, None),
    ("F8_E5M2FNUZ", 8, None),
    ("I16", 16, None),
    ("U16", 16, None),
    ("I32", 32, None),
    ("U32", 32, None),
    ("C64", 64, None),
    ("F64", 64, None),
    ("I64", 64, None),
    ("U64", 64, None),
];

/// Add a file's tensors to the model's; returns their names.
pub(super) fn add_tensors(
    file: &Arc<MappedFile>,
    directory: &mut Directory,
) -> Result<Vec<String>, ModelError> {
    let bytes = file.bytes();
    let header_place = |offset: usize| Place {
        file: file.path().to_owned(),
        part: "header".to_owned(),
        offset: offset as u64,
    };
    let damaged = |offset, why: String| ModelError::Damaged { at: header_place(offset), why };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(damaged(0, format!("the file has {} bytes, its header's length takes 8", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > limits::MAX_SAFETENSORS_HEADER_BYTES {
        let limit = limits::MAX_SAFETENSORS_HEADER_BYTES;
        return Err(ModelError::OverLimit {
            at: header_place(0),
            what: "length of the header",
            value: length,
            limit,
        });
    }
    // The limit fits usize.
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(damaged(0, format!("a header of {length} bytes, but only {} follow", rest.len())));
    };
    let Header(entries) = serde_json::from_slice(header).map_err(|error| {
        damaged(LENGTH_BYTES + stopped_at(header, &error) as usize, format!("not a header: {error}"))
    })?;
    if entries.len() as u64 > limits::MAX_TENSORS {
        return Err(ModelError::OverLimit {
            at: header_place(LENGTH_BYTES),
            what: "number of tensors",
            value: entries.len() as u64,
            limit: limits::MAX_TENSORS,
        });
    }

    let data_start = LENGTH_BYTES + header.len();
    let mut end = 0;
    let mut by_offset: Vec<&(String, HeaderEntry)> = entries.iter().collect();
    by_offset.sort_by_key(|(_, entry)| entry.data_offsets);
    for (name, entry) in by_offset {
        let place = || Place {
            file: file.path().to_owned(),
            part: format!("tensor {name}"),
            offset: (LENGTH_BYTES + name_offset(header, name)) as u64,
        };
        let size = checked_size(name, entry, &place)?;
        let [from, to] = entry.data_offsets;
        let complain = |why| Err(ModelError::Damaged { at: place(), why });
        if to.checked_sub(from) != Some(size) {
            return complain(format!("bytes {from} to {to}, but {} of that shape take {size}", entry.dtype));
        }
        if from != end {
            return complain(format!("its data begin at {from}, those of the tensor before end at {end}"));
        }
        if to > data.len() as u64 {
            return complain(format!("its data end at {to}, the file's at {}", data.len()));
        }
        end = to;
        let known = TYPES.iter().find(|(dtype, ..)| *dtype == entry.dtype).and_then(|(.., format)| *format);
        let entry = Entry {
            file: file.clone(),
            format: known.map_or_else(|| EntryFormat::Other(entry.dtype.clone()), EntryFormat::Known),
            shape: entry.shape.iter().map(|&dimension| dimension as usize).collect(),
            range: data_start + from as usize..data_start + to as usize,
        };
        if !directory.insert(name, entry) {
            return Err(ModelError::Damaged { at: place(), why: "a second tensor of this name".to_owned() });
        }
    }
    if end != data.len() as u64 {
        return Err(damaged(
            data_start + end as usize,
            format!("{} bytes follow the data", data.len() as u64 - end),
        ));
    }
    Ok(entries.into_iter().map(|(name, _)| name).collect())
}

/// Bytes of a tensor after checking its name, type and dimensions.
fn checked_size(name: &str, entry: &HeaderEntry, place: &dyn Fn() -> Place) -> Result<u64, ModelError> {
    let over = |what, value, limit| Err(ModelError::OverLimit { at: place(), what, value, limit });
    if name.len() as u64 > limits::MAX_NAME_BYTES {
        return over("length of a tensor's name", name.len() as u64, limits::MAX_NAME_BYTES);
    }
    if entry.shape.len() > MAX_STORED_RANK {
        return over("number of dimensions", entry.shape.len() as u64, MAX_STORED_RANK as u64);
    }
    let Some((_, bits, _)) = TYPES.iter().find(|(dtype, ..)| *dtype == entry.dtype) else {
        return Err(ModelError::Unsupported { at: place(), what: format!("type {:?}", entry.dtype) });
    };
    let mut elements = 1u64;
    for &dimension in &entry.shape {
        if dimension == 0 {
            return Err(ModelError::Damaged { at: place(), why: "a dimension of 0".to_owned() });
        }
        if dimension > limits::MAX_DIMENSION {
            return over("dimension", dimension, limits::MAX_DIMENSION);
        }
        elements = elements.checked_mul(dimension).ok_or_else(|| ModelError::Damaged {
            at: place(),
            why: "the dimensions multiply to more than any file can hold".to_owned(),
        })?;
    }
    match elements.checked_mul(*bits) {
        Some(bits) if bits.is_multiple_of(8) => Ok(bits / 8),
        _ => Err(ModelError::Damaged { at: place(), why: "not a whole number of bytes".to_owned() }),
    }
}

/// Where a name stands in the header, for errors; 0 where it is spelt with escapes.
fn name_offset(header: &[u8], name: &str) -> usize {
    let quoted = format!("\"{name}\"");
    header.windows(quoted.len()).position(|window| window == quoted.as_bytes()).unwrap_or(0)
}

/// The tensors of a header in file order.
struct Header(Vec<(String, HeaderEntry)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            // Not a map type of the library: those keep the last of two equal names without a word.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut entries, mut names) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!("a second tensor named {name}")));
                    }
                    if name == METADATA {
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}
