//! Policies (C2SP tlog-policy): which logs are trusted, and which witnesses must have cosigned their heads. Stricter than C2SP
//! in two points: everything is ASCII, and at least one log is named.
//!
//! ```text
//! # comment
//! log <vkey> [<url>]
//! witness <name> <vkey> [<url>]
//! group <name> all|any|<k> <name>...
//! quorum <name>|none
//! ```

use std::collections::{HashMap, HashSet};

use kvasir_wire::note::{Note, NoteError, Verifier, canonical_number};
use thiserror::Error;

use super::checkpoint::{CheckpointError, SignedCheckpoint};
use super::cosignature::{Cosignature, CosignatureError, CosignerKey};

/// Longest policy file.
pub const MAX_POLICY_BYTES: usize = 64 * 1024;
/// Most lines of a policy file.
pub const MAX_POLICY_LINES: usize = 1024;

/// Logs and the quorum of witnesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    logs: Vec<(Verifier, Option<String>)>,
    witnesses: Vec<(String, CosignerKey, Option<String>)>,
    groups: Vec<Group>,
    quorum: Option<Member>,
}

/// The witnesses that cosigned, in the policy's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quorum {
    /// Name in the policy, and the cosignature.
    pub cosigned: Vec<(String, Cosignature)>,
}

