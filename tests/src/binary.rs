//! The programs as a user runs them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long any run of a test may take before it is killed and the test fails with its output.
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
pub enum TestProgram {
    /// `zagros`: every role.
    Zagros,
    /// `zagros` without libtorch, where scripts/without_libtorch.sh has built it.
    Plain,
    /// `zagros-server`: the roles that need no libtorch.
    Server,
    /// `zagros-bench`: measures speed.
    Bench,
    /// `zagros-chaos`: breaks the processes of a run, and checks that nothing is lost.
    Chaos,
}

impl TestProgram {
    fn name(self) -> &'static str {
        match self {
            Self::Zagros | Self::Plain => "zagros",
            Self::Server => "zagros-server",
            Self::Bench => "zagros-bench",
            Self::Chaos => "zagros-chaos",
        }
    }

    /// The program of this checkout, built once per test process so that it is never stale.
    pub fn path(self) -> &'static Path {
        static BUILT: OnceLock<HashMap<String, PathBuf>> = OnceLock::new();
        static PLAIN: OnceLock<PathBuf> = OnceLock::new();
        if matches!(self, Self::Plain) {
            return PLAIN.get_or_init(|| super::repository().join("target/without-libtorch/zagros"));
        }
        BUILT.get_or_init(build).get(self.name()).expect("cargo names the program")
    }
}

#[derive(Debug)]
pub struct FinishedCommand {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl FinishedCommand {
    /// The exit code; a run killed by a signal has none.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Fails the test unless the run ended with `code`, with everything the run printed.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "\nstdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Standard output, which is JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: no JSON: {}{}", self.stdout, self.stderr))
    }

    /// Fails the test unless standard output holds each text.
    #[track_caller]
    pub fn prints(self, texts: &[&str]) -> Self {
        assert_contains(&self.stdout, texts);
        self
    }

    /// Fails the test unless standard error holds each text.
    #[track_caller]
    pub fn says(self, texts: &[&str]) -> Self {
        // The error printer wraps long lines; a promise about words is not one about line ends.
        let flat = flatten(&self.stderr);
        for text in texts {
            assert!(flat.contains(&flatten(text)), "no {text:?} in:\n{}", self.stderr);
        }
        self
    }
}

/// Fails the test unless a text holds each part.
#[track_caller]
pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

fn flatten(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || "│×╭╰─▶·".contains(c))
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs zagros in the checkout to its end.
pub fn zagros<'a>(arguments: impl IntoIterator<Item = &'a str>) -> FinishedCommand {
    zagros_in(&super::repository(), arguments)
}

/// Runs zagros-bench at the repository's root to its end.
pub fn zagros_bench<'a>(arguments: impl IntoIterator<Item = &'a str>) -> FinishedCommand {
    RunningCommand::start(TestProgram::Bench, &super::repository(), arguments, &[]).finish()
}

/// Runs zagros in a folder to its end.
pub fn zagros_in<'a>(folder: &Path, arguments: impl IntoIterator<Item = &'a str>) -> FinishedCommand {
    RunningCommand::start(TestProgram::Zagros, folder, arguments, &[]).finish()
}

#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
    deadline: Instant,
    stdout: Option<JoinHandle<String>>,
    lines: Receiver<String>,
    stderr: String,
}

impl RunningCommand {
    /// Starts it with these variables added to the environment.
    pub fn start<'a>(
        program: TestProgram,
        folder: &Path,
        arguments: impl IntoIterator<Item = &'a str>,
        environment: &[(String, String)],
    ) -> Self {
        let mut child = Command::new(program.path())
            .args(arguments)
            .envs(environment.iter().cloned())
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stdout = child.stdout.take().expect("standard output is piped");
        let stderr = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stderr.split(b'\n').map_while(Result::ok).try_for_each(|line| sender.send(text(&line)))
        });
        let stdout = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).map(|_| text(&bytes)).unwrap_or_default()
        });
        Self { child, deadline: Instant::now() + TIMEOUT, stdout: Some(stdout), lines, stderr: String::new() }
    }

    /// Reads standard error until a line holds `wanted`; gives that line.
    pub fn wait_for_line(&mut self, wanted: &str) -> String {
        while let Some(line) = self.next_line() {
            if line.contains(wanted) {
                return line;
            }
        }
        panic!("ended without {wanted:?}; it printed:\n{}", self.stderr);
    }

    pub fn signal(&self, signal: Signal) {
        signal_process(self.child.id(), signal);
    }

    /// As Ctrl-C does. Fails the test unless the process ends with the code of that.
    #[track_caller]
    pub fn interrupt(self) -> FinishedCommand {
        self.signal(Signal::INT);
        self.finish().expect(130)
    }

    /// The process may have ended by itself.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("the process is waited for");
    }

    /// The process was killed.
    pub fn wait_for_end(&mut self) {
        while self.next_line().is_some() {}
        let status = self.child.wait().expect("the process is waited for");
        assert!(status.code().is_none(), "it was not killed, it ended by itself; it printed:\n{}", self.stderr);
    }

    /// A process that takes too long is killed.
    pub fn finish(mut self) -> FinishedCommand {
        while self.next_line().is_some() {}
        let status = self.child.wait().expect("the process is waited for");
        let stdout = self.stdout.take().map(JoinHandle::join).and_then(Result::ok).unwrap_or_default();
        FinishedCommand { status, stdout, stderr: std::mem::take(&mut self.stderr) }
    }

    /// `None` once standard error is closed.
    fn next_line(&mut self) -> Option<String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => {
                self.stderr.push_str(&line);
                self.stderr.push('\n');
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("did not end within {TIMEOUT:?}; it printed:\n{}", self.stderr),
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // A failed test must not leave processes behind; one that has ended is not signalled.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A process that ends with the test.
#[derive(Debug)]
pub struct ChildGuard(pub Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The process was started by the test's own run, and is known by its announced process id.
pub fn signal_process(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process id is not zero");
    kill_process(pid, signal).expect("the process is there");
}

/// All of the workspace's, as `make programs` does: what they share with its tests would be compiled again for some.
fn build() -> HashMap<String, PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--workspace", "--bins", "--message-format", "json-render-diagnostics"]);
    // Variables that cargo sets for this test: build scripts of others would take them for a change, and be run again.
    for (key, _) in std::env::vars_os() {
        let key = key.to_string_lossy();
        if key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_") || key == "OUT_DIR" {
            build.env_remove(key.as_ref());
        }
    }
    let mut build = build.current_dir(super::repository()).stdout(Stdio::piped()).spawn().expect("cargo starts");
    let messages = BufReader::new(build.stdout.take().expect("standard output is piped"));
    let programs = messages.lines().map_while(Result::ok).filter_map(|line| executable(&line)).collect();
    assert!(build.wait().expect("cargo ends").success(), "the programs do not build");
    programs
}

/// Name and path, where the message is of a program.
fn executable(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let path = PathBuf::from(message.get("executable")?.as_str()?);
    Some((path.file_name()?.to_str()?.to_owned(), path))
}
