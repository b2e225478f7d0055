//! Places where a text may be cut so that the tokens of the pieces, one after another, are the tokens of the whole.
//!
//! Tokens never reach across the matches of Qwen3.5's splitting expression, so a cut is sound where no match lies across
//! it, whatever surrounds it, and where the match before it would end there without what follows. The expression's
//! alternatives allow these:
//! - after a line feed, before anything but white space: an alternative that takes line feeds takes nothing after them
//!   but white space, and one of a run that ends in a line feed ends there with or without what follows;
//! - before a space, after anything but white space: none takes a space after another thing than white space;
//! - between a digit and a letter or digit: a digit stands alone;
//! - between a letter and East Asian punctuation, which begins a match of its own.
//!
//! Added tokens are found in the text before it is split; texts are only cut where none of them can lie across a cut,
//! which is so when their texts hold no white space, digits or East Asian text and take no white space along.

use super::AddedToken;

/// Whether texts may be cut for all that these added tokens do.
pub(super) fn may_be_cut(added: &AddedToken, text: &str) -> bool {
    !added.strip_left
        && !added.strip_right
        && !added.single_word
        && text.chars().all(|character| character.is_ascii() && !character.is_whitespace())
        && !text.as_bytes().windows(2).any(|pair| {
            (pair[0].is_ascii_digit() && pair[1].is_ascii_alphanumeric())
                || (pair[0].is_ascii_alphabetic() && pair[1].is_ascii_digit())
        })
}

/// Length of the first piece of `text`: cut at or after `least` bytes, or the whole text.
pub(super) fn piece(text: &str, least: usize) -> usize {
    let mut start = least.min(text.len());
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let mut before = text[..start].chars().next_back();
    for (at, after) in text[start..].char_indices() {
        if before.is_some_and(|before| may_cut(before, after)) {
            return start + at;
        }
        before = Some(after);
    }
    text.len()
}

fn may_cut(before: char, after: char) -> bool {
    let letter = before.is_ascii_alphabetic() || is_east_asian(before);
    match after {
        ' ' => !before.is_whitespace() && !before.is_control(),
        '，' | '。' | '、' | '！' | '？' | '：' | '；' => letter,
        _ if before == '\n' => !after.is_whitespace() && !after.is_control(),
        _ => {
            (before.is_ascii_digit() && after.is_ascii_alphanumeric())
                || (before.is_ascii_alphabetic() && after.is_ascii_digit())
        }
    }
}

/// Ideographs, kana and Hangul syllables: letters.
fn is_east_asian(character: char) -> bool {
    matches!(character, 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '一'..='鿋' | '가'..='힣')
}
