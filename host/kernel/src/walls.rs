//! Which walls stand around a kernel's process on this system.

use std::fmt;

const NO_NEW_PRIVILEGES: u32 = 1;
const SECCOMP: u32 = 2;
const DATA_LIMIT: u32 = 4;
const LANDLOCK_SHIFT: u32 = 8;

/// The walls that a kernel's process put around itself before it read anything of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walls {
    /// No program that it could start would gain rights.
    pub no_new_privileges: bool,
    /// System calls are refused but for those that compute: no sockets, no opening of files, no other programs.
    pub seccomp: bool,
    /// Its private memory is bounded.
    pub memory_limit: bool,
    /// Landlock's version on this system, 0 where there is none: files and network are closed a second time.
    pub landlock: u8,
}

impl Walls {
    /// As one word, for the shared memory.
    pub fn to_word(self) -> u32 {
        let bit = |stands: bool, bit| if stands { bit } else { 0 };
        bit(self.no_new_privileges, NO_NEW_PRIVILEGES)
            | bit(self.seccomp, SECCOMP)
            | bit(self.memory_limit, DATA_LIMIT)
            | u32::from(self.landlock) << LANDLOCK_SHIFT
    }

    /// From such a word; bits without a meaning are ignored.
    pub fn from_word(word: u32) -> Self {
        Walls {
            no_new_privileges: word & NO_NEW_PRIVILEGES != 0,
            seccomp: word & SECCOMP != 0,
            memory_limit: word & DATA_LIMIT != 0,
            landlock: (word >> LANDLOCK_SHIFT) as u8,
        }
    }
}

impl fmt::Display for Walls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |stands| if stands { "yes" } else { "no" };
        write!(f, "no new privileges: {}, seccomp: {}, ", word(self.no_new_privileges), word(self.seccomp))?;
        write!(f, "memory limit: {}, landlock: ", word(self.memory_limit))?;
        match self.landlock {
            0 => f.write_str("absent from this system"),
            version => write!(f, "version {version}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_all_of_it() {
        for word in 0..=u16::MAX {
            let walls = Walls::from_word(u32::from(word));
            assert_eq!(Walls::from_word(walls.to_word()), walls);
        }
        let all = Walls { no_new_privileges: true, seccomp: true, memory_limit: true, landlock: 7 };
        assert_eq!(Walls::from_word(all.to_word()), all);
        assert!(Walls { landlock: 0, ..all }.to_string().contains("landlock: absent"));
    }
}
