//! Small records of TLS, found in the bytes of a connection before they are opened.
//!
//! Each record is opened by itself, and what was in it is written to the hub by itself: a byte a record costs as much as 4 KiB in one, and
//! one without content is no byte that the hub could stop reading. So small ones have the pace of a link: as many a second as its steps,
//! and more for what is written to the client, which an honest one answers.

use kvasir_link::Small;

/// Finds small records from their heads alone: type, two bytes of version, two of length (RFC 8446, section 5.1). Each is a step.
#[derive(Debug, Default)]
pub(super) struct Records {
    head: [u8; HEAD],
    /// Bytes of the head that came.
    have: usize,
    /// Bytes of the record that are still to come.
    left: usize,
}

const HEAD: usize = 5;
/// Bytes below which a record is a small one.
const LITTLE: usize = 1024;
/// Records that are earned by whatever is written at once, as by a call of one row.
const EARNED_BY_A_WRITE: u64 = 4;
/// Bytes written that earn one more: a chunk of 16 KiB earns eight, and is answered by four at most.
const BYTES_THAT_EARN: u64 = 2 * 1024;

impl Small for Records {
    fn steps_in(&mut self, mut bytes: &[u8]) -> u64 {
        let mut small = 0;
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            self.head[self.have] = *first;
            self.have += 1;
            bytes = rest;
            if self.have == HEAD {
                let length = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
                small += u64::from(length < LITTLE);
                (self.have, self.left) = (0, length);
            }
        }
        small
    }

    fn earned_by(written: usize) -> u64 {
        EARNED_BY_A_WRITE + written as u64 / BYTES_THAT_EARN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(length: u16) -> Vec<u8> {
        let mut record = [&[0x17_u8, 3, 3][..], &length.to_be_bytes()].concat();
        record.resize(HEAD + usize::from(length), 0x17);
        record
    }

    #[test]
    fn small_records_are_found_however_the_bytes_are_cut() {
        let stream =
            [record(16_401), record(17), record(0), record(1_023), record(1_024), record(18)].concat();
        for cut in [1, 2, 4, 5, 6, 1_000, stream.len()] {
            let mut records = Records::default();
            let small: u64 = stream.chunks(cut).map(|part| records.steps_in(part)).sum();
            assert_eq!(small, 4, "cut by {cut}");
            assert_eq!((records.have, records.left), (0, 0));
        }
    }
}
