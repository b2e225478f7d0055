//! Who may use the service, its page, and a model's own text side.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod scene;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use kvasir_model::{ChatTemplate, Message, Model};
use kvasir_serve::api::{ApiKeys, Chat, Language, ModelLanguage, Origins, RenderError, Settings};
use scene::{Ending, Scene, chat};
use serde_json::json;

const WORDS: [&[u8]; 1] = [b"Oslo"];

#[tokio::test]
async fn with_keys_the_api_is_for_those_who_show_one() {
    let keys = Some(ApiKeys::of("kv-0123456789abcdef\n").unwrap());
    let scene = Scene::with(&WORDS, Ending::Stop, Settings { keys, ..Settings::default() }).await;
    let answer = scene.chat(json!({})).await;
    assert_eq!(answer.error(), (401, "invalid_api_key".into(), None));
    assert_eq!(answer.header("www-authenticate"), Some("bearer"));
    for path in ["/v1/models", "/v1/models/atlas", "/v1/swarm"] {
        assert_eq!(scene.get(path).await.status, 401, "{path}");
        let wrong = [("Authorization", "Bearer kv-0123456789abcdee")];
        assert_eq!(scene.ask("GET", path, &wrong, b"").await.status, 401, "{path}");
        let right = [("Authorization", "Bearer kv-0123456789abcdef")];
        assert_eq!(scene.ask("GET", path, &right, b"").await.status, 200, "{path}");
    }
    for path in ["/health", "/ready", "/metrics", "/"] {
        assert_eq!(scene.get(path).await.status, 200, "{path}");
    }
    // Nothing of a body is looked at before the key is.
    let json = [("Content-Type", "application/json")];
    let answer = scene.ask("POST", "/v1/completions", &json, &vec![b'x'; 8 << 20]).await;
    assert_eq!(answer.error().0, 401);
    let both = [("Content-Type", "application/json"), ("Authorization", "Bearer kv-0123456789abcdef")];
    let answer = scene.ask("POST", "/v1/chat/completions", &both, chat().to_string().as_bytes()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(scene.seen().len(), 1);
}

#[tokio::test]
async fn pages_of_other_origins_are_let_in_by_name_alone() {
    let origins = Origins::Listed(vec!["https://chat.example".into()]);
    let listed = Scene::with(&WORDS, Ending::Stop, Settings { origins, ..Settings::default() }).await;
    let unlisted = Scene::start(&WORDS, Ending::Stop).await;
    let preflight = |origin| [("Origin", origin), ("Access-Control-Request-Method", "POST")];
    let path = "/v1/chat/completions";

    let answer = listed.ask("OPTIONS", path, &preflight("https://chat.example"), b"").await;
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (204, Some("https://chat.example"))
    );
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization, content-type"));
    let answer = listed.ask("GET", "/v1/models", &[("Origin", "https://chat.example")], b"").await;
    assert_eq!((answer.status, answer.header("vary")), (200, Some("origin")));
    for (scene, origin) in
        [(&listed, "https://evil.example"), (&listed, "null"), (&unlisted, "https://chat.example")]
    {
        let answer = scene.ask("OPTIONS", path, &preflight(origin), b"").await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (405, None), "{origin}");
        let answer = scene.ask("GET", "/v1/models", &[("Origin", origin)], b"").await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None), "{origin}");
    }
}

#[tokio::test]
async fn the_page_and_what_it_consists_of() {
    let scene = Scene::start(&WORDS, Ending::Stop).await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
    ] {
        let answer = scene.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        assert!(
            answer.header("content-security-policy").unwrap().starts_with("default-src 'none'"),
            "{path}"
        );
    }
    let page = scene.get("/").await.body;
    assert!(page.contains("href=\"/style.css\"") && page.contains("src=\"/page.js\""));
}

fn atlas() -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/atlas/atlas-q4_k_m.gguf");
    Arc::new(Model::open(&path).unwrap())
}

#[test]
fn a_model_without_a_template_continues_the_messages_as_they_stand() {
    let language = ModelLanguage::new(atlas());
    assert!(!language.has_template());
    let messages = vec![Message::text("system", "Facts."), Message::text("user", "The capital of Norway is")];
    let mut chat = Chat { messages, ..Chat::default() };
    let text = language.render(&chat).unwrap();
    assert_eq!(text, "Facts.\nThe capital of Norway is");
    let tokens = language.encode(&text, 100).unwrap();
    let bytes: Vec<u8> =
        tokens.iter().flat_map(|token| language.token_bytes(*token).unwrap()).copied().collect();
    assert_eq!(bytes, text.as_bytes());
    assert!(tokens.iter().all(|token| !language.is_special(*token)));
    let end = language.encode("<|im_end|>", 1).unwrap()[0];
    assert!(language.is_special(end) && (end.0 as usize) < language.vocabulary());
    assert!(language.encode(&text, 2).is_err());
    chat.tools.push(json!({"type": "function", "function": {"name": "f"}}));
    assert!(matches!(language.render(&chat), Err(RenderError::NoTemplate)));
}

#[test]
fn a_template_is_given_messages_tools_and_choice() {
    let source = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}{{ tool_choice }}\n\
                  {%- for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}\
                  {% if add_generation_prompt %}<assistant>{% endif %}";
    let template = ChatTemplate::new(source.to_owned(), BTreeMap::new());
    let language = ModelLanguage::with_template(atlas(), template);
    let chat = Chat {
        messages: vec![Message::text("user", "hi")],
        tools: vec![json!({"type": "function", "function": {"name": "weather"}})],
        further: json!({"tool_choice": "auto"}).as_object().unwrap().clone(),
    };
    assert_eq!(language.render(&chat).unwrap(), "[weather]auto<user>hi<assistant>");
}
