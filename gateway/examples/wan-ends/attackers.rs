//! Hostile peers in a process of their own, which gives way to everybody else: it is the gateway's work that is measured, not
//! theirs.

use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::abuse::{Abuse, Did};

/// How long they may take to begin, and to say what they did.
const PATIENCE: Duration = Duration::from_secs(20);

/// Attackers at work. They end when they are dropped, and with this process.
pub struct Attackers {
    process: Child,
    words: Lines<BufReader<ChildStdout>>,
    /// Open as long as they are to go on.
    on: ChildStdin,
}

impl Attackers {
    /// Starts them against the edge at `address`.
    pub async fn start(
        address: IpAddr,
        folder: &Path,
        from: &[IpAddr],
        abuse: Abuse,
    ) -> anyhow::Result<Attackers> {
        let from: Vec<String> = from.iter().map(IpAddr::to_string).collect();
        let mut process = Command::new("nice")
            .args(["-n", "19"])
            .arg(std::env::current_exe()?)
            .args(["abuse", "--address", &address.to_string(), "--kind", &abuse.argument()])
            .args(["--from", &from.join(","), "--folder"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the attackers")?;
        let on = process.stdin.take().context("the attackers have no standard input")?;
        let out = process.stdout.take().context("the attackers have no standard output")?;
        let mut words = BufReader::new(out).lines();
        let first = timeout(PATIENCE, words.next_line()).await.context("the attackers do not begin")??;
        ensure!(first.as_deref() == Some("begun"), "the attackers did not begin");
        Ok(Attackers { process, words, on })
    }

    /// Ends them; fails where there was no attack.
    pub async fn stop(self) -> anyhow::Result<Did> {
        let Attackers { mut process, mut words, on } = self;
        drop(on);
        let last = timeout(PATIENCE, words.next_line()).await.context("the attackers do not end")??;
        let did = last.context("the attackers ended before they were told to")?;
        timeout(PATIENCE, process.wait()).await.context("the attackers do not end")??;
        Ok(serde_json::from_str(&did)?)
    }
}
