//! Paths in every container of a run.

/// The folder of the job file. Relative paths in the file start here. The examples' `../data/train.txt` is therefore on the
/// volume that is mounted at `/data`.
pub const JOB_FOLDER: &str = "/zagros";
/// The folder of the run's secret.
pub const SECRET_FOLDER: &str = "/run/zagros";
/// File with the key of the pod's role.
pub const SECRET_FILE: &str = "/run/zagros/key";
/// Where the job file is mounted.
pub const JOB_FILE: &str = "/zagros/job.toml";
/// Where run folders and models are written.
pub const OUTPUT_PATH: &str = "/output";
/// Where a server keeps its log and rows beyond its memory, and the coordinator its journal.
pub const STATE_PATH: &str = "/var/lib/zagros";
/// What a container writes here, Kubernetes keeps as the message of its end: 4096 bytes at most.
pub const TERMINATION_MESSAGE: &str = "/dev/termination-log";
/// Folder of the coordinator's journal.
pub const JOURNAL_FOLDER: &str = "/var/lib/zagros/journal";
/// Memory that the processes of a pod share.
pub const SHARED_MEMORY_PATH: &str = "/dev/shm";
