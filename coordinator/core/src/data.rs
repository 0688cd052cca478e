//! The training data of a run: its files, who reads which split, and the statistics by which features are transformed. The first
//! worker measures and reports the statistics; the others ask for them.

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{
    CompleteRequest, DataFile, JoinRequest, Position, Transform, TransformsRequest, TransformsResponse,
};
use zagros_protocol::{Refusal, RefusalKind};
use zagros_zip::ZipEq;

use crate::config::CoreConfig;
use crate::split_assignment::{SplitLedger, SplitShares};
use crate::split_plan::{plan_splits, uneven_shares};
use crate::{MemberSlot, Role};

const MOST_FILES: usize = 1 << 18;

/// The training data. It is known once the first worker has joined: that worker's list of files is the run's list.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TrainingData {
    files: Vec<DataFile>,
    /// Empty until then.
    pub(crate) ledger: SplitLedger,
    /// Which workers have little or no data to read, in words.
    pub(crate) uneven: Option<String>,
    /// Malformed rows of the complete splits, over all epochs and workers.
    pub(crate) bad_rows: u64,
}

/// Where an earlier run stopped and this run continues.
#[derive(Debug)]
pub(crate) struct ResumedData {
    ledger: SplitLedger,
    bad_rows: u64,
}

impl TrainingData {
    pub(crate) fn is_known(&self) -> bool {
        !self.files.is_empty()
    }

    /// Checks that a worker has the files of the run. The first worker's files become the run's.
    pub(crate) fn check_files(&self, slot: MemberSlot, files: &[DataFile]) -> Result<(), Refusal> {
        if files.len() > MOST_FILES {
            let message = format!("{slot} brought {} training files, and a run has at most {MOST_FILES}", files.len());
            return Err(Refusal::invalid(message));
        }
        if files.iter().all(|file| file.bytes == 0) {
            return Err(Refusal::invalid(format!("{slot} brought no training data: {} files, 0 bytes", files.len())));
        }
        if self.is_known() && self.files != files {
            return Err(self.other_files(slot, files));
        }
        Ok(())
    }

    fn other_files(&self, slot: MemberSlot, files: &[DataFile]) -> Refusal {
        let differs = (0..files.len().max(self.files.len())).find(|index| self.files.get(*index) != files.get(*index));
        let describe = |files: &[DataFile]| match differs.and_then(|index| files.get(index)) {
            Some(file) => format!("{} ({} bytes, content {:016x})", file.path, file.bytes, file.fingerprint),
            None => "nothing".to_owned(),
        };
        let message = format!(
            "{slot} reads other training files than the worker that joined first: {} where that worker has {}",
            describe(files),
            describe(&self.files)
        );
        Refusal::new(RefusalKind::Mismatch, message)
    }

    /// Where a resumed run continues. A single worker may set its own run back. The first of several workers may do so only
    /// before a split was dealt out. After that, it continues where the others are.
    pub(crate) fn resumed_data(
        &self,
        config: &CoreConfig,
        slot: MemberSlot,
        request: &JoinRequest,
    ) -> Result<Option<ResumedData>, Refusal> {
        let Some(position) = request.position.as_ref().filter(|_| slot == MemberSlot::worker(0)) else {
            return Ok(None);
        };
        if config.has_groups() && !self.ledger.is_untouched() {
            return Ok(None);
        }
        let ledger = SplitLedger::from_position(position, config.epochs, shares(config), request.files.len())?;
        Ok(Some(ResumedData { ledger, bad_rows: position.bad_rows }))
    }

    /// Plans the splits of a worker's files, unless the files are known. For a new plan, returns which workers have little
    /// to read.
    pub(crate) fn plan_once(&mut self, config: &CoreConfig, files: &[DataFile]) -> Option<String> {
        if self.is_known() {
            return None;
        }
        self.files = files.to_vec();
        // Workers that join later read some, too.
        let plan = plan_splits(files, config.slot_count(Role::DenseWorker), config.order);
        self.uneven = uneven_shares(&plan, files, config.workers);
        self.ledger = SplitLedger::new(plan, config.epochs, shares(config));
        self.uneven.clone()
    }

    pub(crate) fn go_on_from(&mut self, resumed: ResumedData) {
        (self.ledger, self.bad_rows) = (resumed.ledger, resumed.bad_rows);
    }

    /// Returns whether the epoch became complete.
    pub(crate) fn complete_splits(&mut self, slot: MemberSlot, request: &CompleteRequest) -> Result<bool, Refusal> {
        let CompleteRequest { epoch, splits, bad_rows, .. } = request;
        if !bad_rows.is_empty() && bad_rows.len() != splits.len() {
            return Err(Refusal::invalid(format!("{} counts of bad rows for {} splits", bad_rows.len(), splits.len())));
        }
        // A repeated call names splits that were counted before.
        let is_new = |split: u64| !self.ledger.is_done(*epoch, split);
        let counted = if bad_rows.is_empty() { &[] } else { splits.as_slice() };
        let new = counted.iter().zip_eq(bad_rows).filter(|(split, _)| is_new(**split)).map(|(_, bad)| *bad);
        let new = new.fold(0, u64::saturating_add);
        let is_complete = self.ledger.complete_splits(*epoch, splits, slot)?;
        self.bad_rows = self.bad_rows.saturating_add(new);
        Ok(is_complete)
    }

    /// How much of an epoch has been read, without the workers' resume cursors; and the ids of its splits that a worker
    /// holds.
    pub(crate) fn read_position(&self, slot: MemberSlot, epoch: u32) -> Result<(Position, Vec<u64>), Refusal> {
        let position = Position { bad_rows: self.bad_rows, ..self.ledger.epoch_position(epoch)? };
        Ok((position, self.ledger.held_in(epoch, slot)))
    }
}

fn shares(config: &CoreConfig) -> SplitShares {
    SplitShares { workers: config.workers, fixed: config.fixed_splits, order: config.order }
}

const MOST_STATISTICS: usize = 1 << 16;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Transforms {
    measured: Vec<Transform>,
    bytes: u64,
}

impl Transforms {
    /// Keeps what a worker has measured, or answers with it. The first report stays, because a worker that starts again
    /// must train on the same values as the others.
    pub(crate) fn exchange(
        &mut self,
        slot: MemberSlot,
        request: &TransformsRequest,
    ) -> Result<TransformsResponse, Refusal> {
        if slot == MemberSlot::worker(0) {
            check_transforms(&request.measured)?;
            self.bytes = self.bytes.max(request.bytes);
            if self.measured.is_empty() {
                self.measured.clone_from(&request.measured);
            }
        } else if !request.measured.is_empty() {
            return Err(Refusal::invalid(format!("{slot} reports transforms, but only dense worker 0 measures them")));
        }
        Ok(TransformsResponse { measured: self.measured.clone(), bytes: self.bytes })
    }
}

fn check_transforms(measured: &[Transform]) -> Result<(), Refusal> {
    let is_number = |of: &Transform| {
        of.mean.is_finite()
            && of.deviation.is_finite()
            && of.deviation >= 0.0
            && of.numbers.iter().all(|n| n.is_finite())
            && of.values.iter().all(|n| n.is_finite())
    };
    if measured.len() > MOST_STATISTICS || !measured.iter().all(is_number) {
        return Err(Refusal::invalid("a number of the transforms is not finite, or there are too many transforms"));
    }
    Ok(())
}
