//! Finds the coordinator that a person means without giving its address.

use std::path::{Path, PathBuf};

use crate::announce::{Announcement, coordinator_file};
use crate::exit::{Exit, Failure};

/// The default folder of runs.
const RUNS: &str = "runs";
/// The default of `cluster.coordinator`.
const DEFAULT: &str = "127.0.0.1:7700";

/// `host:port` of the coordinator of a run on this machine.
///
/// # Errors
/// When the run is over, or has no coordinator. Says what to do.
pub(crate) fn of_run(run: &Path) -> Result<String, Failure> {
    let shown = run.display();
    if !run.is_dir() {
        let what = format!("there is no run folder {shown}");
        return Err(Failure::with_help(Exit::Usage, what, "`ls -t runs` lists the runs, the newest first"));
    }
    let Some(coordinator) = Announcement::read(&coordinator_file(run)) else {
        let what = format!("{shown} was not started by `zagros up`, so it has no coordinator to ask");
        let help = "`zagros train` shows its progress on its own terminal; for a run on other machines, give --coordinator \
                    HOST:PORT";
        return Err(Failure::with_help(Exit::Usage, what, help));
    };
    if !coordinator.is_live() {
        let what = format!("no run is live in {shown}: its coordinator (process {}) has ended", coordinator.pid);
        let help =
            format!("how it went is in {shown}/report.html and summary.json; `zagros logs {shown}` has its last lines");
        return Err(Failure::with_help(Exit::Cluster, what, help));
    }
    Ok(coordinator.address)
}

/// The coordinator of the newest live run below `runs/`, or the default address.
pub(crate) fn newest() -> String {
    newest_below(Path::new(RUNS)).unwrap_or_else(|| DEFAULT.to_owned())
}

fn newest_below(runs: &Path) -> Option<String> {
    let folders = std::fs::read_dir(runs).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let live = folders.filter_map(|run: PathBuf| {
        let file = coordinator_file(&run);
        let coordinator = Announcement::read(&file).filter(Announcement::is_live)?;
        Some((file.metadata().ok()?.modified().ok()?, coordinator.address))
    });
    live.max().map(|(_, address)| address)
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
        let over = refusal("over");
        assert!(over.contains("no run is live") && over.contains("zagros logs"), "{over}");
        assert_eq!(newest_below(runs.path()), None);
    }

    #[test]
    fn a_live_coordinator_is_found() {
        let runs = tempfile::tempdir().unwrap();
        announce(&runs.path().join("old"), u32::MAX, "127.0.0.1:1");
        // This test's own process. Its name starts with that of the crate.
        announce(&runs.path().join("live"), std::process::id(), "127.0.0.1:2");
        assert_eq!(of_run(&runs.path().join("live")).unwrap(), "127.0.0.1:2");
        assert_eq!(newest_below(runs.path()).as_deref(), Some("127.0.0.1:2"));
    }
}
