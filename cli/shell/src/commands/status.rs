//! `status`: the state of a run, from its coordinator.

use owo_colors::OwoColorize;
use zagros_coordinator::StatusReport;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_protocol::control::StatusRequest;

use crate::args::StatusArgs;
use crate::commands::doctor::print_what;
use crate::dashboard::watch_run;
use crate::exit::{Exit, Failure, OrFailure, print_report};
use crate::{live, out};

pub(super) async fn run(args: StatusArgs) -> Result<Exit, Failure> {
    let timeout = args.ask.timeout();
    let coordinator = live::find_coordinator(args.ask.coordinator, args.run.as_deref())?;
    let control = GrpcControlPlane::connect(&coordinator.address, timeout, &coordinator.credentials);
    let control = control.or_exit(Exit::Usage)?;
    if args.watch {
        watch_run(&control, timeout).await?.iter().for_each(print);
        return Ok(Exit::Success);
    }
    let status = control.status(StatusRequest {}).await.map_err(|refusal| {
        let help = "check that the run is up; name its folder if it is on this machine (zagros status RUN), otherwise the \
                    address of its coordinator (--coordinator HOST:PORT)";
        Failure::with_help(Exit::Cluster, refusal, help)
    })?;
    print_report(&StatusReport::from(status), args.json, print)
}

fn print(report: &StatusReport) {
    out!("{}  {} {}", report.job.bold(), report.state, report.reason);
    out!(
        "  epoch {} of {}, {} of {} splits done, placement generation {}",
        report.epoch + 1,
        report.epochs,
        report.splits_done,
        report.splits,
        report.generation
    );
    if let Some(scale) = &report.scale {
        out!("  {}", scale.text);
    }
    for member in &report.members {
        out!("  {:<20} {:<6} {}", member.name, member.state, member.activity_in_words());
    }
    report.diagnosis.findings.iter().for_each(print_what);
    if !report.diagnosis.healthy {
        out!("  `zagros doctor` says why, and what to do");
    }
    for warning in &report.warnings {
        out!("  {} {warning}", "⚠".yellow());
    }
    for evaluation in &report.evaluations {
        out!(
            "  {} after step {:<7} AUC {:.4}  logloss {:.4}  ({} samples)",
            if evaluation.part.is_empty() { "test" } else { evaluation.part },
            evaluation.step,
            evaluation.auc,
            evaluation.logloss,
            evaluation.samples
        );
    }
}
