//! Layouts that published files vary in: each variation of the small model opens and holds the same weights.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use std::path::Path;

use forge::{BF16, EXPERTS, Folder, Gguf, HIDDEN, IQ2_XXS, Q8_0, Safetensors, Value, WIDTH, small_tensors};
use kvasir_model::{ExpertIndex, LayerIndex, LayerKind, Mixer, Model};

fn open(place: &Path, name: &str, gguf: &Gguf) -> Model {
    let path = place.join(name);
    std::fs::write(&path, gguf.write().bytes).unwrap();
    Model::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn experts_of(model: &Model) -> Vec<String> {
    (model.config().layer_indices())
        .flat_map(|layer| (0..EXPERTS as u16).map(move |expert| (layer, ExpertIndex(expert))))
        .map(|(layer, expert)| model.expert_digest(layer, expert).unwrap().to_string())
        .collect()
}

#[test]
fn fused_gate_and_up_are_gate_first() {
    let place = tempfile::tempdir().unwrap();
    let plain = Gguf::small();
    let mut fused = plain.clone();
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
        let (gate, up) = (fused.find(&name("gate")).data.clone(), fused.find(&name("up")).data.clone());
        let half = gate.len() / EXPERTS as usize;
        let data: Vec<u8> =
            gate.chunks(half).zip(up.chunks(half)).flat_map(|(gate, up)| [gate, up].concat()).collect();
        fused.remove_tensor(&name("gate")).remove_tensor(&name("up"));
        fused.tensor(&name("gate_up"), &[HIDDEN, 2 * WIDTH, EXPERTS], Q8_0, data);
    }
    let (plain, fused) = (open(place.path(), "plain.gguf", &plain), open(place.path(), "fused.gguf", &fused));
    assert_eq!(experts_of(&fused), experts_of(&plain));
    assert_eq!(
        fused.expert(LayerIndex(1), ExpertIndex(1)).unwrap().up.name(),
        "blk.1.ffn_gate_up_exps.weight"
    );
}

#[test]
fn fused_attention_is_query_key_value() {
    let place = tempfile::tempdir().unwrap();
    let plain = Gguf::small();
    let mut fused = plain.clone();
    let mut data = Vec::new();
    for part in ["q", "k", "v"] {
        let name = format!("blk.1.attn_{part}.weight");
        data.extend(fused.find(&name).data.clone());
        fused.remove_tensor(&name);
    }
    fused.tensor("blk.1.attn_qkv.weight", &[HIDDEN, 16 + 4 + 4], BF16, data);
    let parts = |model: &Model| match model.layer(LayerIndex(1)).mixer {
        Mixer::Attention { q, k, v, .. } => [q, k, v].map(|tensor| (tensor.rows(), tensor.bytes().to_vec())),
        Mixer::DeltaNet { .. } => panic!("layer 1 is attention"),
    };
    let (plain, fused) = (open(place.path(), "plain.gguf", &plain), open(place.path(), "fused.gguf", &fused));
    assert_eq!(parts(&fused), parts(&plain));
}

#[test]
fn a_split_model_is_the_model() {
    let place = tempfile::tempdir().unwrap();
    let whole = Gguf::small();
    let digest = open(place.path(), "whole.gguf", &whole).digests().unwrap().model;
    let total = whole.tensors.len();
    // The first part may hold no tensor at all.
    for (name, cuts) in [("two", vec![0, 20, total]), ("three", vec![0, 0, 7, total])] {
        let count = cuts.len() - 1;
        for (number, range) in cuts.windows(2).enumerate() {
            let mut part =
                Gguf { keys: Vec::new(), tensors: whole.tensors[range[0]..range[1]].to_vec(), alignment: 32 };
            if number == 0 {
                part.keys = whole.keys.clone();
            }
            part.set("split.no", Value::U32(number as u32)).set("split.count", Value::U32(count as u32));
            part.set("split.tensors.count", Value::I32(total as i32));
            let path = place.path().join(format!("{name}-{:05}-of-{count:05}.gguf", number + 1));
            std::fs::write(path, part.write().bytes).unwrap();
        }
        let model = Model::open(&place.path().join(format!("{name}-00001-of-{count:05}.gguf"))).unwrap();
        assert_eq!(model.digests().unwrap().model, digest);
    }
}

