//! The processes of a round, by the files in which they announce themselves.
//!
//! Changes the numbers of servers and workers of a round, as `zagros scale` and `zagros up` do.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, kill_process, prlimit};
use tokio::sync::watch;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_job::Job;
use zagros_plumbing::durable;
use zagros_protocol::Refusal;
use zagros_protocol::control::{ScaleRequest, ScaleStatus, StatusRequest};
use zagros_shell::Announcement;
use zagros_shell::launch::{RoleName, WantedRoles, WorkerLoss};
use zagros_transport::Credentials;

#[derive(Debug)]
pub(crate) struct RoundProcesses {
    run: PathBuf,
    roles: Vec<RoleName>,
    /// The process id of each role, as last seen, by its name.
    seen: BTreeMap<String, u32>,
    /// Roles that may be started again, because something was done to them.
    hit: Vec<RoleName>,
    loss: WorkerLoss,
}

impl RoundProcesses {
    pub(crate) fn new(run: &Path, job: &Job) -> Self {
        let servers = (0..job.cluster.servers).map(RoleName::EmbeddingServer);
        let workers = (0..job.cluster.workers).map(RoleName::DenseWorker);
        let roles = std::iter::once(RoleName::Coordinator).chain(servers).chain(workers).collect();
        Self { run: run.to_owned(), roles, seen: BTreeMap::new(), hit: Vec::new(), loss: WorkerLoss::from_job(job) }
    }

    /// The process of a role, if it runs.
    pub(crate) fn pid(&self, role: RoleName) -> Option<u32> {
        let announced = Announcement::read(&role.announcement_file(&self.run))?;
        (announced.is_live() && is_ours(announced.pid)).then_some(announced.pid)
    }

    /// From now on these roles may be started again.
    pub(crate) fn hit(&mut self, roles: &[RoleName]) {
        self.look();
        let is_lost = roles.iter().any(|role| matches!(role, RoleName::DenseWorker(_)));
        let all = is_lost && self.loss == WorkerLoss::SetsRunBack;
        self.hit = if all { self.roles.clone() } else { roles.to_vec() };
    }

    /// Processes that were started again though nothing was done to them.
    pub(crate) fn look(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for role in self.roles.clone() {
            let Some(pid) = self.pid(role) else { continue };
            let known_pid = self.seen.insert(role.file_name(), pid);
            if known_pid.is_some_and(|known_pid| known_pid != pid) && !self.hit.contains(&role) {
                problems.push(format!("{} was started again, though nothing was done to it", role.display_name()));
            }
        }
        problems
    }
}

/// Signals a process of ours. It may have ended since it was looked for.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()).filter(|_| is_ours(pid)) {
        // It may end between the check and the call.
        let _ = kill_process(pid, signal);
    }
}

/// Whether this process started it: nothing else is ever signalled.
fn is_ours(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i32>().ok());
    parent == Some(getpid().as_raw_nonzero().get())
}

/// Whether a process may write to files. Its disk takes no more while `RLIMIT_FSIZE` is zero: each write to a file fails with
/// EFBIG. Errors are passed over: the process may have ended.
pub(crate) fn allow_writes(pid: u32, may_write: bool) {
    let Some(process) = Pid::from_raw(pid.cast_signed()).filter(|_| is_ours(pid)) else { return };
    let limit = if may_write { None } else { Some(0) };
    let _ = prlimit(Some(process), Resource::Fsize, Rlimit { current: limit, maximum: None });
}

/// Starts `program` without the signal of a write beyond the limit, which would end the process, as no disk does.
pub(crate) fn without_signal(program: &Path, folder: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;

    let path = folder.join("start.sh");
    let quoted = program.display().to_string().replace('\'', "'\\''");
    let text = format!("#!/bin/sh\ntrap '' XFSZ\nexec '{quoted}' \"$@\"\n");
    durable::write(&path, text.as_bytes())?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))?;
    Ok(path)
}

const PERIOD: Duration = Duration::from_millis(300);

