//! How each role of a job is started as a child process.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use crate::{Announcement, Exit, Failure, Logging, SECRET, SECRET_FILE, STATE_FILE};
use zagros_coordinator::journal::InputJournal;
use zagros_job::Job;
use zagros_plumbing::Deadline;
use zagros_plumbing::metrics::DiskSpace;
use zagros_transport::{Credentials, PeerRole, RoleKey};

use crate::launch::addresses::{ANY_PORT, RoleAddresses, reachable_address};
use crate::launch::child::{ChildEnvironment, ChildProcess, RoleName};
use crate::launch::prefix::ChildOutput;
use crate::launch::row_folders::{LogDisk, RowFolders};
use crate::launch::supervise::Supervisor;

/// How often it is looked whether a coordinator of an earlier run has ended.
const POLL: Duration = Duration::from_millis(50);

pub struct LaunchPlan<'a> {
    /// The program that plays every role: `zagros`. A `zagros-server` beside it plays those that need no libtorch.
    pub program: &'a Path,
    pub job_file: &'a Path,
    /// `KEY=VALUE`.
    pub sets: &'a [String],
    /// The run folder. Each child announces in it where it listens.
    pub folder: &'a Path,
    /// The longest wait for a child that is to listen.
    pub timeout: Duration,
    /// Whether an interrupted run is resumed although its job learns differently now.
    pub resume: bool,
    pub logging: Logging,
    /// Where the lines of children go. The last lines of a child that fails are shown in any case.
    pub output: ChildOutput,
    pub addresses: RoleAddresses,
    pub row_folders: RowFolders,
    /// The run's secret. Each child gets the key of its own role, in its environment.
    pub secret: RoleKey,
}

