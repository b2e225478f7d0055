//! Writes Hugging Face folders.

use std::collections::BTreeMap;
use std::path::Path;

use super::{EXPERTS, HIDDEN, SHARED, TOKENS, WIDTH, vocabulary};

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
