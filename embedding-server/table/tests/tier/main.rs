//! Tables larger than memory: against a model, with many threads, with a cold tier that fails, under snapshots.

mod clear;
mod failures;
mod ledger;
mod model;
mod races;
mod snapshots;
mod support;
