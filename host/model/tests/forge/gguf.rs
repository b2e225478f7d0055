//! Writes GGUF files.

use std::collections::BTreeMap;

use super::{BF16, EXPERTS, F32, HIDDEN, Q4_0, Q8_0, SHARED, TOKENS, WIDTH, vocabulary};

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
