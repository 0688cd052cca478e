//! From splits to batches.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use zagros_job::{Job, Target, TargetKind};

use crate::assemble::{BatchAssembler, ShuffleOrder, WindowShuffler};
use crate::columnar::groups::RowGroups;
use crate::cursor::StreamStart;
use crate::parse::bad::{BadBudget, LISTED};
use crate::parse::sink::BatchSink;
use crate::pipeline::{BLOCK_BYTES, ParsePipeline, ParsedBlock, PipelineConfig};
use crate::read::layout::FileLayout;
use crate::read::reader::RowPlace;
use crate::split::SplitHash;
use crate::{Batch, DataPart, FileInfo, IngestError, SplitEnd, SplitSource, WholeFiles};

const NAMED: usize = 3;

#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// The wanted rows. Only a job with a test *fraction* or a validation *share* divides its files. Otherwise every part
    /// has all rows of its files.
    pub part: DataPart,
    /// The epoch (0, 1, …). Each is shuffled differently.
    pub epoch: u32,
    /// Where in the rows of its splits it starts.
    pub start: StreamStart,
    /// Malformed rows that the run skipped before. `data.max_bad_rows` counts over the whole run.
    pub bad_rows: u64,
    /// Anyone may set it. It ends the stream within a fraction of a second.
    pub cancel: Arc<AtomicBool>,
}

impl StreamOptions {
    /// The first epoch of a part, from its start.
    pub fn new(part: DataPart) -> Self {
        Self { part, epoch: 0, start: StreamStart::default(), bad_rows: 0, cancel: Arc::default() }
    }
}

/// Counts of a stream so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamStats {
    pub rows: u64,
    /// Malformed rows of the wanted part, skipped.
    pub bad_rows: u64,
    pub other_rows: u64,
    /// Bytes of files read (compressed bytes for compressed files).
    pub bytes: u64,
    /// Processor time of the reading and parsing threads, seconds.
    pub cpu_seconds: f64,
}

/// Batches of `train.batch_size` samples, read and parsed by threads of its own.
///
/// The same splits give the same batches for any number of threads. The last batch may be short. [`Iterator::next`] blocks,
/// so an async task must not call it. After an error or the end there is nothing more. A cancelled stream ends with
/// [`IngestError::Cancelled`]. Dropping the stream ends its threads.
#[derive(Debug)]
pub struct BatchStream {
    pipeline: ParsePipeline<BatchSink>,
    shuffler: Option<WindowShuffler>,
    /// `None` after the end.
    assembler: Option<BatchAssembler>,
    last: VecDeque<Batch>,
    bad: BadBudget,
    /// Malformed rows of the split that is being read.
    bad_in_split: u64,
    /// Rows of the same split.
    hash: SplitHash,
    stats: StreamStats,
    seen: ReadRows,
    contradictions: ContradictionCounts,
    part: DataPart,
    /// Samples of a full batch, if a short one is dropped.
    only_full: Option<usize>,
}

/// The inputs of the message about an epoch without rows.
#[derive(Debug, Default)]
struct ReadRows {
    files: Vec<PathBuf>,
    /// Bytes of each file that were read before the first row.
    read: HashMap<PathBuf, u64>,
    a_whole_file: bool,
}

impl BatchStream {
    pub fn open(job: &Job, options: StreamOptions, splits: Box<dyn SplitSource>) -> Result<Self, IngestError> {
        Self::open_in_blocks(job, options, splits, BLOCK_BYTES)
    }

    /// The rows of whole files in their order, as in the first epoch.
    pub fn open_files(job: &Job, part: DataPart, files: &[FileInfo]) -> Result<Self, IngestError> {
        Self::open(job, StreamOptions::new(part), Box::new(WholeFiles::new(files)))
    }

