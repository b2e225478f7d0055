//! Runs `strace`: lists the system calls of a thread or a program, and makes one of them kill or fail.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Calls that reach the disk; these are also made to fail.
const FAILING: [&str; 22] = [
    "close",
    "fallocate",
    "fdatasync",
    "fstat",
    "fsync",
    "ftruncate",
    "link",
    "linkat",
    "lseek",
    "mkdir",
    "mkdirat",
    "mmap",
    "newfstatat",
    "openat",
    "pread64",
    "pwrite64",
    "read",
    "rename",
    "renameat",
    "unlink",
    "unlinkat",
    "write",
];

/// One call of a run: the name, and which one of that name it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    pub number: usize,
    /// The file of the descriptor that comes first; empty where none does.
    pub file: String,
    /// It is about a file of the ledger.
    is_of_ledger: bool,
}

impl Call {
    /// The call of this name and number, of whatever file.
    pub fn named(name: &str, number: usize) -> Self {
        Self { name: name.to_owned(), number, file: String::new(), is_of_ledger: true }
    }

    /// Whether it asks for a file or folder to be on the disk.
    pub fn is_sync(&self) -> bool {
        ["fsync", "fdatasync"].contains(&self.name.as_str())
    }
}

/// A fault at one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub call: Call,
    pub fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL: no handler runs.
    Kill,
    /// Input or output error, once.
    Eio,
    /// No space left, once.
    Enospc,
}

impl Point {
    fn expression(&self) -> String {
        let fault = match self.fault {
            Fault::Kill => "signal=KILL",
            Fault::Eio => "error=EIO",
            Fault::Enospc => "error=ENOSPC",
        };
        format!("inject={}:{fault}:when={}", self.call.name, self.call.number)
    }
}

/// Why nothing can be traced here.
pub fn unavailable() -> Option<&'static str> {
    let Ok(version) = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status()
    else {
        return Some("no strace");
    };
    let mut target = Command::new("sleep").arg("20").spawn().ok()?;
    let attached = version.success() && Attached::to(target.id(), None, Path::new("/dev/null")).is_some();
    let _ = target.kill();
    let _ = target.wait();
    (!attached).then_some("strace may not attach to a process here")
}

/// strace at work on one running thread.
pub struct Attached(Child);

impl Attached {
    pub fn to(thread: u32, point: Option<&Point>, list: &Path) -> Option<Self> {
        let mut strace = Command::new("strace");
        strace.args(["-y", "-s", "0", "-p", &thread.to_string(), "-o"]).arg(list);
        if let Some(point) = point {
            strace.args(["-e", &point.expression()]);
        }
        let mut child =
            strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().ok()?;
        let mut told = BufReader::new(child.stderr.take()?);
        let mut line = String::new();
        let _ = told.read_line(&mut line);
        if !line.contains("attached") {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        // What else it says must not fill the pipe.
        std::thread::spawn(move || told.read_to_end(&mut Vec::new()));
        Some(Self(child))
    }

    /// Lets go of the thread, if it still lives.
    pub fn end(mut self) {
        let _ = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

/// A whole program under strace.
pub fn command(program: &OsStr, point: Option<&Point>, list: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "0", "-o"]).arg(list);
    if let Some(point) = point {
        strace.args(["-e", &point.expression()]);
    }
    strace.arg(program);
    strace
}

/// Whether the fault of a try happened, by its list.
pub fn fired(list: &Path, fault: Fault) -> bool {
    let list = std::fs::read_to_string(list).unwrap_or_default();
    list.contains(if fault == Fault::Kill { "killed by SIGKILL" } else { "(INJECTED)" })
}

/// The calls of a list, from the first that names `from` on.
pub fn calls(list: &Path, folder: &Path, from: &str) -> Vec<Call> {
    let (mut counts, mut calls, mut begun) = (std::collections::HashMap::new(), Vec::new(), false);
    for line in std::fs::read_to_string(list).unwrap_or_default().lines() {
        let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let Some((name, rest)) = line.split_once('(') else { continue };
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let number = counts.entry(name.to_owned()).or_insert(0);
        *number += 1;
        begun |= from.is_empty() || rest.contains(from);
        // The end of a program cannot be made to fail, nor the end of a call that was cut by strace.
        if begun && !["exit", "exit_group", "restart_syscall"].contains(&name) {
            let is_of_ledger = rest.contains(&*folder.to_string_lossy());
            let file = rest.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
            let file = file.map_or("", |(file, _)| file).to_owned();
            calls.push(Call { name: name.to_owned(), number: *number, file, is_of_ledger });
        }
    }
    calls
}

/// Every fault worth trying at these calls.
pub fn points(calls: &[Call]) -> Vec<Point> {
    let mut points = Vec::new();
    for call in calls {
        let fails = call.is_of_ledger && FAILING.contains(&call.name.as_str());
        let faults: &[Fault] = if fails { &[Fault::Kill, Fault::Eio, Fault::Enospc] } else { &[Fault::Kill] };
        points.extend(faults.iter().map(|fault| Point { call: call.clone(), fault: *fault }));
    }
    points
}

/// All points where `KVASIR_CRASH=all` asks for them, else at most `most`, evenly spread.
pub fn sample(points: Vec<Point>, most: usize) -> Vec<Point> {
    if std::env::var("KVASIR_CRASH").is_ok_and(|value| value == "all") {
        return points;
    }
    let step = points.len().div_ceil(most).max(1);
    // Calls that fail have three points each: a step of three would try one kind of fault only.
    let step = if step.is_multiple_of(3) { step + 1 } else { step };
    points.into_iter().step_by(step).collect()
}

/// The same, and every try of a call that `also` asks for.
pub fn sample_and(points: Vec<Point>, most: usize, also: impl Fn(&Point) -> bool) -> Vec<Point> {
    let sampled = sample(points.clone(), most);
    points.into_iter().filter(|point| also(point) || sampled.contains(point)).collect()
}
