//! The Kubernetes operator: a HybridJob becomes a cluster that trains it.

pub mod build;
pub mod crd;
#[cfg(test)]
mod fixture;
pub mod names;
pub mod validate;
