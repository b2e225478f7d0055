//! The HTTP API over TCP, with an engine that follows a script.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod scene;

use std::time::Duration;

use kvasir_serve::api::{Limits, Refused};
use scene::{Answer, CONTEXT, Ending, MODEL, Scene, chat, patiently, with};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const WORDS: [&[u8]; 3] = [b"Oslo", b" is", b" cold"];

#[tokio::test]
async fn a_completion_as_a_whole() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    let answer =
        scene.complete(json!({"temperature": 0, "top_p": 0.5, "top_k": 3, "seed": -1, "user": "me"})).await;
    let told = answer.json();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert!(told["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!((&told["object"], &told["model"]), (&json!("text_completion"), &json!(MODEL)));
    assert_eq!(
        told["choices"],
        json!([{"index": 0, "text": "Oslo is cold", "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(told["usage"], json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}));
    let asked = &scene.seen()[0];
    assert_eq!(asked.prompt.iter().map(|token| token.0).collect::<Vec<_>>(), [104, 105]);
    assert_eq!((asked.sampler.temperature, asked.sampler.top_p, asked.sampler.top_k), (0.0, 0.5, 3));
    assert_eq!((asked.sampler.seed, asked.max_tokens, asked.top_logprobs), (u64::MAX, 16, None));
}

#[tokio::test]
async fn a_chat_as_a_whole() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {}}});
    let answer = scene
        .chat(json!({
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}],
            "tools": [tool], "tool_choice": "auto", "max_completion_tokens": 2, "response_format": {"type": "text"},
            "chat_template_kwargs": {"enable_thinking": false}, "top_p": 0,
        }))
        .await;
    let told = answer.json();
    assert_eq!(told["object"], "chat.completion");
    let message = json!({"role": "assistant", "content": "Oslo is", "refusal": null});
    assert_eq!(
        told["choices"],
        json!([{"index": 0, "message": message, "logprobs": null, "finish_reason": "length"}])
    );
    let seen = scene.seen();
    let prompt: Vec<u8> = seen[0].prompt.iter().map(|token| token.0 as u8).collect();
    let expected = ["s\nu|1|", r#"{"enable_thinking":false,"tool_choice":"auto"}"#].concat();
    assert_eq!(String::from_utf8(prompt).unwrap(), expected, "messages, tools and choice reach the template");
    assert!(seen[0].sampler.top_p > 0.0);
    assert_eq!(seen[0].sampler.temperature, 1.0);

    // A chat that names no length may fill the context.
    scene.chat(json!({"tools": [tool], "tool_choice": "none"})).await;
    let seen = scene.seen();
    assert_eq!(seen[1].max_tokens + seen[1].prompt.len(), CONTEXT);
    let prompt: Vec<u8> = seen[1].prompt.iter().map(|token| token.0 as u8).collect();
    assert_eq!(prompt, br#"hi|0|{"tool_choice":"none"}"#);
}

#[tokio::test]
async fn a_tool_call_is_told_as_the_model_wrote_it() {
    let words: [&[u8]; 3] = [b"<tool_call>", b"\n{\"name\": \"weather\"}\n", b"</tool_call>"];
    let written = String::from_utf8(words.concat()).unwrap();
    let scene = Scene::start(&words, Ending::Stop).await;
    let tool = json!({"type": "function", "function": {"name": "weather"}});
    let told = scene.chat(json!({"tools": [tool]})).await.json();
    assert_eq!(told["choices"][0]["message"]["content"], written);
    assert!(told["choices"][0]["message"].get("tool_calls").is_none(), "it is not taken apart: {told}");
    assert_eq!(told["choices"][0]["finish_reason"], "stop");
    let (events, done) = scene.chat(json!({"tools": [tool], "stream": true})).await.events();
    let streamed: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!((streamed, done), (written, true));
}

#[tokio::test]
async fn a_stream_tells_the_same_in_pieces() {
    let scene = Scene::start(&[b"Gr", b"\xc3", b"\xbc\xc3", b"\x9fe"], Ending::Stop).await;
    let answer = scene.complete(json!({"stream": true})).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let (events, done) = answer.events();
    let texts: Vec<_> = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!((texts, done), (vec!["Gr", "ü", "ße", ""], true), "characters come whole");
    assert_eq!(events[3]["choices"][0]["finish_reason"], "stop");
    assert!(events[0]["choices"][0]["finish_reason"].is_null() && events[0].get("usage").is_none());

    let (events, done) =
        scene.chat(json!({"stream": true, "stream_options": {"include_usage": true}})).await.events();
    assert!(done);
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let content: String =
        events[1..4].iter().map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(content, "Grüße");
    assert_eq!(
        events[4]["choices"][0],
        json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"})
    );
    assert!(events[..5].iter().all(|event| event["usage"].is_null() && event["id"] == events[0]["id"]));
    assert_eq!(
        (&events[5]["choices"], &events[5]["usage"]["total_tokens"]),
        (&json!([]), &json!(events_total()))
    );
    assert_eq!(events.len(), 6);
}

/// Bytes of the prompt `hi|0|{}`, and four tokens written.
fn events_total() -> usize {
    "hi|0|{}".len() + 4
}

#[tokio::test]
async fn a_stop_string_across_tokens_ends_the_text_before_it_and_cancels_the_rest() {
    let words: [&[u8]; 5] = [b"one\n", b"\nQ", b": two", b" three", b" four"];
    let scene = Scene::start(&words, Ending::Never).await;
    let stop = json!({"stop": ["\n\nQ:", "zzz"], "max_tokens": 50});
    let told = scene.complete(stop.clone()).await.json();
    assert_eq!(
        told["choices"][0],
        json!({"index": 0, "text": "one", "logprobs": null, "finish_reason": "stop"})
    );
    let (events, done) = scene.complete(with(stop, json!({"stream": true, "logprobs": 1}))).await.events();
    let texts: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    let tokens: Vec<_> = events
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array().unwrap())
        .collect();
    assert_eq!((texts.as_str(), done), ("one", true));
    assert_eq!(tokens, [&json!("one\n")], "no token of the stop string alone is told");
    scene.cancelled(2).await;
    // One that does not come changes nothing.
    let scene = Scene::start(&words, Ending::Stop).await;
    let told = scene.complete(json!({"stop": "four!", "max_tokens": 50})).await.json();
    assert_eq!(told["choices"][0]["text"], "one\n\nQ: two three four");
}