#[test]
fn alignment_and_order_do_not_matter() {
    let place = tempfile::tempdir().unwrap();
    let plain = Gguf::small();
    let digest = open(place.path(), "plain.gguf", &plain).digests().unwrap().model;
    let mut other = plain.clone();
    other.set("general.alignment", Value::U32(256));
    other.alignment = 256;
    other.tensors.reverse();
    assert_eq!(open(place.path(), "other.gguf", &other).digests().unwrap().model, digest);
}

#[test]
fn layer_kinds_come_from_the_list_or_the_interval() {
    let place = tempfile::tempdir().unwrap();
    let mut listed = Gguf::small();
    listed.set("qwen35moe.full_attention_interval", Value::U32(7));
    listed.set(
        "qwen35moe.attention.recurrent_layers",
        Value::Array(7, vec![Value::Bool(true), Value::Bool(false)]),
    );
    let model = open(place.path(), "listed.gguf", &listed);
    assert_eq!(model.config().layer_kinds, [LayerKind::DeltaNet, LayerKind::Attention]);
    // Without a list every second layer is attention, and the first is none.
    let model = open(place.path(), "interval.gguf", &Gguf::small());
    assert_eq!(model.config().layer_kinds, [LayerKind::DeltaNet, LayerKind::Attention]);
}

#[test]
fn an_output_matrix_of_its_own_is_used() {
    let place = tempfile::tempdir().unwrap();
    let tied = open(place.path(), "tied.gguf", &Gguf::small());
    assert_eq!(tied.output().name(), "token_embd.weight");
    let mut own = Gguf::small();
    own.float("output.weight", &[HIDDEN, 260]);
    assert_eq!(open(place.path(), "own.gguf", &own).output().name(), "output.weight");
}

#[test]
fn a_prediction_block_is_left_aside_whatever_it_is_made_of() {
    let place = tempfile::tempdir().unwrap();
    let plain = open(place.path(), "plain.gguf", &Gguf::small()).digests().unwrap().model;
    let mut more = Gguf::small();
    more.set("qwen35moe.block_count", Value::U32(3)).set("qwen35moe.nextn_predict_layers", Value::U32(1));
    more.floats("blk.2.nextn.enorm.weight", &[HIDDEN], &[0.0; 32]);
    more.tensor("blk.2.ffn_down_exps.weight", &[256, 2], IQ2_XXS, vec![0; 2 * 66]);
    assert_eq!(open(place.path(), "more.gguf", &more).digests().unwrap().model, plain);
}

#[test]
fn a_scalar_gate_may_have_one_dimension_or_two() {
    let place = tempfile::tempdir().unwrap();
    let mut two = Gguf::small();
    two.find("blk.0.ffn_gate_inp_shexp.weight").dimensions = vec![HIDDEN, 1];
    let model = open(place.path(), "two.gguf", &two);
    let gate = model.layer(LayerIndex(0)).shared_expert_gate;
    assert_eq!((gate.rows(), gate.columns()), (1, 32));
}