    fn open_in_blocks(
        job: &Job,
        options: StreamOptions,
        splits: Box<dyn SplitSource>,
        block_bytes: usize,
    ) -> Result<Self, IngestError> {
        let StreamOptions { part, epoch, start: StreamStart { drop, windows, skip }, bad_rows, cancel } = options;
        let sink = BatchSink::new(&job.features, part).with_input_rows(job, part);
        let order = ShuffleOrder { seed: job.train.seed, epoch, windows, skip: drop };
        let shuffle = |rows| WindowShuffler::new(rows, order, sink.rows.empty_like());
        // Rows that are only scored need no order.
        let shuffles = part == DataPart::Train && job.data.shuffle_rows > 0;
        let shuffler = shuffles.then(|| shuffle(job.data.shuffle_rows));
        // Rows that are not shuffled go to the assembler in their order.
        let skip = if shuffler.is_some() { skip } else { drop.saturating_add(skip) };
        let assembler = BatchAssembler::new(job.train.batch_size, sink.rows.empty_like()).with_skipped_rows(skip);
        let contradictions = if part == DataPart::Train { ContradictionCounts::new(job) } else { Default::default() };
        let config = PipelineConfig { job: Arc::new(job.clone()), part, splits, block_bytes, cancel };
        Ok(Self {
            pipeline: ParsePipeline::start(config, &sink)?,
            shuffler,
            assembler: Some(assembler),
            last: VecDeque::new(),
            bad: BadBudget::new(&job.data, LISTED).with_earlier(bad_rows),
            bad_in_split: 0,
            hash: SplitHash::default(),
            stats: StreamStats::default(),
            seen: ReadRows::default(),
            contradictions,
            part,
            only_full: (job.data.drop_last && part == DataPart::Train).then_some(job.train.batch_size),
        })
    }

    /// Counts so far.
    pub fn stats(&self) -> StreamStats {
        StreamStats { cpu_seconds: self.pipeline.cpu_seconds(), ..self.stats }
    }

    /// What is wrong with training rows so far whose labels contradict each other; `None` if there are none.
    pub fn describe_contradictions(&self) -> Option<String> {
        self.contradictions.describe()
    }

    fn advance(&mut self) -> Result<Option<Batch>, IngestError> {
        while let Some(assembler) = &mut self.assembler {
            let is_ahead = self.shuffler.as_ref().is_none_or(|shuffler| shuffler.is_ahead(assembler));
            if let Some(batch) = is_ahead.then(|| assembler.take_final()).flatten() {
                return Ok(Some(batch));
            }
            match self.pipeline.next()? {
                Some(parsed) => self.take_block(parsed)?,
                None => self.finish()?,
            }
        }
        Ok(self.last.pop_front())
    }

    fn take_block(&mut self, mut parsed: ParsedBlock<BatchSink>) -> Result<(), IngestError> {
        self.seen.note_block(&parsed, self.stats.rows);
        self.bad.add(&parsed.outcome, &parsed.layout, parsed.place)?;
        self.stats.rows += parsed.outcome.rows;
        self.stats.bad_rows += parsed.outcome.bad.count;
        self.stats.other_rows += parsed.outcome.other_part;
        self.stats.bytes += parsed.bytes;
        self.bad_in_split += parsed.outcome.bad.count;
        self.contradictions.add(&parsed.sink.rows.labels, &parsed.layout, parsed.place)?;
        let rows = &mut parsed.sink.rows;
        rows.bytes = parsed.bytes;
        self.hash.add(rows);
        if let Some(split) = parsed.completes {
            let bad_rows = std::mem::take(&mut self.bad_in_split);
            let content = std::mem::take(&mut self.hash).finish();
            rows.completes.push(SplitEnd { split, rows: self.stats.rows, bad_rows, content });
        }
        match (&mut self.shuffler, &mut self.assembler) {
            (Some(shuffler), Some(assembler)) => shuffler.feed(rows, assembler),
            (None, Some(assembler)) => assembler.feed(rows),
            (_, None) => {}
        }
        self.pipeline.recycle(parsed.sink);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), IngestError> {
        let Some(mut assembler) = self.assembler.take() else { return Ok(()) };
        if let Some(shuffler) = self.shuffler.take() {
            shuffler.finish(&mut assembler);
        }
        if self.stats.rows == 0 && self.seen.a_whole_file {
            return Err(self.seen.no_rows(self.stats.other_rows + self.stats.bad_rows, self.part));
        }
        self.last = assembler.finish();
        if let (Some(size), Some(last)) = (self.only_full, self.last.back_mut())
            && last.size < size
        {
            last.drop_samples();
        }
        Ok(())
    }
}

