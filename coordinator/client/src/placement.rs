//! Waits until every embedding server of the run has joined, and for the process group, which forms once every dense worker has
//! joined.

use std::time::Duration;

use zagros_plumbing::{Backoff, Deadline, Shutdown};
use zagros_protocol::control::{GroupRequest, GroupResponse, PlacementRequest, PlacementResponse};
use zagros_protocol::{Generation, Refusal};

use crate::control_plane::answer;
use crate::{ControlPlane, MemberError, Membership};

/// Polls fast at first, because a run in one process is ready at once. The longest pause is short, so that it hardly delays
/// the first step.
const POLL: Backoff = Backoff { first: Duration::from_millis(20), most: Duration::from_millis(250) };

/// Polls until there is a placement. The error after `timeout` says what the coordinator waits for.
pub async fn wait_for_placement(
    control: &dyn ControlPlane,
    timeout: Duration,
    shutdown: &Shutdown,
) -> Result<PlacementResponse, MemberError> {
    const WHAT: &str = "get the placement";
    let deadline = Deadline::from_now(timeout);
    let found = tokio::select! {
        found = POLL.retry(deadline, MissingAnswer::is_retryable, || ask_placement(control, deadline)) => found,
        () = shutdown.requested() => {
            return Err(MemberError::Stopped { coordinator: control.name().to_owned(), what: WHAT });
        }
    };
    found.map_err(|missing| missing.error(control, "placement", WHAT, deadline.time_waited()))
}

/// Why there is no placement, or no group, yet.
enum MissingAnswer {
    WaitingFor(String),
    Refused(Refusal),
}

impl MissingAnswer {
    fn is_retryable(&self) -> bool {
        match self {
            Self::WaitingFor(_) => true,
            Self::Refused(refusal) => refusal.kind.is_retryable(),
        }
    }

    fn error(
        self,
        control: &dyn ControlPlane,
        what: &'static str,
        asked: &'static str,
        waited: Duration,
    ) -> MemberError {
        let coordinator = control.name().to_owned();
        match self {
            Self::WaitingFor(waiting_for) => MemberError::NotReady { coordinator, what, waited, waiting_for },
            Self::Refused(refusal) => MemberError::from_refusal(&coordinator, asked, waited, refusal),
        }
    }
}

async fn ask_placement(control: &dyn ControlPlane, deadline: Deadline) -> Result<PlacementResponse, MissingAnswer> {
    let placement = answer(deadline, control.placement(PlacementRequest {})).await.map_err(MissingAnswer::Refused)?;
    if placement.generation == Generation::NONE.0 {
        return Err(MissingAnswer::WaitingFor(placement.waiting_for));
    }
    Ok(placement)
}

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
        found = POLL.retry(deadline, MissingAnswer::is_retryable, || ask_group(control, request, deadline)) => found,
        () = shutdown.requested() => {
            return Err(MemberError::Stopped { coordinator: control.name().to_owned(), what: WHAT });
        }
    };
    found.map_err(|missing| missing.error(control, "group of workers", WHAT, deadline.time_waited()))
}

async fn ask_group(
    control: &dyn ControlPlane,
    request: GroupRequest,
    deadline: Deadline,
) -> Result<GroupResponse, MissingAnswer> {
    let group = answer(deadline, control.group(request)).await.map_err(MissingAnswer::Refused)?;
    if group.generation == 0 { Err(MissingAnswer::WaitingFor(group.waiting_for)) } else { Ok(group) }
}