pub(crate) struct RoundScaling<'a> {
    pub(crate) run: &'a Path,
    pub(crate) job: &'a Job,
    pub(crate) credentials: Credentials,
    pub(crate) wanted: watch::Sender<WantedRoles>,
}

impl RoundScaling<'_> {
    /// The run gets as many more workers, if it takes so many. Does not wait until it has them.
    pub(crate) async fn scale_to(&self, servers: u32) -> Result<(), Refusal> {
        let workers = workers_beside(self.job, servers);
        self.coordinator()?.scale(ScaleRequest { servers, workers }).await?;
        Ok(())
    }

    /// Tells the supervisor again and again what the coordinator says that there is to be.
    pub(crate) async fn follow(&self) -> Infallible {
        loop {
            tokio::time::sleep(PERIOD).await;
            let Ok(control) = self.coordinator() else { continue };
            // A coordinator that was killed comes back.
            let status = control.status(StatusRequest {}).await.ok();
            if let Some(roles) = status.as_ref().and_then(WantedRoles::from_status) {
                self.wanted.send_replace(roles);
            }
        }
    }

    /// How far the moves are; `None` if nothing moves, or the coordinator is away.
    pub(crate) async fn status(&self) -> Option<ScaleStatus> {
        self.coordinator().ok()?.status(StatusRequest {}).await.ok()?.scale
    }

    fn coordinator(&self) -> Result<GrpcControlPlane, Refusal> {
        let announced = Announcement::read(&RoleName::Coordinator.announcement_file(self.run));
        let address = announced.map(|announced| announced.address).unwrap_or_default();
        GrpcControlPlane::connect(&address, self.job.cluster.timeout, &self.credentials)
            .map_err(|error| Refusal::invalid(error.to_string()))
    }
}

/// 0 leaves their number as it is. It never falls below the first, so that the others can be killed at any time.
fn workers_beside(job: &Job, servers: u32) -> u32 {
    let cluster = &job.cluster;
    let more = servers.saturating_sub(cluster.servers);
    if cluster.most_workers() == cluster.workers { 0 } else { (cluster.workers + more).min(cluster.most_workers()) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use zagros_job::Overrides;

    use super::*;

    #[test]
    fn only_own_children_are_signalled() {
        assert!(!is_ours(1) && !is_ours(std::process::id()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        signal(child.id(), Signal::KILL);
        assert!(!child.wait().unwrap().success());
        assert!(!is_ours(child.id()));
    }

    /// A shell that writes to a file whenever it gets a line.
    #[test]
    fn writes_fail_and_go_on_and_the_process_lives() {
        use std::io::{BufRead, BufReader, Write};
        let folder = tempfile::tempdir().unwrap();
        let program = without_signal(Path::new("/bin/sh"), folder.path()).unwrap();
        let script = "while read line; do if echo $line 2>/dev/null >> out; then echo good; else echo bad; fi; done";
        let mut child = Command::new(program)
            .args(["-c", script])
            .current_dir(folder.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut ask, mut answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut written = |child: u32, may_write| {
            allow_writes(child, may_write);
            ask.write_all(b"x\n").unwrap();
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            line.trim() == "good"
        };
        let answered: Vec<bool> = [true, false, true].map(|may_write| written(child.id(), may_write)).to_vec();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(answered, [true, false, true]);
    }

    #[test]
    fn workers_come_and_go_with_servers_as_far_as_the_job_takes_them() {
        let job = |cluster: &str| {
            let text =
                format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[cluster]\nservers = 2\nworkers = 2\n{cluster}\n");
            Job::parse(&text, Path::new("job.toml"), &Overrides::sets(["name=test"])).unwrap()
        };
        let workers_of = |cluster: &str| [2, 3, 4].map(|servers| workers_beside(&job(cluster), servers));
        assert_eq!(workers_of(""), [0, 0, 0]);
        assert_eq!(workers_of("max_workers = 3"), [2, 3, 3]);
        assert_eq!(workers_of("max_workers = 9"), [2, 3, 4]);
    }
}
