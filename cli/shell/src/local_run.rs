//! A run on this machine as the doctor sees it: its coordinator's account, its processes, and its folder.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::future::join_all;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_coordinator_core::doctor::{
    CoordinatorSign, Observation, ObservedProcess, OwnWaits, Party, ProcessEnd, ProcessState,
};
use zagros_coordinator_core::{MemberSlot, Role};
use zagros_plumbing::ask::ask_path;
use zagros_protocol::control::StatusRequest;
use zagros_transport::Credentials;
use zagros_zip::{ZipEq, number_from};

use crate::credentials;
use crate::exit::Failure;
use crate::process_record::{Announcement, ProcessChange, ProcessRecord};

/// How long a process of this machine may take to answer. One that is stopped accepts connections and never answers.
const ANSWER: Duration = Duration::from_secs(2);
pub const STATE_FILE: &str = "last-state.json";

/// The folder of a run that `zagros up` has started.
pub(crate) struct LocalRun {
    run: PathBuf,
    records: Vec<ProcessRecord>,
    /// What this process proves to those of the run.
    credentials: Credentials,
}

impl LocalRun {
    /// Refuses a folder that is none of a run that `zagros up` has started.
    pub(crate) fn open(run: &Path) -> Result<Self, Failure> {
        let records = ProcessRecord::read(run);
        if !run.is_dir() || (records.is_empty() && !run.join("roles").is_dir()) {
            let what = format!("{} is no folder of a run that `zagros up` has started", run.display());
            let help = "`ls -t runs` lists the runs, the newest first; for a run on other machines, give --coordinator HOST:PORT";
            return Err(Failure::usage(what, help));
        }
        Ok(Self { run: run.to_owned(), records, credentials: credentials::of_run(run)? })
    }

    /// Asks every process that lives, and reads what the others have left.
    pub(crate) async fn observe(&self, timeout: Duration) -> Observation {
        let roles = self.roles();
        let asked = roles.iter().map(|(party, role)| self.process(*party, role));
        let (processes, said): (Vec<ObservedProcess>, Vec<Option<OwnWaits>>) =
            join_all(asked).await.into_iter().unzip();
        let coordinator = roles.iter().find(|(party, _)| *party == Party::Coordinator).map(|(_, role)| role);
        let mut observation = self.account(coordinator, timeout).await;
        if observation.coordinator != CoordinatorSign::Answers {
            adopt(&mut observation, &processes, said);
        }
        observation.processes = processes;
        observation
    }

    /// The newest process of each role that announced itself, in the order of their names.
    fn roles(&self) -> Vec<(Party, Announcement)> {
        let files = std::fs::read_dir(self.run.join("roles")).into_iter().flatten().filter_map(Result::ok);
        let announced = files.filter_map(|file| Announcement::read(&file.path()));
        let mut roles: Vec<_> = announced.filter_map(|role| Some((party(&role.role)?, role))).collect();
        roles.sort_by_key(|(party, _)| *party);
        roles
    }

    async fn process(&self, party: Party, role: &Announcement) -> (ObservedProcess, Option<OwnWaits>) {
        let state = state_of(role);
        let end = self.end(role);
        let mut process = ObservedProcess { party, pid: role.pid, state, answers: None, end };
        if state == ProcessState::Gone {
            return (process, None);
        }
        let answered = ask_path(&role.admin, "/healthz", None, ANSWER).await;
        process.answers = Some(answered.is_ok());
        let said = match answered {
            Ok(_) => {
                let token = self.credentials.page_token();
                ask_path(&role.admin, "/waits", token.as_deref(), ANSWER).await.ok()
            }
            Err(_) => None,
        };
        (process, said.and_then(|(_, body)| serde_json::from_slice(&body).ok()))
    }

