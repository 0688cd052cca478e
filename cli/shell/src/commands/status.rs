//! `status`: the state of a run, from its coordinator. `doctor`: who waits for whom in it, since when, for what, and what to do.

use std::time::Duration;

use indicatif::HumanCount;
use owo_colors::OwoColorize;
use zagros_coordinator::StatusReport;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_coordinator_core::doctor::{CoordinatorSign, Diagnosis, Finding, Observation, Severity, diagnose_run, time};
use zagros_protocol::control::StatusRequest;

use crate::args::{DoctorArgs, StatusArgs};
use crate::exit::{Exit, Failure, OrFailure, print_report};
use crate::live::{self, FoundCoordinator};
use crate::local_run::LocalRun;
use crate::out;

/// Findings that are shown. The JSON has all.
const SHOWN: usize = 5;

pub(super) async fn run_status(args: StatusArgs) -> Result<Exit, Failure> {
    let timeout = args.ask.timeout();
    let coordinator = live::find_coordinator(args.ask.coordinator, args.run.as_deref())?;
    let control = GrpcControlPlane::connect(&coordinator.address, timeout, &coordinator.credentials);
    let control = control.or_exit(Exit::Usage)?;
    let status = control.status(StatusRequest {}).await.map_err(|refusal| {
        let help = "check that the run is up; name its folder if it is on this machine (zagros status RUN), otherwise the \
                    address of its coordinator (--coordinator HOST:PORT)";
        Failure::with_help(Exit::Cluster, refusal, help)
    })?;
    print_report(&StatusReport::from(status), args.json, print_status)
}

fn print_status(report: &StatusReport) {
    out!("{}  {} {}", report.job.bold(), report.state, report.reason);
    out!(
        "  epoch {} of {}, {} of {} splits done, placement generation {}",
        report.epoch + 1,
        report.epochs,
        report.splits_done,
        report.splits,
        report.generation
    );
    let (step, samples, speed) = (report.step, report.samples, report.samples_per_second as u64);
    out!("  step {}, {} samples, {} samples/s", HumanCount(step), HumanCount(samples), HumanCount(speed));
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

pub(super) async fn run_doctor(args: DoctorArgs) -> Result<Exit, Failure> {
    let timeout = args.ask.timeout();
    let observation = match (args.ask.coordinator, args.run) {
        (Some(address), _) => ask(&live::coordinator_at(address)?, timeout).await?,
        (None, Some(run)) => LocalRun::open(&run)?.observe(timeout).await,
        (None, None) => match live::newest_folder() {
            Some(run) => LocalRun::open(&run)?.observe(timeout).await,
            None => ask(&live::newest_coordinator()?, timeout).await?,
        },
    };
    let diagnosis = diagnose_run(&observation);
    print_report(&diagnosis, args.json, |diagnosis| print_diagnosis(&observation, diagnosis))?;
    Ok(if diagnosis.healthy { Exit::Success } else { Exit::Unhealthy })
}

/// What a coordinator says. One that does not answer is a finding, unless its address is wrong.
async fn ask(coordinator: &FoundCoordinator, timeout: Duration) -> Result<Observation, Failure> {
    let control = GrpcControlPlane::connect(&coordinator.address, timeout, &coordinator.credentials);
    let control = control.or_exit(Exit::Usage)?;
    Ok(match control.status(StatusRequest {}).await {
        Ok(status) => Observation::from(&status),
        Err(refusal) => {
            let coordinator = CoordinatorSign::Silent(refusal.to_string());
            Observation { state: "training".to_owned(), coordinator, ..Observation::default() }
        }
    })
}

fn print_diagnosis(observation: &Observation, diagnosis: &Diagnosis) {
    let Observation { job, state, step, age, .. } = observation;
    let old = if age.is_zero() { String::new() } else { format!(", as of {} ago", time(*age)) };
    if !job.is_empty() {
        out!("{}  {state}, step {step}{old}", job.bold());
    }
    if diagnosis.findings.is_empty() {
        out!("  {} {}", "✓".green(), diagnosis.verdict);
    }
    diagnosis.findings.iter().take(SHOWN).for_each(show);
    if diagnosis.findings.len() > SHOWN {
        out!("  and {} more findings (--json has all)", diagnosis.findings.len() - SHOWN);
    }
}

fn print_what(finding: &Finding) {
    let what = finding.what.bold();
    match finding.severity {
        Severity::Trouble => out!("  {} {what}", "✕".red()),
        Severity::Slow => out!("  {} {what}", "⚠".yellow()),
    }
}

fn show(finding: &Finding) {
    print_what(finding);
    for (number, why) in finding.why.iter().enumerate() {
        let title = if number == 0 { "why " } else { "    " };
        out!("      {}  {why}", title.dimmed());
    }
    out!("      {}  {}", "next".dimmed(), finding.next);
}
