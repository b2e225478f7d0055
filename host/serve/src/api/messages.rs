//! The messages of a chat, from OpenAI's form to what chat templates take: each content one text, arguments of tool calls
//! objects, everything else passed through.

use kvasir_model::Message;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::shown;

/// Messages of one chat.
const MAX_MESSAGES: usize = 4096;

/// Reads the field `messages`.
pub(super) fn read(value: Option<Value>) -> Result<Vec<Message>, ApiError> {
    let messages = match value {
        None => return Err(ApiError::missing("messages")),
        Some(Value::Array(messages)) => messages,
        Some(other) => {
            let message = format!("`messages` is {}: it must be an array", shown(&other));
            return Err(ApiError::invalid("messages", message));
        }
    };
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let message = format!("`messages` has {} elements; 1 to {MAX_MESSAGES} are allowed", messages.len());
        return Err(ApiError::invalid("messages", message));
    }
    messages.into_iter().enumerate().map(|(at, message)| one(at, message)).collect()
}

fn one(at: usize, value: Value) -> Result<Message, ApiError> {
    let fault = |part: &str, why: String| Err(ApiError::invalid(format!("messages[{at}]{part}"), why));
    let mut fields = match value {
        Value::Object(fields) => fields,
        other => return fault("", format!("a message is {}: it must be an object", shown(&other))),
    };
    let role = match fields.remove("role") {
        Some(Value::String(role)) => role,
        Some(other) => return fault(".role", format!("the role is {}: it must be a string", shown(&other))),
        None => return fault(".role", "a message has no role".to_owned()),
    };
    // What newer clients call the instructions that templates know as the system's.
    let role = if role == "developer" { "system".to_owned() } else { role };
    if !["system", "user", "assistant", "tool"].contains(&role.as_str()) {
        let found = shown(&Value::String(role));
        return fault(
            ".role",
            format!("the role is {found}: it must be system, developer, user, assistant or tool"),
        );
    }
    let content = match fields.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => joined(at, parts)?,
        None | Some(Value::Null) if role == "assistant" && has_calls(&fields) => String::new(),
        None | Some(Value::Null) => return fault(".content", "a message has no content".to_owned()),
        Some(other) => {
            return fault(
                ".content",
                format!("the content is {}: it must be a string or an array", shown(&other)),
            );
        }
    };
    fields.retain(|_, value| !value.is_null());
    if let Some(calls) = fields.get_mut("tool_calls")
        && let Err(why) = calls_for_template(calls)
    {
        return fault(".tool_calls", why);
    }
    Ok(Message { role, content: Value::String(content), further: fields })
}

fn has_calls(fields: &Map<String, Value>) -> bool {
    fields.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
}

/// The texts of a content's parts, one after another.
fn joined(at: usize, parts: Vec<Value>) -> Result<String, ApiError> {
    let mut text = String::new();
    for (number, part) in parts.into_iter().enumerate() {
        let param = format!("messages[{at}].content[{number}]");
        match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
            (Some("text"), Some(more)) => text.push_str(more),
            (Some("text"), None) => return Err(ApiError::invalid(param, "a part of type text has no text")),
            (Some(_), _) => {
                let found = shown(&part["type"]);
                return Err(ApiError::unsupported(
                    param,
                    format!("a part has type {found}: only text is supported"),
                ));
            }
            (None, _) => return Err(ApiError::invalid(param, "a part has no type")),
        }
    }
    Ok(text)
}

/// Clients repeat the arguments of a call as JSON in a string; templates walk over them.
fn calls_for_template(calls: &mut Value) -> Result<(), String> {
    let calls = calls.as_array_mut().ok_or("tool calls must be an array")?;
    for call in calls {
        let function = call.get_mut("function").and_then(Value::as_object_mut);
        let Some(function) = function else { return Err("a tool call has no function".to_owned()) };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err("the function of a tool call has no name".to_owned());
        }
        if let Some(Value::String(text)) = function.get("arguments") {
            let arguments: Map<String, Value> = match text.trim() {
                "" => Map::new(),
                text => serde_json::from_str(text)
                    .map_err(|error| format!("the arguments of a tool call are no JSON object: {error}"))?,
            };
            function.insert("arguments".to_owned(), Value::Object(arguments));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_clients_send_becomes_what_templates_take() {
        let messages = read(Some(json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Oslo?"}], "name": "A"},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"place\": \"Oslo\"}"}},
            ]},
            {"role": "tool", "content": "cold", "tool_call_id": "1"},
        ])))
        .unwrap();
        let told: Vec<_> = messages.iter().map(|m| (m.role.as_str(), m.content.as_str().unwrap())).collect();
        assert_eq!(
            told,
            [("system", "Be brief."), ("user", "Weather in Oslo?"), ("assistant", ""), ("tool", "cold")]
        );
        assert_eq!(messages[1].further["name"], "A");
        assert!(!messages[2].further.contains_key("refusal"));
        assert_eq!(messages[2].further["tool_calls"][0]["function"]["arguments"], json!({"place": "Oslo"}));
        assert_eq!(messages[3].further["tool_call_id"], "1");
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let ask = json!({"role": "user", "content": "?"});
        let call = |function: Value| json!({"role": "assistant", "tool_calls": [{"function": function}]});
        for (messages, param) in [
            (json!(null), "messages"),
            (json!([]), "messages"),
            (json!("hello"), "messages"),
            (json!([ask, 3]), "messages[1]"),
            (json!([{"content": "?"}]), "messages[0].role"),
            (json!([{"role": "judge", "content": "?"}]), "messages[0].role"),
            (json!([ask, {"role": "user"}]), "messages[1].content"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content"),
            (json!([{"role": "assistant", "tool_calls": []}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0]"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0]",
            ),
            (json!([call(json!({"arguments": "{}"}))]), "messages[0].tool_calls"),
            (json!([call(json!({"name": "f", "arguments": "[1]"}))]), "messages[0].tool_calls"),
        ] {
            let error = read(Some(messages.clone())).unwrap_err();
            assert_eq!((error.status(), &error.body()["error"]["param"]), (400, &json!(param)), "{messages}");
        }
        assert!(read(None).is_err());
        assert!(read(Some(json!(vec![ask; MAX_MESSAGES + 1]))).is_err());
    }
}
