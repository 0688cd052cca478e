//! A run on a described cluster, simulated by discrete events.
//!
//! The simulation drives the product's own decisions: the training loop of each worker (`zagros-worker-core`), its staleness window
//! (`zagros-embedding-client`), and the coordinator with its leases, splits and process groups (`zagros-coordinator-core`). Around them it
//! has what a machine has: cores that tasks share, links that send one message after another, and time. How long a task takes is the cost
//! model's (`zagros-cost`). No file is read, no clock is asked, and the same seed gives the same run (ADR 87).
//!
//! ```text
//! machines + workload + calibration ──► Scenario ──► World: events by time ──► SimReport
//! ```

mod cluster;
mod coordination;
mod error;
mod failures;
mod processor;
mod queue;
mod report;
mod scenario;
mod what_if;
mod worker;
mod workload;
mod world;

pub use error::SimError;
pub use failures::{FailureCost, FailureReport, simulate_failures};
pub use report::{BusyResource, SimReport, StepReport};
pub use scenario::{ClusterFile, Scenario, SimSettings};
pub use what_if::WhatIf;
pub use workload::{Workload, WorkloadWeights};
pub use world::{LostProcess, ProcessLoss};

use world::SimWorld;

pub fn simulate(scenario: &Scenario) -> Result<SimReport, SimError> {
    simulate_with(scenario, &[])
}

/// Simulates a run in which these processes are lost.
pub fn simulate_with(scenario: &Scenario, faults: &[ProcessLoss]) -> Result<SimReport, SimError> {
    if !faults.is_empty() && scenario.mode_name() != "hybrid" {
        return Err(SimError::NoFailures { mode: scenario.mode_name() });
    }
    let mut world = SimWorld::new(scenario, faults)?;
    world.run()?;
    Ok(world.report_run())
}
