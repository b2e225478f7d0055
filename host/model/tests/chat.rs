//! Chat templates: what published ones use, what a hostile one may cost, and where a model's template comes from.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use std::time::{Duration, UNIX_EPOCH};

use forge::{Folder, Gguf};
use kvasir_model::{ChatTemplate, Message, Model, TemplateError};
use serde_json::json;

/// A template of our own that uses what those of the Qwen family use: macros, namespaces, reversed loops, slices, tests,
/// Python's methods on strings and dicts, tojson, refusal, and the date.
const TEMPLATE: &str = r#"{%- macro content_of(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {%- if part.type == 'text' %}
                {{- part.text }}
            {%- else %}
                {{- raise_exception('cannot show a part of type ' + part.type) }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}
    {{- raise_exception('No messages provided.') }}
{%- endif %}
{%- if tools and tools is iterable %}
    {{- '<|im_start|>system\n# Tools' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\nToday is ' ~ strftime_now('%d %B %Y') ~ '.' }}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_query=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.found and message.role == "user" and not (message.content is string and message.content.startswith('<tool_response>')) %}
        {%- set ns.last_query = index %}
        {%- set ns.found = true %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = content_of(message.content)|trim %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and reasoning %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\n<tool_call>\n<function=' ~ call.name ~ '>' }}
            {%- for name, value in call.arguments.items() %}
                {{- '\n<' ~ name ~ '>' ~ (value if value is string else value | tojson) ~ '</' ~ name ~ '>' }}
            {%- endfor %}
            {{- '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' ~ content ~ '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- elif message.role in ['user', 'system'] %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- else %}
        {{- raise_exception('Unexpected role ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"#;

fn with_template(template: &str) -> Model {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m.gguf");
    let mut gguf = Gguf::small();
    gguf.text("tokenizer.chat_template", template);
    std::fs::write(&path, gguf.write().bytes).unwrap();
    // The mapping outlives the file's name.
    Model::open(&path).unwrap()
}

fn template(model: &Model) -> &ChatTemplate {
    model.chat_template().unwrap()
}

#[test]
fn a_plain_chat() {
    let model = with_template(TEMPLATE);
    let messages = [Message::text("system", "Be brief. "), Message::text("user", "Hi & <you>")];
    assert_eq!(
        template(&model).render(&messages, &[], true).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi & <you><|im_end|>\n<|im_start|>assistant\n"
    );
    assert!(!template(&model).render(&messages, &[], false).unwrap().contains("assistant"));
    assert_eq!(template(&model).source(), TEMPLATE);
}

#[test]
fn tools_calls_and_thoughts() {
    let model = with_template(TEMPLATE);
    let tools = [
        json!({"type": "function", "function": {"name": "weather", "parameters": {"place": "é", "a": [1, 2.5, null, true], "empty": {}}}}),
    ];
    let messages: Vec<Message> = serde_json::from_value(json!([
        {"role": "user", "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Oslo?"}]},
        {"role": "assistant", "content": "<think>\nI ask.\n</think>\n\nOne moment.",
         "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"place": "Oslo", "days": 3}}}]},
        {"role": "tool", "content": "cold"},
        {"role": "tool", "content": "and dark"},
        {"role": "assistant", "content": "Cold.", "reasoning_content": "It said so."},
    ]))
    .unwrap();
    let further = json!({"enable_thinking": false});
    let now = UNIX_EPOCH + Duration::from_secs(951_827_696);
    let text =
        template(&model).render_with(&messages, &tools, true, further.as_object().unwrap(), now).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\n# Tools\n{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": \
         {\"place\": \"é\", \"a\": [1, 2.5, null, true], \"empty\": {}}}}\nToday is 29 February 2000.<|im_end|>\n\
         <|im_start|>user\nWeather in Oslo?<|im_end|>\n\
         <|im_start|>assistant\n<think>\nI ask.\n</think>\n\nOne moment.\n<tool_call>\n<function=weather>\n\
         <place>Oslo</place>\n<days>3</days>\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\ncold\n</tool_response>\n<tool_response>\nand dark\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<think>\nIt said so.\n</think>\n\nCold.<|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}

#[test]
fn json_is_written_as_python_does() {
    let dumped = |template_text: &str, value: serde_json::Value| {
        let model = with_template(template_text);
        let further = json!({ "v": value });
        template(&model).render_with(&[], &[], false, further.as_object().unwrap(), UNIX_EPOCH).unwrap()
    };
    let value = json!({"b": "<é>'\"", "a": [], "c": {"d": [1, {}]}});
    assert_eq!(dumped("{{ v | tojson }}", value.clone()), r#"{"b": "<é>'\"", "a": [], "c": {"d": [1, {}]}}"#);
    assert_eq!(
        dumped("{{ v | tojson(indent=2) }}", json!({"b": [1], "a": {}})),
        "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}"
    );
    assert_eq!(dumped("{{ v | tojson(sort_keys=true) }}", json!({"b": 1, "a": 2})), r#"{"a": 2, "b": 1}"#);
    assert_eq!(dumped("{{ v | tojson(ensure_ascii=true) }}", json!("é𝄞")), r#""\u00e9\ud834\udd1e""#);
}

#[test]
fn a_refusal_is_told_apart_from_a_failure() {
    let model = with_template(TEMPLATE);
    let error = template(&model).render(&[], &[], true).unwrap_err();
    assert!(matches!(&error, TemplateError::Refused(why) if why == "No messages provided."), "{error}");
    let error = template(&model).render(&[Message::text("robot", "x")], &[], true).unwrap_err();
    assert_eq!(error.to_string(), "the template refuses these messages: Unexpected role robot");
    // Raised inside a macro.
    let parts = Message { content: json!([{"type": "image"}]), ..Message::text("user", "") };
    let error = template(&model).render(&[parts], &[], true).unwrap_err();
    assert_eq!(error.to_string(), "the template refuses these messages: cannot show a part of type image");
    for wrong in
        ["{{ x.y.z }}", "{{ 1 / 0 }}", "{{ 'a'.nosuch() }}", "{{ strftime_now('%Q') }}", "{{ nosuch(1) }}"]
    {
        let error = template(&with_template(wrong)).render(&[], &[], true).unwrap_err();
        assert!(matches!(error, TemplateError::Render(_)), "{wrong}: {error}");
    }
}

#[test]
fn a_hostile_template_runs_out_of_fuel() {
    for costly in [
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 99999999 * 10 }}",
        "{% macro again(n) %}{{ again(n + 1) }}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}",
    ] {
        let error = template(&with_template(costly)).render(&[], &[], true).unwrap_err();
        assert!(
            matches!(
                error,
                TemplateError::TooManySteps(_)
                    | TemplateError::TooLarge(_)
                    | TemplateError::Unsupported(_)
                    | TemplateError::Render(_)
            ),
            "{costly}: {error}"
        );
    }
}

#[test]
fn a_template_sees_nothing_of_the_machine() {
    for reach in ["{% include 'Cargo.toml' %}", "{% import '/etc/passwd' as x %}{{ x }}", "{% extends 'x' %}"]
    {
        assert!(template(&with_template(reach)).render(&[], &[], true).is_err(), "{reach}");
    }
}

/// Its model is of use without it.
#[test]
fn a_broken_template_is_told_when_it_is_rendered() {
    let model = with_template("{% for x in %}");
    let error = template(&model).render(&[], &[], true).unwrap_err();
    assert!(matches!(error, TemplateError::Syntax(_)), "{error}");
}

#[test]
fn special_tokens_have_their_names() {
    let model = with_template("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}");
    assert_eq!(template(&model).render(&[], &[], true).unwrap(), "|<|endoftext|>|");
}

#[test]
fn folders_keep_templates_in_two_places() {
    let place = tempfile::tempdir().unwrap();
    let config = |template: serde_json::Value| {
        json!({"eos_token": {"content": "<|im_end|>"}, "bos_token": null, "chat_template": template})
            .to_string()
            .into_bytes()
    };
    let rendered = |name: &str, folder: Folder| {
        folder.write(&place.path().join(name));
        let model = Model::open(&place.path().join(name)).unwrap();
        model.chat_template().map(|template| template.render(&[], &[], true).unwrap())
    };
    assert_eq!(rendered("none", Folder::small()), None);
    let one = Folder::small().put("tokenizer_config.json", config(json!("one{{ eos_token }}")));
    assert_eq!(rendered("one", one.clone()).as_deref(), Some("one<|im_end|>"));
    let file = one.put("chat_template.jinja", b"two{{ eos_token }}".to_vec());
    assert_eq!(rendered("file", file).as_deref(), Some("two<|im_end|>"));
    let list = json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "three"}]);
    let list = Folder::small().put("tokenizer_config.json", config(list));
    assert_eq!(rendered("list", list).as_deref(), Some("three"));
}