/// Why a text is no policy, or a head does not satisfy it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// More than [`MAX_POLICY_BYTES`] or [`MAX_POLICY_LINES`].
    #[error("a policy has at most {MAX_POLICY_BYTES} bytes and {MAX_POLICY_LINES} lines")]
    TooLong,
    /// A line that is none of the four kinds.
    #[error("line {line} of the policy: {reason}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// No log, or not exactly one `quorum` line.
    #[error("a policy names at least one log and has exactly one quorum line")]
    Incomplete,
    /// The checkpoint is not one of a log of the policy.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A cosignature of a known witness is wrong.
    #[error(transparent)]
    Cosignature(#[from] CosignatureError),
    /// Too few witnesses.
    #[error("the quorum `{quorum}` is not reached: cosigned by {cosigned} of {known} witnesses")]
    NoQuorum {
        /// The quorum's name.
        quorum: String,
        /// Witnesses of the policy that cosigned.
        cosigned: usize,
        /// Witnesses in the policy.
        known: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Member {
    Witness(usize),
    Group(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    name: String,
    needed: usize,
    members: Vec<Member>,
}

impl Policy {
    /// One log, no witnesses.
    pub fn of_log(log: Verifier) -> Self {
        Self { logs: vec![(log, None)], witnesses: Vec::new(), groups: Vec::new(), quorum: None }
    }

    /// Reads a policy file.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        // Not `lines()`, which takes carriage returns away.
        let lines = || text.strip_suffix('\n').unwrap_or(text).split('\n');
        if text.len() > MAX_POLICY_BYTES || lines().count() > MAX_POLICY_LINES {
            return Err(PolicyError::TooLong);
        }
        let mut policy = Self { logs: Vec::new(), witnesses: Vec::new(), groups: Vec::new(), quorum: None };
        let (mut names, mut quorum_lines) = (HashMap::new(), 0);
        for (index, line) in lines().enumerate() {
            policy
                .take_line(line, &mut names, &mut quorum_lines)
                .map_err(|reason| PolicyError::Line { line: index + 1, reason })?;
        }
        if policy.logs.is_empty() || quorum_lines != 1 {
            return Err(PolicyError::Incomplete);
        }
        Ok(policy)
    }

    /// The logs, with their addresses where the policy tells them.
    pub fn logs(&self) -> impl Iterator<Item = (&Verifier, Option<&str>)> {
        self.logs.iter().map(|(log, url)| (log, url.as_deref()))
    }

    /// The witnesses: name, key, address.
    pub fn witnesses(&self) -> impl Iterator<Item = (&str, &CosignerKey, Option<&str>)> {
        self.witnesses.iter().map(|(name, key, url)| (name.as_str(), key, url.as_deref()))
    }

    /// Reads a checkpoint of one of the logs and checks that the quorum cosigned it.
    pub fn verify(&self, bytes: &[u8]) -> Result<(SignedCheckpoint, Quorum), PolicyError> {
        let note = Note::parse(bytes).map_err(CheckpointError::from)?;
        let named = |log: &&(Verifier, _)| note.text().split('\n').next() == Some(log.0.name().as_str());
        // More than one key for an origin: one of them has to have signed, and none wrongly.
        let mut last = CheckpointError::from(NoteError::NotSigned);
        for (log, _) in self.logs.iter().filter(named) {
            match SignedCheckpoint::verify(bytes, log) {
                Ok(checkpoint) => return self.quorum(&note).map(|quorum| (checkpoint, quorum)),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    /// Whether these bytes are a note in the name of one of the logs, whoever signed it. Anything else says nothing about them.
    pub fn is_named_by(&self, bytes: &[u8]) -> bool {
        let first = |note: &Note| note.text().split('\n').next().map(str::to_owned);
        let named = Note::parse(bytes).ok().as_ref().and_then(first);
        self.logs.iter().any(|(log, _)| named.as_deref() == Some(log.name().as_str()))
    }

    /// Who of the witnesses cosigned; an error where the quorum is not reached or one cosignature is wrong.
    pub fn quorum(&self, note: &Note) -> Result<Quorum, PolicyError> {
        let mut signed = Vec::with_capacity(self.witnesses.len());
        let mut cosigned = Vec::new();
        for (name, key, _) in &self.witnesses {
            let cosignature = key.verify(note)?;
            signed.push(cosignature.is_some());
            cosigned.extend(cosignature.map(|cosignature| (name.clone(), cosignature)));
        }
        match self.quorum {
            Some(member) if !self.reached(member, &signed) => Err(PolicyError::NoQuorum {
                quorum: self.name(member).to_owned(),
                cosigned: cosigned.len(),
                known: self.witnesses.len(),
            }),
            _ => Ok(Quorum { cosigned }),
        }
    }

    /// Members are defined before the group that names them and have one group at most, so this ends soon.
    fn reached(&self, member: Member, signed: &[bool]) -> bool {
        match member {
            Member::Witness(index) => signed.get(index).copied().unwrap_or(false),
            Member::Group(index) => self.groups.get(index).is_some_and(|group| {
                let there = group.members.iter().filter(|member| self.reached(**member, signed)).count();
                there >= group.needed
            }),
        }
    }

    fn name(&self, member: Member) -> &str {
        match member {
            Member::Witness(index) => self.witnesses.get(index).map_or("", |witness| &witness.0),
            Member::Group(index) => self.groups.get(index).map_or("", |group| &group.name),
        }
    }

    fn take_line(
        &mut self,
        line: &str,
        names: &mut HashMap<String, Member>,
        quorum_lines: &mut usize,
    ) -> Result<(), String> {
        if !line.bytes().all(|byte| byte == b'\t' || (0x20..0x7f).contains(&byte)) {
            return Err("only printable ASCII is allowed".into());
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let url = |word: Option<&&str>| word.map(|url| (*url).to_owned());
        let fresh = |names: &HashMap<String, Member>, name: &str| {
            let free = name != "none" && !names.contains_key(name);
            if free { Ok(()) } else { Err(format!("the name `{name}` is taken")) }
        };
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["log", key, rest @ ..] if rest.len() <= 1 => {
                let log: Verifier = key.parse().map_err(|error: NoteError| error.to_string())?;
                if self.logs.iter().any(|(known, _)| known.key() == log.key()) {
                    return Err(format!("log {} is named twice", log.name()));
                }
                self.logs.push((log, url(rest.first())));
            }
            ["witness", name, key, rest @ ..] if rest.len() <= 1 => {
                fresh(names, name)?;
                let key: CosignerKey = key.parse().map_err(|error: CosignatureError| error.to_string())?;
                // Counting one key twice would fake a quorum.
                if self.witnesses.iter().any(|(_, known, _)| known.key() == key.key()) {
                    return Err(format!("the key of witness `{name}` is another witness's already"));
                }
                names.insert((*name).to_owned(), Member::Witness(self.witnesses.len()));
                self.witnesses.push(((*name).to_owned(), key, url(rest.first())));
            }
            ["group", name, needed, members @ ..] if !members.is_empty() => {
                fresh(names, name)?;
                let members: Vec<Member> = members
                    .iter()
                    .map(|member| {
                        names.get(*member).copied().ok_or_else(|| format!("`{member}` is not defined above"))
                    })
                    .collect::<Result<_, _>>()?;
                // Each name counts in one way only, so one witness cannot count twice, and following groups ends soon.
                let mut taken: HashSet<Member> =
                    self.groups.iter().flat_map(|group| group.members.iter().copied()).collect();
                if !members.iter().all(|member| taken.insert(*member)) {
                    return Err(format!(
                        "group `{name}` names a member twice, or one that another group has"
                    ));
                }
                let needed = match *needed {
                    "all" => members.len(),
                    "any" => 1,
                    number => canonical_number(number)
                        .and_then(|number| usize::try_from(number).ok())
                        .filter(|number| (1..=members.len()).contains(number))
                        .ok_or_else(|| format!("`{number}` is not all, any or 1 to {}", members.len()))?,
                };
                names.insert((*name).to_owned(), Member::Group(self.groups.len()));
                self.groups.push(Group { name: (*name).to_owned(), needed, members });
            }
            ["quorum", name] => {
                *quorum_lines += 1;
                self.quorum = match *name {
                    "none" => None,
                    name => Some(*names.get(name).ok_or_else(|| format!("`{name}` is not defined above"))?),
                };
            }
            _ => return Err("expected `log`, `witness`, `group` or `quorum` with its values".into()),
        }
        Ok(())
    }
}
