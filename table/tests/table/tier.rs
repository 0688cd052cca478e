//! Tables larger than memory: compared with a model, with many threads, with a failing cold tier, with senders that give
//! up, and with snapshots.

mod deadlines;
mod failures;
mod index_memory;
mod ledger;
mod lookahead;
mod model;
mod moving;
mod snapshots;
