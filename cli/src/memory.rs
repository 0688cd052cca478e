//! The memory that a job needs, compared with the machine's before anything is allocated.

use indicatif::{HumanBytes, HumanCount};
use zagros_cost::memory::in_flight_bytes;
pub(crate) use zagros_cost::memory::row_bytes;
use zagros_job::Job;
use zagros_job::threads::Machine;
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::{Exit, Failure};

/// Value, gradient and two moments of Adam.
const DENSE_BYTES_PER_WEIGHT: u64 = 16;
/// The share of the available memory that this process can use, at most. The system needs the rest.
const USABLE: f64 = 0.9;

/// Refuses a job that cannot fit into the memory of this process or this machine. Warns of one that may not fit.
///
/// # Errors
/// Names the key to change.
pub(crate) fn check(job: &Job, machine: &Machine) -> Result<(), Failure> {
    let (need, limit) = (Need::of(job, machine), MemoryLimit::of_this_process());
    need.check(limit)?;
    if let Some(warning) = need.warning(limit) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// As [`check`], for a dense worker whose servers are other processes.
///
/// # Errors
/// Names the key to change.
pub(crate) fn check_worker(job: &Job) -> Result<(), Failure> {
    Need::of(job, &Machine::this()).check(MemoryLimit::of_this_process())
}

/// Bytes that the processes of one machine need for a job, as far as they are known before the data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Dense networks of all workers.
    pub(crate) dense: u64,
    /// Rows and gradients of all workers' batches between lookup and acknowledgement.
    pub(crate) batches: u64,
    /// Sketches of the admission filters of all servers.
    pub(crate) sketches: u64,
    /// Bytes that embedding servers may use for rows; `None` without `cluster.memory`.
    pub(crate) rows: Option<u64>,
    /// Mean bytes of a row over the tables.
    row: u64,
}

impl Need {
    /// The need of the workers and servers of `machine`.
    pub(crate) fn of(job: &Job, machine: &Machine) -> Self {
        let workers = machine.workers.max(1) as u64;
        let servers = u64::from(job.cluster.servers);
        let tables = job.tables.len().max(1) as u64;
        Self {
            dense: weights_bytes(job).saturating_mul(workers),
            batches: in_flight_bytes(job).saturating_mul(workers),
            sketches: sketch_bytes(job).saturating_mul(servers),
            rows: job.cluster.memory.map(|memory| memory.saturating_mul(servers)),
            row: (job.tables.iter().map(|table| row_bytes(table) as u64).sum::<u64>() / tables).max(1),
        }
    }

    /// Bytes needed without any row.
    fn at_least(&self) -> u64 {
        self.dense.saturating_add(self.batches).saturating_add(self.sketches)
    }

    /// Refuses a job that cannot fit.
    ///
    /// # Errors
    /// Names the key of the largest part.
    pub(crate) fn check(&self, limit: Option<MemoryLimit>) -> Result<(), Failure> {
        let Some(limit) = limit.filter(|limit| self.at_least() > limit.bytes) else { return Ok(()) };
        let what = format!(
            "this job needs {} of memory before its first row ({} for the dense network, {} for batches in flight, {} \
             for sketches of the admission filter), and {} {}",
            HumanBytes(self.at_least()),
            HumanBytes(self.dense),
            HumanBytes(self.batches),
            HumanBytes(self.sketches),
            limit.bound,
            HumanBytes(limit.bytes)
        );
        let help = if self.sketches > self.dense.max(self.batches) {
            "raise `error` in embedding.admission, or give it more memory"
        } else if self.dense > self.batches {
            "make the layers in [model] narrower, or give it more memory"
        } else {
            "lower train.batch_size or train.staleness, or give it more memory"
        };
        Err(Failure::with_help(Exit::Usage, what, help))
    }

    /// A warning, if the job may not fit.
    pub(crate) fn warning(&self, limit: Option<MemoryLimit>) -> Option<String> {
        let limit = limit?;
        let (rows, usable) = (self.rows?, (limit.bytes as f64 * USABLE) as u64);
        let all = self.at_least().saturating_add(rows);
        (all > usable).then(|| {
            format!(
                "rows may fill {} (cluster.memory, over all servers), the rest needs {}, and {} {}: lower cluster.memory, so \
                 that more rows go to disk, or the kernel may kill the process",
                HumanBytes(rows),
                HumanBytes(self.at_least()),
                limit.bound,
                HumanBytes(limit.bytes)
            )
        })
    }

