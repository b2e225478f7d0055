//! tokenizer.json files that cannot be, or are of another kind.

use super::Cases;
use super::folders::bare_folder;

pub fn tokenizer_cases(cases: &mut Cases) {
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