impl Iterator for BatchStream {
    type Item = Result<Batch, IngestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance().transpose();
        if matches!(next, Some(Err(_))) {
            self.assembler = None;
            self.last.clear();
        }
        next
    }
}

impl ReadRows {
    fn note_block<S>(&mut self, parsed: &ParsedBlock<S>, rows: u64) {
        if rows > 0 {
            return;
        }
        let path = &parsed.layout.path;
        if self.files.last() != Some(path) && self.files.len() <= NAMED {
            self.files.push(path.clone());
        }
        let read = self.read.entry(path.clone()).or_default();
        *read += parsed.bytes;
        self.a_whole_file |= parsed.is_whole_file || *read >= parsed.layout.bytes;
    }

    fn no_rows(&self, rows: u64, part: DataPart) -> IngestError {
        let mut names: Vec<_> = self.files.iter().take(NAMED).map(|path| path.display().to_string()).collect();
        if self.files.len() > NAMED {
            names.push("…".into());
        }
        let part = match part {
            DataPart::Train => "train",
            DataPart::Test => "test",
            DataPart::Validation => "validation",
            DataPart::All => "whole",
        };
        IngestError::NoRows { files: names.join(", "), rows, part }
    }
}

/// A label that needs another one: the positions and the names of both.
#[derive(Debug)]
struct GivenPair {
    positions: [usize; 2],
    names: [String; 2],
}

/// Rows whose labels contradict each other: a click that is given another one (ESMM) comes without it.
#[derive(Debug, Default)]
struct ContradictionCounts {
    targets: usize,
    pairs: Vec<GivenPair>,
    rows: u64,
    count: u64,
    /// The pair of the first one, and its place.
    first: Option<(usize, String)>,
}

impl ContradictionCounts {
    fn new(job: &Job) -> Self {
        let targets = &job.features.targets;
        let pair = |(own, target): (usize, &Target)| match target.kind {
            TargetKind::Click { given: Some(given), .. } => {
                Some(GivenPair { positions: [own, given], names: [own, given].map(|at| targets[at].name.clone()) })
            }
            _ => None,
        };
        let pairs = targets.iter().enumerate().filter_map(pair).collect();
        Self { targets: targets.len(), pairs, ..Self::default() }
    }

    /// Counts the rows of a block by their labels, `[rows, targets]`.
    fn add(&mut self, labels: &[f32], layout: &FileLayout, place: RowPlace) -> Result<(), IngestError> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        for (row, labels) in labels.chunks_exact(self.targets).enumerate() {
            self.rows += 1;
            // A label that is missing contradicts nothing.
            let is_contradictory =
                |GivenPair { positions: [own, given], .. }: &GivenPair| labels[*own] > 0.5 && labels[*given] < 0.5;
            let Some(pair) = self.pairs.iter().position(is_contradictory) else { continue };
            self.count += 1;
            if self.first.is_none() {
                self.first = Some((pair, locate_contradiction(layout, place, row as u64)?));
            }
        }
        Ok(())
    }

    fn describe(&self) -> Option<String> {
        let (pair, place) = self.first.as_ref()?;
        let (Self { rows, count, .. }, [own, given]) = (self, &self.pairs[*pair].names);
        let share = 100.0 * *count as f64 / *rows as f64;
        Some(format!(
            "{count} of {rows} rows ({share:.3} %) have \"{own}\" without \"{given}\", which it is given; the first that was read is at {place}, or soon after: \
             they are trained on as they are, which makes the chance of \"{own}\" after \"{given}\" too high; correct these labels, or remove \
             `given`"
        ))
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

#[cfg(test)]
mod tests;
