//! `doctor`: who waits for whom in a run, since when, for what, and what to do.

use std::time::Duration;

use owo_colors::OwoColorize;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_coordinator_core::doctor::{CoordinatorSign, Diagnosis, Finding, Observation, Severity, diagnose_run, time};
use zagros_protocol::control::StatusRequest;

use crate::args::DoctorArgs;
use crate::exit::{Exit, Failure, OrFailure, print_report};
use crate::live::{self, FoundCoordinator};
use crate::local_run::LocalRun;
use crate::out;

/// Findings that are shown. The JSON has all.
const SHOWN: usize = 5;

pub(super) async fn run(args: DoctorArgs) -> Result<Exit, Failure> {
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
    print_report(&diagnosis, args.json, |diagnosis| print(&observation, diagnosis))?;
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

fn print(observation: &Observation, diagnosis: &Diagnosis) {
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

/// Prints what is wrong, in one line.
pub(super) fn print_what(finding: &Finding) {
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
