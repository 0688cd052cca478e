//! The hang doctor: who waits for whom, since when, for what, and what to do. Pure: an observation in, findings out.
//!
//! ```text
//! Observation            ──► WaitGraph                     ──► Diagnosis
//! members, their waits,      worker 0 ─► worker 1 ─► server 2   "embedding server 2 has not been heard for 14 s:
//! processes of this machine  worker 3 ─► worker 1                its process 4711 is stopped; kill -CONT 4711"
//! ```
//!
//! A wait is an arrow from the process that waits to the one that it waits for. Arrows end at a process that waits for no
//! other one: the root of the hang. Where they lead back, the processes wait for each other in a circle.

mod diagnose;
mod finding;
mod graph;
mod observation;
mod pace;
mod roots;

pub use diagnose::diagnose_run;
pub use finding::{Diagnosis, Finding, FindingKind, Severity, time};
pub use observation::{
    CoordinatorSign, Observation, ObservedMember, ObservedProcess, OwnWaits, Party, ProcessEnd, ProcessState,
};
