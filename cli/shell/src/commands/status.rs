//! `status`: what a running coordinator knows.

use std::time::Duration;

use owo_colors::OwoColorize;
use zagros_coordinator::StatusReport;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_protocol::control::StatusRequest;

use crate::answer::answer;
use crate::args::StatusArgs;
use crate::exit::{Exit, Failure, OrInternal};
use crate::out;

/// Asks once and prints.
pub(super) async fn run(args: StatusArgs) -> Result<Exit, Failure> {
    let patience = Duration::from_secs(args.patience);
    let control = GrpcControlPlane::connect(&args.coordinator, patience);
    let control = control.map_err(|error| Failure::from_error(Exit::Usage, error))?;
    let status = control.status(StatusRequest {}).await.map_err(|refusal| {
        let help = "is the run up? `zagros up` prints the coordinator's address; give it with --coordinator HOST:PORT";
        Failure::with_help(Exit::Cluster, refusal, help)
    })?;
    let report = StatusReport::from(status);
    if args.json {
        answer(&serde_json::to_string_pretty(&report).or_internal()?)?;
    } else {
        print(&report);
    }
    Ok(Exit::Success)
}

fn print(report: &StatusReport) {
    out!("{}  {} {}", report.job.bold(), report.state, report.reason);
    out!(
        "  epoch {} of {}, {} of {} splits done, placement generation {}",
        report.pass + 1,
        report.passes,
        report.splits_done,
        report.splits,
        report.generation
    );
    for member in &report.members {
        out!("  {:<20} {:<6} {}", member.name, member.state, member.detail());
    }
    for evaluation in &report.evaluations {
        out!(
            "  test after step {:<7} AUC {:.4}  logloss {:.4}  ({} samples)",
            evaluation.step,
            evaluation.auc,
            evaluation.logloss,
            evaluation.samples
        );
    }
}
