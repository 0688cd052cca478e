//! Opens the log of a server: whose rows it has, and whether this server takes them over.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use prometheus::Registry;
use tracing::warn;
use zagros_job::{DurabilityLevel, Job};
use zagros_plumbing::{Deadline, durable};
use zagros_protocol::ServerIndex;
use zagros_rows::cold::StoreContent;
use zagros_rows::log::{LineageFile, LogError, LogFolder, LogPlace, TableDescription, format};
use zagros_table::{AdmissionPolicy, FrequencyCounter, Initializer, TableConfig};
use zagros_zip::ZipEq;

use crate::ServerError;
use crate::errors::LOG;
use crate::tier::{self, ColdTier};

/// How often it is looked whether the process before has released the log.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct OpenedLog {
    pub(crate) folder: LogFolder,
    pub(crate) lineage: LineageFile,
    /// Whether it has rows that this server takes over.
    pub(crate) has_rows: bool,
}

/// Opens the log that the job asks for. `None` if it asks for none. Rows that this server cannot take over are left alone. `boot`
/// is this start of the machine: after another one, acknowledged pushes may be missing at the end of a log that was not on the disk.
/// Nothing in the log shows that, so its rows count as lost and are deleted, and the run goes back to its newest checkpoint.
/// Fails if another process holds the log for longer than the job's timeout, or if the log has rows of other tables, of another
/// release, or that cannot be read.
pub(crate) fn open(
    job: &Job,
    index: ServerIndex,
    configs: &[TableConfig],
    has_tier: bool,
    boot: Option<&str>,
) -> Result<Option<OpenedLog>, ServerError> {
    if !job.cluster.durability.has_log() {
        return Ok(None);
    }
    let tables = describe_tables(job, configs);
    let failed = ServerError::failed::<LogError>(index.0, LOG);
    let folder = wait_for(&log_folder(job, index), job.cluster.timeout).map_err(failed)?;
    let place = match job.cluster.durability {
        DurabilityLevel::Machine => LogPlace::Disk,
        // No start of a machine has this name.
        DurabilityLevel::Process | DurabilityLevel::Checkpoint => LogPlace::Cache(boot.unwrap_or("unknown").to_owned()),
    };
    let found = folder.read_lineage().map_err(failed)?;
    let Some(mut lineage) = found.filter(|found| !is_cut_off(found, boot, &folder, index)) else {
        folder.discard_old_log().map_err(failed)?;
        let (log, lineage) = (rand::random(), new_lineage());
        let lineage = LineageFile { version: format::VERSION, log, lineage, tables, cold: has_tier, place };
        return Ok(Some(OpenedLog { folder, lineage, has_rows: false }));
    };
    let no_tier = "rows that had left memory lie in a cold tier, and the job has none (`cluster.memory`)";
    let unfit = find_difference(&lineage.tables, &tables);
    match unfit.or_else(|| (lineage.cold && !has_tier).then(|| no_tier.to_owned())) {
        None => {
            if lineage.place != place {
                if place == LogPlace::Disk {
                    folder.sync().map_err(failed)?;
                }
                lineage.place = place;
                folder.set_lineage(&lineage).map_err(failed)?;
            }
            Ok(Some(OpenedLog { folder, lineage, has_rows: true }))
        }
        Some(difference) => {
            Err(ServerError::OtherTables { index: index.0, folder: folder.path().to_owned(), difference })
        }
    }
}

/// Whether acknowledged pushes may be missing at the end of a log: they were in the cache of a machine that was started again, or of
/// another one.
fn is_cut_off(found: &LineageFile, boot: Option<&str>, folder: &LogFolder, index: ServerIndex) -> bool {
    let is_cut_off = matches!(&found.place, LogPlace::Cache(before) if Some(before.as_str()) != boot);
    if is_cut_off {
        let folder = folder.path().display();
        warn!(server = %index, %folder, "the machine was started again, or is another one, since pushes were acknowledged whose records were not on the disk yet \
             (durability = \"process\"): the rows of this log are given up, and the run goes back to its newest checkpoint");
    }
    is_cut_off
}

/// Never 0, which says on the wire that there is no log.
pub(crate) fn new_lineage() -> u64 {
    rand::random::<u64>().max(1)
}

