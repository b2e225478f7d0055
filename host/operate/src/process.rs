//! Programs that the demo starts and stops: each says where it listens on its first line, and none outlives its handle.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;

/// How long a program may take until it says that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long a program may take to end once it was asked to.
const STOP_WITHIN: Duration = Duration::from_secs(15);
/// How much of a program's log an error message repeats.
const LOG_TAIL_BYTES: usize = 2000;

/// What a server prints first, under `--json`.
#[derive(Deserialize)]
struct Listening {
    listening: String,
}

/// A server of ours that runs as a process of its own. Dropping the handle kills it.
pub struct Server {
    name: String,
    child: Child,
    log: PathBuf,
    /// What the program printed after its first line.
    lines: mpsc::Receiver<String>,
    /// Where it listens; empty for a program that listens on nothing.
    pub address: String,
}

impl Server {
    /// Start a server and wait until it says where it listens.
    ///
    /// # Errors
    /// Where it does not start, ends at once, or says nothing in time; the end of its log is part of the message.
    pub fn start(name: &str, command: &mut Command, log_folder: &Path) -> Result<Server> {
        let mut server = Server::spawn(name, command, log_folder)?;
        let first = server.line(READY_WITHIN)?;
        let listening: Listening = serde_json::from_str(&first)
            .with_context(|| format!("{name} said {first:?} instead of where it listens"))?;
        server.address = listening.listening;
        Ok(server)
    }

    /// Start a program that listens on nothing.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn spawn(name: &str, command: &mut Command, log_folder: &Path) -> Result<Server> {
        let log = log_folder.join(format!("{name}.log"));
        let file = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        end_with_this_process(command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}: {}", command.get_program().display()))?;
        let output = child.stdout.take().ok_or_else(|| anyhow!("{name} has no standard output"))?;
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Ok(Server { name: name.to_owned(), child, log, lines, address: String::new() })
    }

    /// The next line on its standard output.
    ///
    /// # Errors
    /// Where it ended, or said nothing within `patience`.
    pub fn line(&mut self, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => return Ok(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status =
                        self.child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
                    bail!("{} ended ({status}):\n{}", self.name, self.log_tail());
                }
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    bail!("{} said nothing within {patience:?}:\n{}", self.name, self.log_tail());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The next line that is a JSON object with the field `event` equal to `event`.
    ///
    /// # Errors
    /// As [`Server::line`].
    pub fn event(&mut self, event: &str, patience: Duration) -> Result<Value> {
        let deadline = Instant::now() + patience;
        loop {
            let line = self.line(deadline.saturating_duration_since(Instant::now()))?;
            if let Ok(value) = serde_json::from_str::<Value>(&line)
                && value.get("event").and_then(Value::as_str) == Some(event)
            {
                return Ok(value);
            }
        }
    }

    /// Process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ask the program to end (SIGTERM) and wait for it; kill it where it does not.
    ///
    /// # Errors
    /// Where the process cannot be waited for.
    pub fn stop(mut self) -> Result<ExitStatus> {
        let id = i32::try_from(self.child.id()).context("a process number beyond i32")?;
        // SAFETY: sends a signal to our own child, which has not been waited for yet, so the number is still its own.
        unsafe { libc::kill(id, libc::SIGTERM) };
        let deadline = Instant::now() + STOP_WITHIN;
        loop {
            if let Some(status) =
                self.child.try_wait().with_context(|| format!("cannot wait for {}", self.name))?
            {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                tracing::warn!("{} did not end within {STOP_WITHIN:?} and is killed", self.name);
                self.child.kill().with_context(|| format!("cannot kill {}", self.name))?;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Run a command of ours to its end and read the JSON object that it prints.
///
/// # Errors
/// Where it cannot start, fails (its standard error is part of the message), or prints no JSON.
pub fn report(command: &mut Command) -> Result<Value> {
    let (name, status, text, errors) = run(command)?;
    if !status.success() {
        bail!("{name} {} failed ({status}):\n{}", arguments(command), errors.trim_end());
    }
    parsed(&name, command, &text)
}

/// As [`report`], of a command whose exit code 1 is part of its answer. Gives whether it was 0.
///
/// # Errors
/// Where it cannot start, or prints no JSON (its standard error is part of the message).
pub fn answer(command: &mut Command) -> Result<(bool, Value)> {
    let (name, status, text, errors) = run(command)?;
    let value = parsed(&name, command, &text).with_context(|| errors.trim_end().to_owned())?;
    Ok((status.success(), value))
}

fn parsed(name: &str, command: &Command, text: &str) -> Result<Value> {
    serde_json::from_str(text)
        .with_context(|| format!("{name} {} printed no JSON: {text:?}", arguments(command)))
}

/// Runs a command to its end: its name, how it ended, what it printed, and its complaints.
fn run(command: &mut Command) -> Result<(String, ExitStatus, String, String)> {
    let name = command.get_program().display().to_string();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let mut errors = child.stderr.take().ok_or_else(|| anyhow!("{name} has no standard error"))?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        let _ = errors.read_to_string(&mut text);
        text
    });
    let mut text = String::new();
    child
        .stdout
        .take()
        .ok_or_else(|| anyhow!("{name} has no standard output"))?
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read what {name} prints"))?;
    let status = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    Ok((name, status, text, reader.join().unwrap_or_default()))
}

/// However this process ends, the child is asked to end too: a demo that is killed leaves nothing running.
fn end_with_this_process(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;
        // SAFETY: prctl is async-signal-safe and touches nothing but the calling process.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

fn arguments(command: &Command) -> String {
    command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
