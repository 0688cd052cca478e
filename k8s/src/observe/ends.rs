//! How containers ended, and what they left to say of it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use zagros_plumbing::exit_codes::CLUSTER;

use super::PodExit;
use crate::crd::RunProgress;
use crate::names::PodRole;
use crate::probe;

/// Whether this end is that of the whole run: the coordinator ends with 4 when it has failed, however often it is started.
pub(super) fn is_verdict(role: PodRole, exit: &PodExit) -> bool {
    role == PodRole::Coordinator && exit.code == i32::from(CLUSTER)
}

/// When the process began that runs in the container.
pub(super) fn started(container: &ContainerStatus) -> Option<Timestamp> {
    Some(container.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}

/// The report that a coordinator leaves at the end of its run, as the message of its container's end.
pub(super) fn end_report(pod: &Arc<Pod>) -> Option<RunProgress> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let coordinator = containers.iter().find(|one| one.name == PodRole::Coordinator.short_name())?;
    let ended = last_end(coordinator).filter(|ended| ended.exit_code == 0)?;
    probe::parse_status(ended.message?.as_bytes()).ok()
}

fn last_end(container: &ContainerStatus) -> Option<ContainerStateTerminated> {
    let terminated = |state: &Option<ContainerState>| state.as_ref().and_then(|state| state.terminated.clone());
    terminated(&container.state).or_else(|| terminated(&container.last_state))
}

pub(super) fn done(container: &ContainerStatus) -> Option<Timestamp> {
    let ended = last_end(container).filter(|ended| ended.exit_code == 0)?;
    Some(ended.finished_at.map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

pub(super) fn exit(container: &ContainerStatus) -> Option<PodExit> {
    let ended = last_end(container)?;
    (ended.exit_code != 0).then(|| PodExit {
        code: ended.exit_code,
        reason: ended.reason.unwrap_or_default(),
        message: cause(&ended.message.unwrap_or_default()),
        at: ended.finished_at.map(|time| time.0),
    })
}

#[derive(Deserialize)]
struct LogLine {
    level: String,
    message: String,
}

/// In one line, because a status is read in a terminal: the last line where it is no line of the log, such as a
/// panic's, or else the newest error.
fn cause(text: &str) -> String {
    const MOST: usize = 400;
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty()).rev();
    // The first line of a log's end may be the rest of one.
    let printed = lines().next().filter(|line| !line.ends_with('}')).map(str::to_owned);
    let logged = |line: &str| serde_json::from_str(line).ok().filter(|line: &LogLine| line.level == "ERROR");
    let line = printed.or_else(|| lines().find_map(logged).map(|line| line.message));
    line.unwrap_or_default().chars().take(MOST).collect()
}
