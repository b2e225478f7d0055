//! Configurations of a folder that contradict each other, or ask for what is not supported.

use super::Cases;
use super::forge::Folder;

/// Without tensors: for what is checked before them.
pub fn bare_folder() -> Folder {
    let mut folder = Folder::small();
    folder.files.remove("model.safetensors");
    folder
}

pub fn folder_cases(cases: &mut Cases) {
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
}