#[test]
fn norms_stand_as_stored_in_gguf_and_get_one_added_in_folders() {
    let place = tempfile::tempdir().unwrap();
    let mut gguf = Gguf::small();
    gguf.floats("blk.0.attn_norm.weight", &[HIDDEN], &[0.1; 32]);
    assert_eq!(open(place.path(), "m.gguf", &gguf).layer(LayerIndex(0)).input_norm[0], 0.1);

    let mut tensors = small_tensors("model.");
    let norm = tensors
        .tensors
        .iter_mut()
        .find(|tensor| tensor.0 == "model.layers.0.input_layernorm.weight")
        .unwrap();
    (norm.1, norm.3) = ("F32", [0.1f32; 32].iter().flat_map(|weight| weight.to_le_bytes()).collect());
    Folder::small().put("model.safetensors", tensors.write()).write(place.path());
    let model = Model::open(place.path()).unwrap();
    let layer = model.layer(LayerIndex(0));
    assert_eq!(layer.input_norm[0], 1.0 + 0.1f32);
    let Mixer::DeltaNet { norm, a, .. } = layer.mixer else { panic!("layer 0 is a delta net") };
    let stored = tensors.tensors.iter().find(|tensor| tensor.0.ends_with("linear_attn.norm.weight")).unwrap();
    assert_eq!(norm[0].to_bits() >> 16, u32::from(u16::from_le_bytes([stored.3[0], stored.3[1]])));
    let log = tensors.tensors.iter().find(|tensor| tensor.0.ends_with("A_log")).unwrap();
    let log = f32::from_bits(u32::from(u16::from_le_bytes([log.3[0], log.3[1]])) << 16);
    assert_eq!(a[0], -(f64::from(log).exp()) as f32);
}

