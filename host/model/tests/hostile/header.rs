//! Damage to magic, counts, keys and the tensor directory of a GGUF file.

use super::Cases;
use super::forge::{Gguf, Q8_0, Value, Written};
use super::long;

/// A few keys and one tensor: for damage to the header.
pub fn header() -> Gguf {
    let mut gguf = Gguf { keys: Vec::new(), tensors: Vec::new(), alignment: 32 };
    gguf.text("general.architecture", "qwen35moe");
    gguf.set(
        "qwen35moe.attention.recurrent_layers",
        Value::Array(7, vec![Value::Bool(true), Value::Bool(false)]),
    );
    gguf.set("qwen35moe.block_count", Value::U32(2));
    gguf.floats("first", &[8], &[0.0; 8]);
    gguf.floats("second", &[2, 2, 2], &[0.0; 8]);
    gguf
}

fn damaged_header(change: impl FnOnce(Written) -> Written) -> Vec<u8> {
    change(header().write()).bytes
}

pub fn header_cases(cases: &mut Cases) {
    let d = "Damaged";
    cases.file("empty.gguf", Vec::new(), d, &["damaged file", "magic number takes 4 bytes", "byte 0 of"]);
    cases.file("other-magic.gguf", b"GGML\x03\0\0\0".to_vec(), d, &["not GGUF"]);
    let versioned = |version: u32| [b"GGUF".as_slice(), &version.to_le_bytes(), &[0; 16]].concat();
    cases.file("version-2.gguf", versioned(2), "Unsupported", &["GGUF version 2", "at byte 4"]);
    cases.file("big-endian.gguf", versioned(3u32.swap_bytes()), "Unsupported", &["big-endian"]);
    cases.file("no-counts.gguf", b"GGUF\x03\0\0\0".to_vec(), d, &["number of tensors takes 8 bytes"]);
    let counts = |tensors: u64, keys: u64| {
        [b"GGUF\x03\0\0\0".as_slice(), &long(tensors), &long(keys), &[0; 64]].concat()
    };
    cases.file(
        "tensors-too-many.gguf",
        counts(u64::MAX, 0),
        "OverLimit",
        &["number of tensors is 18446744073709551615", "131072"],
    );
    cases.file(
        "tensors-beyond-file.gguf",
        counts(100_000, 0),
        d,
        &["number of tensors is 100000, but only 72 bytes follow"],
    );
    cases.file(
        "keys-too-many.gguf",
        counts(0, 4097),
        "OverLimit",
        &["number of keys is 4097, the limit is 4096", "byte 16"],
    );
    cases.file(
        "keys-beyond-file.gguf",
        counts(0, 4096),
        d,
        &["number of keys is 4096, but only 64 bytes follow"],
    );

    let key = "key qwen35moe.block_count";
    let value = "value qwen35moe.block_count";
    let list = "value qwen35moe.attention.recurrent_layers";
    cases.file(
        "key-too-long.gguf",
        damaged_header(|w| w.put(key, 0, &long(513))),
        "OverLimit",
        &["key is 513, the limit is 512"],
    );
    cases.file(
        "key-not-text.gguf",
        damaged_header(|w| w.put(key, 10, &[0xff])),
        d,
        &["key is not UTF-8", "key number 2"],
    );
    let mut twice = header();
    twice.keys.push(("general.architecture".to_owned(), Value::U32(1)));
    cases.file(
        "key-twice.gguf",
        twice.write().bytes,
        d,
        &["key general.architecture", "a second value for this key"],
    );
    cases.file(
        "value-type-unknown.gguf",
        damaged_header(|w| w.put(value, 0, &[13])),
        d,
        &["key qwen35moe.block_count", "value type 13 does not exist"],
    );
    let text = "value general.architecture";
    cases.file(
        "string-too-long.gguf",
        damaged_header(|w| w.put(text, 4, &long(1 << 40))),
        "OverLimit",
        &["string is 1099511627776, the limit is 4194304"],
    );
    cases.file(
        "string-beyond-file.gguf",
        damaged_header(|w| w.put(text, 4, &long(4_000_000))),
        d,
        &["string takes 4000000 bytes, the file ends"],
    );
    cases.file(
        "string-not-text.gguf",
        damaged_header(|w| w.put(text, 12, &[0xc3, 0x28])),
        d,
        &["string is not UTF-8"],
    );
    cases.file("array-of-arrays.gguf", damaged_header(|w| w.put(list, 4, &[9])), d, &["an array of arrays"]);
    cases.file("array-type-unknown.gguf", damaged_header(|w| w.put(list, 4, &[200])), d, &["value type 200"]);
    cases.file(
        "array-too-long.gguf",
        damaged_header(|w| w.put(list, 8, &long(u64::MAX))),
        "OverLimit",
        &["number of array elements is 18446744073709551615"],
    );
    cases.file(
        "array-beyond-file.gguf",
        damaged_header(|w| w.put(list, 8, &long(2_000_000))),
        d,
        &["2000000 elements of bool cannot fit"],
    );
    cases.file(
        "bool-of-two.gguf",
        damaged_header(|w| w.put(list, 16, &[2])),
        d,
        &["a bool of value 2", "recurrent_layers"],
    );
    cases.file(
        "ends-in-keys.gguf",
        damaged_header(|w| w.truncate(value, 6)),
        d,
        &["u32 takes 4 bytes, the file ends after 2"],
    );
    cases.file(
        "ends-in-directory.gguf",
        damaged_header(|w| w.truncate("type second", 2)),
        d,
        &["tensor second", "tensor type takes 4 bytes"],
    );
    cases.file(
        "ends-in-data.gguf",
        damaged_header(|w| w.truncate("data second", 31)),
        d,
        &["tensor second", "reach beyond the file's"],
    );

    for (name, value, variant, says) in [
        ("alignment-zero.gguf", Value::U32(0), "Configuration", &["general.alignment = 0"]),
        ("alignment-24.gguf", Value::U32(24), "Configuration", &["power of two from 8 to 65536"]),
        ("alignment-huge.gguf", Value::U32(1 << 30), "Configuration", &["power of two from 8 to 65536"]),
        (
            "alignment-text.gguf",
            Value::Text("32".to_owned()),
            "WrongType",
            &["expected an integer of at least 0, found a string"],
        ),
    ] {
        let mut gguf = header();
        gguf.set("general.alignment", value);
        cases.file(name, gguf.write().bytes, variant, says);
    }

    let dimension = "dimension second";
    cases.file(
        "rank-0.gguf",
        damaged_header(|w| w.put("rank second", 0, &[0])),
        d,
        &["tensor second", "without dimensions"],
    );
    cases.file(
        "rank-5.gguf",
        damaged_header(|w| w.put("rank second", 0, &[5])),
        "OverLimit",
        &["number of dimensions is 5, the limit is 4"],
    );
    cases.file(
        "rank-huge.gguf",
        damaged_header(|w| w.put("rank second", 0, &[255; 4])),
        "OverLimit",
        &["number of dimensions is 4294967295"],
    );
    cases.file(
        "dimension-0.gguf",
        damaged_header(|w| w.put(dimension, 8, &long(0))),
        d,
        &["a dimension of 0"],
    );
    cases.file(
        "dimension-huge.gguf",
        damaged_header(|w| w.put(dimension, 8, &long(u64::MAX))),
        "OverLimit",
        &["dimension is 18446744073709551615, the limit is 16777216"],
    );
    let most = [long(1 << 24), long(1 << 24), long(1 << 24)].concat();
    cases.file(
        "dimensions-overflow.gguf",
        damaged_header(|w| w.put(dimension, 0, &most)),
        d,
        &["more than any file can hold"],
    );
    cases.file(
        "dimensions-beyond-file.gguf",
        damaged_header(|w| w.put(dimension, 0, &most[..16])),
        d,
        &["reach beyond the file's"],
    );
    cases.file(
        "broken-blocks.gguf",
        damaged_header(|w| w.put("type first", 0, &[Q8_0 as u8])),
        d,
        &["rows of 8 weights are not whole Q8_0 blocks of 32"],
    );
    cases.file(
        "type-unknown.gguf",
        damaged_header(|w| w.put("type first", 0, &[99])),
        "Unsupported",
        &["tensor first", "tensor type 99 (unknown) is not supported yet"],
    );
    cases.file(
        "type-withdrawn.gguf",
        damaged_header(|w| w.put("type first", 0, &[31])),
        "Unsupported",
        &["tensor type 31 (Q4_0_4_4, withdrawn)"],
    );
    cases.file(
        "tensor-name-too-long.gguf",
        damaged_header(|w| w.put("tensor first", 0, &long(1 << 20))),
        "OverLimit",
        &["tensor name is 1048576"],
    );
    cases.file(
        "offset-misaligned.gguf",
        damaged_header(|w| w.put("offset second", 0, &[16])),
        d,
        &["offset 16 is not a multiple of 32"],
    );
    cases.file(
        "offset-overflow.gguf",
        damaged_header(|w| w.put("offset second", 0, &long(u64::MAX - 31))),
        d,
        &["tensor second", "reach beyond the file's"],
    );
    cases.file(
        "tensors-overlap.gguf",
        damaged_header(|w| w.put("offset second", 0, &[0])),
        d,
        &["tensor second", "overlap those of tensor first"],
    );
    let mut same = header();
    same.tensors[1].name = "first".to_owned();
    cases.file("tensor-twice.gguf", same.write().bytes, d, &["tensor first", "a second tensor of this name"]);
}