#[tokio::test]
async fn probabilities_in_both_forms() {
    let scene = Scene::start(&[b"a", b"\xe2\x82", b"\xac"], Ending::Stop).await;
    let told = scene.complete(json!({"logprobs": 2})).await.json();
    assert_eq!(
        told["choices"][0]["logprobs"],
        json!({
            "tokens": ["a", "bytes:\\xe2\\x82", "bytes:\\xac"],
            "token_logprobs": [-0.5, -0.5, -0.5],
            "top_logprobs": [
                {"a": -0.5, "bytes:\\xe2": -1.5},
                {"bytes:\\xe2\\x82": -0.5, "bytes:\\xe2": -1.5},
                {"bytes:\\xac": -0.5, "bytes:\\xe2": -1.5},
            ],
            "text_offset": [0, 1, 1],
        })
    );
    let told = scene.chat(json!({"logprobs": true, "top_logprobs": 1})).await.json();
    let content = &told["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().unwrap().len(), 3);
    assert_eq!(
        content[0],
        json!({"token": "a", "logprob": -0.5, "bytes": [97],
               "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]})
    );
    let seen = scene.seen();
    assert_eq!((seen[0].top_logprobs, seen[1].top_logprobs), (Some(2), Some(1)));
    let told = scene.chat(json!({"logprobs": true})).await.json();
    assert_eq!(told["choices"][0]["logprobs"]["content"][2]["top_logprobs"], json!([]));
}

#[tokio::test]
async fn several_texts_have_seeds_of_their_own_and_one_usage() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    let told = scene.complete(json!({"prompt": ["ab", "c"], "n": 2, "seed": 7})).await.json();
    let choices = told["choices"].as_array().unwrap();
    assert_eq!(
        choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    assert_eq!(told["usage"], json!({"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}));
    let seen = scene.seen();
    let seeds: Vec<_> = seen.iter().map(|asked| (asked.prompt.len(), asked.sampler.seed)).collect();
    assert_eq!(seeds, [(2, 7), (2, 8), (1, 7), (1, 8)]);
    let (events, done) = scene.complete(json!({"n": 3, "stream": true})).await.events();
    let mut texts = [const { String::new() }; 3];
    for event in &events {
        let choice = &event["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize].push_str(choice["text"].as_str().unwrap());
    }
    assert!(done && texts.iter().all(|text| text == "Oslo is cold"), "{texts:?}");
    // Tokens as a prompt.
    scene.complete(json!({"prompt": [[1, 2, 3], [4]]})).await;
    assert_eq!(scene.seen()[7].prompt.len(), 3);
}

#[tokio::test]
async fn parameters_out_of_range_are_refused_by_name() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    for (further, code, param) in [
        (json!({"model": "gpt-4"}), "model_not_found", "model"),
        (json!({"model": null}), "missing_required_parameter", "model"),
        (json!({"prompt": null}), "missing_required_parameter", "prompt"),
        (json!({"prompt": ""}), "invalid_value", "prompt"),
        (json!({"prompt": {}}), "invalid_value", "prompt"),
        (json!({"prompt": []}), "invalid_value", "prompt"),
        (json!({"prompt": [1, -1]}), "invalid_value", "prompt"),
        (json!({"prompt": [1, 100_000]}), "invalid_value", "prompt"),
        (json!({"prompt": vec!["x"; 17]}), "invalid_value", "prompt"),
        (json!({"prompt": "x".repeat(CONTEXT)}), "context_length_exceeded", "prompt"),
        (json!({"prompt": "x".repeat(10 * CONTEXT)}), "context_length_exceeded", "prompt"),
        (json!({"max_tokens": 0}), "invalid_value", "max_tokens"),
        (json!({"max_tokens": -5}), "invalid_value", "max_tokens"),
        (json!({"max_tokens": 1e18}), "invalid_value", "max_tokens"),
        (json!({"max_tokens": u64::MAX}), "invalid_value", "max_tokens"),
        (json!({"max_tokens": "5"}), "invalid_value", "max_tokens"),
        (json!({"temperature": -0.1}), "invalid_value", "temperature"),
        (json!({"temperature": 1e30}), "invalid_value", "temperature"),
        (json!({"top_p": 1.5}), "invalid_value", "top_p"),
        (json!({"top_k": -1}), "invalid_value", "top_k"),
        (json!({"seed": 0.5}), "invalid_value", "seed"),
        (json!({"n": 17}), "invalid_value", "n"),
        (json!({"prompt": ["a", "b", "c"], "n": 6}), "invalid_value", "prompt"),
        (json!({"best_of": 2}), "unsupported_parameter", "best_of"),
        (json!({"stop": ""}), "invalid_value", "stop"),
        (json!({"stop": [1]}), "invalid_value", "stop"),
        (json!({"stop": vec!["x"; 17]}), "invalid_value", "stop"),
        (json!({"stop": "x".repeat(257)}), "invalid_value", "stop"),
        (json!({"stream": "yes"}), "invalid_value", "stream"),
        (json!({"stream_options": {"include_usage": true}}), "invalid_value", "stream_options"),
        (json!({"logprobs": 21}), "invalid_value", "logprobs"),
        (json!({"logprobs": true}), "invalid_value", "logprobs"),
        (json!({"echo": true}), "unsupported_parameter", "echo"),
        (json!({"suffix": "end"}), "unsupported_parameter", "suffix"),
        (json!({"presence_penalty": 0.5}), "unsupported_parameter", "presence_penalty"),
        (json!({"frequency_penalty": 3}), "invalid_value", "frequency_penalty"),
        (json!({"logit_bias": {"1": 5}}), "unsupported_parameter", "logit_bias"),
        (json!({"frobnicate": 1}), "unknown_parameter", "frobnicate"),
        (json!({"messages": []}), "unknown_parameter", "messages"),
    ] {
        let answer = scene.complete(further.clone()).await;
        let status = if code == "model_not_found" { 404 } else { 400 };
        assert_eq!(answer.error(), (status, code.into(), Some(param.into())), "{further:.200}");
    }
    for (further, code, param) in [
        (json!({"messages": "hi"}), "invalid_value", "messages"),
        (
            json!({"messages": [{"role": "user", "content": "x".repeat(CONTEXT)}]}),
            "context_length_exceeded",
            "messages",
        ),
        (json!({"messages": [{"role": "user"}]}), "invalid_value", "messages[0].content"),
        (json!({"max_tokens": 2, "max_completion_tokens": 3}), "invalid_value", "max_completion_tokens"),
        (json!({"max_completion_tokens": CONTEXT + 1}), "invalid_value", "max_completion_tokens"),
        (json!({"top_logprobs": 3}), "invalid_value", "top_logprobs"),
        (json!({"logprobs": 3}), "invalid_value", "logprobs"),
        (json!({"tools": [{"type": "retrieval"}]}), "invalid_value", "tools[0]"),
        (json!({"tools": [{"type": "function"}]}), "invalid_value", "tools[0]"),
        (json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (json!({"tool_choice": "sometimes"}), "invalid_value", "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
            "invalid_value",
            "tool_choice",
        ),
        (json!({"response_format": {"type": "json_object"}}), "unsupported_parameter", "response_format"),
        (json!({"modalities": ["text", "audio"]}), "unsupported_parameter", "modalities"),
        (json!({"functions": []}), "unsupported_parameter", "functions"),
        (json!({"chat_template_kwargs": {"messages": []}}), "invalid_value", "chat_template_kwargs"),
        (json!({"prompt": "hi"}), "unknown_parameter", "prompt"),
    ] {
        let answer = scene.chat(further.clone()).await;
        assert_eq!(answer.error(), (400, code.into(), Some(param.into())), "{further:.200}");
    }
    assert!(scene.seen().is_empty(), "nothing was begun");
    let answer = scene.complete(json!({"prompt": "x".repeat(CONTEXT)})).await;
    assert!(answer.body.matches("100 tokens").count() >= 2, "limit and length are told: {}", answer.body);
    // What changes nothing is taken.
    let neutral = json!({"presence_penalty": 0, "logit_bias": {}, "echo": false, "suffix": "", "best_of": 1, "n": null});
    assert_eq!(scene.complete(neutral).await.status, 200);
}

/// Each file's name begins with the endpoint and the code that its answer has.
#[tokio::test]
async fn hostile_bodies_are_refused_and_nothing_is_begun() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hostile-requests");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut words = name.split('.');
        let endpoint = match words.next() {
            Some("text") => "/v1/completions",
            Some("chat") => "/v1/chat/completions",
            other => panic!("{name}: {other:?}"),
        };
        let code = words.next().unwrap();
        let body = std::fs::read(&path).unwrap();
        let answer = scene.ask("POST", endpoint, &[("Content-Type", "application/json")], &body).await;
        let (status, found, _) = answer.error();
        assert_eq!((status, found.as_str()), (400, code), "{name}");
        files += 1;
    }
    assert!(files >= 10, "{files} files");
    // And ones that are better made than stored.
    let deep = [b"[".repeat(200_000), b"]".repeat(200_000)].concat();
    let answer = scene.ask("POST", "/v1/completions", &[("Content-Type", "application/json")], &deep).await;
    assert_eq!(answer.error().1, "invalid_json");
    assert!(scene.seen().is_empty());
}

#[tokio::test]
async fn a_body_of_fifty_megabytes_is_refused_by_its_head() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    let json = [("Content-Type", "application/json")];
    // Nothing of the body is sent: the answer does not wait for it.
    let mut stream = scene.open("POST", "/v1/completions", &json, "Content-Length: 52428800\r\n").await;
    let mut begun = [0; 12];
    patiently(stream.read_exact(&mut begun)).await.unwrap();
    assert_eq!(&begun, b"HTTP/1.1 413");
    drop(stream);
    // A client that sends it all the same can read why.
    let answer = scene.ask("POST", "/v1/completions", &json, &vec![b' '; 50 << 20]).await;
    assert_eq!(answer.error(), (413, "request_too_large".into(), None));
    assert_eq!(answer.header("connection"), Some("close"));
    // One that does not say how much it sends is refused at the limit.
    let mut stream = scene.open("POST", "/v1/completions", &json, "Transfer-Encoding: chunked\r\n").await;
    let chunk = [b"10000\r\n".to_vec(), vec![b' '; 1 << 16], b"\r\n".to_vec()].concat();
    for _ in 0..80 {
        if stream.write_all(&chunk).await.is_err() {
            break;
        }
    }
    let _ = stream.write_all(b"0\r\n\r\n").await;
    assert_eq!(Answer::read(&mut stream).await.error().0, 413);
}

#[tokio::test]
async fn what_is_no_request_of_ours_has_an_error_of_its_own() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    for (method, path, kind, status, code) in [
        ("POST", "/v1/completions", "text/plain", 415, "unsupported_media_type"),
        ("POST", "/v1/completions", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        ("GET", "/v1/completions", "application/json", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", "application/json", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/chat/completions", "application/json", 405, "method_not_allowed"),
        ("POST", "/", "application/json", 405, "method_not_allowed"),
        ("POST", "/v1/embeddings", "application/json", 404, "unknown_url"),
        ("GET", "/v1", "application/json", 404, "unknown_url"),
        ("GET", "/v1/models/gpt-4", "application/json", 404, "model_not_found"),
    ] {
        let answer = scene.ask(method, path, &[("Content-Type", kind)], b"").await;
        let (found, found_code, _) = answer.error();
        assert_eq!((found, found_code.as_str()), (status, code), "{method} {path} {kind}");
        assert_eq!(answer.header("allow").is_some(), status == 405, "{method} {path}");
    }
    let answer = scene.ask("POST", "/v1/completions", &[], b"{}").await;
    assert_eq!(answer.error().0, 415);
    let gzip = [("Content-Type", "application/json; charset=utf-8"), ("Content-Encoding", "gzip")];
    assert_eq!(scene.ask("POST", "/v1/completions", &gzip, b"{}").await.error().0, 415);
    assert_eq!(
        scene.ask("POST", "/v1/completions", &gzip[..1], b"{}").await.error().1,
        "missing_required_parameter"
    );
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    // The smallest number of places is what one request may ask for.
    let scene = Scene::within(&WORDS, Ending::Never, Limits { texts: 1, ..Limits::default() }).await;
    let body = with(chat(), json!({"n": 16, "stream": true}));
    let full = scene.begin("/v1/chat/completions", &body).await;
    scene.begun(16).await;
    let answer = scene.chat(json!({})).await;
    assert_eq!(answer.error(), (429, "queue_full".into(), None));
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert!(scene.get("/metrics").await.body.contains("kvasir_serve_texts_open 16\n"));
    drop(full);
    scene.cancelled(16).await;

    // The engine's own queue.
    let refused = Refused::QueueFull { waiting: 8, limit: 8, retry_after: Duration::from_secs(3) };
    scene.refuse(Some(refused));
    let answer = patiently(async {
        loop {
            let answer = scene.chat(json!({"n": 2})).await;
            // The places come back a moment after the texts were cancelled.
            if answer.header("retry-after") == Some("3") {
                return answer;
            }
        }
    })
    .await;
    assert_eq!(answer.error(), (429, "queue_full".into(), None));
    scene.refuse(Some(Refused::NoMemory { tokens: 90, needed: 1 << 40, limit: 1 << 30 }));
    assert_eq!(scene.chat(json!({})).await.error().1, "insufficient_memory");
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_texts_with_it() {
    let scene = Scene::start(&WORDS, Ending::Never).await;
    let mut stream = scene.begin("/v1/chat/completions", &with(chat(), json!({"stream": true}))).await;
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("cold") {
        let mut part = [0; 1024];
        let count = patiently(stream.read(&mut part)).await.unwrap();
        assert!(count > 0);
        read.extend_from_slice(&part[..count]);
    }
    drop(stream);
    scene.cancelled(1).await;
    // Also one that waits for the whole.
    let stream = scene.begin("/v1/chat/completions", &with(chat(), json!({"n": 2}))).await;
    scene.begun(3).await;
    drop(stream);
    scene.cancelled(3).await;
    let counted = "kvasir_serve_requests_total{endpoint=\"chat_completions\",result=\"client_gone\"} 2";
    patiently(async {
        while !scene.get("/metrics").await.body.contains(counted) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_engine_that_fails_is_told_as_an_error_and_never_as_a_short_text() {
    for ending in [Ending::Fail, Ending::Vanish] {
        let scene = Scene::start(&WORDS, ending).await;
        assert_eq!(scene.complete(json!({})).await.error(), (500, "engine_failed".into(), None));
        let (events, done) = scene.chat(json!({"stream": true})).await.events();
        let last = events.last().unwrap();
        assert_eq!((done, &last["error"]["code"]), (false, &json!("engine_failed")), "{last}");
        assert!(events.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    }
}

#[tokio::test]
async fn a_stop_lets_texts_end_and_turns_new_ones_away() {
    let mut scene = Scene::start(&WORDS, Ending::Never).await;
    let mut stream = scene
        .begin("/v1/completions", &json!({"model": MODEL, "prompt": "hi", "n": 2, "max_tokens": 9}))
        .await;
    scene.begun(2).await;
    scene.stop();
    let answer = patiently(async {
        loop {
            let answer = scene.get("/ready").await;
            if answer.status == 503 {
                return answer;
            }
        }
    })
    .await;
    assert!(answer.header("retry-after").is_some() && answer.body.contains("stopping"), "{answer:?}");
    let answer = scene.complete(json!({})).await;
    assert_eq!(answer.error(), (503, "draining".into(), None));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(scene.get("/health").await.status, 200, "it is alive");
    // The client goes away, so nothing is being written any more, and the service ends long before its time to drain is up.
    stream.shutdown().await.unwrap();
    drop(stream);
    scene.ended().await;
}

#[tokio::test]
async fn what_is_not_whole_when_the_service_ends_is_told_so() {
    let limits = Limits { drain_time: Duration::from_millis(50), ..Limits::default() };
    let mut scene = Scene::within(&WORDS, Ending::Never, limits).await;
    let body = json!({"model": MODEL, "prompt": "hi"});
    let mut whole = scene.begin("/v1/completions", &body).await;
    let mut streamed = scene.begin("/v1/completions", &with(body, json!({"stream": true}))).await;
    scene.begun(2).await;
    scene.stop();
    assert_eq!(Answer::read(&mut whole).await.error(), (503, "cut_short".into(), None));
    let (events, done) = Answer::read(&mut streamed).await.events();
    assert_eq!((done, &events.last().unwrap()["error"]["code"]), (false, &json!("cut_short")));
    scene.ended().await;
}

#[tokio::test]
async fn silent_connections_are_closed() {
    let limits = Limits { request_time: Duration::from_secs(1), ..Limits::default() };
    let scene = Scene::within(&WORDS, Ending::Stop, limits).await;
    let json = [("Content-Type", "application/json")];
    let mut stream = scene.open("POST", "/v1/completions", &json, "Content-Length: 9\r\n").await;
    let answer = Answer::read(&mut stream).await;
    assert_eq!(answer.error(), (408, "timeout".into(), None));
    let mut stream = tokio::net::TcpStream::connect(scene.address).await.unwrap();
    stream.write_all(b"GET /health HT").await.unwrap();
    let mut told = Vec::new();
    // Reads to the end: it hangs where the service keeps the connection.
    let _ = patiently(stream.read_to_end(&mut told)).await;
    assert!(!told.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn models_health_figures_and_the_swarm() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    let models = scene.get("/v1/models").await.json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!(MODEL)));
    assert_eq!(models["data"][0]["context_length"], CONTEXT);
    assert_eq!(scene.get("/v1/models/atlas").await.json(), models["data"][0]);
    assert_eq!(scene.get("/v1/models/kvasir/atlas").await.json(), models["data"][1]);
    assert_eq!(scene.get("/health").await.json(), json!({"status": "ok"}));
    assert_eq!(scene.get("/ready").await.json(), json!({"ready": true}));
    let swarm = scene.get("/v1/swarm").await.json();
    assert_eq!(swarm["workers"][0]["holds"], json!([{"layer": 1, "experts": 16}]));
    assert!(swarm["workers"][0]["round_trip_ms"].is_null() && swarm["rates"]["now"].is_null());
    scene.complete(json!({})).await;
    scene.complete(json!({"n": 99})).await;
    let figures = scene.get("/metrics").await;
    assert_eq!(figures.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for line in [
        "kvasir_serve_requests_total{endpoint=\"completions\",result=\"finished\"} 1",
        "kvasir_serve_requests_total{endpoint=\"completions\",result=\"refused\"} 1",
        "kvasir_serve_prompt_tokens_total 2",
        "kvasir_serve_written_tokens_total 3",
        "kvasir_serve_texts_open 0",
    ] {
        assert!(figures.body.lines().any(|found| found == line), "{line} in:\n{}", figures.body);
    }
}

#[tokio::test]
async fn an_answer_has_all_its_tokens_however_many_clients_there_are() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    let one = |number: usize| {
        let scene = &scene;
        async move {
            let answer = scene.chat(json!({"stream": number.is_multiple_of(2), "seed": number})).await;
            assert_eq!(answer.status, 200);
            answer.body.contains("cold")
        }
    };
    let told = futures_util::future::join_all((0..64).map(one)).await;
    assert!(told.into_iter().all(|whole| whole));
    let mut seeds: Vec<u64> = scene.seen().iter().map(|asked| asked.sampler.seed).collect();
    seeds.sort_unstable();
    assert_eq!(seeds, (0..64).collect::<Vec<u64>>());
    assert!(scene.get("/metrics").await.body.contains("kvasir_serve_requests_open 0\n"));
}
