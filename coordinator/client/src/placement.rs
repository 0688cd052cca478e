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
    let deadline = Deadline::from_now(timeout);
    let ask = || async {
        let placement =
            answer(deadline, control.placement(PlacementRequest {})).await.map_err(MissingAnswer::Refused)?;
        let is_there = placement.generation != Generation::NONE.0;
        if is_there { Ok(placement) } else { Err(MissingAnswer::WaitingFor(placement.waiting_for)) }
    };
    poll(control, ("placement", "get the placement"), deadline, shutdown, ask).await
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
    let deadline = Deadline::from_now(timeout);
    let request = GroupRequest { member: member.member_id(), incarnation: member.incarnation(), after };
    let ask = || async {
        let group = answer(deadline, control.group(request)).await.map_err(MissingAnswer::Refused)?;
        if group.generation == 0 { Err(MissingAnswer::WaitingFor(group.waiting_for)) } else { Ok(group) }
    };
    poll(control, ("group of workers", "get the group of workers"), deadline, shutdown, ask).await
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
}

/// Asks until there is an answer. The error says `what` is missing, or what was `asked`.
async fn poll<T, F: Future<Output = Result<T, MissingAnswer>>>(
    control: &dyn ControlPlane,
    (what, asked): (&'static str, &'static str),
    deadline: Deadline,
    shutdown: &Shutdown,
    ask: impl FnMut() -> F,
) -> Result<T, MemberError> {
    let coordinator = control.name().to_owned();
    let found = tokio::select! {
        found = POLL.retry(deadline, MissingAnswer::is_retryable, ask) => found,
        () = shutdown.requested() => return Err(MemberError::Stopped { coordinator, what: asked }),
    };
    let waited = deadline.time_waited();
    found.map_err(|missing| match missing {
        MissingAnswer::WaitingFor(waiting_for) => MemberError::NotReady { coordinator, what, waited, waiting_for },
        MissingAnswer::Refused(refusal) => MemberError::from_refusal(&coordinator, asked, waited, refusal),
    })
}