    /// How many rows fit, in words.
    pub(crate) fn room(&self, limit: Option<MemoryLimit>) -> Option<String> {
        let limit = limit?;
        let left = ((limit.bytes as f64 * USABLE) as u64).saturating_sub(self.at_least());
        let (bytes, which) = match self.rows {
            Some(rows) => (rows.min(left), "in memory; more go to disk (cluster.memory)"),
            None => (left, "fit; with more, the kernel kills the process unless cluster.memory sends rows to disk"),
        };
        let (rows, bound, limit) = (HumanCount(bytes / self.row), limit.bound, HumanBytes(limit.bytes));
        Some(format!("about {rows} {which} ({bound} {limit})"))
    }
}

/// Bytes of one dense network; 0 for a module, which is not loaded.
pub(crate) fn weights_bytes(job: &Job) -> u64 {
    job.dense_parameters().unwrap_or(0).saturating_mul(DENSE_BYTES_PER_WEIGHT)
}

/// The sketches of the admission filters of one server.
pub(crate) fn sketch_bytes(job: &Job) -> u64 {
    let configs = job.tables.iter().map(|table| table.config());
    configs.map(|config| config.admission.sketch_bytes(config.stripes)).sum()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;
    use zagros_plumbing::memory::MemoryBound;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn need(sets: &[&str], workers: usize) -> Need {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[cluster]\ncold_folder = 'cold'\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap();
        Need::of(&job, &Machine { cores: 4, workers, servers: 1 })
    }

    fn limit(bytes: u64) -> Option<MemoryLimit> {
        Some(MemoryLimit { bytes, bound: MemoryBound::Machine })
    }

    #[test]
    fn what_cannot_fit_is_refused_with_the_key_that_takes_most() {
        let batches = need(&["train.batch_size=1000000", "train.staleness=15"], 1);
        assert_eq!(batches.batches, 16 * 1_000_000 * 26 * 16 * 8);
        assert!(batches.check(limit(64 * GIB)).is_ok() && batches.check(None).is_ok());
        let message = format!("{:?}", batches.check(limit(23 * GIB)).unwrap_err());
        assert!(message.contains("23.00 GiB") && message.contains("lower train.batch_size"), "{message}");
        let network = need(&["model.top=[40000,40000]"], 1);
        let message = format!("{:?}", network.check(limit(23 * GIB)).unwrap_err());
        assert!(message.contains("24.") && message.contains("narrower"), "{message}");
    }

    /// 26 tables, each with 2 × 2.72 / error × ln(1 / failure) bytes per server.
    #[test]
    fn sketches_of_the_admission_filter_count() {
        let set = "embedding.admission={kind='count', counter='count_min', error=1e-6, failure=0.01}";
        let need = need(&[set, "cluster.servers=2"], 1);
        let formula = 2.0 * 26.0 * 2.0 * 1.0_f64.exp() / 1e-6 * 5.0;
        assert!((need.sketches as f64 / formula - 1.0).abs() < 1e-3, "{} {formula}", need.sketches);
        assert!(need.check(limit(64 * GIB)).is_ok());
        let refused = format!("{:?}", need.check(limit(GIB)).unwrap_err());
        assert!(refused.contains("raise `error`"), "{refused}");
    }

    #[test]
    fn every_worker_of_the_machine_counts() {
        assert_eq!(need(&[], 3).dense, 3 * need(&[], 1).dense);
        assert_eq!(need(&[], 3).batches, 3 * need(&[], 1).batches);
    }

    #[test]
    fn a_warning_names_rows_beyond_memory_and_the_room_is_shown() {
        let limited = need(&["cluster.memory=20GiB", "cluster.servers=2"], 1);
        assert_eq!(limited.rows, Some(40 * GIB));
        let message = limited.warning(limit(23 * GIB)).unwrap();
        assert!(message.contains("40.00 GiB") && message.contains("lower cluster.memory"), "{message}");
        assert_eq!(limited.warning(limit(64 * GIB)), None);
        let open = need(&[], 1);
        assert_eq!(open.warning(limit(GIB)), None);
        let room = open.room(limit(23 * GIB)).unwrap();
        assert!(room.contains("unless cluster.memory") && room.contains("this machine has 23.00 GiB"), "{room}");
    }
}
