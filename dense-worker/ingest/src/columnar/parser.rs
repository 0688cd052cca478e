//! Slices of row groups become rows. Performance-critical: no allocation per row, and no work per row that a dictionary
//! saves.
//!
//! Slices of a row group come in order. With several parsing threads each has every n-th of them: it then goes over the rows
//! of the others, and does not decompress pages that have only such rows.

use std::sync::Arc;

use zagros_job::{Categorical, Job, Numeric};
use zagros_zip::number_from;

use super::decoded::{ColumnFault, DecodedColumn, GroupColumns, column_error};
use super::features::{CategoryCells, CategoryFault, NumericCells};
use super::groups::{RowGroups, RowSlice, UsedColumn};
use super::output::{
    CellConverter, ConvertedCell, ConvertedCells, IdCells, ToId, ToLabel, ToPart, ToWeight, ValueTexts,
};
use super::parquet::pages::GroupRanges;
use super::texts::TextCells;
use crate::category::CellReading;
use crate::hash::HashSplit;
use crate::parse::bad::{FieldFault, ParseOutcome};
use crate::parse::hold_out::HoldOut;
use crate::parse::label::{LabelTexts, expected_weight};
use crate::parse::row::{wants_groups, wants_weights};
use crate::parse::sink::{BatchSink, RowSink, notes_rows};
use crate::parse::values::MissingTexts;
use crate::read::layout::FileLayout;
use crate::{DataPart, IngestError};

/// Parses rows of a job from columns. Each thread has its own.
#[derive(Debug)]
pub(crate) struct ColumnarParser {
    job: Arc<Job>,
    categories: Vec<Categorical>,
    hold_out: Option<HoldOut>,
    groups: bool,
    weights: bool,
    /// Labels of the row that is given away, one for each target.
    labels: Vec<f32>,
    /// Whether rows are read with the texts of their keys.
    notes: bool,
    missing: MissingTexts,
    open: Option<OpenGroup>,
}

#[derive(Debug)]
struct OpenGroup {
    layout: Arc<FileLayout>,
    group: usize,
    at: u64,
    /// Its columns, if they are in a store.
    ranges: Option<GroupRanges>,
    labels: Vec<DecodedColumn<ConvertedCells<ToLabel>>>,
    weight: Option<DecodedColumn<ConvertedCells<ToWeight>>>,
    numeric: Vec<NumericCells>,
    categorical: Vec<CategoryCells>,
    grouping: Option<DecodedColumn<IdCells>>,
    keys: Vec<DecodedColumn<TextCells>>,
    time: Option<DecodedColumn<TextCells>>,
}

impl ColumnarParser {
    pub(crate) fn new(job: &Arc<Job>, part: DataPart) -> Self {
        let missing = MissingTexts::new(&job.data.format);
        let (hold_out, groups, notes) = (HoldOut::from_job(job, part), wants_groups(job, part), notes_rows(job, part));
        let (weights, labels) = (wants_weights(job, part), vec![0.0; job.features.targets.len()]);
        let categories = job.features.category_features();
        Self { job: Arc::clone(job), categories, hold_out, groups, weights, labels, notes, missing, open: None }
    }

    pub(crate) fn parse<S: RowSink>(
        &mut self,
        layout: &Arc<FileLayout>,
        row_groups: &RowGroups,
        slice: RowSlice,
        sink: &mut S,
    ) -> Result<ParseOutcome, IngestError> {
        let RowSlice { group, start, rows } = slice;
        let goes_on = |open: &OpenGroup| Arc::ptr_eq(&open.layout, layout) && open.group == group && open.at <= start;
        let mut open = match self.open.take().filter(goes_on) {
            Some(open) => open,
            None => self.open_group(layout, row_groups, group)?,
        };
        let decoded = open.decode(start, rows);
        decoded.map_err(|fault| column_error(&layout.path, row_groups, group, open.ranges.as_ref(), fault))?;
        let first_row = row_groups.groups[group].first_row.saturating_add(start);
        let hash = RowHash::new(layout, first_row);
        let outcome = self.parse_rows(&open, rows, hash, sink);
        self.open = Some(open);
        Ok(outcome)
    }

