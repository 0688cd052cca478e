//! An embedding server as its neighbours see it: over gRPC, over HTTP, and from the coordinator's side.

mod datapath;
mod fake;
mod kills;
mod lifecycle;
mod storage;
