//! SIGUSR2: a new process of this program takes the listening socket over, while this one finishes what it has.
//!
//! The new one is started as this one was, so it may be another release, and reads the file as it is then. Its standard input is
//! the listening socket. Both have the same one, with one queue of connections, so none is refused or lost between the two.
//! Only once the new one says that it listens does this one take no more. If it does not come that far, nothing has changed. If it
//! dies later, while this one still finishes what it has, this one starts another: a service manager may not see that death, and
//! nobody would listen. One that has handed over itself says so before it finishes, and is not replaced: the one after it listens.

use std::{
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixDatagram,
    },
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::TcpListener,
    process::{Child, ChildStdout, Command},
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::serve::STOPPED_AT_ONCE;

/// How long a new process may take until it listens.
const START_TIME: Duration = Duration::from_secs(30);
/// Between the death of one and the start of another: `RestartSec` of the units.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// The same where one after the other cannot start: a pause is twice the one before, and no longer than this.
const LONGEST_RESTART_PAUSE: Duration = Duration::from_secs(30);
/// Most bytes of its line that says so.
const MAX_ANNOUNCEMENT_BYTES: u64 = 4_096;
/// What a process says on its standard output once it has handed over, before the number of the one that took over.
const HANDED_OVER: &str = "handed over to process ";
/// The same as a JSON object's name.
const HANDED_OVER_NAME: &str = "handed_over_to";
/// Where a service manager wants to be told which process the service is (`sd_notify(3)`).
const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";

/// What it takes to hand over.
pub(super) struct HandOver {
    socket: OwnedFd,
    asked: Signal,
    /// Whether standard output is for programs.
    json: bool,
}

impl HandOver {
    /// From here on SIGUSR2 asks for a hand-over of this socket. `json`: standard output is for programs.
    pub(super) fn of(listener: &TcpListener, json: bool) -> io::Result<Self> {
        let socket = listener.as_fd().try_clone_to_owned()?;
        Ok(HandOver { socket, asked: signal(SignalKind::user_defined2())?, json })
    }

    /// Returns once another process listens in this one's place. That one is watched from then on.
    pub(super) async fn done(mut self) -> Watch {
        let successor = loop {
            if self.asked.recv().await.is_none() {
                return std::future::pending().await;
            }
            tracing::info!("starting the process that is to take over");
            match start(&self.socket).await {
                Ok(successor) => break successor,
                Err(error) => {
                    tracing::error!("not handed over, all goes on as it was: {}", super::sentence(&error));
                }
            }
        };
        // First: whoever watches this process must not replace it from here on.
        if let Some(process) = successor.child.id() {
            say(process, self.json);
        }
        successor.takes_over();
        Watch(tokio::spawn(watch(self.socket, successor)))
    }
}

/// Sees to it that a process listens in this one's place, until it is ended.
pub(super) struct Watch(JoinHandle<()>);

impl Watch {
    /// From now on nobody is started any more.
    pub(super) fn end(&self) {
        self.0.abort();
    }
}

/// Replaces the process that took over where it dies. The socket, which stays open here for that, keeps who comes meanwhile waiting.
async fn watch(socket: OwnedFd, mut successor: Successor) {
    while successor.has_died().await {
        successor = another(&socket).await;
        successor.takes_over();
    }
}

async fn another(socket: &OwnedFd) -> Successor {
    let mut pause = RESTART_PAUSE;
    loop {
        sleep(pause).await;
        pause = longer(pause);
        match start(socket).await {
            Ok(successor) => return successor,
            Err(error) => {
                tracing::error!(
                    "nobody takes what comes, the next try is in {} s: {}",
                    pause.as_secs(),
                    super::sentence(&error)
                );
            }
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_RESTART_PAUSE)
}

/// Says on standard output that a process has taken over.
fn say(process: u32, json: bool) {
    let line = match json {
        true => serde_json::json!({ HANDED_OVER_NAME: process }).to_string(),
        false => format!("{HANDED_OVER}{process}"),
    };
    let mut out = io::stdout().lock();
    // Where nobody reads it any more, nobody would replace this process either.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Whether a line of a process that took over says that it has handed over itself.
fn says_so(line: &str) -> bool {
    let by_name = || {
        let object: Option<serde_json::Value> = serde_json::from_str(line).ok();
        object.is_some_and(|object| object[HANDED_OVER_NAME].is_u64())
    };
    line.starts_with(HANDED_OVER) || by_name()
}

/// Starts a process and waits until it listens.
async fn start(socket: &OwnedFd) -> anyhow::Result<Successor> {
    listening(spawn(socket)?).await
}

fn spawn(socket: &OwnedFd) -> anyhow::Result<Child> {
    let mut arguments = std::env::args_os();
    let program = arguments.next().context("this process was started without a name")?;
    Command::new(&program)
        .args(arguments)
        .stdin(Stdio::from(socket.try_clone()?))
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", program.to_string_lossy()))
}

/// Waits until a process that was started says that it listens.
async fn listening(mut child: Child) -> anyhow::Result<Successor> {
    let output = child.stdout.take();
    let mut starting = Starting(Some(child));
    let mut output = BufReader::new(output.context("the new process has no standard output")?);
    let mut said = String::new();
    let mut first = (&mut output).take(MAX_ANNOUNCEMENT_BYTES);
    match timeout(START_TIME, first.read_line(&mut said)).await {
        Ok(Ok(count)) if count > 0 => {}
        Ok(_) => bail!("the new process ended before it listened; the log has its last words"),
        Err(_) => bail!("the new process does not listen after {} s", START_TIME.as_secs()),
    }
    let child = starting.0.take().context("the new process is gone")?;
    Ok(Successor { child, output })
}

/// A process that does not listen yet; killed if nobody waits for it any more.
struct Starting(Option<Child>);

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.start_kill();
        }
    }
}

