//! The job file: read, checked whole, explained.
//!
//! Two stages. `raw` mirrors the TOML, every key optional or defaulted, each documented with unit,
//! default and range: the reference page and the did-you-mean come from it. [`spec`] holds the
//! validated types, which only [`Job::load`] makes: what the rest of the code sees is right.

mod changes;
mod check;
mod document;
mod error;
#[cfg(test)]
mod fixture;
mod load;
mod nesting;
mod overrides;
#[cfg(test)]
mod properties;
mod quoting;
mod raw;
pub mod reference;
mod resolve;
mod resolved;
mod shape;
pub mod spec;
mod suggest;
pub mod threads;

pub use changes::{Change, Effect};
pub use error::{JobErrors, Problem};
pub use load::is_given;
pub use overrides::{ENVIRONMENT_PREFIX, Overrides};
pub use shape::schema_json;
pub use spec::*;
pub use suggest::nearest;
