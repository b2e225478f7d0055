//! What this crate accepts from a file, as named limits: no size that a file declares drives an allocation past these.
//!
//! Each is generous against published models (the largest of the family has 48 layers, 256 experts, a vocabulary of
//! 248,320 and fewer than 1,200 tensors in GGUF, 37,000 in a folder that names every expert) and small against memory.

/// Bytes of a key, a tensor name or another name in a file.
pub const MAX_NAME_BYTES: u64 = 512;
/// Bytes of one string value (a chat template is the longest).
pub const MAX_STRING_BYTES: u64 = 4 << 20;
/// Key-value pairs in one GGUF file.
pub const MAX_KEYS: u64 = 4096;
/// Elements of one GGUF array.
pub const MAX_ARRAY_ELEMENTS: u64 = 2 << 20;
/// Tensors in one file.
pub const MAX_TENSORS: u64 = 1 << 17;
/// Dimensions of a tensor that is used; others may have more only in a folder, where they are left aside.
pub const MAX_RANK: u32 = 4;
/// One dimension of a tensor: as much as a product takes.
pub const MAX_DIMENSION: u64 = kvasir_numerics::MAX_DIMENSION as u64;
/// Files of one split model.
pub const MAX_SPLIT_FILES: u64 = 999;
/// `general.alignment`; GGUF asks for a multiple of eight.
pub const MAX_ALIGNMENT: u64 = 1 << 16;
/// Bytes of a safetensors header.
pub const MAX_SAFETENSORS_HEADER_BYTES: u64 = 64 << 20;
/// Bytes of config.json, generation_config.json, tokenizer_config.json or a chat template file.
pub const MAX_CONFIG_FILE_BYTES: u64 = 4 << 20;
/// Bytes of tokenizer.json and of model.safetensors.index.json.
pub const MAX_LARGE_JSON_BYTES: u64 = 64 << 20;
/// Decoder layers.
pub const MAX_LAYERS: u64 = 1024;
/// Routed experts of a layer.
pub const MAX_EXPERTS: u64 = 4096;
/// Attention heads, key heads, value heads.
pub const MAX_HEADS: u64 = 4096;
/// Width of the residual stream, of an expert or of a head.
pub const MAX_WIDTH: u64 = 1 << 20;
/// Tokens in a vocabulary.
pub const MAX_VOCABULARY: u64 = 1 << 20;
/// Bytes of one token's text.
pub const MAX_TOKEN_BYTES: u64 = 4096;
/// Positions that a model says it can attend to.
pub const MAX_CONTEXT: u64 = 1 << 24;
/// Taps of the convolution before the delta rule.
pub const MAX_CONVOLUTION_TAPS: u64 = 64;
/// Bytes of an expert blob (a published expert is 5 to 19 MB).
pub const MAX_EXPERT_BLOB_BYTES: u64 = 256 << 20;
/// Bytes of text that one call of the tokenizer takes.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// Characters of white space in a row in a text to encode.
pub const MAX_WHITE_SPACE_RUN: usize = 1 << 16;
/// Bytes of a word in a text whose tokens are bounded: no space, digit or line break in it.
pub const MAX_WORD_BYTES: usize = 1 << 20;
/// Bytes of a rendered chat template.
pub const MAX_RENDERED_BYTES: usize = 16 << 20;
/// Bytes of a chat template that is rendered (the family's have 5,000 to 10,000).
pub const MAX_TEMPLATE_BYTES: usize = 64 << 10;
/// Tokens of one tag or expression of a chat template: the engine recurses over them.
pub const MAX_TEMPLATE_TAG_TOKENS: usize = 1024;
/// `elif` tags of a chat template: the engine recurses over them.
pub const MAX_TEMPLATE_ALTERNATIVES: usize = 256;
/// Parts of one value in a chat template: its elements, their elements and so on.
pub const MAX_TEMPLATE_VALUE_PARTS: usize = 1 << 16;
/// Bytes of text in one value of a chat template.
pub const MAX_TEMPLATE_VALUE_BYTES: usize = 4 << 20;
/// Levels of lists and dicts in one value of a chat template; JSON that was parsed has at most 128.
pub const MAX_TEMPLATE_VALUE_DEPTH: usize = 160;
/// Stack of the thread that parses and renders a chat template. Only what is used of it takes memory.
pub const TEMPLATE_STACK_BYTES: usize = 128 << 20;
/// Seconds that a caller waits for a rendering.
pub const MAX_TEMPLATE_SECONDS: u64 = 20;
/// Fuel for one rendering: about one unit an instruction and one for 64 bytes made, so it bounds time and memory.
pub const MAX_TEMPLATE_FUEL: u64 = 2_000_000;
