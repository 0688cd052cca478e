//! Starts the roles of a job: a coordinator and embedding servers inside this process, or each role as its own process.
//!
//! `zagros train` and `zagros eval` embed their cluster. `zagros up` and `zagros-bench` start processes:
//!
//! ```text
//! LaunchPlan ──starts──► ChildProcess ──is added to──► Supervisor   waits, restarts, stops in order
//!   which role,             its lines go to ChildOutput ──► RunConsole and LogFile
//!   where it listens
//! ```

mod addresses;
mod child;
mod console;
mod embedded;
mod follow;
mod plan;
mod prefix;
mod restart;
mod row_folders;
mod stop;
mod supervise;

pub use self::addresses::{RoleAddresses, reachable_address};
pub use self::child::{ChildProcess, RoleName};
pub use self::console::RunConsole;
pub use self::embedded::EmbeddedCluster;
pub use self::plan::LaunchPlan;
pub use self::prefix::{ChildOutput, LOG_FOLDER, LogFile};
pub use self::restart::{RestartBudget, WorkerLoss, is_complete};
pub use self::row_folders::{LogDisk, RowFolders};
pub use self::stop::GracePeriods;
pub use self::supervise::{Supervisor, WantedRoles, WantedWorkers, WatchEnd};