    /// How the process ended, by the record of `zagros up`.
    fn end(&self, role: &Announcement) -> Option<ProcessEnd> {
        let mut ends = number_from(0_u64, &self.records);
        ends.find_map(|(order, record)| match &record.change {
            ProcessChange::Ended { how, well, asked } if record.pid == role.pid && record.role == role.role => {
                let log = self.run.join("logs").join(format!("{}.log", role.role));
                let last_error = (!well && !asked).then(|| last_error(&log)).flatten();
                Some(ProcessEnd { how: how.clone(), well: *well, asked: *asked, order, last_error })
            }
            _ => None,
        })
    }

    /// The run by its coordinator, or by the last state that it wrote.
    async fn account(&self, coordinator: Option<&Announcement>, timeout: Duration) -> Observation {
        let sign = match coordinator {
            Some(role) if state_of(role) != ProcessState::Gone => {
                match status(role, &self.credentials, timeout).await {
                    Ok(observation) => return observation,
                    Err(why) => CoordinatorSign::Silent(why),
                }
            }
            _ => CoordinatorSign::Ended,
        };
        let path = self.run.join(STATE_FILE);
        let read = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Observation>(&text).ok());
        let written = path.metadata().and_then(|file| file.modified()).ok();
        let age = written.and_then(|written| SystemTime::now().duration_since(written).ok()).unwrap_or_default();
        let unknown = || Observation { state: "training".to_owned(), ..Observation::default() };
        Observation { coordinator: sign, age, ..read.unwrap_or_else(unknown) }
    }
}

async fn status(role: &Announcement, credentials: &Credentials, timeout: Duration) -> Result<Observation, String> {
    let control = GrpcControlPlane::connect(&role.address, timeout, credentials).map_err(|error| error.to_string())?;
    let status = control.status(StatusRequest {}).await.map_err(|refusal| refusal.to_string())?;
    Ok(Observation::from(&status))
}

/// What the processes say themselves takes the place of what the coordinator heard from them last.
fn adopt(observation: &mut Observation, processes: &[ObservedProcess], said: Vec<Option<OwnWaits>>) {
    let age = observation.age;
    for (process, said) in processes.iter().zip_eq(said) {
        let Party::Member(slot) = process.party else { continue };
        let Some(member) = observation.members.iter_mut().find(|member| member.slot == slot) else { continue };
        match said {
            Some(OwnWaits { waits, requests }) => {
                (member.waits, member.requests, member.silent) = (waits, requests, Duration::ZERO);
            }
            None => member.silent += age,
        }
    }
}

/// `embedding-server-1` as a party.
fn party(role: &str) -> Option<Party> {
    if role == "coordinator" {
        return Some(Party::Coordinator);
    }
    let (role, index) = role.rsplit_once('-')?;
    let index = index.parse().ok()?;
    let role = match role {
        "embedding-server" => Role::EmbeddingServer,
        "dense-worker" => Role::DenseWorker,
        _ => return None,
    };
    Some(Party::Member(MemberSlot { role, index }))
}

/// The state of an announced process, by the operating system.
fn state_of(role: &Announcement) -> ProcessState {
    if !role.is_live() {
        return ProcessState::Gone;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", role.pid)).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:")?.trim().chars().next());
    match state {
        Some('T' | 't') => ProcessState::Stopped,
        Some('D') => ProcessState::DiskSleep,
        Some(_) => ProcessState::Lives,
        None => ProcessState::Gone,
    }
}

/// Bytes at the end of a log that are read.
const TAIL: u64 = 64 << 10;
const LONGEST: usize = 300;

/// The text of the last error in a role's log; `None` where the log has none, or cannot be read.
pub fn last_error(log: &Path) -> Option<String> {
    let tail = tail(log).ok()?;
    let error = tail.lines().rev().find_map(error_of)?;
    Some(error.chars().take(LONGEST).collect())
}

