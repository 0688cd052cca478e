//! Micro-benchmarks of this machine. [`measure_machine`] runs them all and gives the cost model's [`zagros_cost::Calibration`];
//! `zagros-bench` uses the same workload, meter and clients.
//!
//! Times are CPU time wherever a stage is one thread's work, so that other programs on the machine disturb them little. Where the
//! wall clock is meant (threads, memory, disk, round trips), the best of several tries counts.

pub mod embedding;
pub mod meter;
pub mod workload;

mod dense;
mod disk;
mod machine;
mod measure;
mod moves;
mod parquet_file;
mod parse;
mod rows;
mod rows_on_disk;
mod training;

pub use measure::measure_machine;
