//! One role as a child process.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use crate::{Announcement, Exit, Failure, OrFailure, ProcessChange, ProcessRecord};
use owo_colors::AnsiColors;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{ChildStdin, Command};
use tokio::task::JoinHandle;
use zagros_plumbing::Deadline;
use zagros_plumbing::exit_codes::EXIT_CODES;

use crate::launch::prefix::{ChildOutput, LastLines, LinePrefix};

/// How often a file that a child will write is checked.
const POLL: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleName {
    Coordinator,
    EmbeddingServer(u32),
    DenseWorker(u32),
}

impl RoleName {
    /// The name for people: `embedding server 1`.
    pub fn display_name(self) -> String {
        match self {
            Self::Coordinator => "coordinator".to_owned(),
            Self::EmbeddingServer(index) => format!("embedding server {index}"),
            Self::DenseWorker(index) => format!("dense worker {index}"),
        }
    }

    /// The name for files: `embedding-server-1`.
    pub fn file_name(self) -> String {
        self.display_name().replace(' ', "-")
    }

    /// The file in the run folder in which the role announces its addresses.
    pub fn announcement_file(self, run: &Path) -> PathBuf {
        run.join("roles").join(format!("{}.json", self.file_name()))
    }

    /// The labels of its metrics: `server`, 1.
    pub fn word_and_index(self) -> (&'static str, u32) {
        match self {
            Self::Coordinator => ("coordinator", 0),
            Self::EmbeddingServer(index) => ("server", index),
            Self::DenseWorker(index) => ("worker", index),
        }
    }

    pub fn subcommand_args(self) -> Vec<String> {
        let (name, index) = match self {
            Self::Coordinator => return vec!["coordinator".to_owned()],
            Self::EmbeddingServer(index) => ("embedding-server", index),
            Self::DenseWorker(index) => ("dense-worker", index),
        };
        vec![name.to_owned(), "--index".to_owned(), index.to_string()]
    }

    fn color(self) -> AnsiColors {
        match self {
            Self::Coordinator => AnsiColors::Magenta,
            Self::EmbeddingServer(_) => AnsiColors::Cyan,
            Self::DenseWorker(_) => AnsiColors::Green,
        }
    }
}

/// What a child's environment has besides that of this process.
#[derive(Default)]
pub struct ChildEnvironment {
    /// They may be secrets.
    pub set: Vec<(&'static str, String)>,
    /// Variables that the child does not inherit.
    pub unset: Vec<&'static str>,
}

#[derive(Debug)]
pub struct ChildProcess {
    pub role: RoleName,
    process: tokio::process::Child,
    /// Stays open while this process lives. Waiting for the child would close it.
    _stdin: Option<ChildStdin>,
    announce: PathBuf,
    last: LastLines,
    copiers: Vec<JoinHandle<()>>,
    /// Whether it was asked to end. A role that is asked twice ends at once and saves nothing.
    asked: bool,
    /// How it ended; `None` while it runs.
    pub ended: Option<ExitStatus>,
    /// Its process id, also once it has ended.
    pid: u32,
    /// The folder of the run that records its start and end.
    run: Option<PathBuf>,
}

impl ChildProcess {
    pub fn start(
        program: &Path,
        role: RoleName,
        (arguments, environment): (&[String], ChildEnvironment),
        announce: PathBuf,
        output: &ChildOutput,
    ) -> Result<Self, Failure> {
        // An earlier process may have left the file.
        let _ = std::fs::remove_file(&announce);
        let mut command = Command::new(program);
        environment.unset.iter().for_each(|name| {
            command.env_remove(name);
        });
        let mut process = command
            .args(arguments)
            .envs(environment.set)
            // An open pipe. It closes when this process dies, in whatever way.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C at the terminal reaches only this process, which ends the children in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .or_internal()?;
        let last = LastLines::default();
        let log = output.open_log(&role.file_name());
        let prefix = LinePrefix { name: role.display_name(), color: role.color(), output: output.clone(), log };
        let mut copiers = Vec::new();
        if let Some(stream) = process.stdout.take() {
            copiers.push(tokio::spawn(prefix.clone().copy_lines(stream, last.clone())));
        }
        if let Some(stream) = process.stderr.take() {
            copiers.push(tokio::spawn(prefix.copy_lines(stream, last.clone())));
        }
        let stdin = process.stdin.take();
        let pid = process.id().unwrap_or_default();
        let child = Self {
            role,
            process,
            _stdin: stdin,
            announce,
            last,
            copiers,
            asked: false,
            ended: None,
            pid,
            run: output.run(),
        };
        child.record(ProcessChange::Started);
        Ok(child)
    }

