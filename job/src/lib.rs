//! The job file: read, checked whole, explained.
//!
//! Two stages. `raw` mirrors the TOML, every key optional or defaulted, each documented with unit,
//! default and range: the reference page and the did-you-mean come from it. This module holds the
//! validated types, which only [`Job::load`] makes: what the rest of the code sees is right.

pub mod spec;

pub use spec::*;
