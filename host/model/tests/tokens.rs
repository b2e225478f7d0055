//! The tokenizer against the reference: token numbers of all prompts and continuations, and both sources of a
//! vocabulary against each other.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use std::collections::BTreeMap;
use std::path::Path;

use forge::{large_model, repository};
use kvasir_model::{Model, SpecialText, TokenId, Tokenizer};
use proptest::prelude::*;
use safetensors::SafeTensors;

struct Golden {
    /// Prompt, its tokens followed by the reference's continuation, number of prompt tokens.
    prompts: Vec<(String, Vec<TokenId>, usize)>,
    continuations: BTreeMap<String, String>,
}

fn golden(path: &Path) -> Golden {
    let bytes = std::fs::read(path).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = metadata.metadata().clone().unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let integers = |name: &str| -> Vec<i64> {
        let data = tensors.tensor(name).unwrap();
        data.data().chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let texts: Vec<String> = serde_json::from_str(&metadata["prompts"]).unwrap();
    let prompts = (texts.into_iter().enumerate())
        .map(|(i, text)| {
            let tokens =
                integers(&format!("p{i}.tokens")).into_iter().map(|token| TokenId(token as u32)).collect();
            (text, tokens, integers(&format!("p{i}.prompt"))[0] as usize)
        })
        .collect();
    Golden { prompts, continuations: serde_json::from_str(&metadata["continuations"]).unwrap() }
}

fn check(tokenizer: &Tokenizer, golden: &Golden) {
    assert_eq!(golden.prompts.len(), 8);
    for (text, tokens, prompt) in &golden.prompts {
        assert_eq!(tokenizer.encode(text).unwrap(), tokens[..*prompt], "{text}");
        assert_eq!(&tokenizer.decode(&tokens[..*prompt]), text);
        assert_eq!(tokenizer.decode(&tokens[*prompt..]), golden.continuations[text]);
    }
}

#[test]
fn prompts_have_the_references_tokens() {
    for (model, reference) in [
        ("models/atlas/atlas-q4_k_m.gguf", "models/atlas/golden-atlas-q4_k_m.safetensors"),
        ("tests/data/tiny-hf", "tests/data/tiny/golden-tiny-hf.safetensors"),
        ("tests/data/tiny-published", "tests/data/tiny/golden-tiny-hf.safetensors"),
        ("tests/data/tiny/tiny-f16.gguf", "tests/data/tiny/golden-tiny-f16.safetensors"),
        ("tests/data/tiny/tiny-mtp-f16.gguf", "tests/data/tiny/golden-tiny-f16.safetensors"),
        ("tests/data/tiny/tiny-bf16.gguf", "tests/data/tiny/golden-tiny-bf16.safetensors"),
        ("tests/data/tiny/tiny-q8_0.gguf", "tests/data/tiny/golden-tiny-q8_0.safetensors"),
        ("tests/data/tiny/tiny-q4_0.gguf", "tests/data/tiny/golden-tiny-q4_0.safetensors"),
    ] {
        let model = Model::open(&repository(model)).unwrap();
        check(model.tokenizer(), &golden(&repository(reference)));
    }
}

#[test]
fn larger_models_have_the_references_tokens() {
    for (model, reference) in [
        ("atlas-hf", "atlas/golden-atlas-hf.safetensors"),
        ("atlas/atlas-f16.gguf", "atlas/golden-atlas-f16.safetensors"),
        ("atlas/atlas-q8_0.gguf", "atlas/golden-atlas-q8_0.safetensors"),
    ] {
        let (Some(model), Some(reference)) = (large_model(model), large_model(reference)) else { continue };
        check(Model::open(&model).unwrap().tokenizer(), &golden(&reference));
    }
}

#[test]
fn special_tokens_are_one_token_each() {
    let model = Model::open(&repository("tests/data/tiny-hf")).unwrap();
    let tokenizer = model.tokenizer();
    let tokens = tokenizer.encode("<|im_start|>user\nhello<|im_end|>\n").unwrap();
    assert_eq!((tokens[0], tokens[tokens.len() - 2]), (TokenId(1), TokenId(2)));
    assert!(tokenizer.is_special(TokenId(0)) && !tokenizer.is_special(TokenId(3)));
    assert_eq!(tokenizer.token("<|im_end|>"), Some(TokenId(2)));
    assert_eq!(model.config().end_of_text, [TokenId(0), TokenId(2)]);
    let mut hidden = tokenizer.text_stream(SpecialText::Hidden);
    let text: String = tokens.iter().map(|token| hidden.push(*token)).collect();
    assert_eq!(text + &hidden.finish(), "user\nhello\n");
}

#[test]
fn a_stream_holds_back_unfinished_characters() {
    let model = Model::open(&repository("models/atlas/atlas-q4_k_m.gguf")).unwrap();
    let tokenizer = model.tokenizer();
    let text = "naïve 𝄞 日本";
    let mut stream = tokenizer.text_stream(SpecialText::Shown);
    let mut whole = String::new();
    for token in tokenizer.encode(text).unwrap() {
        let piece = stream.push(token);
        assert!(!piece.contains('\u{fffd}'), "{piece:?}");
        whole.push_str(&piece);
    }
    assert_eq!(whole + &stream.finish(), text);
    // Half of a character, then the end.
    let half = &tokenizer.encode("𝄞").unwrap()[..1];
    let mut stream = tokenizer.text_stream(SpecialText::Shown);
    assert_eq!(stream.push(half[0]), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    // Half of a character, then something else.
    let mut stream = tokenizer.text_stream(SpecialText::Shown);
    stream.push(half[0]);
    let a = tokenizer.encode("a").unwrap()[0];
    assert_eq!(stream.push(a), "\u{fffd}a");
    // Outside the vocabulary.
    assert_eq!(tokenizer.decode(&[a, TokenId(u32::MAX), a]), "a\u{fffd}a");
}

#[test]
fn long_texts_and_long_white_space_are_refused() {
    let model = Model::open(&repository("tests/data/tiny-hf")).unwrap();
    let tokenizer = model.tokenizer();
    let error = |text: &str| tokenizer.encode(text).unwrap_err().to_string();
    assert!(error(&"a".repeat(kvasir_model::limits::MAX_TEXT_BYTES + 1)).contains("the limit is 16777216"));
    let run = kvasir_model::limits::MAX_WHITE_SPACE_RUN;
    assert!(
        error(&format!("x{}", "\u{2003}".repeat(run + 1))).contains("characters of white space in a row")
    );
    let text = format!("x{}y", " ".repeat(run));
    assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()), text);
}

