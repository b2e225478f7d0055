//! Writes model files for tests: a complete model of a few kilobytes as GGUF or as a folder, and variations of it.
//!
//! Independent of the reader under test: it only writes. Offsets of interesting bytes are remembered, so that a test can
//! damage exactly one of them.

#![allow(dead_code)] // each test file uses a part of it
#![allow(clippy::unwrap_used)] // a test that panics has failed

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A GGUF value with its type.
#[derive(Clone, Debug)]
pub enum Value {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Text(String),
    /// Element type number, elements.
    Array(u32, Vec<Value>),
}

/// One tensor: dimensions innermost first, as GGUF stores them.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dimensions: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// A GGUF file to be written.
#[derive(Clone, Debug)]
pub struct Gguf {
    pub keys: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
    pub alignment: usize,
}

/// A written file and where its parts lie: `key NAME` (the key's length), `value NAME` (its type number), `tensor NAME`
/// (the name's length), `rank NAME`, `dimension NAME` (the first), `type NAME`, `offset NAME`, `directory`, `data`.
pub struct Written {
    pub bytes: Vec<u8>,
    pub marks: BTreeMap<String, usize>,
}

pub const F32: u32 = 0;
pub const F16: u32 = 1;
pub const Q4_0: u32 = 2;
pub const Q8_0: u32 = 8;
pub const Q4_K: u32 = 12;
pub const IQ4_XS: u32 = 23;
pub const BF16: u32 = 30;

pub const HIDDEN: u64 = 32;
pub const EXPERTS: u64 = 2;
pub const WIDTH: u64 = 32;
pub const SHARED: u64 = 8;
pub const TOKENS: u64 = 260;

