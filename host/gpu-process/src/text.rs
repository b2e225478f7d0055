//! The text of a shader against its limits, before any parser sees it.
//!
//! naga recurses, on the stack, over operators that hang on each other, over `else if`, over nested brackets and over declarations
//! that need each other, and an overflow ends the process. So their lengths are bounded here, from the tokens alone and never too
//! low: a chain of operators counts every operator, whatever it binds to.

use crate::constants::Constants;
use crate::error::{Count, ShaderError};
use crate::limits::ShaderLimits;
use crate::tokens::{Kind, Token, Tokens};

/// Words that no kernel needs, and why they are refused.
const REFUSED: &[(&str, &str)] = &[
    ("enable", "extensions differ from host to host"),
    ("requires", "language features differ from host to host"),
    ("diagnostic", "a shader may not silence its own checks"),
    ("override", "constants that are set later escape the checks; use `const` or the uniform buffer"),
];

/// Checks `source` against the limits that need no parser.
pub(crate) fn check(source: &str, limits: &ShaderLimits) -> Result<(), ShaderError> {
    if source.len() > limits.source_bytes {
        return Err(ShaderError::TooLong { bytes: source.len(), limit: limits.source_bytes });
    }
    let mut tokens = Tokens::new(source, limits.comment_nesting);
    let mut text = Text::new(limits);
    let (mut constants, mut line) = (Constants::default(), 1);
    while let Some(token) = tokens.next()? {
        line = token.line;
        constants.token(token.kind, text.open.is_empty());
        text.token(token)?;
    }
    text.limit(line, Count::ConstantCopies, constants.copies(), limits.constant_copies)?;
    match text.open.last() {
        Some(level) => Err(ShaderError::Unbalanced { line: level.line, bracket: level.bracket }),
        None => Ok(()),
    }
}

/// The text so far.
struct Text<'l> {
    limits: &'l ShaderLimits,
    tokens: usize,
    declarations: usize,
    functions: usize,
    statements: usize,
    /// Outside every bracket.
    outside: Level,
    /// The brackets that are open, the innermost last.
    open: Vec<Level>,
    /// Whether the last token closed a block, so that an `else` goes on with its statement.
    after_block: bool,
}

/// What stands between a bracket and its partner. Depths bound how deep a tree of what was read so far can be.
#[derive(Clone, Copy)]
struct Level {
    bracket: char,
    line: u32,
    /// Operators of the current expression or statement.
    chain: usize,
    /// Deepest bracket of the current expression or statement.
    child: usize,
    /// Deepest earlier expression or statement.
    deepest: usize,
    /// `<` of the current expression that may open template arguments, so that a comma does not end the expression.
    templates: usize,
}

impl Level {
    fn new(bracket: char, line: u32) -> Self {
        Level { bracket, line, chain: 0, child: 0, deepest: 0, templates: 0 }
    }

    fn depth(&self) -> usize {
        self.deepest.max(self.chain + self.child)
    }

    /// Ends the current expression or statement.
    fn end(&mut self) {
        self.deepest = self.depth();
        (self.chain, self.child, self.templates) = (0, 0, 0);
    }
}

impl<'l> Text<'l> {
    fn new(limits: &'l ShaderLimits) -> Self {
        Text {
            limits,
            tokens: 0,
            declarations: 0,
            functions: 0,
            statements: 0,
            outside: Level::new('\0', 1),
            open: Vec::new(),
            after_block: false,
        }
    }

    fn token(&mut self, token: Token<'_>) -> Result<(), ShaderError> {
        let Token { line, kind } = token;
        self.tokens += 1;
        self.limit(line, Count::Tokens, self.tokens, self.limits.tokens)?;
        let is_else = kind == Kind::Word("else");
        if self.after_block && !is_else {
            self.level().end();
        }
        self.after_block = false;
        match kind {
            Kind::Word(word) => self.word(line, word)?,
            Kind::Number => {}
            Kind::Mark(mark @ ('(' | '[' | '{')) => {
                if mark == '{' {
                    self.statement(line)?;
                }
                self.open.push(Level::new(mark, line));
                self.limit(line, Count::Nesting, self.open.len(), self.limits.nesting)?;
            }
            Kind::Mark(mark @ (')' | ']' | '}')) => self.close(line, mark)?,
            Kind::Mark(';') => {
                self.statement(line)?;
                self.level().end();
            }
            Kind::Mark(',') => {
                let level = self.level();
                if level.templates == 0 {
                    level.end();
                }
            }
            Kind::Mark('@' | ':') => {}
            Kind::Mark(mark) => {
                let level = self.level();
                level.chain += 1;
                match mark {
                    '<' => level.templates += 1,
                    '>' => level.templates = level.templates.saturating_sub(1),
                    _ => {}
                }
            }
        }
        let depth = self.level().depth();
        self.limit(line, Count::Depth, depth, self.limits.depth)
    }

