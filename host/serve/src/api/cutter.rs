//! Bytes of tokens to text for the client: characters leave whole, and nothing leaves that may be the beginning of a
//! stop string.
//!
//! The text is defined on all bytes together, however they are cut into tokens: they are decoded, bytes that are no
//! UTF-8 become U+FFFD, and the text ends before the stop string that is complete first, before the longest one where
//! several are complete at the same place. The property test below holds the cutter to that.

use std::sync::Arc;

/// Turns one text's bytes into the text that may be shown.
#[derive(Debug)]
pub(super) struct Cutter {
    stops: Arc<[String]>,
    /// Bytes of a character that is not whole: at most three.
    pending: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
    /// Bytes of text that have left.
    released: usize,
    /// Characters of text that have left.
    released_characters: usize,
    stopped: bool,
}

impl Cutter {
    /// Stop strings must not be empty; empty ones stop nothing.
    pub(super) fn new(stops: Arc<[String]>) -> Cutter {
        Cutter {
            stops,
            pending: Vec::new(),
            held: String::new(),
            released: 0,
            released_characters: 0,
            stopped: false,
        }
    }

    /// Adds the bytes of a token. Returns what may be shown of the text by now. After a stop nothing comes any more.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        if self.stopped {
            return String::new();
        }
        let before = self.held.len();
        self.decode(bytes);
        if self.cut(before) {
            return self.release(0);
        }
        self.release(self.longest_beginning())
    }

    /// Ends the text: half a character becomes U+FFFD, and what was held back is shown.
    pub(super) fn finish(&mut self) -> String {
        let before = self.held.len();
        if !self.pending.is_empty() && !self.stopped {
            self.pending.clear();
            self.held.push(char::REPLACEMENT_CHARACTER);
            self.cut(before);
        }
        self.release(0)
    }

    /// Whether a stop string was found.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Bytes of text that have left.
    pub(super) fn released(&self) -> usize {
        self.released
    }

    /// Bytes of text decoded by now, held ones included, and one more where a character is not whole: no token that
    /// reaches as far has wholly left before `released` is as large.
    pub(super) fn reach(&self) -> usize {
        self.released + self.held.len() + usize::from(!self.pending.is_empty())
    }

    /// Characters of text decoded by now, held ones included.
    pub(super) fn characters(&self) -> usize {
        self.released_characters + self.held.chars().count()
    }

    fn decode(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    self.held.push_str(whole);
                    return;
                }
                Err(error) => {
                    let (whole, after) = rest.split_at(error.valid_up_to());
                    self.held.push_str(&String::from_utf8_lossy(whole));
                    let Some(wrong) = error.error_len() else {
                        self.pending = after.to_vec();
                        return;
                    };
                    self.held.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[wrong..];
                }
            }
        }
    }

    /// Cuts the held text before the first stop string that ends behind its byte `from`.
    fn cut(&mut self, from: usize) -> bool {
        let held = self.held.as_bytes();
        let found = (from + 1..=held.len()).find_map(|end| {
            let stops = self.stops.iter().filter(|stop| !stop.is_empty());
            let found = stops.filter(|stop| held[..end].ends_with(stop.as_bytes())).map(String::len).max();
            found.map(|length| end - length)
        });
        if let Some(start) = found {
            self.held.truncate(start);
            self.stopped = true;
        }
        self.stopped
    }

    /// Bytes at the end of the held text that are the beginning of a stop string.
    fn longest_beginning(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = |stop: &String| {
            let most = held.len().min(stop.len().saturating_sub(1));
            (1..=most).rev().find(|&length| held.ends_with(&stop.as_bytes()[..length]))
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }

    /// Lets all of the held text go but its last `keep` bytes. They begin a stop string, so a character begins there.
    fn release(&mut self, keep: usize) -> String {
        let kept = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, kept);
        self.released += text.len();
        self.released_characters += text.chars().count();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the module's head says, the plain way: on the whole text, and by its characters.
    fn by_definition(bytes: &[u8], stops: &[String]) -> (String, bool) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let longest =
                stops.iter().filter(|stop| text[..end].ends_with(*stop)).max_by_key(|stop| stop.len());
            if let Some(stop) = longest {
                return (text[..end - stop.len()].to_owned(), true);
            }
        }
        (text, false)
    }

    fn cut<'a>(tokens: impl IntoIterator<Item = &'a [u8]>, stops: &[String]) -> (String, bool) {
        let mut cutter = Cutter::new(stops.to_vec().into());
        let mut text = String::new();
        for token in tokens {
            text.push_str(&cutter.push(token));
            assert_eq!(cutter.released(), text.len());
        }
        text.push_str(&cutter.finish());
        (text, cutter.is_stopped())
    }

    fn stops(stops: &[&str]) -> Vec<String> {
        stops.iter().map(|stop| (*stop).to_owned()).collect()
    }

    #[test]
    fn what_may_become_a_stop_waits_and_what_cannot_any_more_leaves() {
        let mut cutter = Cutter::new(stops(&["\n\nQ:"]).into());
        assert_eq!(cutter.push(b"one\n"), "one");
        assert_eq!(cutter.push(b"\nQ"), "");
        assert_eq!(cutter.push(b"u"), "\n\nQu");
        assert_eq!(cutter.push(b"\n\n"), "");
        assert_eq!(cutter.push(b"\nQ:more"), "\n");
        assert!(cutter.is_stopped());
        assert_eq!((cutter.push(b"x"), cutter.finish()), (String::new(), String::new()));
    }

    #[test]
    fn the_stop_that_is_complete_first_wins_and_the_longest_of_several() {
        assert_eq!(cut([&b"abcd"[..]], &stops(&["bcd", "c"])), ("ab".into(), true));
        assert_eq!(cut([&b"abc"[..]], &stops(&["c", "bc"])), ("a".into(), true));
        assert_eq!(cut([&b"aa"[..], b"ab"], &stops(&["aab"])), ("a".into(), true));
    }

    #[test]
    fn characters_leave_whole() {
        let mut cutter = Cutter::new(Vec::<String>::new().into());
        assert_eq!(cutter.push(&[0xc3]), "");
        assert_eq!((cutter.reach(), cutter.released()), (1, 0));
        assert_eq!(cutter.push(&[0xa9, 0xe2, 0x82]), "é");
        assert_eq!(cutter.push(&[0xff]), "\u{fffd}\u{fffd}");
        assert_eq!(cutter.push(&[0xf0, 0x9f]), "");
        assert_eq!(cutter.finish(), "\u{fffd}");
        // A stop string that lies across two tokens in the middle of a character.
        assert_eq!(cut([&[b'a', 0xc3][..], &[0xa9, b'b']], &stops(&["é"])), ("a".into(), true));
        assert_eq!(cut([&[b'a', 0xc3][..]], &stops(&["\u{fffd}"])), ("a".into(), true));
    }

    /// Few letters, so that stop strings occur, overlap and nearly occur; and bytes that are no UTF-8.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            6 => "[ab\\n]{1,4}".prop_map(String::into_bytes),
            2 => "[é€𝄞\u{fffd}]".prop_map(String::into_bytes),
            1 => proptest::collection::vec(any::<u8>(), 1..3),
        ];
        proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn any_cut_into_tokens_gives_the_text_of_the_whole(
            bytes in bytes(),
            stops in proptest::collection::vec("[abé\\n\u{fffd}]{1,4}", 0..4),
            borders in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
        ) {
            let mut borders: Vec<usize> = borders.iter().map(|border| border.index(bytes.len() + 1)).collect();
            borders.extend([0, bytes.len()]);
            borders.sort_unstable();
            let tokens = borders.windows(2).map(|border| &bytes[border[0]..border[1]]);
            let expected = by_definition(&bytes, &stops);
            prop_assert_eq!(&cut(tokens, &stops), &expected);
            prop_assert_eq!(&cut(bytes.chunks(1), &stops), &expected);
            prop_assert_eq!(&cut([&bytes[..]], &stops), &expected);
        }
    }
}