/// The process before may take a moment to end.
fn wait_for(path: &Path, timeout: Duration) -> Result<LogFolder, LogError> {
    let deadline = Deadline::from_now(timeout);
    loop {
        match LogFolder::open(path) {
            Err(LogError::InUse { .. }) if !deadline.is_past() => thread::sleep(POLL),
            opened => return opened,
        }
    }
}

pub(crate) fn log_folder(job: &Job, index: ServerIndex) -> PathBuf {
    match &job.cluster.log_folder {
        Some(below) => below.join(format!("server-{index}")),
        None => job.output.folder.join(format!("log-server-{index}")),
    }
}

impl OpenedLog {
    /// The cold tier that belongs to the log: opened with its rows, or made. A new log begins only then: a process that ends
    /// before has made neither.
    pub(crate) fn open_tier(
        &mut self,
        job: &Job,
        index: ServerIndex,
        configs: &[TableConfig],
        registry: &Registry,
    ) -> Result<Option<ColdTier>, ServerError> {
        let failed = ServerError::failed::<LogError>(index.0, LOG);
        let folder = job.cold_folder(index.0);
        let (mark, log) = (folder.join("log"), self.lineage.log.to_string());
        let is_kept = self.lineage.cold && self.has_rows;
        if is_kept && fs::read_to_string(&mark).ok().as_ref() != Some(&log) {
            return Err(ServerError::OtherColdTier { index: index.0, folder, log: log_folder(job, index) });
        }
        let content = if is_kept { StoreContent::Kept } else { StoreContent::New };
        let opened = tier::open(job, index, configs, content, registry)?;
        if opened.is_some() && !is_kept {
            let marked = durable::write(&mark, log.as_bytes());
            marked.map_err(LogError::io("write", &mark)).map_err(failed)?;
        }
        let gains_tier = opened.is_some() && !self.lineage.cold;
        self.lineage.cold |= gains_tier;
        match self.has_rows {
            false => self.folder.begin_log(&self.lineage).map_err(failed)?,
            true if gains_tier => self.folder.set_lineage(&self.lineage).map_err(failed)?,
            true => {}
        }
        Ok(opened)
    }
}

/// What decides whether the rows of a log fit into the tables of a job.
///
/// Rows of another dim, optimiser state or access metadata cannot be put in. Rows that a lookup alone made are not in the log:
/// they are made again, so seed and first weights belong to the description. Learning rate, schedule, clipping, times to live
/// and the threshold of admission do not: a server goes on under other ones.
///
/// Describes the tables of a job. The text of a description is part of the log's format: it stays the same in later releases.
pub(super) fn describe_tables(job: &Job, configs: &[TableConfig]) -> Vec<TableDescription> {
    let describe = |(config, table): (&TableConfig, zagros_job::ServerTable)| {
        let settings = [
            ("dim", config.dim.to_string()),
            ("weights", config.element.name().to_owned()),
            ("optimizer", config.optimizer.state_layout().to_owned()),
            ("words of a row", config.stride().to_string()),
            ("first weights", first_weights(config.init)),
            ("seed", job.train.seed.to_string()),
            ("access metadata", describe_access(job, config)),
            ("admission", describe_admission(config.admission)),
            // Frequency counts and the order of replay go by stripes.
            ("stripes (by `cluster.memory`)", config.stripes.to_string()),
        ];
        let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        TableDescription { name: table.name, settings }
    };
    configs.iter().zip_eq(job.server_tables()).map(describe).collect()
}

/// The first difference, in words. `None` if rows of `there` fit into `here`.
pub(super) fn find_difference(there: &[TableDescription], here: &[TableDescription]) -> Option<String> {
    let names = |tables: &[TableDescription]| {
        let names: Vec<_> = tables.iter().map(|table| format!("`{}`", table.name)).collect();
        names.join(", ")
    };
    if there.len() != here.len() || there.iter().zip_eq(here).any(|(there, here)| there.name != here.name) {
        return Some(format!("it has the tables {}, and the job {}", names(there), names(here)));
    }
    there.iter().zip_eq(here).find_map(|(there, here)| {
        let none = String::from("unknown");
        let keys: BTreeSet<_> = there.settings.keys().chain(here.settings.keys()).collect();
        let differing = keys.into_iter().find(|key| there.settings.get(*key) != here.settings.get(*key))?;
        let value = |table: &TableDescription| table.settings.get(differing).unwrap_or(&none).clone();
        Some(format!("{differing} of table `{}` is {} there, and {} in the job", there.name, value(there), value(here)))
    })
}

