//! Paths in every container of a run.

/// The folder of the job file. Relative paths in the file start here. The examples' `../data/train.txt` is therefore on the
/// volume that is mounted at `/data`.
pub const JOB_FOLDER: &str = "/zagros";
/// Where the job file is mounted.
pub const JOB_FILE: &str = "/zagros/job.toml";
/// Where run folders and models are written.
pub const OUTPUT_PATH: &str = "/output";
/// Where a server keeps rows beyond its memory.
pub const STATE_PATH: &str = "/var/lib/zagros";
/// Memory that the processes of a pod share.
pub const SHARED_MEMORY_PATH: &str = "/dev/shm";
