//! The walls that the process puts around itself before it reads anything that it does not trust, and the second, higher ones
//! before anything of a kernel runs.
//!
//! First: limits of memory, files and cores; landlock, where the system has it, for files, network and signals; and a filter that
//! refuses every system call but those on open descriptors, memory, threads of its own and time. The second filter also takes
//! reading, new threads and new executable memory away. What is refused answers EPERM; nothing depends on it.

use std::collections::BTreeMap;
use std::io;

use kvasir_kernel::Walls;
use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// Open files at once; those that are handed over are all there will be.
const MAX_FILES: u64 = 16;

/// What the process may use; less where the process that started it has less itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Private memory in bytes.
    pub data: Option<u64>,
    /// Address space in bytes.
    pub address: Option<u64>,
    /// Processor time in seconds.
    pub processor: Option<u64>,
    /// Largest file written.
    pub file: u64,
}

/// Puts the first walls up. Called before there is a second thread.
///
/// # Errors
/// A wall that every supported system has and that does not stand.
pub fn first(limits: &Limits) -> Result<Walls, String> {
    let failed = |what: &str, error: io::Error| format!("{what} cannot be set: {error}");
    set(libc::RLIMIT_CORE, 0).map_err(|error| failed("the limit of core dumps", error))?;
    set(libc::RLIMIT_NOFILE, MAX_FILES).map_err(|error| failed("the limit of files", error))?;
    set(libc::RLIMIT_FSIZE, limits.file).map_err(|error| failed("the limit of a file's size", error))?;
    let bounds = [
        (libc::RLIMIT_DATA, limits.data, "the limit of memory"),
        (libc::RLIMIT_AS, limits.address, "the limit of address space"),
        (libc::RLIMIT_CPU, limits.processor, "the limit of processor time"),
    ];
    for (resource, limit, what) in bounds {
        limit.map_or(Ok(()), |limit| set(resource, limit)).map_err(|error| failed(what, error))?;
    }
    for (option, value) in [(libc::PR_SET_DUMPABLE, 0), (libc::PR_SET_NO_NEW_PRIVS, 1)] {
        // SAFETY: numbers alone.
        if unsafe { libc::prctl(option, value, 0, 0, 0) } != 0 {
            return Err(failed("no new privileges", io::Error::last_os_error()));
        }
    }
    let landlock = landlock().map_err(|error| format!("landlock: {error}"))?;
    // The C library starts threads with a call whose flags a filter cannot see; told that there is none, it takes the older one.
    apply(&filter(
        &[(libc::SYS_clone3, vec![])],
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
    )?)?;
    apply(&filter(&first_calls()?, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)?)?;
    Ok(Walls { no_new_privileges: true, seccomp: true, memory_limit: limits.data.is_some(), landlock })
}

/// Puts the second walls up, around all threads: none may be started any more.
///
/// # Errors
/// Where the system refuses the filter.
pub fn second() -> Result<(), String> {
    apply(&filter(&second_calls()?, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)?)
}

/// Landlock's version, 0 where the system has none: then seccomp stands alone.
fn landlock() -> Result<u8, landlock::RulesetError> {
    const NEWEST: ABI = ABI::V6;
    // No rule follows, so everything that is handled is refused.
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => 0,
        (_, landlock::LandlockStatus::Available { effective_abi, .. }) => effective_abi as u8,
        (_, _) => 0,
    })
}

type Calls = Vec<(i64, Vec<SeccompRule>)>;

/// What both walls let through: memory without execution, time, waiting, the end.
fn common() -> Result<Calls, String> {
    let process = std::process::id();
    let mut calls: Calls = [
        // Each thread's first calls, which a slow one may make late.
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
        libc::SYS_futex,
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_brk,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_restart_syscall,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getrandom,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ]
    .into_iter()
    .map(|call| (call, vec![]))
    .collect();
    // Its own abort, and nobody else's.
    calls.push((libc::SYS_tgkill, vec![rule(&[(0, Op::Eq, u64::from(process))])?]));
    // Standard error alone.
    calls.push((libc::SYS_write, vec![rule(&[(0, Op::Eq, 2)])?]));
    Ok(calls)
}

