//! `zagros up --watch`: the dashboard in front of the run, and the lines of the run when it is left.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use zagros_coordinator_client::GrpcControlPlane;
use zagros_plumbing::Shutdown;
use zagros_shell::dashboard::{self, Left, Watched};
use zagros_shell::{Announcement, Exit, Failure};

use zagros_launch::RoleName;
use zagros_launch::RunConsole;

const KEYS: &str = "q leaves this view, the run goes on   Ctrl-C stops the run after its step";
/// How often is looked for a coordinator that starts.
const LOOK: Duration = Duration::from_millis(50);

/// Runs, with a dashboard until it is left or the run is over.
pub(super) async fn along(
    run: impl Future<Output = Result<Exit, Failure>>,
    folder: &Path,
    timeout: Duration,
    console: RunConsole,
) -> Result<Exit, Failure> {
    let over = Shutdown::new();
    let run = async {
        let ended = run.await;
        over.request();
        ended
    };
    let dashboard = async {
        // The run does not depend on who looks at it.
        if let Err(failure) = show(folder, timeout, &console, &over).await {
            failure.warn("there is no dashboard, the run goes on");
        }
    };
    tokio::join!(run, dashboard).0
}

async fn show(folder: &Path, timeout: Duration, console: &RunConsole, over: &Shutdown) -> Result<(), Failure> {
    let Some(coordinator) = coordinator(folder, over).await else { return Ok(()) };
    let control = GrpcControlPlane::connect(&coordinator.address, timeout);
    let control = control.map_err(|error| Failure::from_error(Exit::Internal, error))?;
    let lines = console.clone();
    let watched = Watched { control: Arc::new(control), timeout, lines: Box::new(move || lines.last()), keys: KEYS };
    console.hold();
    let left = dashboard::watch(&watched, over.requested()).await;
    console.release();
    if let (Left::Stop, _) = left? {
        // As it would have come from a terminal that is not drawn on: counted, passed on, and obeyed.
        let _ = kill_process(getpid(), Signal::INT);
    }
    Ok(())
}

/// Where the coordinator listens, once it does; `None` where the run was over before.
async fn coordinator(folder: &Path, over: &Shutdown) -> Option<Announcement> {
    let path = RoleName::Coordinator.announcement(folder);
    let before = Announcement::read(&path);
    loop {
        // One of an earlier process in this folder is of no use.
        let found = Announcement::read(&path).filter(|found| Some(found) != before.as_ref());
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
        let path = RoleName::Coordinator.announcement(folder.path());
        announced("127.0.0.1:1").write(&path).unwrap();
        let over = Shutdown::new();
        let later = async {
            tokio::time::sleep(LOOK * 3).await;
            announced("127.0.0.1:2").write(&path).unwrap();
        };
        let (found, ()) = tokio::join!(coordinator(folder.path(), &over), later);
        assert_eq!(found.unwrap().address, "127.0.0.1:2");
        over.request();
        assert_eq!(coordinator(folder.path(), &over).await, None);
    }
}