impl LaunchPlan<'_> {
    /// What this process proves to the roles: everything that it has started.
    pub fn credentials(&self) -> Credentials {
        Credentials::Secret(self.secret.clone())
    }

    /// Starts the coordinator, then the embedding servers. Returns the coordinator's address.
    pub async fn start_servers(&self, job: &Job, supervisor: &mut Supervisor) -> Result<String, Failure> {
        self.prepare_logs(job)?;
        let address = self.start_coordinator(supervisor).await?;
        for index in 0..job.cluster.servers {
            supervisor.add_child(self.start_role(RoleName::EmbeddingServer(index), &address, &[])?);
        }
        Ok(address)
    }

    /// Deletes the logs of an earlier run, and refuses to start where no push could be acknowledged.
    fn prepare_logs(&self, job: &Job) -> Result<(), Failure> {
        let discarded = self.row_folders.discard_logs();
        if discarded > 0 {
            self.output.console.print_line(format!(
                "the logs of {discarded} embedding server(s) of the run before are deleted: what it trained after its newest \
                 checkpoint is trained again"
            ));
        }
        let folder = self.row_folders.logs();
        let lack =
            LogDisk::from_job(job).and_then(|disk| disk.refusal_message(folder, DiskSpace::measure(folder).ok()));
        let help = "make room there, or name a folder on another disk in `cluster.log_folder`";
        lack.map_or(Ok(()), |what| Err(Failure::with_help(Exit::Storage, what, help)))
    }

    pub async fn start_coordinator(&self, supervisor: &mut Supervisor) -> Result<String, Failure> {
        self.discard_journal().await?;
        let _ = std::fs::remove_file(self.folder.join(STATE_FILE));
        let mut coordinator = self.start_role(
            RoleName::Coordinator,
            self.addresses.coordinator_address(),
            &texts(&self.coordinator_files()),
        )?;
        let announced = coordinator.wait_announced(self.timeout).await;
        supervisor.add_child(coordinator);
        Ok(reachable_address(&announced?.address))
    }

    /// Deletes the journal of an earlier run in this folder. A coordinator whose parent was killed holds it until it has ended its run:
    /// it would delete this run's.
    async fn discard_journal(&self) -> Result<(), Failure> {
        let stuck = |error| Failure::with_help(Exit::Storage, error, "delete this folder, or make it writable");
        let (journal, deadline) = (self.journal(), Deadline::from_now(self.timeout));
        while !InputJournal::discard(Path::new(&journal)).map_err(stuck)? {
            if deadline.is_past() {
                let what = format!("the coordinator of an earlier run still holds its journal in {journal}");
                return Err(Failure::with_help(Exit::Cluster, what, "end that process, or wait until it has ended"));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Starts the coordinator once more, where the one before listened: it continues the run by its journal.
    pub fn restart_coordinator(&self, before: &Announcement) -> Result<ChildProcess, Failure> {
        let (files, admin) = (self.coordinator_files(), format!("cluster.admin={}", before.admin));
        // The last change of a key counts.
        self.start_role(RoleName::Coordinator, &before.address, &[&texts(&files)[..], &["--set", &admin]].concat())
    }

    /// Where the coordinator keeps what it knows.
    fn coordinator_files(&self) -> [String; 4] {
        let state = self.folder.join(STATE_FILE).display().to_string();
        ["--journal".to_owned(), self.journal(), "--state-file".to_owned(), state]
    }

    fn journal(&self) -> String {
        self.folder.join("journal").display().to_string()
    }

    pub fn start_workers(&self, job: &Job, coordinator: &str, supervisor: &mut Supervisor) -> Result<(), Failure> {
        for index in 0..job.cluster.workers {
            supervisor.add_child(self.start_worker(index, coordinator, &[])?);
        }
        Ok(())
    }

    pub fn start_worker(&self, index: u32, coordinator: &str, more: &[&str]) -> Result<ChildProcess, Failure> {
        let folder = self.folder.display().to_string();
        let resume: &[&str] = if self.resume { &["--resume"] } else { &[] };
        self.start_role(RoleName::DenseWorker(index), coordinator, &[&["--folder", &folder], resume, more].concat())
    }

    pub fn start_role(&self, role: RoleName, coordinator: &str, more: &[&str]) -> Result<ChildProcess, Failure> {
        let announce = role.announcement_file(self.folder);
        let mut arguments = role.subcommand_args();
        arguments.extend(["--config".to_owned(), self.job_file.display().to_string()]);
        arguments.extend(self.sets(role, coordinator).flat_map(|set| ["--set".to_owned(), set]));
        arguments.extend(["--announce".to_owned(), announce.display().to_string(), "--exit-with-parent".to_owned()]);
        arguments.extend(self.logging.to_arguments());
        arguments.extend(more.iter().map(|&text| text.to_owned()));
        ChildProcess::start(&self.program_of(role), role, (&arguments, self.environment(role)), announce, &self.output)
    }

    /// To load libtorch costs each process half a second of CPU, and memory.
    fn program_of(&self, role: RoleName) -> Cow<'_, Path> {
        let server = self.program.with_file_name("zagros-server");
        match role {
            RoleName::Coordinator | RoleName::EmbeddingServer(_) if server.is_file() => server.into(),
            _ => self.program.into(),
        }
    }

    /// Other users see the arguments of a process, and not its environment.
    fn environment(&self, role: RoleName) -> ChildEnvironment {
        let key = self.secret.derive_key(match role {
            RoleName::Coordinator => PeerRole::Coordinator,
            RoleName::EmbeddingServer(_) => PeerRole::EmbeddingServer,
            RoleName::DenseWorker(_) => PeerRole::DenseWorker,
        });
        ChildEnvironment {
            set: key.map(|key| (SECRET, key.expose_secret())).into_iter().collect(),
            unset: vec![SECRET_FILE],
        }
    }

    /// The job's changes, then those that give the role its place on this machine.
    fn sets(&self, role: RoleName, coordinator: &str) -> impl Iterator<Item = String> {
        let local = [
            format!("cluster.coordinator={coordinator}"),
            format!("cluster.server_addresses=[\"{ANY_PORT}\"]"),
            format!("cluster.worker_address={ANY_PORT}"),
            format!("cluster.admin={}", self.addresses.admin_address(role)),
        ];
        self.sets.iter().cloned().chain(local).chain(self.row_folders.sets())
    }
}

fn texts(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
