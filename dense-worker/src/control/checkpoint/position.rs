//! What a checkpoint knows of training besides rows and weights: `training.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zagros_ingest::{SplitTask, StreamRemainder, StreamStart};
use zagros_protocol::control::{self, Position, Split};
use zagros_zip::ZipEq;

use crate::control::evaluate::ChoiceState;
use crate::control::step::TrackerState;
use crate::event::Evaluation;
use crate::progress::OverallMeasures;

/// Layout of the file; counts up when an older release could not read it.
pub(crate) const FORMAT: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TrainingPosition {
    pub(crate) format: u32,
    pub(crate) tracker: TrackerState,
    /// Epoch over the data, from 0.
    pub(crate) epoch: u32,
    pub(crate) files: Vec<FileSize>,
    /// How an epoch is divided into splits, in the order of their ids.
    pub(crate) plan: Vec<SplitRange>,
    /// Splits of the epoch, by place in the plan, that are complete.
    pub(crate) done: Vec<u32>,
    /// Malformed rows of the complete splits of all epochs.
    pub(crate) bad_rows: u64,
    /// Every worker, by rank.
    pub(crate) readers: Vec<ResumeCursor>,
    /// Hashes of the rows of splits, by place in the plan, that were trained on in any epoch. Those that a lost worker read are not
    /// known.
    pub(crate) contents: BTreeMap<u32, u64>,
    /// Measures of the epoch so far, of every worker by rank: each has seen its own rows alone.
    pub(crate) measures: Vec<OverallMeasures>,
    /// The last evaluation while training, and after which step it was.
    pub(crate) evaluated: Option<(u64, Evaluation)>,
    pub(crate) of_epochs: Vec<Evaluation>,
    /// Early stopping, and the states that are kept.
    pub(crate) choice: ChoiceState,
}

/// A file by what tells whether it is still the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileSize {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Hash of samples of its content.
    pub(crate) fingerprint: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub(crate) changed: Option<u64>,
}

