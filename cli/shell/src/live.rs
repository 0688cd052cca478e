//! Finds the coordinator that a person means without giving its address.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use zagros_transport::Credentials;

use crate::credentials;
use crate::exit::{Exit, Failure};
use crate::process_record::{Announcement, coordinator_file};

const RUNS: &str = "runs";
/// The default of `cluster.coordinator`.
const DEFAULT: &str = "127.0.0.1:7700";

#[derive(Clone, Debug)]
pub struct FoundCoordinator {
    /// `host:port` of its gRPC.
    pub address: String,
    /// What the command proves to it.
    pub credentials: Credentials,
}

/// The coordinator that the arguments of a command mean: that at an address, that of a run on this machine, or [`newest_coordinator`].
pub(crate) fn find_coordinator(address: Option<String>, run: Option<&Path>) -> Result<FoundCoordinator, Failure> {
    match (address, run) {
        (Some(address), _) => coordinator_at(address),
        (None, Some(run)) => of_run(run),
        (None, None) => newest_coordinator(),
    }
}

/// The coordinator of a run on this machine. Where the run is over, or has no coordinator, the error says what to do.
pub(crate) fn of_run(run: &Path) -> Result<FoundCoordinator, Failure> {
    let shown = run.display();
    if !run.is_dir() {
        let what = format!("there is no run folder {shown}");
        return Err(Failure::usage(what, "`ls -t runs` lists the runs, the newest first"));
    }
    let Some(coordinator) = Announcement::read(&coordinator_file(run)) else {
        let what = format!("{shown} was not started by `zagros up`, so it has no coordinator to ask");
        let help = "`zagros train` shows its progress on its own terminal; for a run on other machines, give --coordinator \
                    HOST:PORT";
        return Err(Failure::usage(what, help));
    };
    if !coordinator.is_live() {
        let (what, help) = describe_end(run, coordinator.pid);
        return Err(Failure::with_help(Exit::Cluster, what, help));
    }
    Ok(FoundCoordinator { address: coordinator.address, credentials: credentials::of_run(run)? })
}

/// What is known of a run whose coordinator has ended, and what to do.
fn describe_end(run: &Path, pid: u32) -> (String, String) {
    let shown = run.display();
    let others = std::fs::read_dir(run.join("roles")).into_iter().flatten().flatten();
    if others.filter_map(|file| Announcement::read(&file.path())).any(|role| role.is_live()) {
        let what =
            format!("the coordinator of {shown} (process {pid}) has ended, and other processes of the run have not");
        return (what, "`zagros up` starts it again, or ends the run; ask again in a few seconds".to_owned());
    }
    let what = format!("no run is live in {shown}: its coordinator (process {pid}) has ended");
    let written: Vec<&str> =
        ["report.html", "summary.json"].into_iter().filter(|file| run.join(file).is_file()).collect();
    let went = match &written[..] {
        [] => "the run left no report and no summary".to_owned(),
        written => format!("how it went is in {}", written.join(" and ")),
    };
    (what, format!("{went}; {shown}/logs has its last lines"))
}

/// The coordinator of a run that `zagros up` trains on this machine now. `None` of every other folder.
pub fn live_coordinator(run: &Path) -> Result<Option<FoundCoordinator>, Failure> {
    let announced = Announcement::read(&coordinator_file(run)).filter(Announcement::is_live);
    announced.map(|_| of_run(run)).transpose()
}

/// The coordinator at this address. If a run of this machine below `runs/` has it, with the secret of that run.
pub(crate) fn coordinator_at(address: String) -> Result<FoundCoordinator, Failure> {
    let run = live_below(Path::new(RUNS)).into_iter().find(|run| run.address == address);
    let credentials = run.map_or_else(credentials::from_environment, |run| credentials::of_run(&run.folder))?;
    Ok(FoundCoordinator { address, credentials })
}

