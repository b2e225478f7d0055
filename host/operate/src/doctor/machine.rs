//! What this machine offers a worker, read from the kernel's files: descriptors, congestion control, the walls around
//! kernels. Notes, not hops: a worker runs without any of them, less well.

use std::fmt;
use std::fs;

use kvasir_link::doctor::shown;
use serde_json::{Value, json};

/// Descriptors that a worker should be allowed: sockets, files, rings of kernels' processes, and room.
const DESCRIPTORS_MIN: u64 = 1024;
/// Congestion control that keeps small messages at one round trip (docs/gateway.md).
const CONGESTION_CONTROL: &str = "cubic";

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Word for programs.
    pub name: &'static str,
    /// Whether it is as it should be; none where this system does not say.
    pub fine: Option<bool>,
    /// What was seen.
    pub seen: String,
    /// What to do where it is not fine.
    pub remedy: Option<&'static str>,
}

impl Note {
    fn new(name: &'static str, fine: Option<bool>, seen: String, remedy: &'static str) -> Note {
        Note { name, fine, seen, remedy: (fine != Some(true)).then_some(remedy) }
    }

    /// As a JSON object.
    pub fn object(&self) -> Value {
        json!({"name": self.name, "fine": self.fine, "seen": self.seen, "what_to_do": self.remedy})
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "note   {}: {}", self.name, self.seen)?;
        match self.remedy {
            Some(remedy) => write!(f, "\n       do: {remedy}"),
            None => Ok(()),
        }
    }
}

/// Looks at this machine. Small files are read and nothing is run.
pub fn look() -> Vec<Note> {
    let read = |path: &str| fs::read_to_string(path).ok();
    vec![
        descriptors(read("/proc/self/limits").as_deref()),
        congestion_control(read("/proc/sys/net/ipv4/tcp_available_congestion_control").as_deref()),
        idle_restart(read("/proc/sys/net/ipv4/tcp_slow_start_after_idle").as_deref()),
        seccomp(read("/proc/sys/kernel/seccomp/actions_avail").as_deref()),
        landlock(read("/sys/kernel/security/lsm").as_deref()),
    ]
}

const UNKNOWN: &str = "this system does not say";

fn descriptors(limits: Option<&str>) -> Note {
    // proc_pid_limits(5): name, soft limit, hard limit, unit.
    let line = limits.and_then(|limits| limits.lines().find_map(|line| line.strip_prefix("Max open files")));
    let soft = line.and_then(|line| line.split_whitespace().next());
    let fine =
        soft.map(|soft| soft.parse::<u64>().map_or(soft == "unlimited", |soft| soft >= DESCRIPTORS_MIN));
    let seen = soft.map_or_else(|| UNKNOWN.to_owned(), |soft| format!("{} may be open", shown(soft)));
    Note::new(
        "descriptors",
        fine,
        seen,
        "allow a worker at least 1024: ulimit -n 1024, or LimitNOFILE=1024 in a unit",
    )
}

fn congestion_control(available: Option<&str>) -> Note {
    let fine = available.map(|list| list.split_whitespace().any(|name| name == CONGESTION_CONTROL));
    let seen = available.map_or_else(|| UNKNOWN.to_owned(), |list| format!("available are {}", shown(list)));
    Note::new(
        "congestion_control",
        fine,
        seen,
        "load cubic, with which small messages take one round trip: modprobe tcp_cubic",
    )
}

fn idle_restart(value: Option<&str>) -> Note {
    let fine = value.map(|value| value.trim() == "0");
    let seen = match fine {
        None => UNKNOWN.to_owned(),
        Some(true) => "a connection keeps its window over a pause".to_owned(),
        Some(false) => "a connection starts slowly again after a pause".to_owned(),
    };
    Note::new(
        "idle_restart",
        fine,
        seen,
        "where pauses cost round trips: sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
    )
}

fn seccomp(actions: Option<&str>) -> Note {
    let fine = actions.map(|actions| actions.split_whitespace().any(|action| action == "kill_process"));
    let seen = match fine {
        None => UNKNOWN.to_owned(),
        Some(true) => "system calls of kernels can be filtered".to_owned(),
        Some(false) => "the filter cannot kill a process".to_owned(),
    };
    Note::new(
        "seccomp",
        fine,
        seen,
        "kernels are not run in a process of their own without it: use a system that has it",
    )
}

fn landlock(modules: Option<&str>) -> Note {
    let fine = modules.map(|modules| modules.trim().split(',').any(|module| module == "landlock"));
    let seen = match fine {
        None => UNKNOWN.to_owned(),
        Some(true) => "files and sockets can be denied to kernels a second time".to_owned(),
        Some(false) => "landlock is absent; seccomp alone keeps kernels from files and sockets".to_owned(),
    };
    Note::new(
        "landlock",
        fine,
        seen,
        "kvasir-kernel probe puts the walls up and says which hold; Linux 5.13 or later has landlock",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read_and_its_silence_is_no_verdict() {
        let limits = |soft: &str| format!("Limit  Soft\nMax open files            {soft}   20000  files\n");
        assert_eq!(descriptors(Some(&limits("1024"))).fine, Some(true));
        assert_eq!(descriptors(Some(&limits("256"))).fine, Some(false));
        assert_eq!(descriptors(Some(&limits("unlimited"))).fine, Some(true));
        assert_eq!(congestion_control(Some("reno bbr cubic\n")).fine, Some(true));
        assert_eq!(congestion_control(Some("reno bbr\n")).fine, Some(false));
        assert_eq!(idle_restart(Some("1\n")).fine, Some(false));
        assert_eq!(seccomp(Some("kill_process kill_thread trap\n")).fine, Some(true));
        assert_eq!(landlock(Some("capability,landlock,yama")).fine, Some(true));
        assert_eq!(landlock(Some("capability,yama")).fine, Some(false));
        for note in
            [descriptors(None), congestion_control(None), idle_restart(None), seccomp(None), landlock(None)]
        {
            assert_eq!(note.fine, None);
            assert!(note.to_string().contains(UNKNOWN), "{note}");
        }
    }
}
