//! `zagros up --watch`: a dashboard while the run goes on, and the run's lines once the user leaves it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use zagros_coordinator_client::GrpcControlPlane;
use zagros_plumbing::Shutdown;
use zagros_shell::dashboard::{self, DashboardEnd, WatchedRun};
use zagros_shell::{Announcement, Exit, Failure};

use zagros_launch::RoleName;
use zagros_launch::RunConsole;
use zagros_transport::Credentials;

const KEYS: &str = "q leaves this view, the run goes on   Ctrl-C stops the run after its step";
/// How often a starting coordinator is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the job, with a dashboard until the user leaves it or the run is over.
pub(super) async fn run_with_dashboard(
    run: impl Future<Output = Result<Exit, Failure>>,
    (folder, credentials): (&Path, Credentials),
    timeout: Duration,
    console: RunConsole,
) -> Result<Exit, Failure> {
    let run_end = Shutdown::new();
    let run = async {
        let ended = run.await;
        run_end.request();
        ended
    };
    let dashboard = async {
        // The run does not depend on its dashboard.
        if let Err(failure) = show((folder, &credentials), timeout, &console, &run_end).await {
            failure.log_warning("there is no dashboard; the run goes on");
        }
    };
    tokio::join!(run, dashboard).0
}

async fn show(
    (folder, credentials): (&Path, &Credentials),
    timeout: Duration,
    console: &RunConsole,
    over: &Shutdown,
) -> Result<(), Failure> {
    let Some(coordinator) = coordinator(folder, over).await else { return Ok(()) };
    let control = GrpcControlPlane::connect(&coordinator.address, timeout, credentials);
    let control = control.map_err(|error| Failure::from_error(Exit::Internal, error))?;
    let lines = console.clone();
    let watched =
        WatchedRun { control: Arc::new(control), timeout, lines: Box::new(move || lines.last_lines()), keys: KEYS };
    console.hold_output();
    let left = dashboard::watch(&watched, over.requested()).await;
    console.release_output();
    if let (DashboardEnd::Stop, _) = left? {
        // The same as a Ctrl-C at a terminal without a dashboard: it is counted, passed on, and obeyed.
        let _ = kill_process(getpid(), Signal::INT);
    }
    Ok(())
}

/// The coordinator's announcement, once it listens; `None` if the run is over before.
async fn coordinator(folder: &Path, over: &Shutdown) -> Option<Announcement> {
    let path = RoleName::Coordinator.announcement_file(folder);
    let earlier = Announcement::read(&path);
    loop {
        // The announcement of an earlier process in this folder does not count.
        let found = Announcement::read(&path).filter(|found| Some(found) != earlier.as_ref());
        if found.is_some() {
            return found;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = over.requested() => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(address: &str) -> Announcement {
        Announcement { role: "coordinator".into(), pid: 1, address: address.into(), admin: String::new() }
    }

    #[tokio::test]
    async fn the_coordinator_of_this_run_is_found_and_not_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = RoleName::Coordinator.announcement_file(folder.path());
        announced("127.0.0.1:1").write(&path).unwrap();
        let run_end = Shutdown::new();
        let later = async {
            tokio::time::sleep(LOOK * 3).await;
            announced("127.0.0.1:2").write(&path).unwrap();
        };
        let (found, ()) = tokio::join!(coordinator(folder.path(), &run_end), later);
        assert_eq!(found.unwrap().address, "127.0.0.1:2");
        run_end.request();
        assert_eq!(coordinator(folder.path(), &run_end).await, None);
    }
}