    fn open_group(
        &self,
        layout: &Arc<FileLayout>,
        row_groups: &RowGroups,
        group: usize,
    ) -> Result<OpenGroup, IngestError> {
        let columns = GroupColumns::open(&layout.path, row_groups, group)?;
        let features = &self.job.features;
        let texts = |column: &UsedColumn| ValueTexts::new(column.kind, self.missing.clone());
        let predict = self.job.eval.predict.as_ref();
        let targets = if predict.is_none() { features.targets.as_slice() } else { &[] };
        let labels = targets.iter().enumerate().map(|(index, target)| {
            let label = LabelTexts::new(target, &self.missing);
            columns.open_column(index, |column| ConvertedCells::new(texts(column), ToLabel(label)))
        });
        let labels = labels.collect::<Result<Vec<_>, _>>()?;
        let weight = self
            .weights
            .then(|| columns.open_column(labels.len(), |column| ConvertedCells::new(texts(column), ToWeight)));
        let weight = weight.transpose()?;
        // The column of weights is there also where it is not read.
        let learned = labels.len() + usize::from(layout.positions.weight.is_some());
        let numbers: Vec<&Numeric> = features.number_features().collect();
        let numeric = number_from(learned, &numbers)
            .map(|(index, feature)| NumericCells::open(feature, &columns, index, &self.missing))
            .collect::<Result<_, _>>()?;
        let mut categorical = Vec::new();
        let mut first = learned + numbers.len();
        for feature in &self.categories {
            categorical.push(CategoryCells::open(features, feature, &columns, first, &self.missing)?);
            first += features.source_columns(feature).count();
        }
        let grouping = (self.groups && predict.is_none())
            .then(|| columns.open_column(first, |column| IdCells::new(texts(column), ToId::default())));
        let grouping = grouping.transpose()?;
        // The column of groups is there also where it is not read.
        let first = first + usize::from(layout.positions.group.is_some());
        let noted = if self.notes { self.job.eval.noted_columns().len() } else { 0 };
        let keys = (first..first + noted).map(|index| columns.open_column(index, |column| TextCells::new(column.kind)));
        let keys = keys.collect::<Result<_, _>>()?;
        let last = first + layout.positions.keys.len();
        let by_time = self.hold_out.as_ref().is_some_and(HoldOut::divides_by_time);
        let time = by_time.then(|| columns.open_column(last, |column| TextCells::new(column.kind))).transpose()?;
        let (layout, ranges) = (Arc::clone(layout), columns.store_ranges());
        Ok(OpenGroup { layout, group, at: 0, ranges, labels, weight, numeric, categorical, grouping, keys, time })
    }

    fn parse_rows<S: RowSink>(
        &mut self,
        open: &OpenGroup,
        rows: usize,
        mut hash: RowHash,
        sink: &mut S,
    ) -> ParseOutcome {
        if self.hold_out.is_none()
            && !open.has_faults()
            && let Some(batch) = sink.by_columns()
        {
            batch.place(hash.first_row);
            open.put_columns(batch, rows);
            return ParseOutcome { rows: rows as u64, ..ParseOutcome::default() };
        }
        let mut outcome = ParseOutcome::default();
        for row in 0..rows {
            let is_wanted = self.hold_out.as_ref().map_or(Ok(true), |hold_out| {
                let time = open.time.as_ref().map_or(&b""[..], |column| column.out.text(row));
                hold_out.wants_row(time, |split| hash.row_part(split, row))
            });
            if let Ok(false) = is_wanted {
                outcome.other_part += 1;
                continue;
            }
            sink.place(hash.first_row.saturating_add(row as u64));
            match is_wanted.and_then(|_| self.parse_row(open, row, sink)) {
                Ok(()) => outcome.rows += 1,
                Err(fault) => {
                    sink.abandon();
                    outcome.bad.add(row as u64, 1, *fault);
                }
            }
        }
        outcome
    }

    #[inline]
    fn parse_row<S: RowSink>(&mut self, open: &OpenGroup, row: usize, sink: &mut S) -> Result<(), Box<FieldFault>> {
        open.keys.iter().for_each(|column| sink.key(column.out.text(row)));
        for (target, column) in open.labels.iter().enumerate() {
            let expected = || LabelTexts::new(&self.job.features.targets[target], &self.missing).expected;
            self.labels[target] = column_number(column, row, expected)?;
        }
        let expected = || expected_weight(self.job.features.weight.as_deref().unwrap_or_default());
        let weight = open.weight.as_ref().map(|column| column_number(column, row, expected)).transpose()?;
        open.numeric.iter().try_fold(0, |first, column| column.put_row(first, row, sink))?;
        for (feature, column) in open.categorical.iter().enumerate() {
            column.put_row(feature, row, sink).map_err(|fault| match fault {
                CategoryFault::Part(part, column) => self.bad_part(feature, part, column, row),
                CategoryFault::Weights(fault) => fault,
            })?;
        }
        if let Some(grouping) = &open.grouping {
            sink.group_id(grouping.out.cells[row]);
        }
        sink.commit(&self.labels, weight);
        Ok(())
    }

