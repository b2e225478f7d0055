//! Memory that two processes share, and the futex on which one waits for the other. All of the crate's `unsafe` but the start of a
//! process is here.
//!
//! The memory is a memory file whose size is sealed: neither side can shorten it under the other's feet. What is read from it may
//! change while it is read, so everything is copied out or loaded atomically, and checked afterwards.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// A mapping of a memory file, for as long as this lives.
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to nobody's thread; every access goes through atomics or copies through raw pointers.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; no reference to plain data in it is handed out but by the unsafe `SharedMemory::bytes`.
unsafe impl Sync for SharedMemory {}

/// A memory file of `length` zero bytes whose size nobody can change.
///
/// # Errors
/// The system's answer.
pub fn memory_file(length: usize) -> io::Result<OwnedFd> {
    let file = open()?;
    file.set_len(length as u64)?;
    seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)?;
    Ok(file.into())
}

/// A memory file that holds `bytes` and can only be read.
///
/// # Errors
/// The system's answer.
pub fn constant_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = open()?;
    io::Write::write_all(&mut file, bytes)?;
    io::Seek::rewind(&mut file)?;
    seal(&file, libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)?;
    Ok(file.into())
}

/// An empty memory file that may grow.
///
/// # Errors
/// The system's answer.
pub fn empty_file() -> io::Result<File> {
    open()
}

fn open() -> io::Result<File> {
    // SAFETY: the name is a constant with its end, and the result is checked before it becomes an owner.
    let file =
        unsafe { libc::memfd_create(c"kvasir-kernel".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was opened just now and that nobody else owns.
    Ok(unsafe { File::from_raw_fd(file) })
}

fn seal(file: &File, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: fcntl with an integer argument on a descriptor that is open over the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl SharedMemory {
    /// Maps the whole of a memory file that has `length` bytes.
    ///
    /// # Errors
    /// A file of another length or one that may shrink, or the system's answer.
    pub fn map(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        // SAFETY: `stat` is plain data that the call fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: both arguments live over the call.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fcntl without an argument on an open descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if stat.st_size as usize != length || length == 0 || seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(wrong("the shared memory is not the one that was announced"));
        }
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a new mapping at a place of the system's choice; the file is as long as the mapping and stays so.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, access, shared, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast::<u8>())
            .map(|base| SharedMemory { base, length })
            .ok_or_else(|| wrong("the system mapped memory at 0"))
    }

    /// The word at `offset`, a multiple of four.
    ///
    /// # Panics
    /// Outside the memory or not aligned.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        let at = self.at(offset, 4, 4);
        // SAFETY: in the mapping, aligned, and every access to it by either side is atomic or a copy that is checked.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The number at `offset`, a multiple of eight.
    ///
    /// # Panics
    /// Outside the memory or not aligned.
    pub fn number(&self, offset: usize) -> &AtomicU64 {
        let at = self.at(offset, 8, 8);
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// Copies `bytes` in.
    ///
    /// # Panics
    /// Outside the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let at = self.at(offset, bytes.len(), 1);
        // SAFETY: `at` is the start of as many bytes of the mapping, which is no memory of `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) }
    }

    /// Copies bytes out. They are whatever the other side has written so far.
    ///
    /// # Panics
    /// Outside the memory.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let at = self.at(offset, out.len(), 1);
        // SAFETY: as in `write`, the other way.
        unsafe { std::ptr::copy_nonoverlapping(at, out.as_mut_ptr(), out.len()) }
    }

    /// Copies floats in.
    ///
    /// # Panics
    /// Outside the memory.
    pub fn write_floats(&self, offset: usize, values: &[f32]) {
        let at = self.at(offset, size_of_val(values), 1);
        // SAFETY: the bytes of the floats, which have no padding, into as many bytes of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), at, size_of_val(values)) }
    }

    /// Copies floats out; any bits are a float.
    ///
    /// # Panics
    /// Outside the memory.
    pub fn read_floats(&self, offset: usize, out: &mut [f32]) {
        let at = self.at(offset, size_of_val(out), 1);
        // SAFETY: as many bytes of the mapping into the floats' own, every pattern of which is a float.
        unsafe { std::ptr::copy_nonoverlapping(at, out.as_mut_ptr().cast::<u8>(), size_of_val(out)) }
    }

    /// The bytes themselves, without a copy.
    ///
    /// # Safety
    /// Nobody writes there while the borrow lasts. The host may not use this: it does not trust the other side.
    ///
    /// # Panics
    /// Outside the memory.
    pub unsafe fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        // SAFETY: in the mapping; that nobody writes is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(offset, length, 1), length) }
    }

    fn at(&self, offset: usize, length: usize, alignment: usize) -> *mut u8 {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        assert!(inside && offset.is_multiple_of(alignment), "{length} bytes at {offset} of {}", self.length);
        // SAFETY: inside the mapping, as was asserted.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, and no borrow of it outlives this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Gives the pages of a part of a memory file back to the system; whoever reads there later finds zeros.
pub fn give_back(file: BorrowedFd<'_>, offset: usize, length: usize) {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: numbers and a descriptor that is open over the call. Where it fails, the pages stay: no harm.
    unsafe { libc::fallocate(file.as_raw_fd(), how, offset as libc::off_t, length as libc::off_t) };
}

/// Waits until `word` is woken, or `limit` has passed; returns at once where it is not `expected` any more. May return early.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos() as _,
    };
    // SAFETY: the word and the time live over the call, which reads both. Not private: the other side is another process.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const limit) };
}

/// Wakes whoever waits for `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the address alone is used.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn the_size_is_sealed_and_known() {
        let file = memory_file(8192).unwrap();
        assert!(SharedMemory::map(file.as_fd(), 4096).is_err());
        let one = SharedMemory::map(file.as_fd(), 8192).unwrap();
        let other = SharedMemory::map(file.as_fd(), 8192).unwrap();
        one.write(5000, b"row");
        let mut read = [0; 3];
        other.read(5000, &mut read);
        assert_eq!(&read, b"row");
        other.word(8).store(7, Ordering::Release);
        assert_eq!(one.word(8).load(Ordering::Acquire), 7);
        let file = File::from(file);
        for length in [0, 4096, 16384] {
            assert!(file.set_len(length).is_err(), "{length}");
        }
        give_back(file.as_fd(), 4096, 4096);
        other.read(5000, &mut read);
        assert_eq!(read, [0; 3]);
    }

    #[test]
    fn a_constant_cannot_be_written() {
        let mut file = File::from(constant_file(b"code").unwrap());
        let mut text = String::new();
        io::Read::read_to_string(&mut file, &mut text).unwrap();
        assert_eq!(text, "code");
        assert!(io::Write::write_all(&mut file, b"more").is_err());
        assert!(file.set_len(0).is_err());
        // A file that may shrink is no shared memory.
        let loose = empty_file().unwrap();
        loose.set_len(4096).unwrap();
        assert!(SharedMemory::map(loose.as_fd(), 4096).is_err());
    }

    #[test]
    #[should_panic(expected = "bytes at")]
    fn nothing_outside_is_reached() {
        let file = memory_file(4096).unwrap();
        SharedMemory::map(file.as_fd(), 4096).unwrap().write(4090, &[0; 7]);
    }
}
