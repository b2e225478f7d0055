//! The process: started, asked, killed, reaped. Nothing here outlives it.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::GpuError;
use crate::frame::{HEADER_BYTES, MAX_FRAME_BYTES, parse_header};
use crate::message::{Fault, Reply, Request};
use crate::options::{GpuOptions, PROGRAM_VARIABLE};
use crate::pipe;

/// Lines of the process's standard error that are kept for an error.
const KEPT_LINES: usize = 12;
/// Longest of these lines, in bytes.
const MAX_LINE_BYTES: u64 = 400;
/// How long a process whose pipe has closed may take to be gone before it is killed.
const END_GRACE: Duration = Duration::from_millis(500);
/// How long a killed process is waited for.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// Variables, by the start of their names, that graphics drivers and loaders read; nothing else of this process's environment is
/// any business of the GPU's.
const PASSED_ON: &[&str] = &[
    "PATH",
    "HOME",
    "LANG",
    "LC_",
    "TMPDIR",
    "XDG_",
    "LD_LIBRARY_PATH",
    "VK_",
    "MESA_",
    "LP_",
    "GALLIUM_",
    "NVIDIA_",
    "CUDA_",
    "__NV",
    "__GL",
    "AMD_",
    "RADV_",
    "ANV_",
    "DRI_",
    "RUST_BACKTRACE",
];
/// The program's file name.
const PROGRAM: &str = "kvasir-gpu";

/// A running process. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    stderr: Arc<Mutex<VecDeque<String>>>,
    listener: Option<JoinHandle<()>>,
    body: Vec<u8>,
    failed: Option<GpuError>,
}