fn first_weights(init: Initializer) -> String {
    match init {
        Initializer::Zero => "zero".to_owned(),
        Initializer::Uniform { bound } => format!("uniform within {bound}"),
        Initializer::Normal { deviation } => format!("normal of deviation {deviation}"),
        Initializer::TruncatedNormal { deviation } => format!("truncated normal of deviation {deviation}"),
        Initializer::Xavier { rows } => format!("xavier for {rows} rows"),
        Initializer::Constant { value } => format!("constant {value}"),
    }
}

fn describe_access(job: &Job, config: &TableConfig) -> String {
    match config.has_access(job.cluster.memory.is_some()) {
        true => config.access_format(),
        false => "none".to_owned(),
    }
}

fn describe_admission(policy: AdmissionPolicy) -> String {
    match policy {
        AdmissionPolicy::Always => "always".to_owned(),
        AdmissionPolicy::Count { counter: FrequencyCounter::Exact, .. } => "exact counts".to_owned(),
        AdmissionPolicy::Count { counter: FrequencyCounter::CountMin { error, failure }, .. } => {
            format!("counts in a sketch of error {error} and failure {failure}")
        }
        AdmissionPolicy::Probability { share } => format!("a share of {share}"),
    }
}

#[cfg(test)]
mod tests {
    use zagros_table::{EvictionOrder, EvictionPolicy, LearningRateSchedule, Optimizer, Ttl};

    use super::*;
    use crate::tables::table_configs;
    use crate::testing::job;

    /// A change of this text would refuse the logs of an earlier release.
    #[test]
    fn the_text_of_a_description_stays() {
        let job = job(1);
        let described = describe_tables(&job, &table_configs(&job));
        let text: Vec<_> = described[0].settings.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(described[0].name, "user");
        let seed = job.train.seed;
        let expected = format!(
            "access metadata: none, admission: always, dim: 4, first weights: uniform within 0.01, optimizer: adagrad, \
             seed: {seed}, stripes (by `cluster.memory`): 64, weights: f32, words of a row: 8"
        );
        assert_eq!(text.join(", "), expected);
    }

    #[test]
    fn what_a_row_is_made_of_differs_and_how_it_learns_does_not() {
        let job = job(1);
        let configs = table_configs(&job);
        let expected = describe_tables(&job, &configs);
        let described = |change: &dyn Fn(&mut TableConfig)| {
            let mut configs = configs.clone();
            configs.iter_mut().for_each(change);
            describe_tables(&job, &configs)
        };
        let faster = |config: &mut TableConfig| {
            if let Optimizer::Adagrad { lr, .. } | Optimizer::Sgd { lr, .. } = &mut config.optimizer {
                *lr *= 2.0;
            }
        };
        let stepped = LearningRateSchedule::Step { warmup: 5, every: 7, factor: 0.5 };
        let same: [&dyn Fn(&mut TableConfig); 4] =
            [&|_| (), &|config| config.schedule = stepped, &faster, &|config| config.limits.clip_norm = 1.0];
        for (number, change) in same.into_iter().enumerate() {
            assert_eq!(find_difference(&expected, &described(change)), None, "change {number}");
        }
        let wider = find_difference(&expected, &described(&|config| config.dim = 8)).unwrap();
        assert_eq!(wider, "dim of table `user` is 4 there, and 8 in the job");
        let zero = find_difference(&expected, &described(&|config| config.init = Initializer::Zero)).unwrap();
        assert!(zero.starts_with("first weights of table `user`"), "{zero}");
        let ttl = |seconds| {
            let eviction =
                EvictionPolicy { order: EvictionOrder::Lru, ttl: Some(seconds), ..EvictionPolicy::default() };
            described(&|config| config.eviction = eviction)
        };
        assert_eq!(find_difference(&ttl(Ttl::Steps(5)), &ttl(Ttl::Steps(500))), None);
        assert!(find_difference(&ttl(Ttl::Steps(5)), &ttl(Ttl::Seconds(5))).unwrap().contains("access metadata"));
        let difference = find_difference(&expected, &expected[..1]).unwrap();
        assert!(difference.contains("it has the tables `user`, `item`, and the job `user`"));
    }
}
