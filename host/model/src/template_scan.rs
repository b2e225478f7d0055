//! What a chat template may consist of, told from its tokens before the engine parses it; and the same template with a
//! check put around everything that may grow.
//!
//! The engine pays for steps and bytes with fuel, but it parses and drops by recursion and follows a value wherever it
//! leads: sixty times `set x = [x, x]` is a value that no machine can print. So the length of a tag and of an `elif`
//! chain is bounded, constructs that chat templates have no use for are refused by name, a namespace may only be used
//! by its attributes (it is the one value that could contain itself), and `(value)|guard` is written around every
//! element of a list or dict, every argument, every parenthesis and every value that is assigned. The guard counts
//! what a value consists of (`template_values`), so none that has a name exceeds the limits.

use std::collections::BTreeSet;

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use crate::limits;
use crate::template::TemplateError;

/// Name of the guard. Filters have a namespace of their own, so no variable of a template can stand in its way.
pub(crate) const GUARD: &str = "kvasir_guard";

/// Block tags that a template may use.
const TAGS: [&str; 11] =
    ["if", "elif", "else", "endif", "for", "endfor", "set", "endset", "macro", "endmacro", "break"];
const CONTINUE: &str = "continue";

/// Filters that a template may use. None of them puts values into new lists, which would pass the guard by.
const FILTERS: [&str; 36] = [
    "abs",
    "attr",
    "bool",
    "capitalize",
    "count",
    "d",
    "default",
    "e",
    "escape",
    "first",
    "float",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "sort",
    "string",
    "title",
    "tojson",
    "trim",
    "upper",
];
const MORE_FILTERS: [&str; 5] = ["dictsort", "lines", "split", "unique", "sum"];

/// Filters that put values into new lists: taken out of the engine too, since `map` finds filters by a computed name.
pub(crate) const REMOVED_FILTERS: [&str; 9] =
    ["batch", "slice", "zip", "chain", "groupby", "pprint", "format", "xmlattr", "urlencode"];
/// Functions that do, or that show more than a template needs.
pub(crate) const REMOVED_FUNCTIONS: [&str; 2] = ["dict", "debug"];

/// Words that end an operand: a bracket after one begins a list, after any other word it looks into that variable.
const OPERATOR_WORDS: [&str; 12] =
    ["in", "not", "and", "or", "if", "else", "is", "elif", "for", "set", "recursive", "macro"];

type Spanned<'a> = (Token<'a>, Span);

/// Check `source` and put the guard in.
pub(crate) fn guarded(source: &str, syntax: SyntaxConfig) -> Result<String, TemplateError> {
    let limit = limits::MAX_TEMPLATE_BYTES;
    if source.len() > limit {
        return Err(TemplateError::TooLong { bytes: source.len(), limit });
    }
    let tags = tags(source, syntax)?;
    let namespaces = namespaces(&tags);
    let mut insertions = Vec::new();
    let mut alternatives = 0;
    for Tag { is_block, tokens } in &tags {
        check_tokens(tokens, &namespaces)?;
        let mut rest = tokens.as_slice();
        if *is_block {
            let Some((Token::Ident(word), _)) = tokens.first() else {
                return Err(TemplateError::Syntax("a tag begins with no word".to_owned()));
            };
            if !TAGS.contains(word) && *word != CONTINUE {
                return Err(TemplateError::Unsupported(format!("the tag {word:?}")));
            }
            alternatives += usize::from(*word == "elif");
            rest = &tokens[1..];
            match *word {
                "set" => {
                    rest = guard_assignment(rest, &mut insertions)?;
                }
                "for" => rest = after_loop_target(rest)?,
                "macro" => {
                    check_parameters(rest)?;
                    continue;
                }
                _ => {}
            }
        }
        guard_elements(rest, &mut insertions)?;
    }
    if alternatives > limits::MAX_TEMPLATE_ALTERNATIVES {
        return Err(TemplateError::Unsupported(format!(
            "{alternatives} elif tags (at most {})",
            limits::MAX_TEMPLATE_ALTERNATIVES
        )));
    }
    insert(source, insertions)
}

/// The tokens between the delimiters of one tag or expression.
struct Tag<'a> {
    is_block: bool,
    tokens: Vec<Spanned<'a>>,
}

