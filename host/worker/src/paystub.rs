//! What a session leaves in the worker's folder of paystubs: its last complete receipt, and that it was.
//!
//! A number is marked there before anything is signed under it, and stays marked once something was: `SESSION.begun` until
//! `SESSION.receipt` takes its place. So a worker that was started again, and another one on the same folder, know the numbers that it
//! must not sign under, and no session's receipt takes the place of another's.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use kvasir_wire::id::SessionId;

/// One session's files, in a folder or nowhere.
#[derive(Debug)]
pub(crate) struct Paystub {
    folder: Option<PathBuf>,
    session: SessionId,
    /// The files of this number are this session's.
    owns: bool,
    /// Its mark is to stay.
    has_signed: bool,
}

impl Paystub {
    /// Takes the number; nothing where a session of this number was in the folder before. Where the folder cannot be used, that is
    /// logged, and the session goes on without one.
    pub(crate) fn begin(folder: Option<&Path>, session: SessionId) -> Option<Self> {
        let mut paystub =
            Self { folder: folder.map(Path::to_owned), session, owns: false, has_signed: false };
        match paystub.take_number() {
            Ok(()) => Some(paystub),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
            Err(error) => {
                tracing::warn!(%error, ?folder, "the session's number could not be kept");
                Some(paystub)
            }
        }
    }

    /// The worker is about to sign a receipt of the session.
    pub(crate) fn signs(&mut self) {
        self.has_signed = true;
    }

    /// Keeps the session's last complete receipt, for whoever wants to prove it.
    pub(crate) fn keep(&mut self, note: &str) {
        let kept = self.take_number().and_then(|()| self.replace("receipt", note));
        match kept {
            // From here on the receipt says that the number was had.
            Ok(()) => self.unmark(),
            Err(error) => {
                tracing::warn!(%error, folder = ?self.folder, session = %self.session, "the receipt could not be kept");
            }
        }
    }

    /// Keeps a second text under a number that was signed: evidence beside the receipt that it contradicts.
    pub(crate) fn keep_conflict(&mut self, text: &str) {
        if let Err(error) = self.take_number().and_then(|()| self.replace("conflict", text)) {
            tracing::warn!(
                %error, folder = ?self.folder, session = %self.session, "the conflicting receipt could not be kept"
            );
        }
    }

    /// [`ErrorKind::AlreadyExists`]: the number is another session's.
    fn take_number(&mut self) -> io::Result<()> {
        let (Some(folder), false) = (&self.folder, self.owns) else { return Ok(()) };
        // The kind says something else here.
        fs::create_dir_all(folder).map_err(|error| io::Error::other(error.to_string()))?;
        let mark = folder.join(self.name("begun"));
        let marked = File::options().write(true).create_new(true).open(&mark);
        // After the mark: whoever had the number before lets its own go only behind its receipt. And without one too: a folder that
        // takes nothing more knows what it knows.
        let is_had = folder.join(self.name("receipt")).try_exists();
        if marked.is_ok() && !matches!(is_had, Ok(false)) {
            // It is nobody's.
            let _ = fs::remove_file(&mark);
        }
        if is_had? {
            return Err(ErrorKind::AlreadyExists.into());
        }
        marked?;
        self.owns = true;
        Ok(())
    }

    /// Writes a file whole or not at all.
    fn replace(&self, what: &str, text: &str) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let name = self.name(what);
        let unfinished = folder.join(format!(".{name}.part"));
        let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, folder.join(name)));
        if written.is_err() {
            // Half a receipt is of use to nobody.
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    fn unmark(&self) {
        if let Some(folder) = &self.folder {
            // What is left of it does no harm.
            let _ = fs::remove_file(folder.join(self.name("begun")));
        }
    }

    fn name(&self, what: &str) -> String {
        format!("{}.{what}", self.session)
    }
}

impl Drop for Paystub {
    fn drop(&mut self) {
        if self.owns && !self.has_signed {
            self.unmark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([7; 32]);

    /// A folder of this test alone, gone when it ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("kvasir-paystub-{test}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            Self(folder)
        }

        fn begin(&self) -> Option<Paystub> {
            Paystub::begin(Some(&self.0), SESSION)
        }

        fn files(&self) -> Vec<String> {
            let mut names: Vec<_> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_number_under_which_something_was_signed_is_not_taken_again() {
        let folder = Folder::new("signed");
        let mut first = folder.begin().unwrap();
        assert!(folder.begin().is_none(), "while the session lasts");
        first.signs();
        drop(first);
        assert_eq!(folder.files(), [format!("{SESSION}.begun")]);
        assert!(folder.begin().is_none(), "signed, and never complete");
    }

    #[test]
    fn a_receipt_is_replaced_by_its_own_session_alone() {
        let folder = Folder::new("receipt");
        let mut first = folder.begin().unwrap();
        first.signs();
        first.keep("one");
        first.keep("two");
        let receipt = format!("{SESSION}.receipt");
        assert_eq!(folder.files(), std::slice::from_ref(&receipt));
        assert_eq!(fs::read_to_string(folder.0.join(&receipt)).unwrap(), "two");
        assert!(folder.begin().is_none());
        drop(first);
        assert!(folder.begin().is_none());
        assert_eq!(folder.files(), std::slice::from_ref(&receipt));

        // A session that could not ask at its beginning asks before it writes.
        let mut late =
            Paystub { folder: Some(folder.0.clone()), session: SESSION, owns: false, has_signed: true };
        late.keep("another's");
        late.keep_conflict("another's");
        drop(late);
        assert_eq!(folder.files(), std::slice::from_ref(&receipt));
        assert_eq!(fs::read_to_string(folder.0.join(&receipt)).unwrap(), "two");
    }

    #[test]
    fn a_session_without_signatures_leaves_nothing_and_without_a_folder_is_served_all_the_same() {
        let folder = Folder::new("nothing");
        drop(folder.begin().unwrap());
        assert_eq!(folder.files(), [""; 0]);
        assert!(folder.begin().is_some());

        let mut nowhere = Paystub::begin(None, SESSION).unwrap();
        nowhere.keep("one");
        fs::write(folder.0.join("file"), "").unwrap();
        assert!(
            Paystub::begin(Some(&folder.0.join("file")), SESSION).is_some(),
            "no folder, and no number had"
        );
    }
}
