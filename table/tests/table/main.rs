//! Tests of the table by its public calls.

mod admission;
mod changes;
mod copies;
mod model;
mod recovery;
mod support;
mod tier;