/// All tags, by the engine's own lexer, each of bounded length.
fn tags(source: &str, syntax: SyntaxConfig) -> Result<Vec<Tag<'_>>, TemplateError> {
    let mut tags: Vec<Tag<'_>> = Vec::new();
    for token in tokenize(source, false, syntax) {
        let (token, span) = token.map_err(|error| TemplateError::Syntax(error.to_string()))?;
        match token {
            Token::TemplateData(_) | Token::VariableEnd | Token::BlockEnd => {}
            Token::VariableStart => tags.push(Tag { is_block: false, tokens: Vec::new() }),
            Token::BlockStart => tags.push(Tag { is_block: true, tokens: Vec::new() }),
            token => {
                let Some(tag) = tags.last_mut() else {
                    return Err(TemplateError::Syntax("a token outside of any tag".to_owned()));
                };
                if tag.tokens.len() == limits::MAX_TEMPLATE_TAG_TOKENS {
                    let limit = limits::MAX_TEMPLATE_TAG_TOKENS;
                    return Err(TemplateError::Unsupported(format!("a tag of more than {limit} tokens")));
                }
                tag.tokens.push((token, span));
            }
        }
    }
    Ok(tags)
}

/// The variables that hold namespaces: those of `set NAME = namespace(...)`.
fn namespaces<'a>(tags: &[Tag<'a>]) -> BTreeSet<&'a str> {
    tags.iter().filter(|tag| tag.is_block).filter_map(|tag| made_namespace(&tag.tokens)).collect()
}

/// NAME, if the whole tag is `set NAME = namespace(...)`.
fn made_namespace<'a>(tokens: &[Spanned<'a>]) -> Option<&'a str> {
    let [
        (Token::Ident("set"), _),
        (Token::Ident(name), _),
        (Token::Assign, _),
        (Token::Ident("namespace"), _),
        call @ ..,
    ] = tokens
    else {
        return None;
    };
    let mut depth = 0usize;
    for (at, (token, _)) in call.iter().enumerate() {
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => depth = depth.saturating_sub(1),
            _ => {}
        }
        // The call's parenthesis closes at the end and not before.
        if depth == 0 {
            return (at + 1 == call.len() && at > 0).then_some(*name);
        }
    }
    None
}