    /// Waits until the child announces its addresses.
    pub async fn wait_announced(&mut self, timeout: Duration) -> Result<Announcement, Failure> {
        let deadline = Deadline::from_now(timeout);
        loop {
            if let Some(announcement) = Announcement::read(&self.announce) {
                return Ok(announcement);
            }
            if self.try_ended() {
                return Err(self.end_failure().await);
            }
            if deadline.is_past() {
                let what = format!("{} did not listen within {timeout:?}", self.role.display_name());
                return Err(Failure::with_help(Exit::Cluster, what, "its log lines above show what it was doing"));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The call may be dropped and repeated.
    pub async fn wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.process.wait().await.ok();
            self.record_end();
        }
        self.ended
    }

    /// Whether it has ended, without waiting.
    pub fn try_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.process.try_wait().ok().flatten();
            self.record_end();
        }
        self.ended.is_some()
    }

    fn record_end(&self) {
        let Some(status) = self.ended else { return };
        let well = status.success() || self.ended_as_asked();
        self.record(ProcessChange::Ended { how: self.describe_end(), well, asked: self.asked });
    }

    /// A record that cannot be written is missed by the doctor alone.
    fn record(&self, change: ProcessChange) {
        let Some(run) = &self.run else { return };
        if let Err(error) = ProcessRecord::now(&self.role.file_name(), self.pid, change).append(run) {
            tracing::debug!(%error, "a start or an end is not recorded");
        }
    }

    /// `None` once its end was seen.
    pub fn pid(&self) -> Option<Pid> {
        self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()))
    }

    /// Asks it to save and exit. Does nothing if the child was asked before or has ended.
    pub fn ask_to_end(&mut self) {
        if let Some(pid) = self.pid().filter(|_| !self.asked) {
            self.asked = true;
            // The child may end between the check and the call, which is the aim.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    pub(crate) fn was_asked(&self) -> bool {
        self.asked
    }

    /// Whether it ended well, or as a role ends after a request, or by the signal before it could handle one.
    pub(crate) fn ended_as_asked(&self) -> bool {
        let Some(status) = self.ended else { return false };
        matches!(status.code(), Some(0 | 130 | 143)) || status.signal() == Some(Signal::TERM.as_raw())
    }

    pub async fn kill(&mut self) {
        let _ = self.process.kill().await;
        self.try_ended();
    }

    /// Whether it was a dense worker that something else ended: a signal, or a pause that cost its lease. A worker that
    /// failed by itself would fail again.
    pub fn is_lost_worker(&self) -> bool {
        let is_fenced = |status: &ExitStatus| status.code() == Some(i32::from(Exit::Fenced.code()));
        let is_lost = |status: ExitStatus| status.signal().is_some() || is_fenced(&status);
        matches!(self.role, RoleName::DenseWorker(_)) && self.ended.is_some_and(is_lost)
    }

    /// Whether it has ended in a way that another process in its place may not: killed, or with a code after which another
    /// attempt may help. A coordinator's code is the run's. A child that was asked to end is not lost.
    pub(crate) fn is_lost(&self) -> bool {
        let Some(status) = self.ended else { return false };
        let may_help = |code: i32| EXIT_CODES.iter().any(|known| i32::from(known.code) == code && known.is_retryable);
        let is_lost = status.code().is_none_or(|code| self.role != RoleName::Coordinator && may_help(code));
        is_lost && !self.asked && !self.ended_as_asked()
    }

    pub fn describe_end(&self) -> String {
        describe(self.ended).0
    }

    /// Why the run ends: which process died, how, and its last lines.
    pub async fn end_failure(&mut self) -> Failure {
        for copier in self.copiers.drain(..) {
            // The pipes close with the process. Its last lines matter most.
            let _ = tokio::time::timeout(Duration::from_secs(2), copier).await;
        }
        let (how, exit) = describe(self.ended);
        let what = format!("{} {how}\n  its last lines:\n{}", self.role.display_name(), self.last.indented());
        Failure::with_help(exit, what.trim_end(), help(self.ended))
    }
}

