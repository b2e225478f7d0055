//! SIGUSR2: a new process of this program takes the listening socket over, while this one finishes what it has.
//!
//! The new one is started as this one was, so it may be another release, and reads the file as it is then. Its standard input is
//! the listening socket. Both have the same one, with one queue of connections, so none is refused or lost between the two.
//! Only once the new one says that it listens does this one take no more. If it does not come that far, nothing has changed. If it
//! dies later, while this one still finishes what it has, this one starts another: a service manager may not see that death, and
//! nobody would listen.

use std::{
    io,
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
/// Most bytes of its line that says so.
const MAX_ANNOUNCEMENT_BYTES: u64 = 4_096;
/// Where a service manager wants to be told which process the service is (`sd_notify(3)`).
const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";

/// What it takes to hand over.
pub(super) struct HandOver {
    socket: OwnedFd,
    asked: Signal,
}

impl HandOver {
    /// From here on SIGUSR2 asks for a hand-over of this socket.
    pub(super) fn of(listener: &TcpListener) -> io::Result<Self> {
        let socket = listener.as_fd().try_clone_to_owned()?;
        Ok(HandOver { socket, asked: signal(SignalKind::user_defined2())? })
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
    loop {
        sleep(RESTART_PAUSE).await;
        match start(socket).await {
            Ok(successor) => return successor,
            Err(error) => {
                tracing::error!(
                    "nobody takes what comes, the next try is in {} s: {}",
                    RESTART_PAUSE.as_secs(),
                    super::sentence(&error)
                );
            }
        }
    }
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
    Ok(Successor { child, _output: output })
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
    _output: BufReader<ChildStdout>,
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
        match self.child.wait().await {
            Ok(status) if status.success() || status.code() == Some(STOPPED_AT_ONCE) => {
                tracing::info!(process, %status, "the process that took over has ended");
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
