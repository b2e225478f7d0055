//! Byte-level spelling: every byte has a visible character, and vocabularies spell tokens in those characters.
//! Bytes that are printable in Latin-1 stand for themselves, the others for U+0100 onwards in ascending order.

/// The character that stands for `byte`.
pub(super) fn character(byte: u8) -> char {
    if stands_for_itself(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|&before| !stands_for_itself(before)).count() as u32;
    char::from_u32(0x100 + place).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that `character` stands for.
fn byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => (0..=255u8).filter(|&byte| !stands_for_itself(byte)).nth((code - 0x100) as usize),
    }
}

/// The bytes of an ordinary token. A token that holds a character without a byte is its own UTF-8, as in `tokenizers`.
pub(super) fn of_token(text: &str) -> Box<[u8]> {
    let spelt: Option<Vec<u8>> = text.chars().map(byte).collect();
    spelt.unwrap_or_else(|| text.as_bytes().to_vec()).into_boxed_slice()
}

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        for value in 0..=255u8 {
            assert_eq!(byte(character(value)), Some(value));
        }
        assert_eq!(character(b' '), 'Ġ');
        assert_eq!(character(b'\n'), 'Ċ');
        assert_eq!(byte('\u{ad}'), None);
        assert_eq!(byte('€'), None);
        assert_eq!(&*of_token("Ġan"), b" an");
        assert_eq!(&*of_token("a b"), b"a b");
    }

    #[test]
    fn the_alphabet_is_that_of_the_library() {
        let ours: std::collections::BTreeSet<char> = (0..=255).map(character).collect();
        let theirs = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
        assert_eq!(ours, theirs);
    }
}
