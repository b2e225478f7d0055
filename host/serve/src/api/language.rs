//! Text to tokens, tokens to bytes, messages to text: what the API asks of a model beside computing.

use std::sync::Arc;
use std::time::SystemTime;

use kvasir_model::{ChatTemplate, Message, Model, TemplateError, TokenId, Tokenizer, TokenizerError};
use serde_json::{Map, Value};

/// A model's text side.
pub trait Language: Send + Sync + 'static {
    /// Tokens of `text`, if there are at most `limit`.
    ///
    /// # Errors
    /// [`TokenizerError::TooManyTokensInText`] beyond the limit, and texts that are none.
    fn encode(&self, text: &str, limit: usize) -> Result<Vec<TokenId>, TokenizerError>;

    /// The bytes of a token; `None` outside the vocabulary. They may be a part of a character.
    fn token_bytes(&self, token: TokenId) -> Option<&[u8]>;

    /// Whether a token controls the model and is not text.
    fn is_special(&self, token: TokenId) -> bool;

    /// Tokens that there are.
    fn vocabulary(&self) -> usize;

    /// The text whose continuation is the assistant's answer.
    ///
    /// # Errors
    /// What the chat template says, or what there is no chat template for.
    fn render(&self, chat: &Chat) -> Result<String, RenderError>;
}

/// What a chat template is given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chat {
    /// The messages; the content of each is one text.
    pub messages: Vec<Message>,
    /// Tools, as JSON schemas.
    pub tools: Vec<Value>,
    /// Further variables (`tool_choice`, `enable_thinking`, ...).
    pub further: Map<String, Value>,
}

/// Why messages cannot be made a text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The model has no chat template, and tools cannot be told without.
    #[error("this model has no chat template, so it cannot be told about tools")]
    NoTemplate,
    /// What the template said.
    #[error("the chat template: {0}")]
    Template(#[from] TemplateError),
}

impl RenderError {
    /// The parameter that is to blame.
    pub(super) fn param(&self) -> &'static str {
        match self {
            RenderError::NoTemplate => "tools",
            RenderError::Template(_) => "messages",
        }
    }
}

/// A model as it was opened.
pub struct ModelLanguage {
    model: Arc<Model>,
    template: Option<ChatTemplate>,
}

impl ModelLanguage {
    /// The model's own tokenizer and chat template.
    pub fn new(model: Arc<Model>) -> ModelLanguage {
        ModelLanguage { model, template: None }
    }

    /// With a chat template in place of the model's own.
    pub fn with_template(model: Arc<Model>, template: ChatTemplate) -> ModelLanguage {
        ModelLanguage { model, template: Some(template) }
    }

    /// Whether messages are rendered by a template. Where they are not, their texts are continued as they stand, a line
    /// each, which is what a model that was never taught to chat can do.
    pub fn has_template(&self) -> bool {
        self.template().is_some()
    }

    fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref().or(self.model.chat_template())
    }

    fn tokenizer(&self) -> &Tokenizer {
        self.model.tokenizer()
    }
}

impl Language for ModelLanguage {
    fn encode(&self, text: &str, limit: usize) -> Result<Vec<TokenId>, TokenizerError> {
        self.tokenizer().encode_bounded(text, limit)
    }

    fn token_bytes(&self, token: TokenId) -> Option<&[u8]> {
        self.tokenizer().token_bytes(token)
    }

    fn is_special(&self, token: TokenId) -> bool {
        self.tokenizer().is_special(token)
    }

    fn vocabulary(&self) -> usize {
        self.tokenizer().vocabulary()
    }

    fn render(&self, chat: &Chat) -> Result<String, RenderError> {
        match self.template() {
            Some(template) => {
                let now = SystemTime::now();
                Ok(template.render_with(&chat.messages, &chat.tools, true, &chat.further, now)?)
            }
            None => plain(chat),
        }
    }
}

/// The messages' texts, one a line.
///
/// # Errors
/// [`RenderError::NoTemplate`] where there are tools.
pub fn plain(chat: &Chat) -> Result<String, RenderError> {
    if !chat.tools.is_empty() {
        return Err(RenderError::NoTemplate);
    }
    let texts: Vec<&str> = chat.messages.iter().filter_map(|message| message.content.as_str()).collect();
    Ok(texts.join("\n"))
}