fn tail(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let start = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The error of a line: a log line of that level, or the first line of a printed error.
fn error_of(line: &str) -> Option<&str> {
    let is_json = line.contains("\"level\":\"ERROR\"");
    let text_after = |mark: &str| line.split_once(mark).map(|(_, text)| text.trim());
    text_after(" ERROR ").or_else(|| text_after("× ")).or_else(|| is_json.then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_record::UP;

    fn announce(run: &Path, role: &str, pid: u32) -> Announcement {
        let role = Announcement { role: role.into(), pid, address: "127.0.0.1:1".into(), admin: "127.0.0.1:1".into() };
        role.write(&run.join("roles").join(format!("{}.json", role.role))).unwrap();
        role
    }

    #[test]
    fn names_of_roles_are_parties() {
        assert_eq!(party("coordinator"), Some(Party::Coordinator));
        assert_eq!(party("embedding-server-2"), Some(Party::Member(MemberSlot::server(2))));
        assert_eq!(party("dense-worker-11"), Some(Party::Member(MemberSlot::worker(11))));
        assert_eq!([party("up"), party("dense-worker-x"), party("cook-1")], [None; 3]);
    }

    #[tokio::test]
    async fn a_run_that_is_over_is_described_by_what_it_left() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        assert!(format!("{:?}", LocalRun::open(run).err().unwrap()).contains("is no folder of a run"));
        // No process has these ids.
        let (server, coordinator) = (u32::MAX - 1, u32::MAX);
        announce(run, "coordinator", coordinator);
        announce(run, "embedding-server-0", server);
        let ended = |how: &str, asked| ProcessChange::Ended { how: how.to_owned(), well: false, asked };
        for record in [
            ProcessRecord::now(UP, 1, ProcessChange::Started),
            ProcessRecord::now("embedding-server-0", server, ended("was killed by signal 9", false)),
            ProcessRecord::now("coordinator", coordinator, ended("was killed by signal 15", true)),
        ] {
            record.append(run).unwrap();
        }
        std::fs::write(run.join("logs/embedding-server-0.log"), "2026-11-23T00:00:00Z ERROR disk full\n").unwrap();
        let state =
            Observation { job: "ads".to_owned(), state: "training".to_owned(), step: 7, ..Observation::default() };
        std::fs::write(run.join(STATE_FILE), serde_json::to_vec(&state).unwrap()).unwrap();
        let seen = LocalRun::open(run).unwrap().observe(ANSWER).await;
        assert_eq!((seen.job.as_str(), seen.step, &seen.coordinator), ("ads", 7, &CoordinatorSign::Ended));
        let said = zagros_coordinator_core::doctor::diagnose_run(&seen);
        assert_eq!(said.verdict, "the run ended because embedding server 0 was killed by signal 9");
        assert_eq!(said.findings[0].why, ["its last error: disk full"]);
    }

    /// This test's own process lives, and serves no HTTP.
    #[tokio::test]
    async fn a_process_that_lives_is_asked_and_what_it_does_not_answer_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let role = announce(folder.path(), "dense-worker-0", std::process::id());
        assert_eq!(state_of(&role), ProcessState::Lives);
        let seen = LocalRun::open(folder.path()).unwrap().observe(ANSWER).await;
        let [process] = &seen.processes[..] else { panic!("{seen:?}") };
        assert_eq!((process.state, process.answers), (ProcessState::Lives, Some(false)));
    }

    #[test]
    fn the_last_error_is_found_in_text_in_json_and_as_it_is_printed() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a.log");
        let error = |text: &str| {
            std::fs::write(&log, text).unwrap();
            last_error(&log)
        };
        assert_eq!(last_error(&folder.path().join("none")), None);
        assert_eq!(error("T INFO fine\n"), None);
        assert_eq!(error("T ERROR one\nT INFO x\nT  ERROR two\nT INFO y\n").as_deref(), Some("two"));
        assert_eq!(error("T INFO x\nT   × the run failed\nT   │ because\n").as_deref(), Some("the run failed"));
        assert!(error("T {\"level\":\"ERROR\",\"message\":\"m\"}").unwrap().contains("\"m\""));
        assert_eq!(error(&"T ERROR x\n".repeat(20_000)).as_deref(), Some("x"));
        assert_eq!(error(&format!("T ERROR {}", "é".repeat(1000))).unwrap().chars().count(), LONGEST);
    }
}
