//! The operator against a fake Kubernetes: whole lives of jobs, with faults. Time is virtual, so nothing depends on how
//! fast the machine is. Then the definition (`crd`) and the files that users apply (`manifests`).

mod api;
mod crd;
mod edits;
mod faults;
mod histories;
mod kubelet;
mod lives;
mod load;
mod manifests;
mod namespaces;
mod operator;
mod operators;
mod order;
mod planned;
mod rejoin;
mod replaced;
mod rolling;
mod run_secrets;
mod scale;
mod scaling_run;
mod stateful_sets;
mod user_errors;
mod worker_scale;
mod world;
