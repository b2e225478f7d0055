//! The chat template: messages to the text that the model was trained to continue, by minijinja.

use serde::{Deserialize, Serialize};

/// One message of a chat. Fields beside the role and content pass through to the template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text, or a list of parts, as the template takes it.
    pub content: serde_json::Value,
    /// Further fields (`tool_calls`, `reasoning_content`, ...).
    #[serde(flatten)]
    pub further: serde_json::Map<String, serde_json::Value>,
}

/// A compiled chat template.
pub struct ChatTemplate {
    source: String,
}

/// Why a template is refused or cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template does not parse.
    #[error("it does not parse: {0}")]
    Syntax(String),
}

impl ChatTemplate {
    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Render `messages` (and `tools`, JSON schemas as the template takes them). With `add_generation_prompt` the text
    /// ends where the assistant's answer begins.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        todo!("{messages:?} {tools:?} {add_generation_prompt}")
    }
}
