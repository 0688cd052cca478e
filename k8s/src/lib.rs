//! The Kubernetes operator: it makes a cluster from each HybridJob and trains the job on it.
//!
//! [`reconcile`] looks at one job: it [`validate`]s, [`observe`]s what exists, and makes a [`plan`] whose [`step`]s `act`
//! executes. The plan is a pure function of what was observed.

mod act;
pub mod build;
pub mod cache;
pub mod check;
pub mod cluster;
pub mod context;
pub mod crd;
pub mod error;
#[cfg(test)]
mod fixture;
pub mod leader;
pub mod memory;
pub mod names;
pub mod observe;
pub mod operator;
pub mod plan;
pub mod probe;
pub mod reconcile;
pub mod run_secret;
pub mod step;
pub mod validate;
