//! Tables larger than memory: against a model, with many threads, with a cold tier that fails, with senders that give up, under snapshots.

mod clear;
mod deadlines;
mod failures;
mod ledger;
mod model;
mod races;
mod snapshots;
mod support;