impl Value {
    fn kind(&self) -> u32 {
        match self {
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::U64(_) => 10,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::Text(_) => 8,
            Value::Array(..) => 9,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::U32(value) => out.extend(value.to_le_bytes()),
            Value::I32(value) => out.extend(value.to_le_bytes()),
            Value::U64(value) => out.extend(value.to_le_bytes()),
            Value::F32(value) => out.extend(value.to_le_bytes()),
            Value::Bool(value) => out.push(u8::from(*value)),
            Value::Text(text) => {
                out.extend((text.len() as u64).to_le_bytes());
                out.extend(text.as_bytes());
            }
            Value::Array(kind, values) => {
                out.extend(kind.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                for value in values {
                    value.write(out);
                }
            }
        }
    }
}

impl Gguf {
    /// A complete model: one delta net and one attention layer, two experts, a byte vocabulary. Matrices are BF16,
    /// but the embedding (Q4_0, and used as output too) and the experts (Q8_0); vectors are F32.
    pub fn small() -> Gguf {
        let mut gguf = Gguf { keys: Vec::new(), tensors: Vec::new(), alignment: 32 };
        gguf.text("general.architecture", "qwen35moe").text("general.name", "small");
        for (key, value) in [
            ("block_count", 2),
            ("context_length", 64),
            ("embedding_length", HIDDEN as u32),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.key_length", 4),
            ("attention.value_length", 4),
            ("expert_count", EXPERTS as u32),
            ("expert_used_count", 1),
            ("expert_feed_forward_length", WIDTH as u32),
            ("expert_shared_feed_forward_length", SHARED as u32),
            ("ssm.conv_kernel", 2),
            ("ssm.state_size", 2),
            ("ssm.group_count", 1),
            ("ssm.time_step_rank", 2),
            ("ssm.inner_size", 4),
            ("full_attention_interval", 2),
            ("rope.dimension_count", 2),
        ] {
            gguf.set(&format!("qwen35moe.{key}"), Value::U32(value));
        }
        gguf.set("qwen35moe.rope.freq_base", Value::F32(1e7));
        gguf.set("qwen35moe.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
        gguf.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen35");
        let (texts, kinds) = vocabulary();
        gguf.set("tokenizer.ggml.tokens", Value::Array(8, texts.into_iter().map(Value::Text).collect()));
        gguf.set("tokenizer.ggml.token_type", Value::Array(5, kinds.into_iter().map(Value::I32).collect()));
        gguf.set("tokenizer.ggml.merges", Value::Array(8, vec![Value::Text("a b".to_owned())]));
        gguf.set("tokenizer.ggml.eos_token_id", Value::U32(256));

        gguf.tensor(
            "token_embd.weight",
            &[HIDDEN, TOKENS],
            Q4_0,
            [0x00, 0x3c, 0x79].repeat(6 * TOKENS as usize),
        );
        gguf.float("output_norm.weight", &[HIDDEN]);
        for (layer, attention) in [(0, false), (1, true)] {
            let name = |rest: &str| format!("blk.{layer}.{rest}");
            gguf.float(&name("attn_norm.weight"), &[HIDDEN]);
            gguf.float(&name("post_attention_norm.weight"), &[HIDDEN]);
            if attention {
                gguf.float(&name("attn_q.weight"), &[HIDDEN, 16]);
                gguf.float(&name("attn_k.weight"), &[HIDDEN, 4]);
                gguf.float(&name("attn_v.weight"), &[HIDDEN, 4]);
                gguf.float(&name("attn_output.weight"), &[8, HIDDEN]);
                gguf.float(&name("attn_q_norm.weight"), &[4]);
                gguf.float(&name("attn_k_norm.weight"), &[4]);
            } else {
                gguf.float(&name("attn_qkv.weight"), &[HIDDEN, 8]);
                gguf.float(&name("attn_gate.weight"), &[HIDDEN, 4]);
                gguf.float(&name("ssm_beta.weight"), &[HIDDEN, 2]);
                gguf.float(&name("ssm_alpha.weight"), &[HIDDEN, 2]);
                gguf.float(&name("ssm_conv1d.weight"), &[2, 8]);
                gguf.floats(&name("ssm_a"), &[2], &[-0.5, -1.5]);
                gguf.float(&name("ssm_dt.bias"), &[2]);
                gguf.float(&name("ssm_norm.weight"), &[2]);
                gguf.float(&name("ssm_out.weight"), &[4, HIDDEN]);
            }
            gguf.float(&name("ffn_gate_inp.weight"), &[HIDDEN, EXPERTS]);
            gguf.float(&name("ffn_gate_inp_shexp.weight"), &[HIDDEN]);
            gguf.float(&name("ffn_gate_shexp.weight"), &[HIDDEN, SHARED]);
            gguf.float(&name("ffn_up_shexp.weight"), &[HIDDEN, SHARED]);
            gguf.float(&name("ffn_down_shexp.weight"), &[SHARED, HIDDEN]);
            gguf.eights(&name("ffn_gate_exps.weight"), &[HIDDEN, WIDTH, EXPERTS]);
            gguf.eights(&name("ffn_up_exps.weight"), &[HIDDEN, WIDTH, EXPERTS]);
            gguf.eights(&name("ffn_down_exps.weight"), &[WIDTH, HIDDEN, EXPERTS]);
        }
        gguf
    }

    /// Set a key, in place where it is there already.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Gguf {
        match self.keys.iter_mut().find(|(name, _)| name == key) {
            Some((_, there)) => *there = value,
            None => self.keys.push((key.to_owned(), value)),
        }
        self
    }

    pub fn text(&mut self, key: &str, text: &str) -> &mut Gguf {
        self.set(key, Value::Text(text.to_owned()))
    }

    pub fn remove_key(&mut self, key: &str) -> &mut Gguf {
        self.keys.retain(|(name, _)| name != key);
        self
    }

