//! The operator against a fake Kubernetes: whole lives of jobs, with faults. Time is virtual, so nothing depends on how
//! fast the machine is. Then the definition (`crd`) and the files that users apply (`manifests`).

mod api;
mod controllers;
mod crd;
mod edits;
mod faults;
mod histories;
mod kubelet;
mod lives;
mod load;
mod manifests;
mod operators;
mod planned;
mod removal;
mod run_secrets;
mod scale;
mod user_errors;
mod world;