/// What to do after such an end.
fn help(status: Option<ExitStatus>) -> &'static str {
    match status.and_then(|status| status.signal()) {
        Some(signal) if signal == Signal::KILL.as_raw() => {
            "did memory run out? `dmesg` shows it; `cluster.memory` keeps fewer rows in it, `zagros train JOB --dry-run` \
             compares what the job needs with what the machine has; everything else was stopped"
        }
        Some(signal) if signal == Signal::ABORT.as_raw() => {
            "the process aborted; if its last lines name memory that could not be allocated, \
             `zagros train JOB --dry-run` compares what the job needs with what the machine has and names the key to \
             change; else it is a bug; everything else was stopped"
        }
        _ => "the error in these lines is the cause; everything else was stopped",
    }
}

/// The end in words, and the exit code to pass on.
fn describe(status: Option<ExitStatus>) -> (String, Exit) {
    let Some(status) = status else { return ("could not be waited for".to_owned(), Exit::Internal) };
    if let Some(signal) = status.signal() {
        return (format!("was killed by signal {signal}{}", signal_name(signal)), Exit::Cluster);
    }
    let code = status.code().unwrap_or(1);
    let passed_on = [Exit::Usage, Exit::Data, Exit::Diverged, Exit::Storage, Exit::Internal];
    let exit = passed_on.into_iter().find(|exit| i32::from(exit.code()) == code).unwrap_or(Exit::Cluster);
    (format!("ended with exit code {code} ({})", Exit::meaning(code)), exit)
}

/// The name of a signal that a process raises itself. Signal 9 comes from outside and needs no name.
fn signal_name(signal: i32) -> &'static str {
    match Signal::from_named_raw(signal) {
        Some(Signal::ABORT) => " (SIGABRT)",
        Some(Signal::SEGV) => " (SIGSEGV)",
        Some(Signal::BUS) => " (SIGBUS)",
        _ => "",
    }
}

/// A role of a test: a shell that runs this command.
#[cfg(test)]
pub(crate) fn shell(role: RoleName, command: &str) -> ChildProcess {
    let arguments = ["-c".to_owned(), command.to_owned()];
    let (environment, output) = (ChildEnvironment::default(), ChildOutput::default());
    ChildProcess::start("sh".as_ref(), role, (&arguments, environment), PathBuf::new(), &output).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_described_and_its_class_passed_on() {
        let killed = describe(Some(ExitStatus::from_raw(9)));
        assert_eq!(killed, ("was killed by signal 9".to_owned(), Exit::Cluster));
        let aborted = Some(ExitStatus::from_raw(6));
        assert_eq!(describe(aborted).0, "was killed by signal 6 (SIGABRT)");
        assert!(help(aborted).contains("--dry-run") && help(Some(ExitStatus::from_raw(9))).contains("--dry-run"));
        assert!(help(Some(ExitStatus::from_raw(9))).contains("memory"));
        let data = describe(Some(ExitStatus::from_raw(3 << 8)));
        assert!(!help(Some(ExitStatus::from_raw(3 << 8))).contains("memory"));
        assert_eq!(data, ("ended with exit code 3 (data is missing or malformed)".to_owned(), Exit::Data));
    }
}