/// The run folder below `runs/` whose coordinator announced itself last, live or not.
pub(crate) fn newest_folder() -> Option<PathBuf> {
    let folders = std::fs::read_dir(RUNS).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let announced = folders.filter_map(|run| Some((coordinator_file(&run).metadata().ok()?.modified().ok()?, run)));
    announced.max().map(|(_, run)| run)
}

/// The coordinator of the newest live run below `runs/`, or the one at the default address.
pub(crate) fn newest_coordinator() -> Result<FoundCoordinator, Failure> {
    match newest_below(Path::new(RUNS)) {
        Some(run) => Ok(FoundCoordinator { credentials: credentials::of_run(&run.folder)?, address: run.address }),
        None => Ok(FoundCoordinator { address: DEFAULT.to_owned(), credentials: credentials::from_environment()? }),
    }
}

/// A run whose coordinator lives on this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LiveRun {
    /// When its coordinator announced itself.
    since: SystemTime,
    address: String,
    folder: PathBuf,
}

fn newest_below(runs: &Path) -> Option<LiveRun> {
    live_below(runs).into_iter().max()
}

fn live_below(runs: &Path) -> Vec<LiveRun> {
    let Ok(entries) = std::fs::read_dir(runs) else { return Vec::new() };
    let live = |folder: PathBuf| {
        let file = coordinator_file(&folder);
        let coordinator = Announcement::read(&file).filter(Announcement::is_live)?;
        Some(LiveRun { since: file.metadata().ok()?.modified().ok()?, address: coordinator.address, folder })
    };
    entries.filter_map(|entry| live(entry.ok()?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announce(run: &Path, pid: u32, address: &str) {
        let announced = Announcement { role: "coordinator".into(), pid, address: address.into(), admin: String::new() };
        announced.write(&coordinator_file(run)).unwrap();
    }

    #[test]
    fn a_run_that_is_over_or_never_had_a_coordinator_is_reported() {
        let runs = tempfile::tempdir().unwrap();
        let refusal = |run: &str| format!("{:?}", of_run(&runs.path().join(run)).unwrap_err());
        assert!(refusal("none").contains("no run folder"));
        std::fs::create_dir(runs.path().join("train")).unwrap();
        assert!(refusal("train").contains("was not started by `zagros up`"));
        // No process has this id.
        announce(&runs.path().join("over"), u32::MAX, "127.0.0.1:1");
        let ended = refusal("over");
        for part in ["no run is live", "left no report and no summary; "] {
            assert!(ended.contains(part), "no {part} in {ended}");
        }
        std::fs::write(runs.path().join("over/summary.json"), "{}").unwrap();
        assert!(refusal("over").contains("how it went is in summary.json; "));
        // A worker lives: this test's own process.
        let worker = Announcement { role: "dense-worker-0".into(), pid: std::process::id(), ..Announcement::default() };
        worker.write(&runs.path().join("over/roles/dense-worker-0.json")).unwrap();
        let away = refusal("over");
        assert!(away.contains("other processes of the run have not") && away.contains("ask again"), "{away}");
        assert_eq!(newest_below(runs.path()), None);
    }

    #[test]
    fn a_live_coordinator_is_found() {
        let runs = tempfile::tempdir().unwrap();
        announce(&runs.path().join("old"), u32::MAX, "127.0.0.1:1");
        // This test's own process. Its name starts with that of the crate.
        announce(&runs.path().join("live"), std::process::id(), "127.0.0.1:2");
        let found = of_run(&runs.path().join("live")).unwrap();
        assert_eq!((found.address.as_str(), found.credentials.is_checked()), ("127.0.0.1:2", false));
        assert_eq!(newest_below(runs.path()).map(|run| run.address).as_deref(), Some("127.0.0.1:2"));
        // The run has a secret from now on.
        let key = zagros_transport::RoleKey::random();
        credentials::write_secret(&credentials::secret_file(&runs.path().join("live")), &key).unwrap();
        assert!(of_run(&runs.path().join("live")).unwrap().credentials.is_checked());
    }
}
