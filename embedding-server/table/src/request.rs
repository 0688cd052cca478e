//! The path of a request over rows in memory: grouped by stripe, then stage by stage under one lock at a time.

pub(crate) mod batch;
pub(crate) mod deadline;
pub(crate) mod group;
pub(crate) mod hot;
pub(crate) mod repeats;
pub(crate) mod report;
pub(crate) mod step;
pub(crate) mod update;
