//! Hostile and unsupported files: each in tests/data/hostile-model/ is refused with the error that says what is wrong.
//!
//! The corpus is written by this file (`cargo test -p kvasir-model --test hostile -- --ignored write`), and a test
//! checks that the committed files are the ones written. Each case damages one thing of a small valid model.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forge::{BF16, EXPERTS, Folder, Gguf, HIDDEN, IQ4_XS, Q8_0, Value, WIDTH, Written, repository};
use kvasir_model::{Model, ModelError};

struct Case {
    name: &'static str,
    /// Path under the case's name, bytes. An empty path is the case itself as a file.
    files: Vec<(String, Vec<u8>)>,
    /// What to open under the case's name.
    open: &'static str,
    variant: &'static str,
    /// What the message must say.
    says: &'static [&'static str],
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn file(
        &mut self,
        name: &'static str,
        bytes: Vec<u8>,
        variant: &'static str,
        says: &'static [&'static str],
    ) {
        self.0.push(Case { name, files: vec![(String::new(), bytes)], open: "", variant, says });
    }

    /// A GGUF whose configuration is at fault. Tensors are left out: the configuration is checked before them.
    fn config(
        &mut self,
        name: &'static str,
        change: impl FnOnce(&mut Gguf),
        variant: &'static str,
        says: &'static [&'static str],
    ) {
        let mut gguf = Gguf::small();
        gguf.tensors.clear();
        change(&mut gguf);
        self.file(name, gguf.write().bytes, variant, says);
    }

    /// A GGUF whose tensors are at fault.
    fn tensors(
        &mut self,
        name: &'static str,
        change: impl FnOnce(&mut Gguf),
        variant: &'static str,
        says: &'static [&'static str],
    ) {
        let mut gguf = quiet();
        change(&mut gguf);
        self.file(name, gguf.write().bytes, variant, says);
    }

    fn folder(
        &mut self,
        name: &'static str,
        folder: Folder,
        variant: &'static str,
        says: &'static [&'static str],
    ) {
        let files = folder.files.into_iter().collect();
        self.0.push(Case { name, files, open: "", variant, says });
    }
}

/// The small model with weights of zero, which take no room in a repository.
fn quiet() -> Gguf {
    let mut gguf = Gguf::small();
    for tensor in &mut gguf.tensors {
        tensor.data.fill(0);
    }
    gguf
}

