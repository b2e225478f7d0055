//! Small fragments of WebSocket messages, found in the bytes of a connection.
//!
//! A message may come in any number of fragments (RFC 6455, section 5.4), and one without payload is six bytes: the library below puts
//! them together, and who reads messages sees none of it before the last one came. Our ends send no fragments; a proxy that makes some of
//! a message makes large ones, which cost nothing here.

use crate::pace::LITTLE;
use crate::paced::Small;

/// Finds small fragments behind an upgrade, from the heads of the frames alone: each is a step, and nothing is earned.
#[derive(Debug, Default)]
pub struct Fragments {
    head: [u8; LONGEST_HEAD],
    /// Bytes of the head that came.
    have: usize,
    /// Bytes of payload that are still to come.
    payload: u64,
}

/// Two bytes, eight of length, four of mask.
const LONGEST_HEAD: usize = 14;
const FINAL: u8 = 0x80;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;

impl Small for Fragments {
    fn steps_in(&mut self, mut bytes: &[u8]) -> u64 {
        let mut small = 0;
        while let Some((first, rest)) = bytes.split_first() {
            if self.payload > 0 {
                // No more than there are.
                let passed = self.payload.min(bytes.len() as u64);
                self.payload -= passed;
                bytes = &bytes[passed as usize..];
                continue;
            }
            self.head[self.have] = *first;
            self.have += 1;
            bytes = rest;
            if let Some(payload) = self.whole() {
                let is_fragment = self.head[0] & FINAL == 0 || self.head[0] & OPCODE == 0;
                small += u64::from(is_fragment && payload < LITTLE);
                (self.have, self.payload) = (0, payload);
            }
        }
        small
    }

    fn earned_by(_: usize) -> u64 {
        0
    }
}

impl Fragments {
    /// The length of the payload, once the head is there.
    fn whole(&self) -> Option<u64> {
        let [_, second, length @ ..] = &self.head;
        let mask = if second & MASKED == 0 { 0 } else { 4 };
        let (extended, payload) = match second & !MASKED {
            126 => (2, u64::from(u16::from_be_bytes([length[0], length[1]]))),
            127 => {
                let [a, b, c, d, e, f, g, h, ..] = *length;
                (8, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
            short => (0, u64::from(short)),
        };
        (self.have >= 2 && self.have == 2 + extended + mask).then_some(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of a client's whose mask is zeros.
    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut frame = match payload {
            0..=125 => vec![first, MASKED | payload as u8],
            126..=65_535 => [&[first, MASKED | 126][..], &(payload as u16).to_be_bytes()].concat(),
            _ => [&[first, MASKED | 127][..], &(payload as u64).to_be_bytes()].concat(),
        };
        frame.extend([0; 4]);
        frame.resize(frame.len() + payload, 0x82);
        frame
    }

    #[test]
    fn small_fragments_are_found_however_the_bytes_are_cut() {
        let stream = [
            frame(0x82, 70_000),
            frame(0x89, 0),
            frame(0x02, 10),
            frame(0x00, 0),
            frame(0x8a, 125),
            frame(0x00, 300),
            frame(0x00, 5_000),
            frame(0x80, 1),
            frame(0x82, 40),
            // Of a client that does not mask.
            vec![0x00, 3, 1, 2, 3],
        ]
        .concat();
        for cut in [1, 2, 3, 7, 1_000, stream.len()] {
            let mut fragments = Fragments::default();
            let small: u64 = stream.chunks(cut).map(|part| fragments.steps_in(part)).sum();
            assert_eq!(small, 5, "cut by {cut}");
            assert_eq!((fragments.have, fragments.payload), (0, 0));
        }
        let mut fragments = Fragments::default();
        let endless = [&[0x00, MASKED | 127][..], &[0xff; 8], &[0; 4]].concat();
        assert_eq!((fragments.steps_in(&endless), fragments.payload), (0, u64::MAX));
    }
}
