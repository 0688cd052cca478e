//! The search for good settings of a job: what is tried, in which order, how far each trial goes, and which is the best.
//!
//! ```text
//!  journal ─► Sweep (all records so far) ── next_action() ──► Train { trial, rung } | Wait | Done
//!                ▲                                                │
//!                └──────────── SweepRecord: scored, failed ◄──────┘  the caller trains and evaluates
//! ```
//!
//! It reads no file, starts no process and knows no time. Each choice is a function of the plan, its seed and the
//! records so far. So a sweep that is interrupted goes on from its records.

mod halving;
mod search;
mod space;
pub(crate) mod tpe;

pub use halving::{RungUnit, Rungs};
pub use search::{Metric, NextAction, Sampler, Sweep, SweepPlan, SweepRecord, Trial, TrialMeasures, TrialTask};
pub use space::{Domain, Parameter, Space, ValueScale, Values};
