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
mod record;
mod search;
mod space;
pub(crate) mod tpe;

pub use halving::{RungUnit, Rungs};
pub use record::{Metric, SweepRecord, TrialMeasures};
pub use search::{NextAction, Sampler, Sweep, SweepPlan, Trial, TrialTask};
pub use space::{Domain, Parameter, Space, ValueScale, Values};

/// What can be wrong with a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    #[error("{text:?} has no key; write KEY=VALUE,VALUE,… or KEY=LOW..HIGH, such as train.batch_size=512,1024")]
    NoKey { text: String },
    #[error("{key} has an empty value; write {key}=VALUE,VALUE,…")]
    EmptyValue { key: String },
    #[error("{key}={range} is no range: {problem}; write {key}=1e-4..1e-2, {key}=2..8, or with :log at the end")]
    Range { key: String, range: String, problem: &'static str },
    #[error("{key} is named twice; name each key once, with all its values")]
    Twice { key: String },
    #[error("{key} is a range, and a grid needs values; list them ({key}=VALUE,VALUE,…), or use --random or --tpe")]
    RangeInGrid { key: String },
    /// More combinations than a user can train.
    #[error("the grid has {count} combinations, more than {most}; use --random with --trials")]
    TooMany { count: u128, most: usize },
}
