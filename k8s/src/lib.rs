//! The Kubernetes operator: a HybridJob becomes a cluster that trains it.
//!
//! [`reconcile`] looks at one job: it reads what the spec names, [`validate`]s, [`observe`]s what there is, [`decide`]s,
//! and applies what [`build`] makes. Everything between the requests is a pure function of values.

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
pub mod judge;
pub mod leader;
pub mod memory;
pub mod metrics;
pub mod names;
pub mod observe;
pub mod operator;
pub mod paths;
pub mod probe;
pub mod problem;
pub mod readiness;
pub mod reconcile;
mod refuse;
pub mod removal;
pub mod render;
mod reporting;
pub mod validate;
