//! The path of a request over rows in memory: group ids by stripe, then process each stripe under its lock.

pub(crate) mod batch;
pub(crate) mod deadline;
pub(crate) mod group;
pub(crate) mod repeated_ids;
pub(crate) mod report;
pub(crate) mod row_loops;
pub(crate) mod step;
pub(crate) mod step_rows;
pub(crate) mod update;
mod walk;
