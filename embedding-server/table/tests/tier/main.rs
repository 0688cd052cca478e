//! Tables larger than memory: compared with a model, with many threads, with a failing cold tier, and with snapshots.

mod clear;
mod failures;
mod ledger;
mod model;
mod races;
mod snapshots;
mod support;