    #[cold]
    fn bad_part(
        &self,
        feature: usize,
        part: usize,
        column: &DecodedColumn<ConvertedCells<ToPart>>,
        row: usize,
    ) -> Box<FieldFault> {
        let features = &self.job.features;
        let part = features.column_parts(&self.categories[feature])[part];
        let expected = CellReading::new(part.reading).expected_text(part.column);
        let found = match column.out.cells[row] {
            ConvertedCell::Faulty(text) => column.out.faulty_text(text),
            ConvertedCell::Missing | ConvertedCell::Number(_) => "",
        };
        FieldFault::new(column.position, expected, found)
    }
}

/// The number of a row in a column of labels or weights.
#[inline]
fn column_number<C: CellConverter<Cell = ConvertedCell>>(
    column: &DecodedColumn<ConvertedCells<C>>,
    row: usize,
    expected: impl FnOnce() -> String,
) -> Result<f32, Box<FieldFault>> {
    let text = match column.out.cells[row] {
        ConvertedCell::Number(number) => return Ok(number as f32),
        ConvertedCell::Missing => u32::MAX,
        ConvertedCell::Faulty(text) => text,
    };
    Err(FieldFault::new(column.position, expected(), column.out.faulty_text(text)))
}

impl OpenGroup {
    /// Decodes the rows of a slice.
    fn decode(&mut self, start: u64, rows: usize) -> Result<(), ColumnFault> {
        let skipped = usize::try_from(start - self.at).unwrap_or(usize::MAX);
        self.labels.iter_mut().try_for_each(|column| column.decode(skipped, rows))?;
        self.weight.iter_mut().try_for_each(|column| column.decode(skipped, rows))?;
        self.numeric.iter_mut().try_for_each(|column| column.decode(skipped, rows))?;
        self.categorical.iter_mut().try_for_each(|column| column.decode(skipped, rows))?;
        self.grouping.iter_mut().try_for_each(|column| column.decode(skipped, rows))?;
        self.keys.iter_mut().chain(&mut self.time).try_for_each(|column| column.decode(skipped, rows))?;
        self.at = start + rows as u64;
        Ok(())
    }

    fn has_faults(&self) -> bool {
        let is_there = |cell: &ConvertedCell| matches!(cell, ConvertedCell::Number(_));
        !self.labels.iter().flat_map(|label| &label.out.cells).all(is_there)
            || !self.weight.iter().flat_map(|weight| &weight.out.cells).all(is_there)
            || self.numeric.iter().any(NumericCells::has_faults)
            || self.categorical.iter().any(CategoryCells::has_faults)
    }

    /// All rows of the slice, none of them malformed.
    fn put_columns(&self, batch: &mut BatchSink, rows: usize) {
        self.numeric.iter().fold(0, |first, column| column.put_column(first, batch));
        for (feature, column) in self.categorical.iter().enumerate() {
            column.put_column(feature, batch);
        }
        if let Some(column) = &self.grouping {
            batch.group_column(&column.out.cells);
        }
        let values = |cell: &ConvertedCell| cell.as_number().unwrap_or_default() as f32;
        for (target, label) in self.labels.iter().enumerate() {
            batch.label_column((target, self.labels.len()), label.out.cells.iter().map(values));
        }
        if let Some(weight) = &self.weight {
            batch.weight_column(weight.out.cells.iter().map(values));
        }
        batch.commit_columns(rows);
    }
}

/// The hash of a row that decides its part: of the file's name and the row's number in the file.
///
/// The values of the row would be no better: the part would then change with the columns that the job reads.
struct RowHash {
    bytes: Vec<u8>,
    first_row: u64,
}

impl RowHash {
    fn new(layout: &FileLayout, first_row: u64) -> Self {
        let mut bytes = layout.path.file_name().unwrap_or_default().as_encoded_bytes().to_vec();
        bytes.push(b'\n');
        bytes.extend_from_slice(&[0; 8]);
        Self { bytes, first_row }
    }

    #[inline]
    fn row_part(&mut self, split: HashSplit, row: usize) -> DataPart {
        let number = self.first_row.saturating_add(row as u64).to_le_bytes();
        let start = self.bytes.len() - number.len();
        self.bytes[start..].copy_from_slice(&number);
        split.row_part(&self.bytes, 0)
    }
}
