//! `kvasir-kernel probe`: puts the walls up and tries what must not succeed behind them.

use std::ffi::{CStr, c_long};
use std::process::ExitCode;

use crate::confine::{Limits, first, second};
use crate::leave::exit;

/// Private memory for the probe in bytes.
const MEMORY_BYTES: u64 = 256 << 20;

/// Prints one JSON object: the walls, and for each attempt whether it was refused. Exit status 0 where all were.
pub fn run() -> ExitCode {
    // Behind the walls standard error alone can be written; what is printed there comes out at standard output.
    // SAFETY: two numbers.
    unsafe { libc::dup2(1, 2) };
    let limits = Limits { data: Some(MEMORY_BYTES), file: 1 << 20, ..Limits::default() };
    let walls = match first(&limits).and_then(|walls| second().map(|()| walls)) {
        Ok(walls) => walls,
        Err(reason) => {
            eprintln!("error: {reason}");
            return ExitCode::from(2);
        }
    };
    let attempts: Vec<(&str, bool)> = ATTEMPTS.iter().map(|(name, attempt)| (*name, attempt() < 0)).collect();
    let refused = attempts.iter().all(|(_, refused)| *refused);
    let list: Vec<String> = attempts.iter().map(|(name, refused)| format!("\"{name}\":{refused}")).collect();
    // Standard output is behind the walls already.
    eprintln!(
        "{{\"no_new_privileges\":{},\"seccomp\":{},\"memory_limit\":{},\"landlock\":{},\"refused\":{{{}}}}}",
        walls.no_new_privileges,
        walls.seccomp,
        walls.memory_limit,
        walls.landlock,
        list.join(",")
    );
    exit(if refused { 0 } else { 1 })
}

/// What is tried, and what the system answers: less than zero where it refuses.
type Attempt = (&'static str, fn() -> c_long);

const PASSWORDS: &CStr = c"/etc/passwd";

// SAFETY of every entry: a system call with numbers and constant strings, whose result is a number; where it should succeed against
// expectation, this process ends a moment later.
#[allow(clippy::undocumented_unsafe_blocks)]
const ATTEMPTS: &[Attempt] = &[
    ("open a file", || unsafe {
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, PASSWORDS.as_ptr(), libc::O_RDONLY)
    }),
    ("look at a file", || unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, PASSWORDS.as_ptr(), &raw mut stat, 0)
    }),
    ("make a folder", || unsafe {
        libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, c"/tmp/kvasir-probe".as_ptr(), 0o700)
    }),
    ("open a socket", || unsafe { libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0) }),
    ("open a local socket", || unsafe {
        libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM, 0)
    }),
    ("start a program", || unsafe {
        let arguments = [c"/bin/true".as_ptr(), std::ptr::null()];
        libc::syscall(libc::SYS_execve, arguments[0], arguments.as_ptr(), std::ptr::null::<usize>())
    }),
    ("start a process", || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }),
    ("start a thread", || unsafe { libc::syscall(libc::SYS_clone3, 0, 0) }),
    ("signal its parent", || unsafe { libc::syscall(libc::SYS_kill, libc::getppid(), 0) }),
    ("look into another process", || unsafe {
        libc::syscall(libc::SYS_ptrace, libc::PTRACE_ATTACH, libc::getppid(), 0, 0)
    }),
    ("read another process's memory", || unsafe {
        libc::syscall(libc::SYS_process_vm_readv, libc::getppid(), 0, 0, 0, 0, 0)
    }),
    ("make memory executable", || unsafe {
        libc::syscall(
            libc::SYS_mmap,
            0,
            4096,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    }),
    ("take its limits away", || unsafe {
        let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_DATA, &raw const none, 0)
    }),
    ("make a memory file", || unsafe { libc::syscall(libc::SYS_memfd_create, c"probe".as_ptr(), 0) }),
    ("read its input", || unsafe {
        let mut byte = 0u8;
        libc::syscall(libc::SYS_read, 0, &raw mut byte, 1)
    }),
    ("set up io_uring", || unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) }),
    ("load a program into the system", || unsafe { libc::syscall(libc::SYS_bpf, 0, 0, 0) }),
    ("trace performance", || unsafe { libc::syscall(libc::SYS_perf_event_open, 0, 0, -1, -1, 0) }),
    ("enter a namespace", || unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER) }),
    ("mount", || unsafe { libc::syscall(libc::SYS_mount, 0, 0, 0, 0, 0) }),
];
