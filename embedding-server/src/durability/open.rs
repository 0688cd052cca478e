//! Opens the log of a server: whose rows it has, and whether this server takes them over.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use prometheus::Registry;
use tracing::warn;
use zagros_cold::StoreContent;
use zagros_job::{DurabilityLevel, Job};
use zagros_log::{LineageFile, LogError, LogFolder, LogPlace, format};
use zagros_plumbing::{Deadline, durable};
use zagros_protocol::ServerIndex;
use zagros_table::TableConfig;

use super::descriptions::{describe_tables, find_difference};
use crate::ServerError;
use crate::tier::{self, ColdTier};

/// How often it is looked whether the process before has released the log.
const POLL: Duration = Duration::from_millis(50);

/// A log that this process holds.
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
    let failed = |source: LogError| ServerError::Log { index: index.0, source };
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
        let lineage =
            LineageFile { version: format::VERSION, log, lineage, tables, cold: has_tier, place: Some(place) };
        return Ok(Some(OpenedLog { folder, lineage, has_rows: false }));
    };
    let no_tier = "rows that had left memory lie in a cold tier, and the job has none (`cluster.memory`)";
    let unfit = find_difference(&lineage.tables, &tables);
    match unfit.or_else(|| (lineage.cold && !has_tier).then(|| no_tier.to_owned())) {
        None => {
            if lineage.place.as_ref().is_some_and(|before| *before != place) {
                if place == LogPlace::Disk {
                    folder.sync().map_err(failed)?;
                }
                lineage.place = Some(place);
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
    let is_cut_off = matches!(&found.place, Some(LogPlace::Cache(before)) if Some(before.as_str()) != boot);
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

/// A folder of this server's own.
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
        let failed = |source| ServerError::Log { index: index.0, source };
        let folder = tier::cold_folder(job, index);
        let (mark, log) = (folder.join("log"), self.lineage.log.to_string());
        let is_kept = self.lineage.cold && self.has_rows;
        if is_kept && fs::read_to_string(&mark).ok().as_ref() != Some(&log) {
            return Err(ServerError::OtherColdTier { index: index.0, folder });
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
