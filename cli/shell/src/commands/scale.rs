//! `scale`: changes the number of members of a run while it trains, and shows how far that is.

use std::time::Duration;

use owo_colors::OwoColorize;
use tokio::time::Instant;
use zagros_coordinator::ScaleReport;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_protocol::control::{ScaleRequest, ScaleStatus, StatusRequest};
use zagros_protocol::{Refusal, RefusalKind};

use crate::args::{RoleCount, ScaleArgs};
use crate::exit::{Exit, Failure, OrFailure};
use crate::{live, out};

const PERIOD: Duration = Duration::from_millis(500);

pub(super) async fn run(args: ScaleArgs) -> Result<Exit, Failure> {
    let request = request(&args.counts)?;
    let coordinator = live::find_coordinator(args.ask.coordinator.clone(), args.run.as_deref())?;
    let control = GrpcControlPlane::connect(&coordinator.address, args.ask.timeout(), &coordinator.credentials);
    let control = control.or_exit(Exit::Usage)?;
    let answer = control.scale(request).await.map_err(|refusal| refused(&refusal))?;
    out!(
        "{} embedding servers and {} dense workers are wanted; {} buckets have to move",
        answer.servers,
        answer.workers,
        answer.buckets
    );
    if !args.no_wait {
        follow(&control, (answer.servers, answer.workers), Duration::from_secs(args.give_up)).await?;
    }
    Ok(Exit::Success)
}

/// Each role may be named once.
fn request(counts: &[RoleCount]) -> Result<ScaleRequest, Failure> {
    let mut request = ScaleRequest::default();
    for count in counts {
        let (field, count) = match *count {
            RoleCount::Servers(count) => (&mut request.servers, count),
            RoleCount::Workers(count) => (&mut request.workers, count),
        };
        if std::mem::replace(field, count) != 0 {
            return Err(Failure::usage("a role is named twice", "give one number for each role"));
        }
    }
    Ok(request)
}

fn refused(refusal: &Refusal) -> Failure {
    let (exit, help) = match refusal.kind {
        RefusalKind::Forbidden | RefusalKind::Unauthenticated => (
            Exit::Usage,
            "only who has the secret of the whole run may scale it: name the run folder (--run RUN), or set \
             ZAGROS_RUN_SECRET_FILE to the coordinator's key (docs/security.md)",
        ),
        RefusalKind::Invalid => (Exit::Usage, "nothing has changed; docs/how-to/scale.md says what a run can do"),
        _ => (Exit::Cluster, "check that the run is up and trains (`zagros status`), and try again"),
    };
    Failure::with_help(exit, format!("the run was not scaled: {refusal}"), help)
}

/// Prints what happens until the run has the servers and workers that are `wanted`. Fails when nothing has changed for
/// `give_up`.
async fn follow(control: &GrpcControlPlane, wanted: (u32, u32), give_up: Duration) -> Result<(), Failure> {
    let (mut shown, mut changed) = (String::new(), Instant::now());
    loop {
        // A coordinator that is away for a moment comes back.
        let now = control.status(StatusRequest {}).await;
        let text = match now {
            Ok(status) => {
                let ended = !matches!(status.state.as_str(), "waiting" | "training");
                let reason = format!("{} {}", status.state, status.reason);
                // The run has had these numbers all along, and no scale request has changed any.
                let Some(scale) = status.scale.map(ScaleReport::from) else { return Ok(()) };
                let (servers, workers) = wanted;
                let is_ours =
                    scale.status.servers_wanted == servers && [0, workers].contains(&scale.status.workers_wanted);
                if is_ours && scale.is_done() {
                    out!("  {} {}", "✓".green(), scale.text);
                    return Ok(());
                }
                if ended || !is_ours {
                    return Err(superseded(ended, &reason, &scale.status));
                }
                scale.text
            }
            Err(refusal) => format!("the coordinator does not answer: {refusal}"),
        };
        if text != shown {
            out!("  {text}");
            (shown, changed) = (text, Instant::now());
        }
        if changed.elapsed() > give_up {
            let what = format!("nothing has changed for {give_up:?}: {shown}");
            let help = "the request stays: buckets move and workers join once they can; `zagros doctor` says what it waits for";
            return Err(Failure::with_help(Exit::Cluster, what, help));
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn superseded(ended: bool, reason: &str, scale: &ScaleStatus) -> Failure {
    if ended {
        let what = format!("the run has ended before it had these numbers: {reason}");
        return Failure::with_help(Exit::Cluster, what, "nothing is lost: every bucket has one owner at any time");
    }
    let ScaleStatus { servers_wanted, workers_wanted, .. } = scale;
    let what = format!(
        "another user asked for {servers_wanted} embedding servers and {workers_wanted} dense workers meanwhile"
    );
    Failure::with_help(Exit::Cluster, what, "`zagros status` shows what the run does now")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_named_once() {
        let request = request(&[RoleCount::Workers(2), RoleCount::Servers(4)]).unwrap();
        assert_eq!(request, ScaleRequest { servers: 4, workers: 2 });
        assert!(super::request(&[RoleCount::Servers(3), RoleCount::Servers(4)]).is_err());
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let forbidden = format!("{:?}", refused(&Refusal::new(RefusalKind::Forbidden, "not yours")));
        assert!(forbidden.contains("not yours") && forbidden.contains("--run RUN"), "{forbidden}");
        assert_eq!(refused(&Refusal::invalid("too many")).exit_status(), Exit::Usage);
        assert_eq!(refused(&Refusal::new(RefusalKind::Unavailable, "not yet")).exit_status(), Exit::Cluster);
    }
}