impl FileSize {
    fn differs_from(&self, now: &Self) -> Option<String> {
        let (path, before, path_now) = (self.path.display(), self.bytes, now.path.display());
        if before != now.bytes {
            return Some(format!("{path} had {before} bytes then, {path_now} has {} now", now.bytes));
        }
        (self.fingerprint != now.fingerprint)
            .then(|| format!("{path} had other content then than {path_now} has now, of the same {before} bytes"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SplitRange {
    file: u32,
    start: u64,
    end: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResumeCursor {
    /// What is left of the stream that it was in the middle of.
    pub(crate) rest: Option<StreamRemainder>,
    /// Whose order of rows the stream has: the worker that started it.
    pub(crate) order: u32,
    pub(crate) next_seq: u64,
    /// Its part of [`TrainingPosition::contents`], until the first worker has put all parts together.
    #[serde(default)]
    pub(crate) contents: BTreeMap<u32, u64>,
}

impl TrainingPosition {
    /// Of a run that has trained nothing itself and counts its steps from here.
    pub(crate) fn starting_at(steps: u64) -> Self {
        Self {
            format: FORMAT,
            tracker: TrackerState::starting_at(steps),
            epoch: 0,
            files: Vec::new(),
            plan: Vec::new(),
            done: Vec::new(),
            bad_rows: 0,
            readers: vec![ResumeCursor { next_seq: steps, ..ResumeCursor::default() }],
            contents: BTreeMap::new(),
            measures: Vec::new(),
            evaluated: None,
            of_epochs: Vec::new(),
            choice: ChoiceState::default(),
        }
    }

    pub(crate) fn reported_position(&self) -> Position {
        let id = |index: u32| u64::from(self.epoch) << 32 | u64::from(index);
        let split = |index: u32| {
            let SplitRange { file, start, end } = self.plan.get(index as usize).copied()?;
            Some(Split { id: id(index), file, start, end })
        };
        let rest = |reader: &ResumeCursor| {
            let StreamRemainder { splits, start: StreamStart { drop, windows, skip } } = reader.rest.clone()?;
            let splits = splits.into_iter().filter_map(|split_id| split(split_id as u32)).collect();
            Some(control::ResumeCursor { reader: reader.order, splits, drop, windows, skip })
        };
        Position {
            epoch: self.epoch,
            plan: (0..self.plan.len() as u32).filter_map(split).collect(),
            done: self.done.iter().map(|index| id(*index)).collect(),
            resume_cursors: self.readers.iter().filter_map(rest).collect(),
            bad_rows: self.bad_rows,
        }
    }

    pub(crate) fn placed_at(self, position: &Position) -> Self {
        let range = |split: &Split| SplitRange { file: split.file, start: split.start, end: split.end };
        let (plan, done) = (position.plan.iter().map(range), position.done.iter().map(|id| *id as u32));
        Self { plan: plan.collect(), done: done.collect(), bad_rows: position.bad_rows, ..self }
    }

    pub(crate) fn other_files(&self, now: &[FileSize]) -> Option<String> {
        if self.files.len() != now.len() {
            return Some(format!("{} training files then, {} now", self.files.len(), now.len()));
        }
        self.files.iter().zip_eq(now).find_map(|(then, now)| then.differs_from(now))
    }

    /// Splits that were trained on of files that were written since, each with the hash of its rows then. Of very many bytes some are
    /// taken, spread over the plan.
    pub(super) fn splits_to_compare(&self, now: &[FileSize], most_bytes: u64) -> Vec<(SplitTask, u64)> {
        let written = |index: u32| {
            let (then, now) = (self.files.get(index as usize)?, now.get(index as usize)?);
            (then.changed? != now.changed?).then_some(now)
        };
        let split = |(index, content): (&u32, &u64)| {
            let SplitRange { file, start, end } = self.plan.get(*index as usize).copied()?;
            Some((SplitTask { id: u64::from(*index), path: written(file)?.path.clone(), start, end }, *content))
        };
        let all: Vec<(SplitTask, u64)> = self.contents.iter().filter_map(split).collect();
        let bytes: u64 = all.iter().map(|(task, _)| task.end.saturating_sub(task.start)).sum();
        all.into_iter().step_by(bytes.div_ceil(most_bytes).max(1) as usize).collect()
    }

    /// The measures that worker `rank` of `world` goes on from: its own; the first worker adds those of workers that are
    /// no more. All of them together are those of all rows of the epoch.
    pub(crate) fn measures_of_rank(&self, rank: usize, world: usize) -> OverallMeasures {
        let own = self.measures.get(rank).cloned();
        match rank {
            0 if self.measures.len() > world => {
                let gone = self.measures.iter().skip(world).cloned();
                OverallMeasures::sum(&own.into_iter().chain(gone).collect::<Vec<_>>())
            }
            _ => own.unwrap_or_else(OverallMeasures::new),
        }
    }

    /// The number that a worker's next batch has. It is above the number of every earlier push of the worker, in any process.
    pub(crate) fn next_seq(&self, rank: usize) -> u64 {
        let own = self.readers.get(rank).map(|reader| reader.next_seq);
        own.unwrap_or_else(|| self.readers.iter().map(|reader| reader.next_seq).max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::step::{MadeStep, MainTarget, TrainingTracker};

    fn training() -> TrainingPosition {
        let range = |index: u64| SplitRange { file: 0, start: index * 10, end: index * 10 + 10 };
        let rest = StreamRemainder { splits: vec![(2 << 32) | 1], start: StreamStart { drop: 3, windows: 2, skip: 1 } };
        TrainingPosition {
            format: FORMAT,
            tracker: TrainingTracker::new(9).state(),
            epoch: 2,
            files: vec![FileSize { path: "a".into(), bytes: 30, fingerprint: 5, changed: Some(7) }],
            plan: (0..3).map(range).collect(),
            done: vec![0],
            bad_rows: 4,
            readers: vec![
                ResumeCursor { rest: Some(rest), order: 1, next_seq: 8, ..ResumeCursor::default() },
                ResumeCursor { next_seq: 5, ..ResumeCursor::default() },
            ],
            contents: BTreeMap::from([(0, 11), (2, 13)]),
            measures: Vec::new(),
            evaluated: None,
            of_epochs: Vec::new(),
            choice: ChoiceState::default(),
        }
    }

    #[test]
    fn the_position_names_splits_as_the_coordinator_does() {
        let position = training().reported_position();
        let second = Split { id: (2 << 32) | 1, file: 0, start: 10, end: 20 };
        assert_eq!((position.plan.len(), position.plan[1], position.done.as_slice()), (3, second, &[2 << 32][..]));
        assert_eq!(position.bad_rows, 4);
        let cursor = control::ResumeCursor { reader: 1, splits: vec![second], drop: 3, windows: 2, skip: 1 };
        assert_eq!(position.resume_cursors, [cursor]);
        let empty = TrainingPosition { plan: Vec::new(), done: Vec::new(), ..training() };
        let placed = empty.placed_at(&position);
        assert_eq!((placed.plan, placed.done), (training().plan, vec![0]));
    }

    #[test]
    fn other_files_are_distinguished_by_number_and_size() {
        let print = |bytes, fingerprint| FileSize { path: "moved/a".into(), bytes, fingerprint, changed: None };
        let file = |bytes| print(bytes, 5);
        assert_eq!(training().other_files(&[file(30)]), None);
        assert_eq!(training().other_files(&[]).unwrap(), "1 training files then, 0 now");
        let other = "a had other content then than moved/a has now, of the same 30 bytes";
        assert_eq!(training().other_files(&[print(30, 6)]).unwrap(), other);
        assert_eq!(training().other_files(&[file(31)]).unwrap(), "a had 30 bytes then, moved/a has 31 now");
    }

    #[test]
    fn what_was_trained_on_of_a_file_that_was_written_since_is_compared() {
        let now = |changed| [FileSize { path: "moved/a".into(), bytes: 30, fingerprint: 5, changed }];
        let compared = |changed, most| {
            let splits = training().splits_to_compare(&now(changed), most);
            splits.into_iter().map(|(task, content)| (task.id, task.start, task.end, content)).collect::<Vec<_>>()
        };
        assert_eq!(compared(Some(8), 100), [(0, 0, 10, 11), (2, 20, 30, 13)]);
        assert_eq!(compared(Some(8), 10), [(0, 0, 10, 11)], "not more bytes than asked for");
        assert!(compared(Some(7), 100).is_empty() && compared(None, 100).is_empty());
    }

    /// Each worker went on from those of the first, which then counted twice and the others' not at all.
    #[test]
    fn the_measures_of_all_workers_add_up_for_any_number_of_them() {
        let part = |loss: f64| {
            let mut tracker = TrainingTracker::new(9);
            let (labels, logits) = (&[1.0_f32][..], &[0.5_f32][..]);
            (0..loss as u64).for_each(|_| {
                let main = MainTarget::CLICK;
                tracker.count_step(MadeStep { samples: 1, labels, logits, main, loss: 1.0, staleness: 0, bytes: 1 });
            });
            tracker.done.overall
        };
        let training = TrainingPosition { measures: [2.0, 3.0, 5.0].map(part).to_vec(), ..training() };
        let samples = |training: &TrainingPosition, world: usize| {
            (0..world).map(|rank| training.measures_of_rank(rank, world).report().samples).collect::<Vec<_>>()
        };
        assert_eq!([1, 2, 3, 4].map(|world| samples(&training, world).iter().sum::<u64>()), [10; 4]);
        assert_eq!(samples(&training, 3), [2, 3, 5]);
    }

    #[test]
    fn a_worker_more_than_before_counts_on_from_the_highest() {
        assert_eq!([0, 1, 2].map(|rank| training().next_seq(rank)), [8, 5, 8]);
    }
}
