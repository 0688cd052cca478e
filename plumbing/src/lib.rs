//! The parts that any process needs. This crate knows nothing about recommenders.

pub mod admin;
pub mod ask;
pub mod backoff;
pub mod chart;
pub mod disk;
pub mod durable;
pub mod energy;
pub mod exit_codes;
pub mod grpc;
pub mod lifecycle;
pub mod listener;
pub mod memory;
pub mod metrics;
pub mod process;
pub mod telemetry;

pub use backoff::{Backoff, Deadline};
pub use lifecycle::{Lifecycle, Shutdown, StopMeaning};
pub use listener::LogPace;
pub use process::boot_id;