    fn word(&mut self, line: u32, word: &str) -> Result<(), ShaderError> {
        if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == word) {
            return Err(ShaderError::Word { line, word: word.to_owned(), reason });
        }
        if word == "else" {
            self.level().chain += 1;
        }
        if word == "fn" {
            self.functions += 1;
            self.limit(line, Count::Functions, self.functions, self.limits.functions)?;
        }
        let declares = matches!(word, "fn" | "var" | "const" | "let" | "struct" | "alias" | "const_assert");
        if self.open.is_empty() && declares {
            self.declarations += 1;
            self.limit(line, Count::Declarations, self.declarations, self.limits.declarations)?;
        }
        Ok(())
    }

    fn statement(&mut self, line: u32) -> Result<(), ShaderError> {
        self.statements += 1;
        self.limit(line, Count::Statements, self.statements, self.limits.statements)
    }

    fn close(&mut self, line: u32, mark: char) -> Result<(), ShaderError> {
        let partner = match mark {
            ')' => '(',
            ']' => '[',
            _ => '{',
        };
        let Some(closed) = self.open.pop().filter(|level| level.bracket == partner) else {
            return Err(ShaderError::Unbalanced { line, bracket: mark });
        };
        self.after_block = mark == '}';
        let level = self.level();
        level.child = level.child.max(closed.depth() + 1);
        if mark != '}' {
            // An index or a call hangs on what stands before it.
            level.chain += 1;
        }
        Ok(())
    }

    /// The innermost open bracket, or what is outside all.
    fn level(&mut self) -> &mut Level {
        self.open.last_mut().unwrap_or(&mut self.outside)
    }

    fn limit(&self, line: u32, count: Count, found: usize, limit: usize) -> Result<(), ShaderError> {
        if found > limit { Err(ShaderError::TooMany { line, count, limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(source: &str) -> &'static str {
        check(source, &ShaderLimits::default()).map_or_else(|error| error.code(), |()| "accepted")
    }

    /// The depth that the text is counted to have, found through the limit.
    fn depth(source: &str) -> usize {
        let fits = |depth: usize| check(source, &ShaderLimits { depth, ..ShaderLimits::default() }).is_ok();
        (0..).find(|&depth| fits(depth)).unwrap()
    }

    #[test]
    fn depths_count_all_that_hangs_together() {
        for (source, expected) in [
            ("", 0),
            ("f(a, b, c);", 2),
            ("a + b * c;", 2),
            ("a + b; a + b; a + b;", 1),
            ("((a));", 4),
            ("((a + b) + c) + d;", 7),
            ("a[0][0][0].x;", 5),
            ("f(a + b, c + d, e + f);", 3),
            ("array<array<array<u32, 4>, 4>, 4>", 6),
            ("array<u32, array<u32, array<u32, 4>>>", 6),
            ("1.5 1.x", 1),
            ("{ x; }", 1),
            ("{ if a { b; } else if c { d; } else { e; } }", 4),
            ("{ if a { b; } if c { d; } }", 2),
        ] {
            assert_eq!(depth(source), expected, "{source}");
        }
    }

    #[test]
    fn comments_hide_nothing_and_count_nothing() {
        assert_eq!(depth("/* a + b + c */ // d + e\n/* /* ( */ [ */"), 0);
        assert_eq!(refusal("// a\renable f16;"), "word");
        assert_eq!(refusal("// a\u{2028}enable f16;"), "character");
        assert_eq!(refusal("/**/enable f16;/**/"), "word");
        assert_eq!(refusal("/*/ enable f16; /*/"), "open-comment");
        assert_eq!(refusal("/*/ enable f16; */"), "accepted");
        assert_eq!(refusal("// größer, 大きい\n"), "accepted");
        assert_eq!(refusal("// \u{202e}\n"), "character");
        assert_eq!(refusal("\u{feff}fn main() {}"), "character");
        assert_eq!(refusal("größe"), "character");
        assert_eq!(refusal("a\u{0}"), "character");
        let nested = |depth: usize| format!("{}{}", "/*".repeat(depth), "*/".repeat(depth));
        assert_eq!(refusal(&nested(9)), "accepted");
        assert_eq!(refusal(&nested(10)), "comment-nesting");
    }

    #[test]
    fn brackets_are_balanced() {
        for source in ["(", ")", "(]", "{(})", "f(a[1);"] {
            assert_eq!(refusal(source), "unbalanced", "{source}");
        }
        let error = check("fn f() {\n\n(\n}", &ShaderLimits::default()).unwrap_err();
        assert_eq!(error, ShaderError::Unbalanced { line: 4, bracket: '}' });
    }

    #[test]
    fn every_limit_is_met_and_passed() {
        let limits = ShaderLimits {
            source_bytes: 40,
            tokens: 12,
            nesting: 3,
            declarations: 2,
            functions: 1,
            statements: 3,
            ..ShaderLimits::default()
        };
        let code = |source: &str| check(source, &limits).map_or_else(|error| error.code(), |()| "accepted");
        for (met, passed, expected) in [
            (" ".repeat(40), " ".repeat(41), "too-long"),
            ("a ".repeat(12), "a ".repeat(13), "tokens"),
            ("((()))".into(), "(((())))".into(), "nesting"),
            ("var var".into(), "var var alias".into(), "declarations"),
            ("fn".into(), "fn fn".into(), "functions"),
            (";;{}".into(), ";;;;".into(), "statements"),
        ] {
            assert_eq!(code(&met), "accepted", "{met}");
            assert_eq!(code(&passed), expected, "{passed}");
        }
    }
}
