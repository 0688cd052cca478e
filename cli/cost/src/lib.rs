//! What training a job costs on described machines: memory of each role, bytes on the network, arithmetic, the time of each stage,
//! samples a second, the bottleneck, hours and money.
//!
//! Everything here is a function of its arguments: no files, no clocks. [`Calibration`] says how fast a core is, [`MachineGroup`] what the
//! machines are, [`DataShape`] what a sample holds. [`Forecast::new`] puts them together (ADR 87).
//!
//! ```text
//! Job ──► SampleWork (a sample: ids, values, products) ─┐
//! DataShape ─────────────────────────────────────┤
//! Calibration ──► times of each stage ───────────┼──► RateLimits ──► samples/s, bottleneck, workers that pay, money
//! Groups of machines ────────────────────────────┘
//! ```

mod calibration;
mod forecast;
mod layers;
mod limits;
mod machines;
mod memory;
mod rows_on_disk;
mod stages;
mod work;

pub use calibration::{
    Calibration, ColdRates, DenseRates, DiskRates, IdCosts, ParseRates, ProductRate, RowCost, StepCosts, ThreadSpeedup,
    WireCosts,
};
pub use forecast::{EpochCost, Forecast, ForecastInputs, WorkerScaling};
pub use layers::{DenseWork, MatrixProduct};
pub use limits::{RateLimit, RateLimits};
pub use machines::{Gpu, MachineGroup, Machines};
pub use memory::RoleMemory;
pub use rows_on_disk::RowsOnDisk;
pub use stages::{PlanStage, StageTimes};
pub use work::{DataShape, SampleWork, TableWork, WeightTraffic};

#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// The text is no TOML of the expected form.
    #[error("{what} cannot be read: {reason}")]
    Form { what: &'static str, reason: String },
    /// A value that no machine has.
    #[error("group `{group}` has {key} = {value}, which {why}")]
    Value { group: String, key: &'static str, value: String, why: &'static str },
    #[error("no group of machines has {role}s: give one `{role}s = 1`")]
    NoRole { role: &'static str },
    #[error("the machines file has no [[group]]")]
    NoGroup,
    /// The network is not one of ours.
    #[error(
        "a TorchScript module is not opened for a plan, so nothing is known of its arithmetic; plan with a built-in network of about its size"
    )]
    UnknownNetwork,
}
