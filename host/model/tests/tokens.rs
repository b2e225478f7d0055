//! The tokenizer against the reference: token numbers of all prompts and continuations, and both sources of a
//! vocabulary against each other.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use std::collections::BTreeMap;
use std::path::Path;

use forge::{large_model, repository};
use kvasir_model::{Model, SpecialText, TokenId, Tokenizer, TokenizerError};
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

/// Texts of what decides where a text may be cut.
fn pieces_of_text() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "\r\n",
        "\n\n ",
        "\t",
        "a",
        "word",
        "it's",
        "I'LL",
        "7",
        "42",
        "é",
        "e\u{301}",
        "\u{301}",
        "слово",
        "Ⓐ",
        "漢字",
        "，",
        "。",
        "かな",
        "가",
        "!",
        "...",
        "'",
        "_x",
        "-1",
        "<|im_start|>",
        "<|im_end|>",
        "</think>",
        "\u{a0}",
        "\u{3000}",
        "🙂",
        "\u{200d}",
        "x=1;",
        "½",
        "٣",
        "\u{85}",
        "\u{1c}",
        "<",
        "|",
    ]);
    prop::collection::vec(part, 2000..4000).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Long texts are cut into pieces; they have the tokens of the whole.
    #[test]
    fn bounded_encoding_gives_the_same_tokens(text in pieces_of_text()) {
        // 64 KiB and more, so that there are several pieces, cut at other places each time.
        let text = text.repeat(1 + (200_000 / text.len()));
        for path in ["tests/data/tiny/tiny-f16.gguf", "tests/data/tiny-hf"] {
            let model = Model::open(&repository(path)).unwrap();
            let whole = model.tokenizer().encode(&text).unwrap();
            let bounded = model.tokenizer().encode_bounded(&text, whole.len()).unwrap();
            // Compared as a whole: the difference of long lists says little.
            prop_assert!(bounded == whole, "differ at {:?}", bounded.iter().zip(&whole).position(|(a, b)| a != b));
            prop_assert!(model.tokenizer().encode_bounded(&text, whole.len() - 1).is_err());
        }
    }
}

#[test]
fn bounded_encoding_stops_at_the_limit() {
    let model = Model::open(&repository("tests/data/tiny/tiny-f16.gguf")).unwrap();
    let tokenizer = model.tokenizer();
    assert_eq!(tokenizer.encode_bounded("", 0).unwrap(), []);
    let long = "one word after another ".repeat(600_000);
    let error = tokenizer.encode_bounded(&long, 1000).unwrap_err();
    assert!(matches!(error, TokenizerError::TooManyTokensInText { limit: 1000, .. }), "{error}");
    let endless = "a".repeat(2 << 20);
    let error = tokenizer.encode_bounded(&endless, 1 << 20).unwrap_err();
    assert!(matches!(error, TokenizerError::WordTooLong { limit: 1_048_576 }), "{error}");
    let too_long = "a ".repeat((8 << 20) + 1);
    assert!(matches!(tokenizer.encode_bounded(&too_long, 1), Err(TokenizerError::TextTooLong { .. })));
}