fn first_calls() -> Result<Calls, String> {
    let mut calls = common()?;
    let thread = (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND) as u64;
    calls.extend([
        (libc::SYS_mmap, vec![]),
        (libc::SYS_mprotect, vec![]),
        (libc::SYS_read, vec![]),
        (libc::SYS_lseek, vec![]),
        (libc::SYS_close, vec![]),
        (libc::SYS_fstat, vec![]),
        (
            libc::SYS_fcntl,
            vec![
                rule(&[(1, Op::Eq, libc::F_GET_SEALS as u64)])?,
                rule(&[(1, Op::Eq, libc::F_GETFD as u64)])?,
            ],
        ),
        (libc::SYS_clone, vec![rule(&[(0, Op::MaskedEq(thread), thread)])?]),
        // Told that it does not exist, by the other filter.
        (libc::SYS_clone3, vec![]),
        (libc::SYS_membarrier, vec![]),
        (
            libc::SYS_prctl,
            vec![
                rule(&[(0, Op::Eq, libc::PR_SET_NAME as u64)])?,
                // Set already; whoever installs a filter asks for it once more.
                rule(&[(0, Op::Eq, libc::PR_SET_NO_NEW_PRIVS as u64)])?,
            ],
        ),
        // Reading limits, its own alone.
        (libc::SYS_prlimit64, vec![rule(&[(0, Op::Eq, 0), (2, Op::Eq, 0)])?]),
        (libc::SYS_seccomp, vec![]),
    ]);
    // The artefact of a compiler goes to the second descriptor.
    if let Some(write) = calls.iter_mut().find(|(call, _)| *call == libc::SYS_write) {
        write.1.push(rule(&[(0, Op::Eq, kvasir_kernel::start::SECOND_DESCRIPTOR as u64)])?);
    }
    Ok(calls)
}

fn second_calls() -> Result<Calls, String> {
    let mut calls = common()?;
    let no_code = || rule(&[(2, Op::MaskedEq(libc::PROT_EXEC as u64), 0)]);
    calls.push((
        libc::SYS_mmap,
        vec![rule(&[
            (2, Op::MaskedEq(libc::PROT_EXEC as u64), 0),
            (3, Op::MaskedEq(libc::MAP_ANONYMOUS as u64), libc::MAP_ANONYMOUS as u64),
        ])?],
    ));
    calls.push((libc::SYS_mprotect, vec![no_code()?]));
    Ok(calls)
}

/// All of `conditions`: argument, comparison, value.
fn rule(conditions: &[(u8, Op, u64)]) -> Result<SeccompRule, String> {
    let conditions = conditions
        .iter()
        .map(|(argument, operator, value)| {
            SeccompCondition::new(*argument, Length::Qword, operator.clone(), *value)
        })
        .collect::<Result<Vec<_>, _>>();
    conditions.and_then(SeccompRule::new).map_err(|error| format!("a rule of the filter: {error}"))
}

fn filter(
    calls: &[(i64, Vec<SeccompRule>)],
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, String> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)
        .map_err(|error| format!("no filter for this processor: {error}"))?;
    let rules: BTreeMap<i64, Vec<SeccompRule>> = calls.iter().cloned().collect();
    SeccompFilter::new(rules, otherwise, matched, architecture)
        .and_then(BpfProgram::try_from)
        .map_err(|error| format!("the filter of system calls: {error}"))
}

fn apply(program: &BpfProgram) -> Result<(), String> {
    seccompiler::apply_filter_all_threads(program)
        .map_err(|error| format!("the system refuses the filter of system calls: {error}"))
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// Sets a limit, soft and hard. One that the system has set lower stays: nobody without privileges may raise it.
fn set(resource: Resource, limit: u64) -> io::Result<()> {
    let mut there = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `there` is a whole rlimit that lives over the call, which fills it in.
    if unsafe { libc::getrlimit(resource, &raw mut there) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // No limit is the largest number of all.
    let limit = (limit as libc::rlim_t).min(there.rlim_max);
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: `limit` is a whole rlimit that lives over the call, which only reads it.
    match unsafe { libc::setrlimit(resource, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