/// A process that listens. Its standard output stays open as long as it is watched.
struct Successor {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Successor {
    fn takes_over(&self) {
        let process = self.child.id();
        tracing::info!(process, "handed over: it takes what comes, this process finishes what it has");
        if let Some(process) = process
            && let Err(error) = tell_manager(process)
        {
            tracing::error!("telling the service manager of the new process: {error}");
        }
    }

    /// Waits for its end. False where it ended in order: somebody stopped it, or it has handed over itself.
    async fn has_died(mut self) -> bool {
        let process = self.child.id();
        let handed_over = self.listen_to_the_end().await;
        match self.child.wait().await {
            Ok(status) if status.success() || status.code() == Some(STOPPED_AT_ONCE) => {
                tracing::info!(process, %status, "the process that took over has ended");
                false
            }
            Ok(status) if handed_over => {
                tracing::error!(
                    process,
                    %status,
                    "the process that took over has died, after it had handed over itself: the one after it goes on"
                );
                false
            }
            Ok(status) => {
                tracing::error!(process, %status, "the process that took over has died");
                true
            }
            Err(error) => {
                tracing::error!(
                    process,
                    "what became of the process that took over cannot be known: {error}"
                );
                false
            }
        }
    }

    /// Reads what it says, to its end, which is when nobody else has its standard output any more. Answers whether it has handed over
    /// itself.
    async fn listen_to_the_end(&mut self) -> bool {
        let mut handed_over = false;
        let mut line = String::new();
        loop {
            line.clear();
            let mut next = (&mut self.output).take(MAX_ANNOUNCEMENT_BYTES);
            match next.read_line(&mut line).await {
                Ok(count) if count > 0 => handed_over |= says_so(&line),
                Ok(_) | Err(_) => return handed_over,
            }
        }
    }
}

/// Tells a service manager, if there is one, that the service is another process from here on.
fn tell_manager(process: u32) -> io::Result<()> {
    let Some(path) = std::env::var_os(NOTIFY_VARIABLE) else { return Ok(()) };
    let message = format!("MAINPID={process}\n");
    let socket = UnixDatagram::unbound()?;
    #[cfg(target_os = "linux")]
    {
        use std::os::{
            linux::net::SocketAddrExt as _,
            unix::{ffi::OsStrExt as _, net::SocketAddr},
        };

        if let Some(name) = path.as_bytes().strip_prefix(b"@") {
            let address = SocketAddr::from_abstract_name(name)?;
            return socket.send_to_addr(message.as_bytes(), &address).map(drop);
        }
    }
    socket.send_to(message.as_bytes(), path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_processes_that_cannot_start_grow_to_the_longest() {
        let pauses = std::iter::successors(Some(RESTART_PAUSE), |pause| Some(longer(*pause)));
        let seconds: Vec<u64> = pauses.take(8).map(|pause| pause.as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_line_that_says_that_a_process_has_handed_over_is_told_from_others() {
        for line in ["handed over to process 17\n", "{\"handed_over_to\":17}\n"] {
            assert!(says_so(line), "{line}");
        }
        for line in
            ["listening on 127.0.0.1:443\n", "operations on 127.0.0.1:9464\n", "{\"listening\":\"x\"}", ""]
        {
            assert!(!says_so(line), "{line}");
        }
    }
}