    /// Add a tensor of small numbers that differ from tensor to tensor.
    pub fn float(&mut self, name: &str, dimensions: &[u64]) -> &mut Gguf {
        let count = dimensions.iter().product::<u64>() as usize;
        let seed = name.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let small = |i: u32| (seed.wrapping_add(i.wrapping_mul(2_654_435)) % 97) as f32 / 97.0;
        let values: Vec<f32> = (0..count as u32).map(small).collect();
        match dimensions.len() {
            1 => self.floats(name, dimensions, &values),
            // Matrices as BF16: half the bytes.
            _ => {
                let data = values.iter().flat_map(|value| value.to_le_bytes()[2..].to_vec()).collect();
                self.tensor(name, dimensions, BF16, data)
            }
        }
    }

    pub fn floats(&mut self, name: &str, dimensions: &[u64], values: &[f32]) -> &mut Gguf {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, dimensions, F32, data)
    }

    /// Add a Q8_0 tensor.
    pub fn eights(&mut self, name: &str, dimensions: &[u64]) -> &mut Gguf {
        let blocks = dimensions.iter().product::<u64>() as usize / 32;
        let seed = name.len() as u8;
        let data = (0..blocks)
            .flat_map(|block| {
                let weight = move |i: u8| (i.wrapping_mul(7) ^ seed.wrapping_add(block as u8)) % 101;
                [0x00, 0x3c].into_iter().chain((0..32u8).map(weight)) // f16 scale of 1
            })
            .collect();
        self.tensor(name, dimensions, Q8_0, data)
    }

    pub fn tensor(&mut self, name: &str, dimensions: &[u64], kind: u32, data: Vec<u8>) -> &mut Gguf {
        self.tensors.retain(|tensor| tensor.name != name);
        self.tensors.push(Tensor { name: name.to_owned(), dimensions: dimensions.to_vec(), kind, data });
        self
    }

