//! Vocabularies in a GGUF file that cannot be.

use super::Cases;
use super::forge::{Gguf, Value};

pub fn vocabulary_cases(cases: &mut Cases) {
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
        "template-number.gguf",
        |g| {
            g.set("tokenizer.chat_template", Value::U32(1));
        },
        "WrongType",
        &["tokenizer.chat_template"],
    );
}
