//! The job file: read, checked as a whole, documented.
//!
//! [`settings`] holds one type per concept, with its keys, ranges, defaults and documentation. [`Job::load`] checks a
//! file against these types, and then the rules between keys. Only it makes a whole [`Job`], so the other code reads
//! valid settings.

mod check;
mod document;
mod error;
mod file;
#[cfg(test)]
mod fixture;
mod footprint;
mod load;
mod overrides;
#[cfg(test)]
mod properties;
mod recipe;
#[cfg(test)]
mod reference;
mod resolve;
mod resolved;
pub mod settings;
mod shape;
mod suggest;
pub mod threads;
mod upgrade;

pub use error::{JobErrors, JobProblem};
pub use footprint::{DenseFootprint, StreamedFootprint};
pub use load::{is_given, removed_keys};
pub use overrides::{ENVIRONMENT_PREFIX, Overrides};
pub use resolved::{ChangeEffect, KeyChange};
pub use settings::*;
pub use shape::schema_json;
pub use suggest::nearest_name;
