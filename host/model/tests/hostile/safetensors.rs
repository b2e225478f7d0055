//! Damage to safetensors headers and their index, and templates that are none.

use super::folders::bare_folder;
use super::forge::Folder;
use super::{Cases, long};

pub fn safetensors_cases(cases: &mut Cases) {
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