impl Process {
    /// Starts the program; it has not said anything yet.
    pub fn start(options: &GpuOptions) -> Result<Self, GpuError> {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => find_program()?,
        };
        let failed =
            |error: io::Error| GpuError::Start { program: program.clone(), reason: error.to_string() };
        let mut child = confined(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed(io::ErrorKind::Other.into()));
        };
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&stderr);
        let listener = std::thread::Builder::new()
            .name("gpu process log".to_owned())
            .spawn(move || listen(errors, &kept))
            .map_err(failed);
        let prepared = pipe::prepare(&input).and_then(|()| pipe::prepare(&output)).map_err(failed);
        let mut process =
            Process { child, input, output, stderr, listener: None, body: Vec::new(), failed: None };
        // From here on dropping the process kills it.
        process.listener = Some(listener?);
        prepared?;
        Ok(process)
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends `requests` and waits for the reply to the last one, all before `limit` has passed. At the deadline the process is
    /// killed; after that, as after a crash, it answers nothing any more.
    pub fn ask<'a, 'r>(
        &'a mut self,
        requests: impl IntoIterator<Item = Request<'r>>,
        limit: Duration,
    ) -> Result<Reply<'a>, GpuError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let deadline = Instant::now() + limit;
        let mut name = "nothing";
        for request in requests {
            name = request.name();
            let frame = request
                .encode()
                .map_err(|error| GpuError::Refused { request: name, reason: error.to_string() })?;
            if let Err(error) = pipe::write_all(&mut self.input, &frame, deadline) {
                return Err(self.end(name, limit, error));
            }
        }
        let kind = match self.receive(deadline) {
            Ok(kind) => kind,
            Err(error) => return Err(self.end(name, limit, error)),
        };
        if let Err(error) = Reply::decode(kind, &self.body) {
            self.kill();
            let error = GpuError::BrokenProtocol { request: name, reason: error.to_string() };
            self.failed = Some(error.clone());
            return Err(error);
        }
        // Decoded twice: a borrow that is returned on one path alone would last for the whole function.
        match Reply::decode(kind, &self.body) {
            Ok(Reply::Failed { fault, reason }) => Err(match fault {
                Fault::NoDevice => GpuError::NoDevice { reason },
                Fault::NoRoom => GpuError::NoRoom { reason },
                Fault::Shader => GpuError::ShaderRefused { reason },
                Fault::Request => GpuError::Refused { request: name, reason },
            }),
            Ok(reply) => Ok(reply),
            Err(error) => Err(GpuError::BrokenProtocol { request: name, reason: error.to_string() }),
        }
    }

    /// Whether it can still answer.
    pub fn is_alive(&self) -> bool {
        self.failed.is_none()
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<u8> {
        let mut header = [0; HEADER_BYTES];
        pipe::read_exact(&mut self.output, &mut header, deadline)?;
        let (length, kind) = parse_header(header);
        if length > MAX_FRAME_BYTES {
            let what = format!("a reply of {length} bytes, the limit is {MAX_FRAME_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        self.body.resize(length, 0);
        pipe::read_exact(&mut self.output, &mut self.body, deadline)?;
        Ok(kind)
    }

    /// After a failed read or write: kills what may still run and says what happened.
    fn end(&mut self, request: &'static str, deadline: Duration, error: io::Error) -> GpuError {
        let failed = match error.kind() {
            io::ErrorKind::TimedOut => {
                self.kill();
                GpuError::Killed { request, deadline }
            }
            io::ErrorKind::InvalidData => {
                self.kill();
                GpuError::BrokenProtocol { request, reason: error.to_string() }
            }
            _ => {
                let status = self.wait_for_end();
                GpuError::Crashed { request, status, stderr: self.last_lines() }
            }
        };
        tracing::warn!(process = self.child.id(), error = %failed, "the GPU's process ended");
        self.failed = Some(failed.clone());
        failed
    }

    /// The exit status of a process that has closed its pipe; one that does not end is killed.
    fn wait_for_end(&mut self) -> String {
        let patience = Instant::now() + END_GRACE;
        while Instant::now() < patience {
            match self.child.try_wait() {
                Ok(Some(status)) => return told(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => break,
            }
        }
        self.kill();
        "it closed its pipe and was killed".to_owned()
    }

    /// SIGKILL, then reaped: a process that holds a GPU ends by nothing less.
    fn kill(&mut self) {
        // Fails only where the process is gone already.
        let _ = self.child.kill();
        // A process that waits inside a driver is gone only when the driver returns; nobody waits for that.
        let patience = Instant::now() + KILL_GRACE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > patience {
                tracing::warn!(process = self.child.id(), "the GPU's process was killed but is not gone yet");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn last_lines(&mut self) -> String {
        // The process is gone, so its standard error ends and with it the listener, unless the process left another behind that
        // holds the pipe.
        let patience = Instant::now() + END_GRACE;
        while self.listener.as_ref().is_some_and(|listener| !listener.is_finished())
            && Instant::now() < patience
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let lines = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command of the program with the environment that it needs, in the root folder.
pub fn confined(program: &Path) -> Command {
    // As it is from here, since the command runs elsewhere.
    let mut command = Command::new(std::path::absolute(program).unwrap_or_else(|_| program.to_owned()));
    let passed = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        PASSED_ON.iter().any(|start| name.starts_with(start))
    });
    command.env_clear().envs(passed).current_dir("/");
    command
}

fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no status".to_owned(),
    }
}

/// Keeps the last lines and passes each on to the log.
fn listen(errors: ChildStderr, kept: &Mutex<VecDeque<String>>) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    loop {
        line.clear();
        match errors.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text: String = String::from_utf8_lossy(&line)
            .trim_end()
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        if text.is_empty() {
            continue;
        }
        tracing::debug!(line = text, "from the GPU's process");
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_LINES {
            kept.pop_front();
        }
        kept.push_back(text);
    }
}

/// The program named in the environment, beside this one, or one folder above, where tests find it.
///
/// # Errors
/// [`GpuError::NoProgram`] where it is at none of these places.
pub fn find_program() -> Result<PathBuf, GpuError> {
    kvasir_kernel::find_program(PROGRAM, PROGRAM_VARIABLE).map_err(|beside| GpuError::NoProgram { beside })
}
