//! The Kubernetes operator: it makes a cluster from each HybridJob and trains the job on it.
//!
//! [`reconcile`] looks at one job: it [`validate`]s, [`observe`]s what exists, [`decide`]s, and applies the objects of
//! [`build`]. Everything between the requests is a pure function of values.

mod act;
pub mod build;
pub mod cache;
pub mod check;
pub mod cluster;
pub mod conditions;
pub mod context;
pub mod crd;
pub mod decide;
pub mod error;
#[cfg(test)]
mod fixture;
pub mod host_access;
pub mod judge;
pub mod leader;
pub mod memory;
pub mod names;
pub mod observe;
pub mod operator;
pub mod probe;
pub mod readiness;
pub mod reconcile;
mod removal;
pub mod removal_order;
pub mod render;
mod reporting;
pub mod rollout;
pub mod run_secret;
pub mod scale;
mod server_memory;
pub mod spec_hash;
pub mod validate;