    pub fn remove_tensor(&mut self, name: &str) -> &mut Gguf {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    pub fn find(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub fn write(&self) -> Written {
        let mut out = b"GGUF".to_vec();
        let mut marks = BTreeMap::new();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            marks.insert(format!("key {key}"), out.len());
            Value::Text(key.clone()).write(&mut out);
            marks.insert(format!("value {key}"), out.len());
            out.extend(value.kind().to_le_bytes());
            value.write(&mut out);
        }
        marks.insert("directory".to_owned(), out.len());
        let mut offset = 0;
        for tensor in &self.tensors {
            let name = &tensor.name;
            marks.insert(format!("tensor {name}"), out.len());
            Value::Text(name.clone()).write(&mut out);
            marks.insert(format!("rank {name}"), out.len());
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            marks.insert(format!("dimension {name}"), out.len());
            for dimension in &tensor.dimensions {
                out.extend(dimension.to_le_bytes());
            }
            marks.insert(format!("type {name}"), out.len());
            out.extend(tensor.kind.to_le_bytes());
            marks.insert(format!("offset {name}"), out.len());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.data.len()).next_multiple_of(self.alignment);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        marks.insert("data".to_owned(), out.len());
        for tensor in &self.tensors {
            marks.insert(format!("data {}", tensor.name), out.len());
            out.extend(&tensor.data);
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        Written { bytes: out, marks }
    }
}

impl Written {
    pub fn at(&self, mark: &str) -> usize {
        *self.marks.get(mark).unwrap_or_else(|| panic!("no mark {mark}"))
    }

    /// Overwrite the bytes at `offset` from a mark.
    pub fn put(mut self, mark: &str, offset: usize, bytes: &[u8]) -> Written {
        let at = self.at(mark) + offset;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub fn truncate(mut self, mark: &str, offset: usize) -> Written {
        let at = self.at(mark) + offset;
        self.bytes.truncate(at);
        self
    }
}

/// 256 bytes, two ends of text, a token made of two, an unused one: texts and ggml's types.
pub fn vocabulary() -> (Vec<String>, Vec<i32>) {
    let mut texts: Vec<String> = (0..=255u8).map(|byte| byte_character(byte).to_string()).collect();
    let mut kinds = vec![1; 256];
    for (text, kind) in [("<|endoftext|>", 3), ("<|im_end|>", 3), ("ab", 1), ("[PAD0]", 5)] {
        texts.push(text.to_owned());
        kinds.push(kind);
    }
    (texts, kinds)
}

/// The byte-level alphabet, written out anew.
fn byte_character(byte: u8) -> char {
    let plain = |b: u8| (0x21..=0x7e).contains(&b) || (0xa1..=0xac).contains(&b) || b >= 0xae;
    match plain(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + (0..byte).filter(|b| !plain(*b)).count() as u32).unwrap(),
    }
}

/// A Hugging Face folder to be written.
#[derive(Clone)]
pub struct Folder {
    pub files: BTreeMap<String, Vec<u8>>,
}

/// A safetensors file to be written: name, type, shape, data.
#[derive(Clone, Default)]
pub struct Safetensors {
    pub tensors: Vec<(String, &'static str, Vec<u64>, Vec<u8>)>,
}

impl Safetensors {
    /// Add a BF16 tensor.
    pub fn add(&mut self, name: &str, shape: &[u64]) -> &mut Safetensors {
        let count = shape.iter().product::<u64>() as usize;
        let seed = name.len();
        let data =
            (0..count).flat_map(|i| (0x3c00u16 + ((i * 7 + seed) % 256) as u16).to_le_bytes()).collect();
        self.tensors.push((name.to_owned(), "BF16", shape.to_vec(), data));
        self
    }

    pub fn header(&self) -> String {
        let mut at = 0;
        let entries: Vec<String> = (self.tensors.iter())
            .map(|(name, kind, shape, data)| {
                let end = at + data.len();
                let entry =
                    format!(r#""{name}":{{"dtype":"{kind}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#);
                at = end;
                entry
            })
            .collect();
        format!(r#"{{"__metadata__":{{"format":"pt"}},{}}}"#, entries.join(","))
    }

    pub fn write(&self) -> Vec<u8> {
        self.write_with_header(&self.header())
    }

    pub fn write_with_header(&self, header: &str) -> Vec<u8> {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        for (_, _, _, data) in &self.tensors {
            out.extend(data);
        }
        out
    }
}

/// The tensors of the small model as a folder has them.
pub fn small_tensors(prefix: &str) -> Safetensors {
    let mut tensors = Safetensors::default();
    tensors.add("lm_head.weight", &[TOKENS, HIDDEN]);
    tensors.add(&format!("{prefix}embed_tokens.weight"), &[TOKENS, HIDDEN]);
    tensors.add(&format!("{prefix}norm.weight"), &[HIDDEN]);
    for (layer, attention) in [(0, false), (1, true)] {
        let mut add = |rest: &str, shape: &[u64]| {
            tensors.add(&format!("{prefix}layers.{layer}.{rest}"), shape);
        };
        add("input_layernorm.weight", &[HIDDEN]);
        add("post_attention_layernorm.weight", &[HIDDEN]);
        if attention {
            add("self_attn.q_proj.weight", &[16, HIDDEN]);
            add("self_attn.k_proj.weight", &[4, HIDDEN]);
            add("self_attn.v_proj.weight", &[4, HIDDEN]);
            add("self_attn.o_proj.weight", &[HIDDEN, 8]);
            add("self_attn.q_norm.weight", &[4]);
            add("self_attn.k_norm.weight", &[4]);
        } else {
            add("linear_attn.in_proj_qkv.weight", &[8, HIDDEN]);
            add("linear_attn.in_proj_z.weight", &[4, HIDDEN]);
            add("linear_attn.in_proj_b.weight", &[2, HIDDEN]);
            add("linear_attn.in_proj_a.weight", &[2, HIDDEN]);
            add("linear_attn.conv1d.weight", &[8, 1, 2]);
            add("linear_attn.A_log", &[2]);
            add("linear_attn.dt_bias", &[2]);
            add("linear_attn.norm.weight", &[2]);
            add("linear_attn.out_proj.weight", &[HIDDEN, 4]);
        }
        add("mlp.gate.weight", &[EXPERTS, HIDDEN]);
        add("mlp.shared_expert_gate.weight", &[1, HIDDEN]);
        add("mlp.shared_expert.gate_proj.weight", &[SHARED, HIDDEN]);
        add("mlp.shared_expert.up_proj.weight", &[SHARED, HIDDEN]);
        add("mlp.shared_expert.down_proj.weight", &[HIDDEN, SHARED]);
        add("mlp.experts.gate_up_proj", &[EXPERTS, 2 * WIDTH, HIDDEN]);
        add("mlp.experts.down_proj", &[EXPERTS, HIDDEN, WIDTH]);
    }
    tensors
}

impl Folder {
    /// The small model as a folder, with fused gate and up matrices.
    pub fn small() -> Folder {
        let mut files = BTreeMap::new();
        files.insert("config.json".to_owned(), SMALL_CONFIG.as_bytes().to_vec());
        files.insert("tokenizer.json".to_owned(), small_tokenizer().to_string().into_bytes());
        files.insert("model.safetensors".to_owned(), small_tensors("model.").write());
        Folder { files }
    }

    /// Replace text in a file.
    pub fn edit(mut self, file: &str, from: &str, to: &str) -> Folder {
        let text = String::from_utf8(self.files[file].clone()).unwrap();
        assert!(text.contains(from), "{file} holds no {from}");
        self.files.insert(file.to_owned(), text.replacen(from, to, 1).into_bytes());
        self
    }

    pub fn put(mut self, file: &str, bytes: Vec<u8>) -> Folder {
        self.files.insert(file.to_owned(), bytes);
        self
    }

    pub fn write(&self, path: &Path) {
        std::fs::create_dir_all(path).unwrap();
        for (name, bytes) in &self.files {
            std::fs::write(path.join(name), bytes).unwrap();
        }
    }
}

/// tokenizer.json of the small model.
pub fn small_tokenizer() -> serde_json::Value {
    let (texts, kinds) = vocabulary();
    let of = |special: bool| {
        (texts.iter().zip(&kinds).enumerate()).filter(move |(_, (_, kind))| (**kind == 3) == special)
    };
    let vocab: serde_json::Map<String, serde_json::Value> = of(false)
        .filter(|(_, (_, kind))| **kind != 5)
        .map(|(id, (text, _))| (text.clone(), id.into()))
        .collect();
    let added: Vec<serde_json::Value> = of(true)
        .map(|(id, (text, _))| {
            serde_json::json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [["a", "b"]]}
    })
}

/// config.json of the small model.
pub const SMALL_CONFIG: &str = r#"{
  "model_type": "qwen3_5_moe_text",
  "hidden_size": 32, "vocab_size": 260, "num_hidden_layers": 2, "max_position_embeddings": 64,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-06,
  "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 8,
  "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 2, "linear_value_head_dim": 2,
  "linear_conv_kernel_dim": 2, "layer_types": ["linear_attention", "full_attention"], "hidden_act": "silu",
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.5},
  "tie_word_embeddings": false, "eos_token_id": 256
}
"#;

/// A path in the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A model that is too large for the repository: under $KVASIR_MODELS, or in the folder shared/model beside the
/// checkout. Says so where it is absent.
pub fn large_model(path: &str) -> Option<PathBuf> {
    let places = [std::env::var_os("KVASIR_MODELS").map(PathBuf::from), Some(repository("../shared/model"))];
    let found = places.into_iter().flatten().map(|place| place.join(path)).find(|path| path.exists());
    if found.is_none() {
        println!("skipped: {path} is neither under $KVASIR_MODELS nor in shared/model beside the checkout");
    }
    found
}
