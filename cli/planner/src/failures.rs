//! What failures cost: the same run with one process lost and without, and how often a process is lost.

use serde::Serialize;

use crate::error::PlannerError;
use crate::scenario::Scenario;
use crate::world::{LostProcess, ProcessLoss, simulate, simulate_with};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailureReport {
    pub hours_between_failures: f64,
    /// Of each role whose machine can be lost.
    pub roles: Vec<FailureCost>,
    /// The share of the time that is lost, over all machines.
    pub lost_share: f64,
    /// The share of the time that would be lost with one failure an hour, the mean of the roles by their machines.
    pub lost_share_hourly: f64,
}

/// The cost of the loss of a machine with its workers, or of a server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FailureCost {
    /// `worker` or `server`.
    pub role: &'static str,
    /// Seconds by which a run ends later.
    pub lost_seconds: f64,
    /// Samples that are trained on once more.
    pub trained_again: u64,
    /// Machines that can take the role with them.
    pub machines: f64,
}

/// Simulates the run once without a failure and once with each.
pub fn simulate_failures(scenario: &Scenario) -> Result<FailureReport, PlannerError> {
    let mut scenario = scenario.clone();
    let settings = &scenario.settings;
    let hours = settings.hours_between_failures;
    let quiet = simulate(&scenario)?;
    // Long enough that training goes on for a while after the loss.
    let pause = settings.worker_restart_seconds.max(settings.server_restart_seconds) + 4.0 * settings.lease_seconds;
    let least = (2.0 * pause / quiet.seconds * settings.steps as f64).ceil() as u64;
    scenario.settings.steps = settings.steps.max(least.min(20_000));
    let quiet = simulate(&scenario)?;
    let loss_time = 0.3 * quiet.seconds;
    let machines = |has: fn(&crate::MachineGroup) -> bool| -> f64 {
        scenario.machines.groups.iter().filter(|group| has(group)).map(|group| group.count).sum()
    };
    let candidates = [
        ("worker", workers_of_a_machine(&scenario), machines(|group| group.workers > 0.0)),
        (
            "server",
            if scenario.server_count() > 0 { vec![LostProcess::Server(0)] } else { Vec::new() },
            machines(|group| group.servers > 0.0),
        ),
    ];
    let mut roles = Vec::new();
    for (role, lost, machines) in candidates.into_iter().filter(|(_, lost, _)| !lost.is_empty()) {
        let losses: Vec<ProcessLoss> = lost.into_iter().map(|kind| ProcessLoss { at: loss_time, kind }).collect();
        let lossy = simulate_with(&scenario, &losses)?;
        let lost_seconds = (lossy.seconds - quiet.seconds).max(0.0);
        roles.push(FailureCost { role, lost_seconds, trained_again: lossy.trained_again, machines });
    }
    let hourly = roles.iter().map(|role| role.lost_seconds * role.machines).sum::<f64>() / 3600.0;
    let machines = roles.iter().map(|role| role.machines).sum::<f64>().max(1.0);
    Ok(FailureReport {
        hours_between_failures: hours,
        lost_share: hourly / hours,
        lost_share_hourly: hourly / machines,
        roles,
    })
}

/// The workers of one machine; of a single machine only the last worker. None where there is one worker: the run would end.
fn workers_of_a_machine(scenario: &Scenario) -> Vec<LostProcess> {
    let workers = scenario.worker_count();
    let on_each = scenario.machines.groups.iter().map(|group| group.workers as usize).find(|workers| *workers > 0);
    let lost = on_each.filter(|on_each| *on_each < workers).unwrap_or(1);
    if workers > 1 { (workers - lost..workers).map(LostProcess::Worker).collect() } else { Vec::new() }
}
