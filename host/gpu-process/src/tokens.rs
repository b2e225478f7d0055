//! WGSL text -> tokens, for counting alone. Simpler and stricter than WGSL's own lexer, and never behind it: whatever that one
//! would see as a token, this one sees as one or more. Where the two could disagree (characters that end a comment in one and not
//! in the other), the text is refused.

use crate::error::{Count, ShaderError};

/// One token and the line it begins on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// Counts from 1.
    pub line: u32,
    /// What it is.
    pub kind: Kind<'a>,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// A name or a word of the language.
    Word(&'a str),
    /// A number with its suffix; a sign or a dot between digits may be separate.
    Number,
    /// One character of punctuation. Operators of several characters are several tokens.
    Mark(char),
}

/// Reads tokens one after the other; comments and white space are skipped.
pub(crate) struct Tokens<'a> {
    rest: &'a str,
    line: u32,
    comment_nesting: usize,
}

impl<'a> Tokens<'a> {
    /// Reads `source`; comments may nest `comment_nesting` deep inside a comment.
    pub fn new(source: &'a str, comment_nesting: usize) -> Self {
        Tokens { rest: source, line: 1, comment_nesting }
    }

    /// The next token, or `None` at the end.
    pub fn next(&mut self) -> Result<Option<Token<'a>>, ShaderError> {
        loop {
            let Some(first) = self.rest.chars().next() else { return Ok(None) };
            let line = self.line;
            let length = match first {
                '\n' | '\r' | ' ' | '\t' => {
                    self.white(first);
                    continue;
                }
                '/' if self.rest.starts_with("//") => {
                    self.line_comment()?;
                    continue;
                }
                '/' if self.rest.starts_with("/*") => {
                    self.block_comment()?;
                    continue;
                }
                'a'..='z' | 'A'..='Z' | '_' => self.run(0),
                '0'..='9' => self.number(),
                '!'..='~' => 1,
                _ => return Err(ShaderError::Character { line, character: first }),
            };
            let (text, rest) = self.rest.split_at(length);
            self.rest = rest;
            let kind = match first {
                'a'..='z' | 'A'..='Z' | '_' => Kind::Word(text),
                '0'..='9' => Kind::Number,
                mark => Kind::Mark(mark),
            };
            return Ok(Some(Token { line, kind }));
        }
    }

    /// Length of the letters, digits and `_` from byte `start` on, `start` included.
    fn run(&self, start: usize) -> usize {
        let rest = self.rest.as_bytes().get(start..).unwrap_or_default();
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        start + rest.iter().position(|byte| !word(byte)).unwrap_or(rest.len())
    }

    /// Digits, and a fraction if a digit follows the dot: `1.x` is a number and a member.
    fn number(&self) -> usize {
        let whole = self.run(0);
        match self.rest.as_bytes().get(whole..) {
            Some([b'.', b'0'..=b'9', ..]) => self.run(whole + 1),
            _ => whole,
        }
    }

    /// Skips one character of white space. A carriage return ends a line by itself too, as it does for WGSL.
    fn white(&mut self, character: char) {
        if character == '\n' {
            self.line += 1;
        }
        self.rest = &self.rest[1..];
    }

    fn line_comment(&mut self) -> Result<(), ShaderError> {
        for (index, character) in self.rest.char_indices() {
            if matches!(character, '\n' | '\r') {
                self.rest = &self.rest[index..];
                return Ok(());
            }
            self.in_comment(character)?;
        }
        self.rest = "";
        Ok(())
    }

    fn block_comment(&mut self) -> Result<(), ShaderError> {
        let begin = self.line;
        let (mut index, mut open) = (0, 0usize);
        while let Some(character) = self.rest[index..].chars().next() {
            let rest = &self.rest[index..];
            if rest.starts_with("/*") {
                open += 1;
                if open > self.comment_nesting + 1 {
                    let limit = self.comment_nesting;
                    return Err(ShaderError::TooMany {
                        line: self.line,
                        count: Count::CommentNesting,
                        limit,
                    });
                }
                index += 2;
            } else if rest.starts_with("*/") {
                open -= 1;
                index += 2;
                if open == 0 {
                    self.rest = &self.rest[index..];
                    return Ok(());
                }
            } else {
                self.in_comment(character)?;
                if character == '\n' {
                    self.line += 1;
                }
                index += character.len_utf8();
            }
        }
        Err(ShaderError::OpenComment { line: begin })
    }

    /// People may write their language in comments. Not what ends a line for some readers only, and not what makes the text look
    /// other than it is.
    fn in_comment(&self, character: char) -> Result<(), ShaderError> {
        let hidden = match character {
            '\t' | '\n' | '\r' => false,
            '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => true,
            _ => character.is_control(),
        };
        if hidden { Err(ShaderError::Character { line: self.line, character }) } else { Ok(()) }
    }
}