/// A few keys and one tensor: for damage to the header.
fn header() -> Gguf {
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

fn long(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

fn header_cases(cases: &mut Cases) {
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

fn config_cases(cases: &mut Cases) {
    let c = "Configuration";
    fn set(key: &'static str, value: u32) -> impl FnOnce(&mut Gguf) {
        move |gguf| {
            gguf.set(&format!("qwen35moe.{key}"), Value::U32(value));
        }
    }
    cases.config(
        "architecture-other.gguf",
        |g| {
            g.text("general.architecture", "llama");
        },
        "Unsupported",
        &["architecture \"llama\" (only qwen35moe is) is not supported yet"],
    );
    cases.config(
        "architecture-missing.gguf",
        |g| {
            g.remove_key("general.architecture");
        },
        "MissingKey",
        &["key general.architecture is missing"],
    );
    cases.config(
        "key-missing.gguf",
        |g| {
            g.remove_key("qwen35moe.ssm.state_size");
        },
        "MissingKey",
        &["key qwen35moe.ssm.state_size is missing"],
    );
    cases.config(
        "key-negative.gguf",
        |g| {
            g.set("qwen35moe.embedding_length", Value::I32(-1));
        },
        "WrongType",
        &["found integer -1", "key qwen35moe.embedding_length"],
    );
    cases.config(
        "key-text.gguf",
        |g| {
            g.text("qwen35moe.embedding_length", "32");
        },
        "WrongType",
        &["found a string"],
    );
    cases.config(
        "key-float.gguf",
        |g| {
            g.set("qwen35moe.expert_count", Value::F32(2.0));
        },
        "WrongType",
        &["found float 2"],
    );
    cases.config("layers-0.gguf", set("block_count", 0), c, &["qwen35moe.block_count = 0"]);
    cases.config("layers-too-many.gguf", set("block_count", 100_000), c, &["must be from 1 to 1024"]);
    cases.config(
        "layers-all-predicting.gguf",
        set("nextn_predict_layers", 2),
        c,
        &["must exceed the number of multi-token-prediction blocks, 2"],
    );
    cases.config(
        "layers-more-predicting.gguf",
        set("nextn_predict_layers", u32::MAX),
        c,
        &["block_count = 2"],
    );
    cases.config(
        "heads-0.gguf",
        set("attention.head_count", 0),
        c,
        &["attention.head_count = 0: must be from 1"],
    );
    cases.config(
        "kv-heads-0.gguf",
        set("attention.head_count_kv", 0),
        c,
        &["attention.head_count_kv = 0: must be from 1"],
    );
    cases.config(
        "kv-heads-not-dividing.gguf",
        set("attention.head_count_kv", 3),
        c,
        &["must divide the number of heads, 2"],
    );
    cases.config(
        "value-length-other.gguf",
        set("attention.value_length", 8),
        c,
        &["must equal qwen35moe.attention.key_length, 4"],
    );
    cases.config(
        "head-dimension-0.gguf",
        |g| {
            set("attention.value_length", 0)(g);
            set("attention.key_length", 0)(g);
        },
        c,
        &["attention.key_length = 0"],
    );
    cases.config(
        "rope-beyond-head.gguf",
        set("rope.dimension_count", 6),
        c,
        &["rope.dimension_count = 6: must be even and at most the head dimension, 4"],
    );
    cases.config("rope-odd.gguf", set("rope.dimension_count", 3), c, &["must be even"]);
    cases.config("rope-0.gguf", set("rope.dimension_count", 0), c, &["rope.dimension_count = 0"]);
    cases.config(
        "rope-scaled.gguf",
        |g| {
            g.text("qwen35moe.rope.scaling.type", "yarn");
        },
        "Unsupported",
        &["rope scaling \"yarn\""],
    );
    cases.config(
        "rope-base-nan.gguf",
        |g| {
            g.set("qwen35moe.rope.freq_base", Value::F32(f32::NAN));
        },
        c,
        &["rope.freq_base = NaN"],
    );
    cases.config(
        "rope-base-0.gguf",
        |g| {
            g.set("qwen35moe.rope.freq_base", Value::F32(0.0));
        },
        c,
        &["a number of at least 1"],
    );
    cases.config(
        "epsilon-0.gguf",
        |g| {
            g.set("qwen35moe.attention.layer_norm_rms_epsilon", Value::F32(0.0));
        },
        c,
        &["must lie between 0 and 1"],
    );
    cases.config(
        "epsilon-infinite.gguf",
        |g| {
            g.set("qwen35moe.attention.layer_norm_rms_epsilon", Value::F32(f32::INFINITY));
        },
        c,
        &["layer_norm_rms_epsilon = inf"],
    );
    cases.config("experts-0.gguf", set("expert_count", 0), c, &["expert_count = 0"]);
    cases.config("experts-too-many.gguf", set("expert_count", u32::MAX), c, &["must be from 1 to 4096"]);
    cases.config("experts-used-0.gguf", set("expert_used_count", 0), c, &["expert_used_count = 0"]);
    cases.config(
        "experts-used-too-many.gguf",
        set("expert_used_count", 3),
        c,
        &["must be at most the number of experts, 2"],
    );
    cases.config("key-heads-0.gguf", set("ssm.group_count", 0), c, &["ssm.group_count = 0"]);
    cases.config(
        "value-heads-0.gguf",
        set("ssm.time_step_rank", 0),
        c,
        &["must be a multiple of qwen35moe.ssm.time_step_rank, 0"],
    );
    cases.config(
        "value-heads-not-multiple.gguf",
        |g| {
            set("ssm.group_count", 4)(g);
        },
        c,
        &["must be a multiple of the number of key heads, 4"],
    );
    cases.config(
        "inner-size-broken.gguf",
        set("ssm.inner_size", 5),
        c,
        &["ssm.inner_size = 5: must be a multiple"],
    );
    cases.config("convolution-0.gguf", set("ssm.conv_kernel", 0), c, &["ssm.conv_kernel = 0"]);
    cases.config(
        "interval-0.gguf",
        set("full_attention_interval", 0),
        c,
        &["full_attention_interval = 0: must be at least 1"],
    );
    cases.config(
        "recurrent-too-few.gguf",
        |g| {
            g.set("qwen35moe.attention.recurrent_layers", Value::Array(7, vec![Value::Bool(true)]));
        },
        c,
        &["recurrent_layers = 1 values"],
    );
    cases.config(
        "recurrent-numbers.gguf",
        |g| {
            g.set("qwen35moe.attention.recurrent_layers", Value::Array(4, vec![Value::U32(1); 2]));
        },
        "WrongType",
        &["expected an array of bool, found an array of 2 u32"],
    );
    cases.config("router-sigmoid.gguf", set("expert_gating_func", 2), "Unsupported", &["router function 2"]);
    cases.config(
        "router-not-normal.gguf",
        |g| {
            g.set("qwen35moe.expert_weights_norm", Value::Bool(false));
        },
        "Unsupported",
        &["a router that does not renormalise"],
    );
    cases.config(
        "router-scaled.gguf",
        |g| {
            g.set("qwen35moe.expert_weights_scale", Value::F32(2.5));
        },
        "Unsupported",
        &["scaling of expert weights by 2.5"],
    );
    cases.config(
        "width-huge.gguf",
        set("embedding_length", u32::MAX),
        c,
        &["embedding_length = 4294967295: must be from 1 to 1048576"],
    );
    cases.config(
        "heads-too-many.gguf",
        set("attention.head_count", 4097),
        c,
        &["head_count = 4097: must be from 1 to 4096"],
    );
    cases.config(
        "context-too-long.gguf",
        set("context_length", u32::MAX),
        c,
        &["must be from 1 to 16777216"],
    );
    cases.config(
        "taps-too-many.gguf",
        set("ssm.conv_kernel", 65),
        c,
        &["ssm.conv_kernel = 65: must be from 1 to 64"],
    );
    cases.config(
        "split-unnamed.gguf",
        |g| {
            g.set("split.count", Value::U32(4));
        },
        c,
        &["split.count = 4: the model is split; name its files"],
    );
}

fn vocabulary_cases(cases: &mut Cases) {
    let t = "Tokenizer";
    fn texts(g: &mut Gguf) -> &mut Vec<Value> {
        match g.keys.iter_mut().find(|(key, _)| key == "tokenizer.ggml.tokens") {
            Some((_, Value::Array(_, values))) => values,
            _ => unreachable!("the small model has tokens"),
        }
    }
    fn merges(list: &'static [&'static str]) -> impl FnOnce(&mut Gguf) {
        move |g| {
            let values = list.iter().map(|merge| Value::Text((*merge).to_owned())).collect();
            g.set("tokenizer.ggml.merges", Value::Array(8, values));
        }
    }
    cases.config(
        "pre-unknown.gguf",
        |g| {
            g.text("tokenizer.ggml.pre", "llama-bpe");
        },
        t,
        &["tokenizer.ggml.pre = \"llama-bpe\" is not supported yet; known: qwen35"],
    );
    cases.config(
        "pre-missing.gguf",
        |g| {
            g.remove_key("tokenizer.ggml.pre");
        },
        "MissingKey",
        &["tokenizer.ggml.pre"],
    );
    cases.config(
        "tokenizer-other.gguf",
        |g| {
            g.text("tokenizer.ggml.model", "llama");
        },
        "Unsupported",
        &["tokenizer model \"llama\""],
    );
    cases.config(
        "tokens-missing.gguf",
        |g| {
            g.remove_key("tokenizer.ggml.tokens");
        },
        "MissingKey",
        &["tokenizer.ggml.tokens"],
    );
    cases.config(
        "tokens-none.gguf",
        |g| {
            texts(g).clear();
        },
        "Configuration",
        &["tokenizer.ggml.tokens = 0"],
    );
    cases.config(
        "tokens-numbers.gguf",
        |g| {
            g.set("tokenizer.ggml.tokens", Value::Array(4, vec![Value::U32(1)]));
        },
        "WrongType",
        &["expected an array of string"],
    );
    cases.config(
        "token-twice.gguf",
        |g| {
            texts(g)[258] = Value::Text("a".to_owned());
        },
        t,
        &["token 258: its text \"a\" is also that of token 97"],
    );
    cases.config(
        "token-empty.gguf",
        |g| {
            texts(g)[258] = Value::Text(String::new());
        },
        t,
        &["token 258: its text is empty"],
    );
    cases.config(
        "token-too-long.gguf",
        |g| {
            texts(g)[258] = Value::Text("a".repeat(4097));
        },
        t,
        &["token 258: its text has 4097 bytes, the limit is 4096"],
    );
    cases.config(
        "token-byte-missing.gguf",
        |g| {
            texts(g)[32] = Value::Text("xx".to_owned());
        },
        t,
        &["no token for byte 0x20"],
    );
    cases.config(
        "token-type-unknown.gguf",
        |g| {
            g.set("tokenizer.ggml.token_type", Value::Array(5, vec![Value::I32(9); 260]));
        },
        "Configuration",
        &["token 0 has no such type"],
    );
    cases.config(
        "token-types-too-few.gguf",
        |g| {
            g.set("tokenizer.ggml.token_type", Value::Array(5, vec![Value::I32(1); 3]));
        },
        "Configuration",
        &["3 types: must be one per token, 260"],
    );
    cases.config(
        "end-beyond-tokens.gguf",
        |g| {
            g.set("tokenizer.ggml.eos_token_id", Value::U32(260));
        },
        "Configuration",
        &["eos_token_id = 260: the vocabulary has 260 tokens"],
    );
    cases.config(
        "begin-added.gguf",
        |g| {
            g.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
        },
        "Unsupported",
        &["a token before every text"],
    );
    cases.config(
        "merges-missing.gguf",
        |g| {
            g.remove_key("tokenizer.ggml.merges");
        },
        "MissingKey",
        &["tokenizer.ggml.merges"],
    );
    cases.config(
        "merge-of-one.gguf",
        merges(&["a b", "ab"]),
        t,
        &["merge 1 (\"ab\"): not two tokens with one space"],
    );
    cases.config("merge-of-three.gguf", merges(&["a b c"]), t, &["merge 0"]);
    cases.config("merge-half-empty.gguf", merges(&["a "]), t, &["one half is empty"]);
    cases.config(
        "merge-half-unknown.gguf",
        merges(&["a zz"]),
        t,
        &["merge 0 (\"a zz\"): one half is not a token"],
    );
    cases.config(
        "merge-result-unknown.gguf",
        merges(&["a b", "ab ab"]),
        t,
        &["merge 1 (\"ab ab\"): the result is not a token"],
    );
    cases.config(
        "template-broken.gguf",
        |g| {
            g.text("tokenizer.chat_template", "{% for x in %}");
        },
        "Template",
        &["does not parse"],
    );
    cases.config(
        "template-number.gguf",
        |g| {
            g.set("tokenizer.chat_template", Value::U32(1));
        },
        "WrongType",
        &["tokenizer.chat_template"],
    );
}

fn tensor_cases(cases: &mut Cases) {
    let w = "WrongShape";
    cases.tensors(
        "tensor-missing.gguf",
        |g| {
            g.remove_tensor("blk.1.attn_k.weight");
        },
        "MissingTensor",
        &["tensor blk.1.attn_k.weight is missing"],
    );
    cases.tensors(
        "tensor-unknown.gguf",
        |g| {
            g.floats("blk.1.attn_k.bias", &[4], &[0.0; 4]);
        },
        "UnknownTensor",
        &["tensor blk.1.attn_k.bias", "the architecture has no such tensor"],
    );
    cases.tensors(
        "tensor-of-a-third-layer.gguf",
        |g| {
            g.floats("blk.2.attn_norm.weight", &[HIDDEN], &[0.0; 32]);
        },
        "UnknownTensor",
        &["tensor blk.2.attn_norm.weight"],
    );
    cases.tensors(
        "shape-transposed.gguf",
        |g| {
            g.find("blk.0.ffn_gate_shexp.weight").dimensions.reverse();
        },
        w,
        &["tensor blk.0.ffn_gate_shexp.weight", "shape 32 x 8, but the configuration asks for 8 x 32"],
    );
    cases.tensors(
        "shape-experts-too-few.gguf",
        |g| {
            g.find("blk.0.ffn_up_exps.weight").dimensions = vec![HIDDEN, WIDTH * EXPERTS];
        },
        w,
        &["shape 64 x 32", "asks for 2 x 32 x 32"],
    );
    cases.tensors(
        "shape-vocabulary.gguf",
        |g| {
            g.find("token_embd.weight").dimensions = vec![HIDDEN, 130, 2];
        },
        w,
        &["tensor token_embd.weight"],
    );
    cases.tensors(
        "shape-norm.gguf",
        |g| {
            g.floats("blk.0.attn_norm.weight", &[31], &[0.0; 31]);
        },
        w,
        &["tensor blk.0.attn_norm.weight", "shape 31, but the configuration asks for 32"],
    );
    cases.tensors(
        "shape-convolution.gguf",
        |g| {
            g.find("blk.0.ssm_conv1d.weight").dimensions = vec![8, 2];
        },
        w,
        &["ssm_conv1d.weight"],
    );
    cases.tensors(
        "shape-router.gguf",
        |g| {
            g.find("blk.0.ffn_gate_inp.weight").dimensions = vec![HIDDEN * 2];
        },
        w,
        &["asks for 2 x 32"],
    );
    cases.tensors(
        "format-without-arithmetic.gguf",
        |g| {
            g.tensor("blk.0.ffn_down_exps.weight", &[256, 2, 2], IQ4_XS, vec![0; 4 * 136]);
        },
        "Unsupported",
        &["tensor blk.0.ffn_down_exps.weight", "format IQ4_XS is not supported yet"],
    );
    cases.tensors(
        "norm-quantised.gguf",
        |g| {
            g.tensor("output_norm.weight", &[HIDDEN], Q8_0, vec![0; 34]);
        },
        "Unsupported",
        &["tensor output_norm.weight", "format Q8_0 for a vector"],
    );
    cases.tensors(
        "row-formats-differ.gguf",
        |g| {
            let bytes = vec![0; (HIDDEN * WIDTH * EXPERTS * 2) as usize];
            g.tensor("blk.1.ffn_up_exps.weight", &[HIDDEN, WIDTH, EXPERTS], BF16, bytes);
        },
        "RowFormatsDiffer",
        &["layer 1: gate matrices read Q8 rows and up matrices Float32 rows"],
    );
    cases.tensors(
        "weight-128.gguf",
        |g| {
            let mut data = [0u8; 34].repeat(8);
            data[34 * 3 + 2 + 5] = 0x80;
            g.tensor("blk.1.ffn_gate_shexp.weight", &[HIDDEN, 8], Q8_0, data.clone());
            data.fill(0);
            g.tensor("blk.1.ffn_up_shexp.weight", &[HIDDEN, 8], Q8_0, data);
        },
        "Weights",
        &["tensor blk.1.ffn_gate_shexp.weight", "Q8_0 weight of -128 in matrix row 3"],
    );
    cases.tensors(
        "weight-nan.gguf",
        |g| {
            g.find("blk.0.post_attention_norm.weight").data[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        },
        "Weights",
        &["tensor blk.0.post_attention_norm.weight", "NaN or an infinity"],
    );
    cases.tensors(
        "weight-infinite.gguf",
        |g| {
            g.find("blk.0.attn_qkv.weight").data[64..66].copy_from_slice(&0x7f80u16.to_le_bytes());
        },
        "Weights",
        &["tensor blk.0.attn_qkv.weight", "matrix row 1"],
    );
    cases.tensors(
        "decay-positive.gguf",
        |g| {
            g.floats("blk.0.ssm_a", &[2], &[-1.0, 0.5]);
        },
        "Damaged",
        &["tensor blk.0.ssm_a", "a decay rate of 0.5"],
    );
    cases.tensors(
        "alone-mtp.gguf",
        |g| {
            g.set("qwen35moe.block_count", Value::U32(3))
                .set("qwen35moe.nextn_predict_layers", Value::U32(1));
            g.tensors.retain(|tensor| !tensor.name.starts_with("blk."));
            g.floats("blk.2.nextn.enorm.weight", &[HIDDEN], &[0.0; 32]);
        },
        "MissingTensor",
        &["tensor blk.0."],
    );
}

fn split_cases(cases: &mut Cases) {
    let part = |number: u32, count: u32, tensors: i32| {
        let mut gguf = header();
        gguf.tensors.truncate(1);
        gguf.tensors[0].name = format!("part {number}");
        gguf.set("split.no", Value::U32(number)).set("split.count", Value::U32(count));
        gguf.set("split.tensors.count", Value::I32(tensors));
        gguf.write().bytes
    };
    let mut add = |name, parts: Vec<Vec<u8>>, open, variant, says| {
        let files = (1..).zip(parts).map(|(i, bytes)| (format!("m-0000{i}-of-00002.gguf"), bytes)).collect();
        cases.0.push(Case { name, files, open, variant, says });
    };
    let first = "m-00001-of-00002.gguf";
    add("split-part-missing", vec![part(0, 2, 2)], first, "Unreadable", &["m-00002-of-00002.gguf"]);
    add(
        "split-second-opened",
        vec![part(0, 2, 2), part(1, 2, 2)],
        "m-00002-of-00002.gguf",
        "NotAModel",
        &["it is part 2 of 2; open the first part"],
    );
    add(
        "split-count-other",
        vec![part(0, 3, 2), part(1, 3, 2)],
        first,
        "Configuration",
        &["split.count = 3: must be 2"],
    );
    add(
        "split-same-part",
        vec![part(0, 2, 2), part(0, 2, 2)],
        first,
        "Configuration",
        &["split.no = 0: must be 1, counted from 0"],
    );
    add(
        "split-tensors-missing",
        vec![part(0, 2, 3), part(1, 2, 3)],
        first,
        "Configuration",
        &["split.tensors.count = 3: the 2 parts hold 2 tensors"],
    );
    let whole = {
        let mut gguf = header();
        gguf.tensors.truncate(1);
        gguf.write().bytes
    };
    add(
        "split-not-split",
        vec![whole.clone(), whole],
        first,
        "Configuration",
        &["split.count = 1: must be 2"],
    );
    let twice = |number| {
        let mut gguf = header();
        gguf.tensors.truncate(1);
        gguf.set("split.no", Value::U32(number)).set("split.count", Value::U32(2));
        gguf.set("split.tensors.count", Value::I32(2));
        gguf.write().bytes
    };
    add(
        "split-tensor-in-both",
        vec![twice(0), twice(1)],
        first,
        "Damaged",
        &["tensor first", "a second tensor of this name", "m-00002"],
    );
}

/// Without tensors: for what is checked before them.
fn bare_folder() -> Folder {
    let mut folder = Folder::small();
    folder.files.remove("model.safetensors");
    folder
}

fn folder_cases(cases: &mut Cases) {
    let c = "Configuration";
    let config = |from, to| {
        let mut folder = bare_folder().edit("config.json", from, to);
        folder.files.remove("tokenizer.json");
        folder
    };
    let mut no_config = bare_folder();
    no_config.files.remove("config.json");
    cases.folder(
        "folder-no-config",
        no_config,
        "NotAModel",
        &["a folder with config.json, tokenizer.json and model.safetensors was expected"],
    );
    cases.folder(
        "folder-config-broken",
        config("\"rope_type\": \"default\"", "\"rope_type\" \"default\""),
        "Damaged",
        &["config.json", "not JSON"],
    );
    let mut list = config("{", "{");
    list = list.put("config.json", b"[]".to_vec());
    cases.folder("folder-config-list", list, "Damaged", &["an object was expected, not a list"]);
    cases.folder(
        "folder-other-type",
        config("qwen3_5_moe_text", "qwen3_next"),
        "Unsupported",
        &["model type \"qwen3_next\""],
    );
    cases.folder("folder-no-type", config("\"model_type\"", "\"modeltype\""), "MissingKey", &["model_type"]);
    cases.folder(
        "folder-key-missing",
        config("\"hidden_size\": 32, ", ""),
        "MissingKey",
        &["key hidden_size is missing"],
    );
    cases.folder(
        "folder-key-text",
        config("\"hidden_size\": 32", "\"hidden_size\": \"32\""),
        "WrongType",
        &["key hidden_size", "found a string"],
    );
    cases.folder(
        "folder-key-float",
        config("\"hidden_size\": 32", "\"hidden_size\": 32.5"),
        "WrongType",
        &["found a float"],
    );
    cases.folder(
        "folder-key-negative",
        config("\"hidden_size\": 32", "\"hidden_size\": -32"),
        "WrongType",
        &["expected an integer of at least 0"],
    );
    cases.folder(
        "folder-key-huge",
        config("\"hidden_size\": 32", "\"hidden_size\": 18446744073709551615"),
        c,
        &["hidden_size = 18446744073709551615: must be from 1 to 1048576"],
    );
    cases.folder(
        "folder-heads-0",
        config("\"num_key_value_heads\": 1", "\"num_key_value_heads\": 0"),
        c,
        &["num_key_value_heads = 0"],
    );
    cases.folder(
        "folder-layer-type",
        config("full_attention", "sliding_attention"),
        "Unsupported",
        &["layer type \"sliding_attention\""],
    );
    cases.folder(
        "folder-layer-types-few",
        config("\"linear_attention\", ", ""),
        c,
        &["layer_types = 1 entries: must tell the kind of each of 2 layers"],
    );
    cases.folder(
        "folder-layers-huge",
        config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000000000"),
        c,
        &["must be from 1 to 1024"],
    );
    cases.folder(
        "folder-rope-yarn",
        config("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\""),
        "Unsupported",
        &["rope type \"yarn\"", "rope_parameters.rope_type"],
    );
    cases.folder(
        "folder-rope-part",
        config("0.5", "0.3"),
        c,
        &["partial_rotary_factor = 0.3: must leave a whole number"],
    );
    cases.folder("folder-rope-too-much", config("0.5", "1e300"), c, &["partial_rotary_factor"]);
    cases.folder(
        "folder-vocabulary-huge",
        config("\"vocab_size\": 260", "\"vocab_size\": 1048577"),
        c,
        &["vocab_size = 1048577: must be from 1 to 1048576"],
    );
    cases.folder("folder-activation", config("silu", "gelu"), "Unsupported", &["activation \"gelu\""]);
    cases.folder(
        "folder-bias",
        config("\"tie_word", "\"attention_bias\": true, \"tie_word"),
        "Unsupported",
        &["attention with biases"],
    );
    cases.folder(
        "folder-quantised",
        config("\"tie_word", "\"quantization_config\": {\"quant_method\": \"fp8\"}, \"tie_word"),
        "Unsupported",
        &["a checkpoint quantised by fp8"],
    );
    cases.folder(
        "folder-end-beyond",
        bare_folder().edit("config.json", "\"eos_token_id\": 256", "\"eos_token_id\": [256, 260]"),
        c,
        &["eos_token_id = 260: the vocabulary has 260 tokens"],
    );

    let t = "Tokenizer";
    let tokenizer = |from, to| bare_folder().edit("tokenizer.json", from, to);
    let mut missing = bare_folder();
    missing.files.remove("tokenizer.json");
    cases.folder("tokenizer-missing", missing, "Unreadable", &["tokenizer.json"]);
    cases.folder(
        "tokenizer-broken",
        bare_folder().put("tokenizer.json", b"{\"model\":".to_vec()),
        t,
        &["not a tokenizer", "EOF"],
    );
    cases.folder(
        "tokenizer-wordpiece",
        tokenizer("\"BPE\"", "\"WordPiece\""),
        t,
        &["model.type = WordPiece is not supported yet; known: BPE"],
    );
    cases.folder(
        "tokenizer-normaliser",
        tokenizer("\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}"),
        t,
        &["normalizer", "Lowercase"],
    );
    cases.folder(
        "tokenizer-pattern",
        tokenizer("\\\\p{N}|", "\\\\p{N}{1,3}|"),
        t,
        &["pre_tokenizer", "Split with Qwen3.5's pattern"],
    );
    cases.folder(
        "tokenizer-adds",
        tokenizer(
            "\"post_processor\":null",
            "\"post_processor\":{\"type\":\"TemplateProcessing\",\"special_tokens\":{\"x\":{}}}",
        ),
        t,
        &["post_processor", "one that adds no token"],
    );
    cases.folder(
        "tokenizer-decoder",
        tokenizer("\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\""),
        t,
        &["decoder"],
    );
    cases.folder(
        "tokenizer-number-huge",
        tokenizer("\"ab\":258", "\"ab\":4294967295"),
        t,
        &["token 4294967295: its number is beyond the limit of 1048576"],
    );
    cases.folder(
        "tokenizer-number-twice",
        tokenizer("\"ab\":258", "\"ab\":97"),
        t,
        &["token 97: it is both"],
    );
    cases.folder(
        "tokenizer-merge-panics",
        tokenizer("[[\"a\",\"b\"]]", "[[\"a\",\"b\"],[\"<|endoftext|>\",\"<|endoftext|>\"]]"),
        t,
        &["merge 1", "the result is not a token"],
    );
    cases.folder(
        "tokenizer-too-many",
        bare_folder().edit("config.json", "\"vocab_size\": 260", "\"vocab_size\": 200").edit(
            "config.json",
            "\"eos_token_id\": 256",
            "\"eos_token_id\": null",
        ),
        "Tokenizer",
        &["259 tokens, but the embedding has 200 rows"],
    );
}

fn safetensors_cases(cases: &mut Cases) {
    let d = "Damaged";
    let raw = |bytes: Vec<u8>| bare_folder().put("model.safetensors", bytes);
    let with_header = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        raw(bytes)
    };
    let entry = |name: &str, rest: &str| format!("{{\"{name}\":{rest}}}");
    cases.folder("safetensors-missing", bare_folder(), "Unreadable", &["model.safetensors"]);
    cases.folder(
        "safetensors-short",
        raw(vec![1, 2, 3, 4]),
        d,
        &["the file has 4 bytes, its header's length takes 8"],
    );
    cases.folder(
        "safetensors-header-huge",
        raw(u64::MAX.to_le_bytes().to_vec()),
        "OverLimit",
        &["length of the header is 18446744073709551615, the limit is 67108864"],
    );
    cases.folder(
        "safetensors-header-beyond",
        raw([&long(1000)[..], b"{}"].concat()),
        d,
        &["a header of 1000 bytes, but only 2 follow"],
    );
    cases.folder("safetensors-not-json", with_header("{\"a\":", 0), d, &["not a header: EOF"]);
    cases.folder("safetensors-list", with_header("[]", 0), d, &["an object of tensors"]);
    let one = r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    cases.folder(
        "safetensors-twice",
        with_header(&format!("{{\"a\":{one},\"a\":{one}}}"), 8),
        d,
        &["a second tensor named a"],
    );
    cases.folder(
        "safetensors-type",
        with_header(&entry("a", r#"{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}"#), 8),
        "Unsupported",
        &["tensor a", "type \"Q4\""],
    );
    cases.folder(
        "safetensors-size",
        with_header(&entry("a", r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#), 8),
        d,
        &["bytes 0 to 8, but F32 of that shape take 12"],
    );
    cases.folder(
        "safetensors-reversed",
        with_header(&entry("a", r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#), 8),
        d,
        &["bytes 8 to 0"],
    );
    cases.folder(
        "safetensors-negative",
        with_header(&entry("a", r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#), 8),
        d,
        &["not a header: invalid value"],
    );
    cases.folder(
        "safetensors-zero",
        with_header(&entry("a", r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#), 0),
        d,
        &["a dimension of 0"],
    );
    cases.folder(
        "safetensors-dimension",
        with_header(&entry("a", r#"{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}"#), 8),
        "OverLimit",
        &["dimension is 18446744073709551615"],
    );
    cases.folder(
        "safetensors-overflow",
        with_header(
            &entry("a", r#"{"dtype":"F32","shape":[16777216,16777216,16777216],"data_offsets":[0,8]}"#),
            8,
        ),
        d,
        &["more than any file can hold"],
    );
    cases.folder(
        "safetensors-rank",
        with_header(&entry("a", r#"{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}"#), 8),
        "OverLimit",
        &["number of dimensions is 9, the limit is 8"],
    );
    cases.folder(
        "safetensors-hole",
        with_header(&entry("a", r#"{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#), 16),
        d,
        &["its data begin at 8, those of the tensor before end at 0"],
    );
    cases.folder(
        "safetensors-overlap",
        with_header(
            &format!("{{\"a\":{one},\"b\":{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}}}"),
            12,
        ),
        d,
        &["tensor b", "its data begin at 4, those of the tensor before end at 8"],
    );
    cases.folder(
        "safetensors-truncated",
        with_header(&entry("a", one), 7),
        d,
        &["tensor a", "its data end at 8, the file's at 7"],
    );
    cases.folder("safetensors-trailing", with_header(&entry("a", one), 9), d, &["1 bytes follow the data"]);
    cases.folder(
        "safetensors-half-byte",
        with_header(&entry("a", r#"{"dtype":"F4","shape":[3],"data_offsets":[0,1]}"#), 1),
        d,
        &["not a whole number of bytes"],
    );
    cases.folder(
        "safetensors-field",
        with_header(&entry("a", r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}"#), 8),
        d,
        &["unknown field `x`"],
    );
    cases.folder(
        "safetensors-no-tensors",
        with_header(&entry("a", one), 8),
        "MissingTensor",
        &["tensor model.embed_tokens.weight is missing"],
    );
    let f8 = r#"{"dtype":"F8_E4M3","shape":[260,32],"data_offsets":[0,8320]}"#;
    cases.folder(
        "safetensors-f8",
        with_header(&entry("model.embed_tokens.weight", f8), 8320),
        "Unsupported",
        &["tensor model.embed_tokens.weight", "format F8_E4M3"],
    );

    let index = |text: &str| bare_folder().put("model.safetensors.index.json", text.as_bytes().to_vec());
    let shard = |folder: Folder| {
        let header = entry("a", one);
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
        folder.put("one.safetensors", bytes)
    };
    cases.folder("index-not-json", index("{"), d, &["model.safetensors.index.json", "not an index"]);
    cases.folder(
        "index-leads-out",
        index(r#"{"weight_map":{"a":"../one.safetensors"}}"#),
        d,
        &["\"../one.safetensors\" is not the plain name"],
    );
    cases.folder(
        "index-other-file",
        index(r#"{"weight_map":{"a":"config.json"}}"#),
        d,
        &["\"config.json\" is not the plain name"],
    );
    cases.folder(
        "index-file-missing",
        index(r#"{"weight_map":{"a":"two.safetensors"}}"#),
        "Unreadable",
        &["two.safetensors"],
    );
    cases.folder(
        "index-silent",
        shard(index(r#"{"weight_map":{"b":"one.safetensors"}}"#)),
        d,
        &["tensor a lies in one.safetensors, which the index does not say"],
    );
    cases.folder(
        "index-tensor-missing",
        shard(index(r#"{"weight_map":{"a":"one.safetensors","b":"one.safetensors"}}"#)),
        "MissingTensor",
        &["tensor b is missing"],
    );
    let template = |config: &str| bare_folder().put("tokenizer_config.json", config.as_bytes().to_vec());
    cases.folder(
        "template-of-wrong-type",
        template(r#"{"chat_template": 5}"#),
        "WrongType",
        &["key chat_template", "found an integer"],
    );
    cases.folder(
        "template-not-text",
        bare_folder().put("chat_template.jinja", vec![b'a', 0xff]),
        d,
        &["chat_template.jinja", "not UTF-8", "byte 1"],
    );
}

fn all_cases() -> Vec<Case> {
    let mut cases = Cases::default();
    header_cases(&mut cases);
    config_cases(&mut cases);
    vocabulary_cases(&mut cases);
    tensor_cases(&mut cases);
    split_cases(&mut cases);
    folder_cases(&mut cases);
    safetensors_cases(&mut cases);
    cases.0
}

fn corpus() -> PathBuf {
    repository("tests/data/hostile-model")
}

fn path_of(case: &Case, file: &str) -> PathBuf {
    let place = corpus().join(case.name);
    if file.is_empty() { place } else { place.join(file) }
}

fn variant(error: &ModelError) -> &'static str {
    match error {
        ModelError::Unreadable { .. } => "Unreadable",
        ModelError::NotAModel { .. } => "NotAModel",
        ModelError::Damaged { .. } => "Damaged",
        ModelError::OverLimit { .. } => "OverLimit",
        ModelError::Unsupported { .. } => "Unsupported",
        ModelError::MissingKey { .. } => "MissingKey",
        ModelError::WrongType { .. } => "WrongType",
        ModelError::Configuration { .. } => "Configuration",
        ModelError::MissingTensor { .. } => "MissingTensor",
        ModelError::UnknownTensor { .. } => "UnknownTensor",
        ModelError::WrongShape { .. } => "WrongShape",
        ModelError::RowFormatsDiffer { .. } => "RowFormatsDiffer",
        ModelError::Weights { .. } => "Weights",
        ModelError::Tokenizer { .. } => "Tokenizer",
        ModelError::Template { .. } => "Template",
        _ => "another",
    }
}

/// All faults are reported together: one change of a message breaks several.
#[test]
fn every_file_is_refused_for_its_reason() {
    let mut wrong = Vec::new();
    for case in all_cases() {
        match Model::open(&path_of(&case, case.open)) {
            Ok(_) => wrong.push(format!("{}: opened", case.name)),
            Err(error) => {
                let text = error.to_string();
                let silent: Vec<_> = case.says.iter().filter(|part| !text.contains(**part)).collect();
                if variant(&error) != case.variant || !silent.is_empty() {
                    wrong.push(format!(
                        "{}: {} says {text:?}, without {silent:?}",
                        case.name,
                        variant(&error)
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_corpus_is_what_this_file_writes() {
    let mut expected = BTreeMap::new();
    for case in all_cases() {
        for (file, bytes) in &case.files {
            let twice = expected.insert(path_of(&case, file), bytes.clone());
            assert!(twice.is_none(), "two cases are called {}", case.name);
        }
    }
    for (path, bytes) in &expected {
        assert!(
            std::fs::read(path).ok().as_ref() == Some(bytes),
            "{} differs: write the corpus again",
            path.display()
        );
    }
    let found = files_under(&corpus());
    let strange: Vec<_> = found.iter().filter(|path| !expected.contains_key(*path)).collect();
    assert!(strange.iter().all(|path| path.ends_with("README.md")), "no case writes {strange:?}");
}

/// Faults of a file's name or size, which a corpus cannot or should not hold.
#[test]
fn names_and_sizes_that_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let message = |path: &Path| Model::open(path).err().unwrap().to_string();
    for (name, says) in [
        ("m-00001-of-01000.gguf", "counts parts wrongly (at most 999)"),
        ("m-00000-of-00002.gguf", "counts parts wrongly"),
        ("m-00003-of-00002.gguf", "counts parts wrongly"),
    ] {
        let path = place.path().join(name);
        std::fs::write(&path, header().write().bytes).unwrap();
        assert!(message(&path).contains(says));
    }
    assert!(message(&place.path().join("absent.gguf")).contains("cannot read"));
    for (file, bytes, says) in [
        ("config.json", 4 << 20, "config.json: length in bytes is 4194305, the limit is 4194304"),
        ("tokenizer.json", 64 << 20, "tokenizer.json: length in bytes is 67108865, the limit is 67108864"),
        ("chat_template.jinja", 4 << 20, "chat_template.jinja: length in bytes is 4194305"),
    ] {
        let folder = place.path().join(file.replace('.', "-"));
        Folder::small().write(&folder);
        // A hole: long, but without a byte on the disk.
        std::fs::File::create(folder.join(file)).unwrap().set_len(bytes + 1).unwrap();
        let text = message(&folder);
        assert!(text.contains(says), "{text}");
    }
}

/// The models that the cases are made from are sound: a case fails for what it changes.
#[test]
fn the_undamaged_models_open() {
    let folder = tempfile::tempdir().unwrap();
    for (name, gguf) in [("small.gguf", Gguf::small()), ("quiet.gguf", quiet())] {
        let path = folder.path().join(name);
        std::fs::write(&path, gguf.write().bytes).unwrap();
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(model.name(), "small");
    }
    Folder::small().write(&folder.path().join("folder"));
    assert_eq!(Model::open(&folder.path().join("folder")).unwrap().name(), "folder");
}

#[test]
#[ignore = "writes the corpus"]
fn write() {
    for case in all_cases() {
        for (file, bytes) in &case.files {
            let path = path_of(&case, file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_under(&path));
        } else {
            files.push(path);
        }
    }
    files
}
