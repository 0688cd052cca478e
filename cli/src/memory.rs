//! The memory that a job needs, compared with the machine's before anything is allocated.

use indicatif::{HumanBytes, HumanCount};
use zagros_cost::memory::in_flight_bytes;
pub(crate) use zagros_cost::memory::row_bytes;
use zagros_job::threads::Machine;
use zagros_job::{Categorical, Job, ModelSize};
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::{Exit, Failure};

/// A process with libtorch, before it has read a row.
const PROCESS: u64 = 178 << 20;
/// An embedding server or a coordinator as a process of its own.
const SERVER_PROCESS: u64 = 24 << 20;
/// Distinct ids of a batch, on average: one in so many. Each batch in flight has rows for these.
const REPEATS: u64 = 4;
/// Parsed batches that wait for their turn.
const PARSED_BATCHES: u64 = 3;
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
    // What servers hold is in other processes.
    let need = Need { dense_rows: 0, sketches: 0, ..Need::of(job, &Machine::this()) };
    need.check(MemoryLimit::of_this_process())
}

/// Bytes that the processes of one machine need for a job, as far as they are known before the data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// The programs themselves, with the rows that they shuffle.
    pub(crate) programs: u64,
    /// Dense networks of all workers.
    pub(crate) dense: u64,
    /// Copies of the dense network while it is saved.
    pub(crate) saving: u64,
    /// The dense network at the servers, in mode `async`.
    pub(crate) dense_rows: u64,
    /// Rows and gradients of all workers' batches between lookup and acknowledgement.
    pub(crate) batches: u64,
    /// The same, as far as ids repeat as they usually do.
    usual_batches: u64,
    /// Sketches of the admission filters of all servers.
    pub(crate) sketches: u64,
    /// Bytes that embedding servers may use for rows; `None` without `cluster.memory`.
    pub(crate) rows: Option<u64>,
    /// Mean bytes of a row over the tables.
    row: u64,
    /// Weights of the dense network.
    weights: u64,
}

impl Need {
    /// The need of the workers and servers of `machine`.
    pub(crate) fn of(job: &Job, machine: &Machine) -> Self {
        let workers = machine.workers.max(1) as u64;
        let servers = u64::from(job.cluster.servers);
        let tables = job.tables.len().max(1) as u64;
        let footprint = job.dense_footprint().unwrap_or_default();
        let others = if machine.workers * machine.servers > 1 { servers.saturating_mul(SERVER_PROCESS) } else { 0 };
        let dense_rows =
            job.dense_table().map_or(0, |table| footprint.weights / 4 * row_bytes(&table) as u64 / table.dim as u64);
        Self {
            programs: workers.saturating_mul(PROCESS + shuffled_bytes(job)).saturating_add(others),
            dense: footprint.peak().saturating_mul(workers),
            saving: footprint.saving,
            dense_rows,
            batches: in_flight_bytes(job).saturating_mul(workers),
            usual_batches: usual_batch_bytes(job).saturating_mul(workers),
            sketches: sketch_bytes(job).saturating_mul(servers),
            rows: job.cluster.memory.map(|memory| memory.saturating_mul(servers)),
            row: (job.tables.iter().map(|table| row_bytes(table) as u64).sum::<u64>() / tables).max(1),
            weights: footprint.weights / 4,
        }
    }

    /// Bytes needed without any row.
    fn at_least(&self) -> u64 {
        let parts = [self.programs, self.dense, self.saving, self.dense_rows, self.batches, self.sketches];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// The peak without any row, with as many distinct ids in a batch as there usually are.
    pub(crate) fn usual_peak(&self) -> u64 {
        (self.at_least() - self.batches).saturating_add(self.usual_batches)
    }

    /// Refuses a job that cannot fit.
    ///
    /// # Errors
    /// Names the key of the largest part.
    pub(crate) fn check(&self, limit: Option<MemoryLimit>) -> Result<(), Failure> {
        let Some(limit) = limit.filter(|limit| self.at_least() > limit.bytes) else { return Ok(()) };
        let parts = [
            (self.dense, "for the dense network"),
            (self.saving, "for a copy of it while it is saved"),
            (self.dense_rows, "for it at the embedding servers"),
            (self.batches, "for batches in flight"),
            (self.sketches, "for sketches of the admission filter"),
            (self.programs, "for the programs"),
        ];
        let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
        let parts: Vec<String> = parts.map(|(bytes, what)| format!("{} {what}", HumanBytes(*bytes))).collect();
        let what = format!(
            "this job needs {} of memory before its first row ({}), and {} {}: {} too little",
            HumanBytes(self.at_least()),
            parts.join(", "),
            limit.bound,
            HumanBytes(limit.bytes),
            HumanBytes(self.at_least() - limit.bytes)
        );
        let of_dense = self.dense.saturating_add(self.saving).saturating_add(self.dense_rows);
        let help = if self.sketches > of_dense.max(self.batches) {
            "raise `error` in embedding.admission, or give it more memory".to_owned()
        } else if of_dense > self.batches {
            let others = self.at_least() - of_dense;
            let per_weight = (of_dense / self.weights.max(1)).max(1);
            let fitting = ModelSize(limit.bytes.saturating_sub(others) / per_weight);
            format!(
                "make the layers in [model] narrower, or choose a model.size of up to {fitting}, or give it more memory"
            )
        } else {
            "lower train.batch_size or train.staleness, or give it more memory".to_owned()
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

/// Rows of the shuffle window of one worker: numbers as f32, ids as u64, and the label.
fn shuffled_bytes(job: &Job) -> u64 {
    (job.data.shuffle_rows as u64).saturating_mul(parsed_bytes(job))
}

/// A parsed sample.
fn parsed_bytes(job: &Job) -> u64 {
    let ids = |feature: &Categorical| feature.values.sequence().map_or(1, |sequence| sequence.length as u64);
    4 * (job.features.numeric_inputs() as u64 + 1) + 8 * job.features.categorical.iter().map(ids).sum::<u64>()
}

/// What the network reads of one worker's batch and the slopes of it, batches that are parsed, and rows in flight of distinct ids.
fn usual_batch_bytes(job: &Job) -> u64 {
    let sample = 2 * 4 * looked_up_values(job) + PARSED_BATCHES * parsed_bytes(job);
    (job.train.batch_size as u64).saturating_mul(sample).saturating_add(in_flight_bytes(job) / REPEATS)
}

/// Values of all feature vectors of a sample.
fn looked_up_values(job: &Job) -> u64 {
    let values = |feature: &Categorical| {
        let dim = job.tables[feature.table].dim;
        feature.values.sequence().map_or(dim, |sequence| sequence.width(dim)) as u64
    };
    job.features.categorical.iter().map(values).sum()
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
        let named = network.at_least() - 23 * GIB;
        assert!(message.contains(&format!("{} too little", HumanBytes(named))), "{message}");
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
