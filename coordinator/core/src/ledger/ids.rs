//! How a split is named: by its epoch and its index in the plan.

use zagros_protocol::control::{Position, Split};
use zagros_protocol::{Refusal, RefusalKind};
use zagros_zip::number_from;

use crate::splits::{MOST_SPLITS, SplitRange};

/// Unique over all epochs, so that a late completion does not count in another epoch.
pub(crate) fn split_id(epoch: u32, index: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(index)
}

pub(crate) fn refused_split(epoch: u32, id: u64, why: &str) -> Refusal {
    Refusal::new(RefusalKind::Invalid, format!("split {id} of epoch {epoch} {why}"))
}

/// The plan of a position. Split `i` has index `i`, and its file is one of the run's.
pub(crate) fn plan_of(position: &Position, files: usize) -> Result<Vec<SplitRange>, Refusal> {
    let splits = position.plan.len();
    if splits > MOST_SPLITS + files {
        let most = MOST_SPLITS + files;
        return Err(Refusal::invalid(format!(
            "the position has {splits} splits, but a run of {files} files has at most {most}"
        )));
    }
    let range = |(index, split): (u32, &Split)| {
        let Split { id, file, start, end } = *split;
        if id != split_id(position.epoch, index) || file as usize >= files || end < start {
            return Err(Refusal::invalid(format!(
                "split {index} of the position has a wrong id or range, or none of the {files} files"
            )));
        }
        Ok(SplitRange { file, start, end })
    };
    number_from(0, &position.plan).map(range).collect()
}

pub(crate) fn planned_index(position: &Position, id: u64) -> Result<u32, Refusal> {
    let index = id as u32;
    let is_planned = id == split_id(position.epoch, index) && (index as usize) < position.plan.len();
    if is_planned { Ok(index) } else { Err(Refusal::invalid(format!("split {id} is not in the position's plan"))) }
}