/// What no tag may contain.
fn check_tokens(tokens: &[Spanned<'_>], namespaces: &BTreeSet<&str>) -> Result<(), TemplateError> {
    let unsupported = |what: String| Err(TemplateError::Unsupported(what));
    let makes_namespace = made_namespace(tokens).is_some();
    for (at, (token, _)) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| tokens.get(at)).map(|(token, _)| token);
        let after = tokens.get(at + 1).map(|(token, _)| token);
        match token {
            // A repeated list or string costs the template a word and the machine any amount.
            Token::Mul | Token::Pow => return unsupported("the operator *".to_owned()),
            Token::Pipe => {
                let Some(Token::Ident(filter)) = after else {
                    return Err(TemplateError::Syntax("no filter after |".to_owned()));
                };
                if !FILTERS.contains(filter) && !MORE_FILTERS.contains(filter) {
                    return unsupported(format!("the filter {filter:?}"));
                }
            }
            Token::Ident(_) if matches!(before, Some(Token::Dot)) => {}
            Token::Ident("namespace") if !(makes_namespace && at == 3) => {
                return unsupported(
                    "namespace() elsewhere than in {% set NAME = namespace(...) %}".to_owned(),
                );
            }
            Token::Ident(name)
                if namespaces.contains(name) && !matches!(after, Some(Token::Dot | Token::Assign)) =>
            {
                return unsupported(format!("the namespace {name:?} as a value"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Positions where text is put in.
type Insertions = Vec<(u32, bool)>;

fn guard(tokens: &[Spanned<'_>], insertions: &mut Insertions) {
    if let (Some((_, first)), Some((_, last))) = (tokens.first(), tokens.last()) {
        insertions.push((first.start_offset, true));
        insertions.push((last.end_offset, false));
    }
}

/// Guards the value of a `set`, and gives back its tokens.
fn guard_assignment<'t, 'a>(
    tokens: &'t [Spanned<'a>],
    insertions: &mut Insertions,
) -> Result<&'t [Spanned<'a>], TemplateError> {
    let assign = tokens.iter().position(|(token, _)| matches!(token, Token::Assign));
    let is_block = tokens.iter().position(|(token, _)| matches!(token, Token::Pipe));
    let target = match (assign, is_block) {
        (Some(assign), pipe) if pipe.is_none_or(|pipe| assign < pipe) => assign,
        // `set NAME | filter` or `set NAME`: what the block writes is text.
        (_, pipe) => pipe.unwrap_or(tokens.len()),
    };
    let (names, value) = tokens.split_at(target);
    check_target(names)?;
    match value {
        [(Token::Assign, _), value @ ..] => {
            if !matches!(value, [(Token::Ident("namespace"), _), ..]) {
                guard(value, insertions);
            }
            Ok(value)
        }
        filters => Ok(filters),
    }
}

/// The tokens of a `for` after its target.
fn after_loop_target<'t, 'a>(tokens: &'t [Spanned<'a>]) -> Result<&'t [Spanned<'a>], TemplateError> {
    let target = tokens.iter().position(|(token, _)| matches!(token, Token::Ident("in")));
    let (names, rest) = tokens.split_at(target.unwrap_or(tokens.len()));
    check_target(names)?;
    Ok(rest)
}

fn check_target(names: &[Spanned<'_>]) -> Result<(), TemplateError> {
    let plain = |token: &Token<'_>| matches!(token, Token::Ident(_) | Token::Dot | Token::Comma);
    if names.iter().all(|(token, _)| plain(token)) {
        Ok(())
    } else {
        Err(TemplateError::Unsupported("an assignment to other than plain names".to_owned()))
    }
}

/// A macro's parameters are names, and their defaults words, numbers or texts: nothing that makes a value grow.
fn check_parameters(tokens: &[Spanned<'_>]) -> Result<(), TemplateError> {
    let opened = tokens.iter().filter(|(token, _)| matches!(token, Token::ParenOpen)).count();
    let is_word = |token: &Token<'_>| {
        matches!(
            token,
            Token::Ident(_)
                | Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Float(_)
                | Token::Minus
        )
    };
    let is_between = |token: &Token<'_>| {
        matches!(token, Token::Comma | Token::Assign | Token::ParenOpen | Token::ParenClose)
    };
    let plain = tokens.iter().all(|(token, _)| is_word(token) || is_between(token));
    if opened == 1 && plain {
        Ok(())
    } else {
        Err(TemplateError::Unsupported("a macro's parameter with a composed default".to_owned()))
    }
}

/// Guards what stands between parentheses, brackets and braces, element by element.
fn guard_elements(tokens: &[Spanned<'_>], insertions: &mut Insertions) -> Result<(), TemplateError> {
    // For each open one: whether its elements are guarded, and where the element begins that is being read.
    let mut open: Vec<(bool, usize)> = Vec::new();
    for (at, (token, _)) in tokens.iter().enumerate() {
        match token {
            Token::ParenOpen | Token::BraceOpen => open.push((true, at + 1)),
            Token::BracketOpen => {
                let before = at.checked_sub(1).and_then(|at| tokens.get(at)).map(|(token, _)| token);
                open.push((!ends_operand(before), at + 1));
            }
            Token::ParenClose | Token::BraceClose | Token::BracketClose => {
                let Some((guards, start)) = open.pop() else {
                    return Err(TemplateError::Syntax("a bracket closes that was not opened".to_owned()));
                };
                if guards {
                    guard(&tokens[start..at], insertions);
                }
            }
            Token::Comma | Token::Colon => {
                if let Some((true, start)) = open.last_mut() {
                    guard(&tokens[*start..at], insertions);
                    *start = at + 1;
                }
            }
            // `name=` of an argument is no part of its value.
            Token::Assign => {
                if let Some((_, start)) = open.last_mut() {
                    *start = at + 1;
                }
            }
            _ => {}
        }
    }
    if open.is_empty() { Ok(()) } else { Err(TemplateError::Syntax("a bracket is not closed".to_owned())) }
}

/// Whether a bracket after this token looks into a value.
fn ends_operand(token: Option<&Token<'_>>) -> bool {
    match token {
        Some(Token::Ident(word)) => !OPERATOR_WORDS.contains(word),
        Some(
            Token::ParenClose
            | Token::BracketClose
            | Token::BraceClose
            | Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Float(_),
        ) => true,
        _ => false,
    }
}

fn insert(source: &str, mut insertions: Insertions) -> Result<String, TemplateError> {
    insertions.sort();
    let mut text = String::with_capacity(source.len() + insertions.len() * (GUARD.len() + 2));
    let mut done = 0;
    for (offset, opens) in insertions {
        let offset = offset as usize;
        let Some(part) = source.get(done..offset) else {
            return Err(TemplateError::Syntax("its tokens do not follow one another".to_owned()));
        };
        text.push_str(part);
        if opens {
            text.push('(');
        } else {
            text.push_str(")|");
            text.push_str(GUARD);
        }
        done = offset;
    }
    text.push_str(source.get(done..).unwrap_or(""));
    Ok(text)
}
