//! While the run goes on: a dashboard with `zagros up --watch`, and the run's lines once the user leaves it; and what the run is to have
//! after a `zagros scale`.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::watch;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_plumbing::Shutdown;
use zagros_protocol::control::StatusRequest;
use zagros_shell::dashboard::{self, DashboardEnd, WatchedRun};
use zagros_shell::launch::{RoleName, RunConsole, WantedRoles};
use zagros_shell::{Announcement, Exit, Failure, OrFailure};
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
    let control = GrpcControlPlane::connect(&coordinator.address, timeout, credentials).or_internal()?;
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

const PERIOD: Duration = Duration::from_secs(1);

/// Tells `wanted` again and again what the run is to have, once a scale request has asked for other numbers. Ends with the task
/// that awaits it.
pub(super) async fn follow_scale(
    coordinator: &str,
    credentials: &Credentials,
    timeout: Duration,
    wanted: &watch::Sender<WantedRoles>,
) -> Result<Infallible, Failure> {
    let control = GrpcControlPlane::connect(coordinator, timeout, credentials).or_internal()?;
    loop {
        tokio::time::sleep(PERIOD).await;
        // A coordinator that is away for a moment comes back.
        let status = control.status(StatusRequest {}).await.ok();
        if let Some(roles) = status.as_ref().and_then(WantedRoles::from_status) {
            wanted.send_replace(roles);
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
