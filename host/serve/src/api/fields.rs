//! The fields of a request's JSON object, each taken once and checked; what nobody took is refused by name.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::{ApiError, shortened};

/// Fields that are not looked at: they name the caller or ask for what changes no answer.
const IGNORED: [&str; 7] = [
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
];

/// What is left of an object's fields.
#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a JSON object. A field that is `null` counts as absent.
    pub(super) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        let not_json = |error: serde_json::Error| {
            ApiError::bad_request(
                "invalid_json",
                format!("We could not parse the JSON body of your request: {error}"),
            )
        };
        match serde_json::from_slice::<Value>(body).map_err(not_json)? {
            Value::Object(mut fields) => {
                fields.retain(|_, value| !value.is_null());
                Ok(Fields(fields))
            }
            other => {
                let message = format!("the body must be a JSON object, and is {}", kind(&other));
                Err(ApiError::bad_request("invalid_json", message))
            }
        }
    }

    /// Takes a field as it is.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// Takes a text.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, &other, "a string")),
        }
    }

    /// Takes a truth.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(wrong(name, &other, "true or false")),
        }
    }

    /// Takes a whole number within `range`.
    pub(super) fn whole(
        &mut self,
        name: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                Err(wrong(name, &value, &format!("a whole number from {} to {}", range.start(), range.end())))
            }
        }
    }

    /// Takes a number within `range`.
    pub(super) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, &value, &format!("a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// Takes an object.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(wrong(name, &other, "an object")),
        }
    }

    /// Takes an array of at most `most` elements.
    pub(super) fn array(&mut self, name: &str, most: usize) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(array)) if array.len() <= most => Ok(Some(array)),
            Some(Value::Array(array)) => Err(ApiError::invalid(
                name,
                format!("`{name}` has {} elements; {most} are allowed", array.len()),
            )),
            Some(other) => Err(wrong(name, &other, "an array")),
        }
    }

    /// Takes a field that is known, of which nothing here can do but the value that changes nothing.
    pub(super) fn neutral(
        &mut self,
        name: &str,
        is_neutral: impl FnOnce(&Value) -> bool,
        why: &str,
    ) -> Result<(), ApiError> {
        let Some(value) = self.take(name) else { return Ok(()) };
        if is_neutral(&value) {
            return Ok(());
        }
        Err(ApiError::unsupported(name, format!("`{name}` is {}: {why}", shown(&value))))
    }

    /// Refuses what was not taken.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        match self.0.keys().find(|name| !IGNORED.contains(&name.as_str())) {
            Some(name) => Err(ApiError::unknown(name)),
            None => Ok(()),
        }
    }
}

/// A value that is not what it should be.
pub(super) fn wrong(param: &str, value: &Value, expected: &str) -> ApiError {
    ApiError::invalid(param, format!("`{param}` is {}: it must be {expected}", shown(value)))
}

/// A value of a client, as an error shows it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => kind(value).to_owned(),
        Value::String(text) => format!("\"{}\"", shortened(text)),
        value => value.to_string(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: &Value) -> Fields {
        Fields::parse(value.to_string().as_bytes()).unwrap()
    }

    fn param(error: &ApiError) -> String {
        error.body()["error"]["param"].as_str().unwrap().to_owned()
    }

    #[test]
    fn numbers_out_of_range_are_told_with_their_range() {
        for value in [json!(-1), json!(0), json!(11), json!(1.5), json!(1e300), json!("5"), json!(u64::MAX)] {
            let error = fields(&json!({"n": value})).whole("n", 1..=10).unwrap_err();
            assert_eq!(param(&error), "n");
            assert!(error.to_string().contains("from 1 to 10"), "{error}");
        }
        assert_eq!(fields(&json!({"n": 10})).whole("n", 1..=10).unwrap(), Some(10));
        assert_eq!(fields(&json!({"n": null})).whole("n", 1..=10).unwrap(), None);
        for value in [json!(-0.1), json!(2.1), json!(true), json!(1e308)] {
            assert!(fields(&json!({"t": value})).number("t", 0.0..=2.0).is_err());
        }
        assert_eq!(fields(&json!({"t": 2})).number("t", 0.0..=2.0).unwrap(), Some(2.0));
    }

    #[test]
    fn what_nobody_took_is_refused_by_name() {
        let mut some = fields(&json!({"model": "atlas", "user": "me", "frobnicate": 1}));
        assert_eq!(some.text("model").unwrap().as_deref(), Some("atlas"));
        assert_eq!(param(&some.finish().unwrap_err()), "frobnicate");
        fields(&json!({"user": "me", "metadata": {}})).finish().unwrap();
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let deep = "[".repeat(100_000);
        for body in ["", "{", "[]", "3", "\"x\"", "{} {}", "{\"a\": NaN}", "\u{feff}{}", deep.as_str()] {
            let error = Fields::parse(body.as_bytes()).unwrap_err();
            assert_eq!(
                (error.status(), &error.body()["error"]["code"]),
                (400, &json!("invalid_json")),
                "{body:.20}"
            );
        }
        assert!(Fields::parse(&[b'{', 0xff, b'}']).is_err());
    }
}
