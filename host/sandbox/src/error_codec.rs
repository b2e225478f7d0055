//! A failure as bytes, for the way out of the process in which a kernel runs. Who reads it believes nothing of it: any bytes give
//! a failure or none, and every text is cut and cleaned.

use std::time::Duration;

use crate::error::{Fault, SandboxError};

/// Longest text in bytes.
const MAX_TEXT_BYTES: usize = 1 << 10;
/// The contract's calls, by number.
const CALLS: [&str; 4] = ["instantiate", "load", "forward", "unload"];
/// What a scan measures, by number.
const MEASURES: [&str; 10] = [
    "nested modules",
    "nesting depth",
    "functions",
    "initial memory",
    "table elements",
    "data segments",
    "data segment bytes",
    "function bytes",
    "locals",
    "block depth",
];
/// Kind, word and three numbers before the text.
const HEADER_BYTES: usize = 2 + 3 * 8;

impl SandboxError {
    /// As bytes, `most` at the most.
    pub fn encode(&self, most: usize) -> Vec<u8> {
        use SandboxError::*;
        let (kind, word, numbers, text): (u8, &str, [u64; 3], &str) = match self {
            Invalid { offset, reason } => (1, "", [*offset as u64, 0, 0], reason),
            OverLimit { what, value, limit, offset } => (2, what, [*value, *limit, *offset as u64], ""),
            Import { name } => (3, "", [0; 3], name),
            RelaxedOperator { operator, offset } => (4, "", [*offset as u64, 0, 0], operator),
            StartFunction { offset } => (5, "", [*offset as u64, 0, 0], ""),
            WrongWorld { world, reason } => (6, "", [world.len() as u64, 0, 0], reason),
            Compile { reason } => (7, "", [0; 3], reason),
            Precompiled => (8, "", [0; 3], ""),
            OutOfFuel { call, fuel } => (9, call, [*fuel, 0, 0], ""),
            Deadline { call, deadline } => {
                (10, call, [u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX), 0, 0], "")
            }
            Memory { call, wanted, limit } => (11, call, [*wanted, *limit, 0], ""),
            StackOverflow { call, limit } => (12, call, [*limit as u64, 0, 0], ""),
            Trap { call, reason } => (13, call, [0; 3], reason),
            BrokenContract { call, reason } => (14, call, [0; 3], reason),
            WrongLength { found, expected } => (15, "", [*found as u64, *expected as u64, 0], ""),
            Fault { call, fault } => match fault {
                self::Fault::Unsupported(text) => (16, call, [0; 3], text),
                self::Fault::MalformedWeights => (16, call, [1, 0, 0], ""),
                self::Fault::MalformedRows => (16, call, [2, 0, 0], ""),
                self::Fault::NotFinite => (16, call, [3, 0, 0], ""),
            },
            NotFinite { index } => (17, "", [*index as u64, 0, 0], ""),
            Poisoned { first } => (18, "", [0; 3], first),
            // The caller's own mistakes, and worlds, which do not reach the process.
            ForeignHandle | Shape { .. } | Contract(_) | Engine { .. } => {
                (19, "", [0; 3], "the sandbox failed")
            }
        };
        let place = |word: &str| CALLS.iter().chain(&MEASURES).position(|known| *known == word);
        let mut bytes = vec![kind, place(word).map_or(u8::MAX, |place| place as u8)];
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        // What another failure said goes with it as text.
        let text = match self {
            WrongWorld { world, .. } => format!("{world}{text}"),
            _ if kind == 19 => self.to_string(),
            _ => text.to_owned(),
        };
        bytes.extend_from_slice(text.as_bytes());
        bytes.truncate(most.min(HEADER_BYTES + MAX_TEXT_BYTES));
        bytes
    }

    /// From such bytes; `None` where they are none.
    pub fn decode(bytes: &[u8]) -> Option<SandboxError> {
        use SandboxError::*;
        let (header, text) = bytes.split_at_checked(HEADER_BYTES)?;
        let text = text.get(..text.len().min(MAX_TEXT_BYTES))?;
        let text: String = String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).collect();
        let word = usize::from(header[1]);
        let call = CALLS.get(word).copied();
        let what = word.checked_sub(CALLS.len()).and_then(|place| MEASURES.get(place)).copied();
        let numbers = header.get(2..)?.as_chunks::<8>().0;
        let [first, second, third] = *numbers else { return None };
        let [first, second, third] = [first, second, third].map(u64::from_le_bytes);
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Some(match header[0] {
            1 => Invalid { offset: size(first), reason: text },
            2 => OverLimit { what: what?, value: first, limit: second, offset: size(third) },
            3 => Import { name: text },
            4 => RelaxedOperator { operator: text, offset: size(first) },
            5 => StartFunction { offset: size(first) },
            6 => {
                let (world, reason) = text.split_at_checked(usize::try_from(first).ok()?)?;
                WrongWorld { world: world.to_owned(), reason: reason.to_owned() }
            }
            7 => Compile { reason: text },
            8 => Precompiled,
            9 => OutOfFuel { call: call?, fuel: first },
            10 => Deadline { call: call?, deadline: Duration::from_nanos(first) },
            11 => Memory { call: call?, wanted: first, limit: second },
            12 => StackOverflow { call: call?, limit: size(first) },
            13 => Trap { call: call?, reason: text },
            14 => BrokenContract { call: call?, reason: text },
            15 => WrongLength { found: size(first), expected: size(second) },
            16 => {
                let fault = match first {
                    0 => self::Fault::Unsupported(text),
                    1 => self::Fault::MalformedWeights,
                    2 => self::Fault::MalformedRows,
                    3 => self::Fault::NotFinite,
                    _ => return None,
                };
                Fault { call: call?, fault }
            }
            17 => NotFinite { index: size(first) },
            18 => Poisoned { first: text },
            19 => Engine { reason: text },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4096;

    #[test]
    fn every_failure_arrives_as_it_was() {
        use SandboxError::*;
        let reason = || "out of bounds".to_owned();
        let mut all = vec![
            Invalid { offset: 3, reason: reason() },
            Import { name: "wasi:io/poll".to_owned() },
            RelaxedOperator { operator: "f32x4.relaxed_madd".to_owned(), offset: 9 },
            StartFunction { offset: 8 },
            WrongWorld { world: "kvasir:expert/expert-kernel@0.1.0".to_owned(), reason: reason() },
            Compile { reason: reason() },
            Precompiled,
            WrongLength { found: 1, expected: 2 },
            NotFinite { index: 4 },
            Poisoned { first: reason() },
            Engine { reason: reason() }.clone(),
        ];
        all.extend(MEASURES.map(|what| OverLimit { what, value: u64::MAX, limit: 1, offset: 2 }));
        for call in CALLS {
            all.extend([
                OutOfFuel { call, fuel: 5 },
                Deadline { call, deadline: Duration::from_millis(7) },
                Memory { call, wanted: 6, limit: 5 },
                StackOverflow { call, limit: 512 },
                Trap { call, reason: reason() },
                BrokenContract { call, reason: reason() },
            ]);
            for fault in [
                self::Fault::Unsupported(reason()),
                self::Fault::MalformedWeights,
                self::Fault::MalformedRows,
                self::Fault::NotFinite,
            ] {
                all.push(Fault { call, fault });
            }
        }
        for error in all {
            let found = SandboxError::decode(&error.encode(MOST));
            match &error {
                // The host's own: what it said goes along as text.
                Engine { .. } => assert!(found.unwrap().to_string().contains("out of bounds")),
                _ => assert_eq!(found, Some(error)),
            }
        }
    }

    #[test]
    fn any_bytes_are_a_failure_or_none_and_texts_are_plain_and_short() {
        for kind in 0..=255u8 {
            for word in [0, 3, 4, 13, 14, 255] {
                let mut bytes = vec![kind, word];
                bytes.extend_from_slice(&[0xff; 24]);
                bytes.extend_from_slice(&b"\x1b[31m\xff".repeat(2000));
                if let Some(error) = SandboxError::decode(&bytes) {
                    let text = error.to_string();
                    assert!(text.len() < 8 * MAX_TEXT_BYTES && !text.contains('\u{1b}'), "{kind} {word}");
                }
                for length in 0..HEADER_BYTES {
                    assert_eq!(SandboxError::decode(&bytes[..length]), None);
                }
            }
        }
        let long = SandboxError::Compile { reason: "x".repeat(1 << 20) };
        assert_eq!(long.encode(100).len(), 100);
        assert!(SandboxError::decode(&long.encode(MOST)).is_some());
    }
}
