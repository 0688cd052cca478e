//! Paths in every container of a run.

/// Relative paths in the job file start here: the examples' `../data/train.txt` is on the volume that is mounted at
/// `/data`.
pub const JOB_FOLDER: &str = "/zagros";
pub const SECRET_FOLDER: &str = "/run/zagros";
pub const SECRET_FILE: &str = "/run/zagros/key";
pub const JOB_FILE: &str = "/zagros/job.toml";
pub const OUTPUT_PATH: &str = "/output";
/// Where a server keeps its log and rows beyond its memory, and the coordinator its journal.
pub const STATE_PATH: &str = "/var/lib/zagros";
/// What a container writes here, Kubernetes keeps as the message of its end: 4096 bytes at most.
pub const TERMINATION_MESSAGE: &str = "/dev/termination-log";
pub const JOURNAL_FOLDER: &str = "/var/lib/zagros/journal";
pub const SHARED_MEMORY_PATH: &str = "/dev/shm";
