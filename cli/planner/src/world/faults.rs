//! Processes that are lost, and others that come in their place.
//!
//! A worker whose machine vanishes says nothing any more. The coordinator's leases find out, or the process that takes its slot does. The
//! other workers hear of it with their next heartbeats, give up the step in progress and form a group with the new process. A server comes
//! back with the rows of its log; until then every request waits.

use serde::Serialize;
use zagros_coordinator_core::MemberSlot;

use super::{SimEvent, SimWorld, simulate, simulate_with};
use crate::error::PlannerError;
use crate::scenario::Scenario;
use crate::worker::{SimWorker, WorkerId};

/// Heartbeats in a lease.
const HEARTBEATS: f64 = 5.0;
/// Seconds without a step after which a run will make none.
const LONGEST_PAUSE: f64 = 86_400.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessLoss {
    /// Seconds after the start.
    pub at: f64,
    pub kind: LostProcess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostProcess {
    /// The worker with this index, modulo the number of workers.
    Worker(usize),
    /// The server with this index, modulo the number of servers.
    Server(usize),
}

impl SimWorld {
    pub(super) fn schedule_faults(&mut self) {
        for (number, fault) in self.faults.iter().enumerate() {
            self.queue.push(fault.at, SimEvent::Loss(number));
        }
        if !self.faults.is_empty() {
            self.queue.push(0.0, SimEvent::Heartbeat);
        }
    }

    pub(super) fn beat(&mut self) -> Result<(), PlannerError> {
        let now = self.queue.now();
        for index in 0..self.servers.len() {
            if self.lost_server != Some(index) {
                let beaten = self.coordination.heartbeat(now, self.servers[index]);
                self.admitted(beaten)?;
            }
        }
        let mut broken = 0;
        for index in 0..self.workers.len() {
            let worker = &self.workers[index];
            if worker.is_alive && !worker.has_ended {
                let beaten = self.coordination.heartbeat(now, worker.membership);
                broken = broken.max(self.admitted(beaten)?);
            }
        }
        self.break_group(broken);
        if now - self.progress.last_step > LONGEST_PAUSE {
            return Err(self.stuck("no step was made for a day"));
        }
        self.queue.push(now + self.scenario.settings.lease_seconds / HEARTBEATS, SimEvent::Heartbeat);
        Ok(())
    }

    pub(super) fn lose(&mut self, number: usize) -> Result<(), PlannerError> {
        let now = self.queue.now();
        let settings = &self.scenario.settings;
        match self.faults[number].kind {
            LostProcess::Worker(index) => {
                let index = index % self.workers.len();
                // A worker that is lost already, or has trained on all, is not lost again.
                if self.workers[index].is_alive && !self.workers[index].has_ended && self.others_live(index) {
                    self.queue.push(now + settings.worker_restart_seconds, SimEvent::Return(number));
                    self.lose_worker(index);
                }
            }
            LostProcess::Server(index) if self.lost_server.is_none() => {
                self.lost_server = Some(index % self.servers.len());
                self.servers_back = now + settings.server_restart_seconds;
                self.queue.push(self.servers_back, SimEvent::Return(number));
            }
            LostProcess::Server(_) => {}
        }
        Ok(())
    }

    /// Whether another worker has the dense network, and can wait for a new process.
    fn others_live(&self, index: usize) -> bool {
        let trains =
            |worker: &SimWorker| worker.is_alive && worker.training.rank_progress().has_trained && !worker.has_ended;
        self.workers.iter().filter(|worker| worker.id.index != index).any(trains)
    }

    fn lose_worker(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        worker.is_alive = false;
        let (id, acknowledged) = (worker.id, worker.held.values().map(|split| split.trained).sum::<u64>());
        // Samples of splits that are not complete are trained on again.
        self.progress.trained_again += acknowledged + self.samples_being_pushed(id);
        self.progress.losses += 1;
        // A call that was about to end does not: the step in progress is no one's (invariant RK-3).
        self.gathering.era += 1;
    }

    pub(super) fn come_back(&mut self, number: usize) -> Result<(), PlannerError> {
        match self.faults[number].kind {
            LostProcess::Worker(index) => {
                let index = index % self.workers.len();
                let (life, spent) = (self.workers[index].id.life + 1, self.workers[index].spent);
                let mut worker = self.start_worker(WorkerId { index, life })?;
                worker.spent = spent;
                self.workers[index] = worker;
                let first = self.workers[index].training.start();
                self.perform_all(index, &first)
            }
            LostProcess::Server(index) => {
                let index = index % self.servers.len();
                let joined = self.coordination.join(self.queue.now(), MemberSlot::server(index as u32), true);
                self.servers[index] = self.admitted(joined)?;
                self.lost_server = None;
                self.progress.losses += 1;
                Ok(())
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailureReport {
    pub hours_between_failures: f64,
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
    let machines = |has: fn(&crate::machines::MachineGroup) -> bool| -> f64 {
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
