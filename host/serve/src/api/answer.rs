//! The answer to one request as it comes: one or more texts being written at the same time, told as [`Delta`]s.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use kvasir_model::TokenId;

use super::admission::{Admitted, Phases};
use super::asked::Asked;
use super::cutter::Cutter;
use super::engine::{Finish, Generation, Logprobs, Piece, Step};
use super::error::ApiError;
use super::language::Language;
use super::metrics::OpenRequest;

/// What one or more tokens added to a text.
#[derive(Debug, Default)]
pub(super) struct Delta {
    /// Which text, counted from 0.
    pub(super) choice: usize,
    /// What was added; may be nothing.
    pub(super) text: String,
    /// The tokens that were added, where their probabilities were asked for.
    pub(super) tokens: Vec<TokenText>,
    /// Why nothing more comes.
    pub(super) finish: Option<Finish>,
}

/// A token with its probability.
#[derive(Debug, Clone)]
pub(super) struct TokenText {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// The logarithm of its probability.
    pub(super) logprob: f32,
    /// The most probable tokens at its place.
    pub(super) top: Vec<(Vec<u8>, f32)>,
    /// Characters of text before it.
    pub(super) offset: usize,
}

/// Tokens read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Tokens of all prompts, each counted once.
    pub(super) prompt: usize,
    /// Tokens of all texts.
    pub(super) written: usize,
}

/// Texts being written. Dropping it cancels those that are not whole.
pub(super) struct Answer {
    texts: Vec<Text>,
    language: Arc<dyn Language>,
    phases: Phases,
    /// The text that is looked at first, so that none has to wait for another that always has something.
    turn: usize,
    usage: Usage,
    request: OpenRequest,
    // The place is given back after the texts are cancelled.
    _place: Admitted,
}

struct Text {
    generation: Option<Generation>,
    cutter: Cutter,
    /// Tokens whose text has not left.
    held: VecDeque<HeldToken>,
}

/// A token, and where its text begins and ends, in bytes.
struct HeldToken {
    token: TokenText,
    start: usize,
    end: usize,
}

impl Answer {
    /// `generations`: one for each text, prompt by prompt.
    pub(super) fn new(
        asked: &Asked,
        generations: Vec<Generation>,
        language: Arc<dyn Language>,
        phases: Phases,
        request: OpenRequest,
        place: Admitted,
    ) -> Answer {
        let text = |generation| Text {
            generation: Some(generation),
            cutter: Cutter::new(asked.stops.clone()),
            held: VecDeque::new(),
        };
        let prompt: usize = asked.prompts.iter().map(|prompt| prompt.len()).sum();
        request.read(prompt);
        Answer {
            texts: generations.into_iter().map(text).collect(),
            language,
            phases,
            turn: 0,
            usage: Usage { prompt, written: 0 },
            request,
            _place: place,
        }
    }

    /// Texts in all.
    pub(super) fn texts(&self) -> usize {
        self.texts.len()
    }

    /// Tokens read and written by now.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// What comes next; `None` once every text is whole. Nothing is lost where the wait is broken off.
    ///
    /// # Errors
    /// What keeps the texts from becoming whole. All of them end with it.
    pub(super) async fn next(&mut self) -> Result<Option<Delta>, ApiError> {
        loop {
            let (texts, turn) = (&mut self.texts, &mut self.turn);
            let step = tokio::select! {
                biased;
                step = poll_fn(|context| poll_step(texts, turn, context)) => Ok(step),
                () = self.phases.cut() => Err(ApiError::cut()),
            };
            let error = match step {
                Ok(None) => {
                    self.request.ends_for("finished");
                    return Ok(None);
                }
                Ok(Some((choice, Some(Step::Piece(piece))))) => {
                    if let Some(delta) = self.add(choice, piece) {
                        return Ok(Some(delta));
                    }
                    continue;
                }
                Ok(Some((choice, Some(Step::End(finish))))) => return Ok(Some(self.end(choice, finish))),
                Ok(Some((_, Some(Step::Failed(why))))) => ApiError::engine(why),
                Ok(Some((_, None))) => ApiError::engine("the text was given up before it was whole"),
                Err(error) => error,
            };
            self.request.ends_for(error.word());
            self.texts.clear();
            return Err(error);
        }
    }

    fn add(&mut self, choice: usize, piece: Piece) -> Option<Delta> {
        self.usage.written += 1;
        self.request.wrote();
        let text = &mut self.texts[choice];
        // What controls the model is no text, as everywhere in this program.
        let special = self.language.is_special(piece.token);
        let bytes: &[u8] = if special { &[] } else { bytes_of(&*self.language, piece.token) };
        let (offset, characters) = (text.cutter.reach(), text.cutter.characters());
        let mut delta = Delta { choice, text: text.cutter.push(bytes), ..Delta::default() };
        if let Some(logprobs) = piece.logprobs {
            let token = token_text(&*self.language, piece.token, &logprobs, characters);
            text.held.push_back(HeldToken { token, start: offset, end: text.cutter.reach() });
        }
        if text.cutter.is_stopped() {
            text.generation = None;
            delta.finish = Some(Finish::Stop);
        }
        delta.tokens = text.tokens_that_left(delta.finish.is_some());
        let nothing = delta.text.is_empty() && delta.tokens.is_empty() && delta.finish.is_none();
        (!nothing).then_some(delta)
    }

    fn end(&mut self, choice: usize, finish: Finish) -> Delta {
        let text = &mut self.texts[choice];
        text.generation = None;
        let rest = text.cutter.finish();
        // The last half of a character may complete a stop string that holds U+FFFD.
        let finish = if text.cutter.is_stopped() { Finish::Stop } else { finish };
        Delta { choice, text: rest, tokens: text.tokens_that_left(true), finish: Some(finish) }
    }
}

impl Text {
    /// Takes the tokens whose text has left as a whole; at the end also one that was cut in two by a stop string.
    fn tokens_that_left(&mut self, ended: bool) -> Vec<TokenText> {
        let released = self.cutter.released();
        let left = |held: &&HeldToken| held.end <= released || (ended && held.start < released);
        let count = self.held.iter().take_while(left).count();
        self.held.drain(..count).map(|held| held.token).collect()
    }
}

/// A step of any text, and whose it is; `None` where no text is open any more.
fn poll_step(
    texts: &mut [Text],
    turn: &mut usize,
    context: &mut Context<'_>,
) -> Poll<Option<(usize, Option<Step>)>> {
    let mut open = false;
    for after in 0..texts.len() {
        let at = (*turn + after) % texts.len();
        let Some(generation) = &mut texts[at].generation else { continue };
        open = true;
        if let Poll::Ready(step) = generation.poll_step(context) {
            *turn = at + 1;
            return Poll::Ready(Some((at, step)));
        }
    }
    if open { Poll::Pending } else { Poll::Ready(None) }
}

fn bytes_of(language: &dyn Language, token: TokenId) -> &[u8] {
    language.token_bytes(token).unwrap_or("\u{fffd}".as_bytes())
}

fn token_text(language: &dyn Language, token: TokenId, logprobs: &Logprobs, offset: usize) -> TokenText {
    let top = logprobs.top.iter().map(|(token, logprob)| (bytes_of(language, *token).to_vec(), *logprob));
    TokenText {
        bytes: bytes_of(language, token).to_vec(),
        logprob: logprobs.chosen,
        top: top.collect(),
        offset,
    }
}
