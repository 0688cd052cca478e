//! Waits for the process group, which forms once every dense worker has joined.

use std::time::Duration;

use zagros_plumbing::{Deadline, Shutdown};
use zagros_protocol::control::{GroupRequest, GroupResponse};

use crate::control_plane::answer;
use crate::placement::{MissingAnswer, POLL};
use crate::{ControlPlane, MemberError, Membership};

/// Waits for a process group newer than `after`, and returns this member's rank in it. Fails on shutdown, or when the
/// coordinator ends the run.
pub async fn wait_for_group(
    control: &dyn ControlPlane,
    member: &Membership,
    after: u64,
    timeout: Duration,
    shutdown: &Shutdown,
) -> Result<GroupResponse, MemberError> {
    const WHAT: &str = "get the group of workers";
    let deadline = Deadline::from_now(timeout);
    let request = GroupRequest { member: member.member_id(), incarnation: member.incarnation(), after };
    let found = tokio::select! {
        found = POLL.retry(deadline, MissingAnswer::is_retryable, || ask(control, request, deadline)) => found,
        () = shutdown.requested() => {
            return Err(MemberError::Stopped { coordinator: control.name().to_owned(), what: WHAT });
        }
    };
    found.map_err(|missing| missing.error(control, "group of workers", WHAT, deadline.time_waited()))
}

async fn ask(
    control: &dyn ControlPlane,
    request: GroupRequest,
    deadline: Deadline,
) -> Result<GroupResponse, MissingAnswer> {
    let group = answer(deadline, control.group(request)).await.map_err(MissingAnswer::Refused)?;
    if group.generation == 0 { Err(MissingAnswer::WaitingFor(group.waiting_for)) } else { Ok(group) }
}
