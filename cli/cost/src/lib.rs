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
mod data_shape;
mod defaults;
mod error;
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
pub use data_shape::DataShape;
pub use error::CostError;
pub use forecast::{EpochCost, Forecast, ForecastInputs, WorkerScaling};
pub use layers::{DenseWork, MatrixProduct};
pub use limits::{RateLimit, RateLimits};
pub use machines::{Gpu, MachineGroup, Machines};
pub use memory::RoleMemory;
pub use rows_on_disk::RowsOnDisk;
pub use stages::{PlanStage, StageTimes};
pub use work::{SampleWork, TableWork, WeightTraffic};
