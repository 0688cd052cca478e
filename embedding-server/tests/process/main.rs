//! An embedding server as other processes see it: over gRPC, over HTTP, and from the coordinator.

mod datapath;
mod fake;
mod kills;
mod lifecycle;
mod moves;