proptest! {
    /// Any text: the same tokens from a GGUF's vocabulary as from tokenizer.json, and the text comes back.
    #[test]
    fn vocabularies_agree_and_texts_come_back(text in "\\PC{0,40}|[ \\t\\r\\n'sStTé̈0-9a-z<|>_日本\u{301}]{0,60}") {
        let (gguf, folder) = models();
        let tokens = gguf.tokenizer().encode(&text).unwrap();
        prop_assert_eq!(&folder.tokenizer().encode(&text).unwrap(), &tokens);
        prop_assert_eq!(gguf.tokenizer().decode(&tokens), text);
    }

    /// Any tokens: the stream gives what decoding all at once gives, and that is lossy UTF-8 of the bytes.
    #[test]
    fn streams_and_whole_texts_agree(numbers in prop::collection::vec(0u32..520, 0..40)) {
        let (gguf, _) = models();
        let tokens: Vec<TokenId> = numbers.into_iter().map(TokenId).collect();
        let mut stream = gguf.tokenizer().text_stream(SpecialText::Shown);
        let mut text: String = tokens.iter().map(|token| stream.push(*token)).collect();
        text.push_str(&stream.finish());
        let bytes: Vec<u8> = (tokens.iter())
            .flat_map(|token| gguf.tokenizer().token_bytes(*token).unwrap_or("\u{fffd}".as_bytes()).to_vec())
            .collect();
        prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes).into_owned());
        prop_assert_eq!(gguf.tokenizer().decode(&tokens), text);
    }
}

/// Opened once: proptest asks hundreds of times.
fn models() -> &'static (Model, Model) {
    static MODELS: std::sync::OnceLock<(Model, Model)> = std::sync::OnceLock::new();
    MODELS.get_or_init(|| {
        let open = |path| Model::open(&repository(path)).unwrap();
        (open("tests/data/tiny/tiny-q4_0.gguf"), open("tests/data/tiny-hf"))
    })
}