/// One tensor for all experts, or one for each matrix; in one file or several; nested or flat.
#[test]
fn folders_agree_however_they_are_laid_out() {
    let place = tempfile::tempdir().unwrap();
    let open = |name: &str, folder: Folder| {
        folder.write(&place.path().join(name));
        Model::open(&place.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let fused = open("fused", Folder::small());

    let mut single = Safetensors::default();
    for (name, kind, shape, data) in small_tensors("model.").tensors {
        let each = data.len() / EXPERTS as usize;
        let experts = data.chunks(each).enumerate();
        if let Some(layer) = name.strip_suffix("gate_up_proj") {
            for (expert, data) in experts {
                for (part, data) in ["gate_proj", "up_proj"].iter().zip(data.chunks(each / 2)) {
                    let name = format!("{layer}{expert}.{part}.weight");
                    single.tensors.push((name, kind, vec![WIDTH, HIDDEN], data.to_vec()));
                }
            }
        } else if let Some(layer) = name.strip_suffix("experts.down_proj") {
            for (expert, data) in experts {
                let name = format!("{layer}experts.{expert}.down_proj.weight");
                single.tensors.push((name, kind, vec![HIDDEN, WIDTH], data.to_vec()));
            }
        } else {
            single.tensors.push((name, kind, shape, data));
        }
    }
    let named = open("named", Folder::small().put("model.safetensors", single.write()));
    assert_eq!(experts_of(&named), experts_of(&fused));
    assert_eq!(named.digests().unwrap().model, fused.digests().unwrap().model);

    let mut several = Folder::small();
    several.files.remove("model.safetensors");
    let mut map = serde_json::Map::new();
    for (number, tensors) in single.tensors.chunks(9).enumerate() {
        let file = format!("part-{number}.safetensors");
        map.extend(tensors.iter().map(|(name, ..)| (name.clone(), file.clone().into())));
        several.files.insert(file, Safetensors { tensors: tensors.to_vec() }.write());
    }
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
    let several = open("several", several.put("model.safetensors.index.json", index.into_bytes()));
    assert_eq!(several.digests().unwrap().model, fused.digests().unwrap().model);

    let text = String::from_utf8(Folder::small().files["config.json"].clone()).unwrap();
    let nested = format!(r#"{{"model_type": "qwen3_5_moe", "text_config": {text}}}"#);
    let mut tensors = small_tensors("model.language_model.");
    tensors.tensors[0].0 = "lm_head.weight".to_owned();
    tensors.add("model.visual.patch_embed.proj.weight", &[2, 3, 2, 2, 2]).add("mtp.fc.weight", &[4, 8]);
    let folder =
        Folder::small().put("config.json", nested.into_bytes()).put("model.safetensors", tensors.write());
    let nested = open("nested", folder);
    assert_eq!(nested.config(), fused.config());
    assert_eq!(experts_of(&nested).len(), 4);
}

#[test]
fn a_tied_folder_uses_its_embedding() {
    let place = tempfile::tempdir().unwrap();
    let tied = || {
        Folder::small().edit("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true")
    };
    tied().write(&place.path().join("stored"));
    assert_eq!(
        Model::open(&place.path().join("stored")).unwrap().output().name(),
        "model.embed_tokens.weight"
    );
    let mut tensors = small_tensors("model.");
    tensors.tensors.remove(0);
    tied().put("model.safetensors", tensors.write()).write(&place.path().join("absent"));
    assert_eq!(
        Model::open(&place.path().join("absent")).unwrap().output().name(),
        "model.embed_tokens.weight"
    );
    Folder::small().put("model.safetensors", tensors.write()).write(&place.path().join("untied"));
    let error = Model::open(&place.path().join("untied")).err().unwrap().to_string();
    assert!(error.contains("tensor lm_head.weight is missing"), "{error}");
}

#[test]
fn older_rope_keys_and_vocabularies_are_read() {
    let place = tempfile::tempdir().unwrap();
    let rope = r#""rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.5}"#;
    let folder = Folder::small()
        .edit("config.json", rope, r#""rope_theta": 10000000, "partial_rotary_factor": 0.5"#)
        .edit(
            "config.json",
            r#""layer_types": ["linear_attention", "full_attention"]"#,
            r#""full_attention_interval": 2"#,
        )
        .edit("tokenizer.json", r#"[["a","b"]]"#, r#"["a b"]"#);
    folder.write(&place.path().join("old"));
    Folder::small().write(&place.path().join("new"));
    let open = |name: &str| Model::open(&place.path().join(name)).unwrap();
    assert_eq!(open("old").config(), open("new").config());
    let ab = |model: Model| model.tokenizer().encode("ab").unwrap();
    assert_eq!(ab(open("old")), ab(open("new")));
}

/// Opening reads the directory and the dense weights; an expert's weights are checked when somebody reads them.
#[test]
fn experts_are_checked_when_read_not_when_opened() {
    let place = tempfile::tempdir().unwrap();
    let mut gguf = Gguf::small();
    gguf.find("blk.1.ffn_down_exps.weight").data[34 * 33 + 2] = 0x80;
    let model = open(place.path(), "m.gguf", &gguf);
    model.expert(LayerIndex(1), ExpertIndex(0)).unwrap().check_weights().unwrap();
    let error = model.expert(LayerIndex(1), ExpertIndex(1)).unwrap().check_weights().unwrap_err().to_string();
    assert!(error.contains("tensor blk.1.ffn_down_exps.weight at byte"), "{error}");
    assert!(error.contains("-128"), "{error}");
}

#[test]
fn formats_without_arithmetic_are_refused_by_name_number_and_tensor() {
    let place = tempfile::tempdir().unwrap();
    // Number, name, bytes of 256 weights.
    let formats: [(u32, &str, usize); 20] = [
        (9, "Q8_1", 288),
        (15, "Q8_K", 292),
        (16, "IQ2_XXS", 66),
        (17, "IQ2_XS", 74),
        (18, "IQ3_XXS", 98),
        (19, "IQ1_S", 50),
        (21, "IQ3_S", 110),
        (22, "IQ2_S", 82),
        (24, "I8", 256),
        (25, "I16", 512),
        (26, "I32", 1024),
        (27, "I64", 2048),
        (28, "F64", 2048),
        (29, "IQ1_M", 56),
        (34, "TQ1_0", 54),
        (35, "TQ2_0", 66),
        (40, "NVFP4", 144),
        (41, "Q1_0", 36),
        (42, "Q2_0", 72),
        (31, "Q4_0_4_4, withdrawn", 144),
    ];
    for (number, name, bytes) in formats {
        let mut gguf = Gguf::small();
        gguf.tensor("blk.0.ffn_down_exps.weight", &[256, 2, 2], number, vec![0; 4 * bytes]);
        let path = place.path().join("model.gguf");
        std::fs::write(&path, gguf.write().bytes).unwrap();
        let error = Model::open(&path).unwrap_err().to_string();
        for part in ["tensor blk.0.ffn_down_exps.weight", name, &number.to_string(), "is not supported yet"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
