//! Breaks the processes of a run on purpose and checks that nothing was lost: the program `zagros-chaos`.
//!
//! ```text
//! seed ──► schedule ──► faults ──► coordinator · embedding servers · dense workers      real processes, as of `zagros up`
//!                         ▲                                   │
//!              next step  │                 over links        │ each push: started · part sent · part acknowledged · over
//!                         └──────────── recorder ◄────────────┘
//!                                          │
//!                      saved rows ──► oracle ──► verdict          each row = − sum of its acknowledged gradients, exactly
//! ```
//!
//! The oracle can be exact because all arithmetic is: tables learn with SGD at a rate of 1, and every gradient is rounded to a
//! whole number of [`grid`](zagros_embedding_client::push_record::grid) units. Sums of such numbers do not depend on their order.

mod checkpoints;
mod cluster;
mod doubt;
mod incarnations;
mod injector;
pub mod ledger;
mod link;
mod losses;
pub mod oracle;
mod processes;
mod recorder;
mod report;
mod rules;
mod run;
mod schedule;
mod verdict;

pub use rules::job_changes;
pub use run::{ChaosOptions, ChaosRun};
pub use schedule::FaultKind;
