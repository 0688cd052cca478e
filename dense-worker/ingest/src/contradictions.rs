//! Rows whose labels contradict each other: a click that is given another one (ESMM) comes without it.

use std::fmt;

use zagros_job::{Job, Target, TargetKind};

use crate::IngestError;
use crate::columnar::groups::RowGroups;
use crate::read::layout::FileLayout;
use crate::read::reader::RowPlace;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GivenPair {
    given: usize,
    own: usize,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ContradictionCounts {
    targets: usize,
    pairs: Vec<GivenPair>,
    names: Vec<String>,
    rows: u64,
    count: u64,
    /// The first one, and its place.
    first: Option<(GivenPair, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContradictoryRows {
    /// The label that needs the other one, and that one.
    pub labels: [String; 2],
    /// Rows where it comes alone.
    pub count: u64,
    pub rows: u64,
    /// The first one is at this line of a file, or soon after it.
    pub place: String,
}

impl fmt::Display for ContradictoryRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { labels: [own, given], count, rows, place } = self;
        let share = 100.0 * *count as f64 / *rows as f64;
        write!(
            f,
            "{count} of {rows} rows ({share:.3} %) have \"{own}\" without \"{given}\", which it is given; the first that was read is at {place}, or soon after: \
             they are trained on as they are, which makes the chance of \"{own}\" after \"{given}\" too high; correct these labels, or remove \
             `given`"
        )
    }
}

impl ContradictionCounts {
    pub(crate) fn new(job: &Job) -> Self {
        let targets = &job.features.targets;
        let pair = |(own, target): (usize, &Target)| match target.kind {
            TargetKind::Click { given: Some(given), .. } => Some(GivenPair { given, own }),
            _ => None,
        };
        Self {
            targets: targets.len(),
            pairs: targets.iter().enumerate().filter_map(pair).collect(),
            names: targets.iter().map(|target| target.name.clone()).collect(),
            ..Self::default()
        }
    }

    /// Counts the rows of a block by their labels, `[rows, targets]`.
    pub(crate) fn add(&mut self, labels: &[f32], layout: &FileLayout, place: RowPlace) -> Result<(), IngestError> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        for (row, labels) in labels.chunks_exact(self.targets).enumerate() {
            self.rows += 1;
            // A label that is missing contradicts nothing.
            let is_contradictory = |pair: &&GivenPair| labels[pair.own] > 0.5 && labels[pair.given] < 0.5;
            let Some(pair) = self.pairs.iter().find(is_contradictory) else { continue };
            self.count += 1;
            if self.first.is_none() {
                self.first = Some((*pair, locate_contradiction(layout, place, row as u64)?));
            }
        }
        Ok(())
    }

    /// What was found so far; `None` if there is nothing.
    pub(crate) fn contradictory_rows(&self) -> Option<ContradictoryRows> {
        let (pair, place) = self.first.as_ref()?;
        let labels = [pair.own, pair.given].map(|target| self.names[target].clone());
        Some(ContradictoryRows { labels, count: self.count, rows: self.rows, place: place.clone() })
    }
}

/// The place of a row that is well-formed, but for malformed rows before it in its block.
fn locate_contradiction(layout: &FileLayout, place: RowPlace, row: u64) -> Result<String, IngestError> {
    let (path, line) = (layout.path.display(), place.line_number(layout, row)?);
    Ok(match layout.row_groups.as_ref().map(RowGroups::unit_name).zip(place.row_group) {
        None => format!("{path}:{line}"),
        Some((unit, number)) => format!("{path}: {unit} {number}, row {line}"),
    })
}
