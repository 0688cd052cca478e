//! What training a job costs on described machines: memory of each role, bytes on the network, arithmetic, the time of each stage,
//! samples a second, the bottleneck, hours and money; and a run on them, simulated by discrete events.
//!
//! Everything here is a function of its arguments: no files, no clocks, and the same seed gives the same run. [`Calibration`] says how fast a
//! core is, [`MachineGroup`] what the machines are, [`DataShape`] what a sample holds. [`Forecast::new`] puts them together (ADR 87).
//!
//! ```text
//! Job ──► SampleWork (a sample: ids, values, products) ─┐
//! DataShape ─────────────────────────────────────┤
//! Calibration ──► times of each stage ───────────┼──► RateLimits ──► samples/s, bottleneck, workers that pay, money
//! Groups of machines ────────────────────────────┤
//!                                                └──► Scenario ──► SimWorld: events by time ──► SimReport
//! ```
//!
//! The simulation drives the product's own decisions: the training loop of each worker (`zagros-worker-core`), and the coordinator with its
//! leases, splits and process groups (`zagros-coordinator-core`). Around them it has what a machine has: cores that tasks share, links that
//! send one message after another, and time. How long a task takes is the forecast's.

mod calibration;
mod cluster;
mod coordination;
mod error;
mod forecast;
mod limits;
mod machines;
mod processor;
mod rows_on_disk;
mod scenario;
mod stages;
mod work;
mod worker;
mod workload;
mod world;

pub use calibration::{
    Calibration, ColdRates, DenseRates, DiskRates, IdCosts, ParseRates, ProductRate, RowCost, StepCosts, ThreadSpeedup,
    WireCosts,
};
pub use error::PlannerError;
pub use forecast::{EpochCost, Forecast, ForecastInputs, WorkerScaling};
pub use limits::{RateLimit, RateLimits, RoleMemory, WorkerMemory};
pub use machines::{Gpu, MachineGroup, Machines};
pub use rows_on_disk::RowsOnDisk;
pub use scenario::{ClusterFile, Scenario, SimSettings, WhatIf};
pub use stages::{PlanStage, StageTimes};
pub use work::{DataShape, DenseWork, MatrixProduct, SampleWork, TableWork, WeightTraffic};
pub use workload::{Workload, WorkloadWeights};
pub use world::{
    BusyResource, FailureCost, FailureReport, LostProcess, ProcessLoss, SimReport, StepReport, simulate,
    simulate_failures, simulate_with,
};
