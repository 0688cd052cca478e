//! From a batch to the outputs of its samples: the rows of its ids, the network's input, the network.
//!
//! Hot path: no log, no allocation per row.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use zagros_ingest::Batch;
use zagros_job::{Features, Job, Table};
use zagros_model::{Backend, DenseModel, InputColumns, LayerStore, ModelError, RowPositions, gather};
use zagros_zip::ZipEq;

use crate::calibrators::ModelCalibrators;
use crate::error::ScoringError;
use crate::manifest::damaged;
use crate::rows::{ModelRows, RowSource, SavedLayers};
use crate::saved_model::SavedModel;

/// Scores samples with a saved model. It stays on its thread; others may share its rows ([`Self::with_rows`]).
///
/// ```
/// use std::path::PathBuf;
///
/// use zagros_ingest::{BatchStream, DataPart, find_files};
/// use zagros_job::PredictRows;
/// use zagros_model::Backend;
/// use zagros_scoring::{ModelScorer, SavedModel};
/// use zagros_store::Folder;
///
/// # let saved = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/integration/fixtures/saved");
/// # std::env::set_current_dir(saved)?;
/// let model = SavedModel::open(&Folder::on_disk("finished/model"))?;
/// let mut job = model.read_job()?;
/// job.eval.predict = Some(PredictRows::default());
/// let files = find_files(&job, &[PathBuf::from("rows.csv")])?;
///
/// let mut scorer = ModelScorer::load_model(model, &job, Backend::default())?;
/// let mut scores = Vec::new();
/// for batch in BatchStream::open_files(&job, DataPart::All, &files)? {
///     scores.extend(scorer.score_batch(&batch?)?);
/// }
/// assert_eq!(scores.len(), 200);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ModelScorer {
    saved: SavedModel,
    rows: Arc<dyn RowSource>,
    model: DenseModel,
    features: Features,
    columns: InputColumns,
    calibrators: Option<ModelCalibrators>,
    lookups: Vec<TableLookups>,
    /// `[batch, ΣD]`, used again for each batch.
    input: Vec<f32>,
    shares: Vec<BatchShare>,
}

/// The fewest samples for a thread that reads rows.
const LEAST: usize = 256;

/// The memory of a thread that reads the rows of some of a batch's samples.
#[derive(Debug, Default)]
struct BatchShare {
    /// The rows of one feature.
    vectors: Vec<f32>,
    /// 0, 1, 2, …: each id of a feature has a row of its own.
    places: Vec<u32>,
    offsets: Vec<u32>,
    /// By table: ids, and those without a row.
    found: Vec<[u64; 2]>,
}

/// What a scorer has found of the ids of a table so far. An id counts as often as rows have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableLookups {
    pub table: String,
    pub ids: u64,
    /// Those without a row in the model.
    pub missing: u64,
}

impl ModelScorer {
    /// With the rows of the model in this process, which needs their memory.
    ///
    /// # Errors
    /// When a file is damaged or not the one that was saved, or does not fit the job, or the network cannot be computed here.
    pub fn load_model(saved: SavedModel, job: &Job, backend: Backend) -> Result<Self, ScoringError> {
        let rows = Arc::new(ModelRows::empty(job)?);
        let scorer = Self::with_rows(saved, job, backend, Arc::clone(&rows) as Arc<dyn RowSource>)?;
        // A network that does not fit is known before the rows are read, which takes longer.
        rows.fill(&scorer.saved)?;
        Ok(scorer)
    }

    /// With rows that were read before, such as [`ModelRows::load_rows`] has, or that are elsewhere.
    pub fn with_rows(
        saved: SavedModel,
        job: &Job,
        backend: Backend,
        rows: Arc<dyn RowSource>,
    ) -> Result<Self, ScoringError> {
        saved.check_network(job)?;
        let mut model = make_network(job, backend, &rows)?;
        let dense = &saved.manifest.dense;
        let loaded = model.load_safetensors(&saved.read_file(dense)?);
        loaded.map_err(|error| damaged(&saved.folder, format!("{dense}: {error}")))?;
        let lookups = |table: &Table| TableLookups { table: table.name.clone(), ..TableLookups::default() };
        Ok(Self {
            rows,
            model,
            columns: InputColumns::new(job),
            calibrators: None,
            lookups: job.tables.iter().map(lookups).collect(),
            input: Vec::new(),
            shares: (0..job.train.threads.max(1)).map(|_| BatchShare::default()).collect(),
            features: job.features.clone(),
            saved,
        })
    }

    pub fn saved_model(&self) -> &SavedModel {
        &self.saved
    }

    /// Has all further outputs calibrated, if the model has calibrators.
    pub fn calibrate_scores(&mut self) -> Result<(), ScoringError> {
        self.calibrators = self.saved.read_calibrators(&self.features.targets)?;
        Ok(())
    }

    pub fn table_lookups(&self) -> &[TableLookups] {
        &self.lookups
    }

    /// The outputs of a batch's samples, `[batch, outputs]`: logits of clicks and classes, numbers of regressions.
    ///
    /// # Errors
    /// When the batch does not have the shape of the job's features, rows or layers cannot be read, or the network fails.
    pub fn score_batch(&mut self, batch: &Batch) -> Result<Vec<f32>, ScoringError> {
        self.gather_batch(batch)?.score_unchanged()
    }

    /// Reads the rows of a batch into the network's input, to score it more than once.
    pub fn gather_batch<'a>(&'a mut self, batch: &'a Batch) -> Result<GatheredBatch<'a>, ScoringError> {
        batch.check_shape(&self.features).map_err(|reason| ScoringError::Batch { reason })?;
        let Self { rows, columns, lookups, input, shares, .. } = self;
        input.resize(batch.size * columns.width, 0.0);
        let samples = batch.size.div_ceil(shares.len()).max(LEAST);
        let parts = input.chunks_mut((samples * columns.width).max(1));
        let used = shares.iter_mut().take(parts.len());
        thread::scope(|threads| {
            let mut running = Vec::new();
            for (part, (input, share)) in parts.zip_eq(used).enumerate() {
                let (rows, columns, first) = (&**rows, &*columns, part * samples);
                let own = first..batch.size.min(first + samples);
                let tables = lookups.len();
                let work = move || share.gather((rows, tables), columns, (batch, own), input);
                if batch.size <= samples {
                    return work();
                }
                running.push(threads.spawn(work));
            }
            let joined = running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            joined.collect::<Result<(), _>>()
        })?;
        for (table, lookups) in lookups.iter_mut().enumerate() {
            for [ids, missing] in shares.iter().filter_map(|share| share.found.get(table)) {
                lookups.ids += ids;
                lookups.missing += missing;
            }
        }
        shares.iter_mut().for_each(|share| share.found.clear());
        Ok(GatheredBatch { scorer: self, batch })
    }
}

impl BatchShare {
    /// Reads the rows of these samples into their rows of the network's input.
    fn gather(
        &mut self,
        (rows, tables): (&dyn RowSource, usize),
        columns: &InputColumns,
        (batch, samples): (&Batch, Range<usize>),
        input: &mut [f32],
    ) -> Result<(), ScoringError> {
        self.found.resize(tables, [0; 2]);
        for (column, ids) in columns.features.iter().zip_eq(&batch.categorical) {
            let range = |offsets: &Vec<u32>| offsets[samples.start] as usize..offsets[samples.end] as usize;
            let own = ids.offsets.as_ref().map_or(samples.clone(), range);
            let (count, known) = (own.len(), self.places.len());
            self.places.extend(known as u32..count as u32);
            self.vectors.resize(count * column.dim, 0.0);
            let missing = rows.read_rows(column.table, &ids.ids[own.clone()], &mut self.vectors)?;
            let found = &mut self.found[column.table];
            *found = [found[0] + count as u64, found[1] + missing as u64];
            self.offsets.clear();
            let ends = ids.offsets.iter().flat_map(|offsets| &offsets[samples.start..=samples.end]);
            self.offsets.extend(ends.map(|end| end - own.start as u32));
            let offsets = ids.offsets.as_ref().map(|_| &self.offsets[..]);
            let positions = RowPositions::new(&self.places[..count], offsets, ids.weights.get(own).unwrap_or_default());
            gather(column, columns.width, positions, &self.vectors, input);
        }
        Ok(())
    }
}

/// Streamed weights are among the rows.
pub(crate) fn make_network(job: &Job, backend: Backend, rows: &Arc<dyn RowSource>) -> Result<DenseModel, ModelError> {
    let layers = SavedLayers::from_job(job, rows).map(|layers| Arc::new(layers) as Arc<dyn LayerStore>);
    DenseModel::with_store(job, backend, layers)
}

/// A batch whose rows are read.
#[derive(Debug)]
pub struct GatheredBatch<'a> {
    scorer: &'a ModelScorer,
    batch: &'a Batch,
}

impl GatheredBatch<'_> {
    /// As [`ModelScorer::score_batch`].
    pub fn score_unchanged(&self) -> Result<Vec<f32>, ScoringError> {
        self.score_input(&self.batch.numeric, &self.scorer.input)
    }

    /// Outputs where each sample has one feature's value of the sample that `order` names: its numbers, or the vector of its value or bag.
    /// Features count as in the job, numeric ones first.
    ///
    /// # Errors
    /// As [`Self::score_unchanged`], and where the order names as many samples as there are not.
    pub fn score_permuted(&self, feature: usize, order: &[u32]) -> Result<Vec<f32>, ScoringError> {
        let (ModelScorer { columns, input, features, .. }, numeric) = (self.scorer, &self.batch.numeric);
        let is_sample = |sample: &u32| (*sample as usize) < self.batch.size;
        if order.len() != self.batch.size || !order.iter().all(is_sample) {
            return Err(ScoringError::Batch { reason: format!("an order of {} samples", order.len()) });
        }
        if let Some(inputs) = columns.numeric.get(feature) {
            return self.score_input(&exchange_columns(numeric, features.numeric_inputs(), inputs, order), input);
        }
        let Some(column) = columns.features.get(feature - columns.numeric.len()) else {
            return Err(ScoringError::Batch { reason: format!("there is no feature {feature}") });
        };
        let values = column.offset..column.offset + column.width();
        self.score_input(numeric, &exchange_columns(input, columns.width, &values, order))
    }

    fn score_input(&self, numeric: &[f32], input: &[f32]) -> Result<Vec<f32>, ScoringError> {
        if self.batch.size == 0 {
            return Ok(Vec::new());
        }
        let mut outputs = self.scorer.model.predict(numeric, input, self.batch.size)?;
        if let Some(calibrators) = &self.scorer.calibrators {
            calibrators.calibrate_outputs(&mut outputs);
        }
        Ok(outputs)
    }
}

/// A matrix of so many columns, of which each row has these of the row that `order` names.
fn exchange_columns(matrix: &[f32], width: usize, columns: &Range<usize>, order: &[u32]) -> Vec<f32> {
    let mut exchanged = matrix.to_vec();
    for (row, source) in exchanged.chunks_exact_mut(width.max(1)).zip_eq(order) {
        row[columns.clone()].copy_from_slice(&matrix[*source as usize * width..][columns.clone()]);
    }
    exchanged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_eval::Calibrator;
    use zagros_fakes::jobs::{assert_refused, ffnn, job, pool_feature};
    use zagros_ingest::CategoryIds;
    use zagros_job::{Categorical, PoolAt, Pooling, Values, WeightStore};

    use super::*;
    use crate::manifest::FileRecord;
    use crate::testing::{SavedFixture, save_model};

    const SAMPLES: usize = 100;

    /// Two numbers, two features of one table, a bag, and a bag with weights.
    fn mixed_job() -> Job {
        let mut job = job(2, &[4, 3, 2], ffnn(&[9]));
        job.features.categorical.insert(1, Categorical::of_column("shared".to_owned(), 0));
        pool_feature(&mut job, 2, Pooling::Mean);
        let (separator, pooling, weights) = ("|".to_owned(), Pooling::Sum, Some("weights".to_owned()));
        job.features.categorical[3].values = Values::Many { separator, pooling, pool_at: PoolAt::Worker, weights };
        job
    }

    /// Of each table some ids have a row, and some have none.
    fn mixed_model(job: Job) -> SavedFixture {
        let rows: Vec<(usize, u64)> = (0..3).flat_map(|table| (0..9).map(move |id| (table, id))).collect();
        save_model(job, &rows)
    }

    fn scorer(saved: &SavedModel, job: &Job) -> ModelScorer {
        ModelScorer::load_model(saved.clone(), job, Backend::default()).unwrap()
    }

    fn bag(feature: usize, sample: usize) -> Vec<u64> {
        let length = [1, 1, sample % 4, sample % 3][feature];
        (0..length).map(|place| ((feature + 1) * sample + 5 * place) as u64 % 13).collect()
    }

    /// `order`: of which sample each has a feature's value; numbers come before ids.
    fn batch(samples: &[usize], order: Option<(usize, &[u32])>) -> Batch {
        let read = |feature: usize| match order {
            Some((moved, order)) if moved == feature => order.iter().map(|place| samples[*place as usize]).collect(),
            _ => samples.to_vec(),
        };
        let numbers = [0, 1].map(|feature| -> Vec<usize> { read(feature) });
        let category_ids = |feature: usize| {
            let bags: Vec<Vec<u64>> = read(feature + 2).into_iter().map(|sample| bag(feature, sample)).collect();
            let ids = bags.concat();
            let ends = bags.iter().scan(0, |end, bag| {
                *end += bag.len() as u32;
                Some(*end)
            });
            let offsets = (feature > 1).then(|| std::iter::once(0).chain(ends).collect());
            let weights = if feature == 3 { ids.iter().map(|id| *id as f32 / 8.0).collect() } else { Vec::new() };
            CategoryIds { ids, offsets, weights }
        };
        let number = |place: usize| numbers.each_ref().map(|column| column[place] as f32 / 50.0 - 1.0);
        Batch {
            size: samples.len(),
            labels: vec![0.0; samples.len()],
            numeric: (0..samples.len()).flat_map(number).collect(),
            categorical: (0..4).map(category_ids).collect(),
            ..Batch::default()
        }
    }

    fn bits(scores: &[f32]) -> Vec<u32> {
        scores.iter().map(|score| score.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever batches, their order, places in them and threads are. Batches of several requests are such batches.
        #[test]
        fn a_score_is_a_function_of_the_row_and_the_model(
            threads in 1_usize..4, sizes in prop::collection::vec(1_usize..60, 1..5), step in 0_usize..4,
        ) {
            let SavedFixture { folder: _folder, saved, mut job } = mixed_model(mixed_job());
            let mut alone = scorer(&saved, &job);
            job.train.threads = threads;
            let mut shared = scorer(&saved, &job);
            // 100 has no factor in common with these: each sample once.
            let order: Vec<usize> = (0..SAMPLES).map(|place| place * [1, 3, 7, 11][step] % SAMPLES).collect();
            let (mut found, mut left) = (Vec::new(), &order[..]);
            for size in sizes.iter().cycle() {
                let (samples, others) = left.split_at((*size).min(left.len()));
                found.extend(shared.score_batch(&batch(samples, None)).unwrap());
                left = others;
                if left.is_empty() {
                    break;
                }
            }
            let expected: Vec<f32> =
                order.iter().flat_map(|sample| alone.score_batch(&batch(&[*sample], None)).unwrap()).collect();
            prop_assert_eq!(bits(&found), bits(&expected));
            prop_assert_eq!(shared.table_lookups(), alone.table_lookups());
        }
    }

    #[test]
    fn threads_read_the_rows_of_their_own_samples() {
        let SavedFixture { folder: _folder, saved, job } = mixed_model(mixed_job());
        let (mut alone, mut shared) = (scorer(&saved, &job), scorer(&saved, &job));
        shared.shares.resize_with(3, BatchShare::default);
        let samples: Vec<usize> = (0..LEAST * 3 - 7).collect();
        let expected: Vec<f32> =
            samples.iter().flat_map(|sample| alone.score_batch(&batch(&[*sample], None)).unwrap()).collect();
        for _ in 0..2 {
            assert_eq!(bits(&shared.score_batch(&batch(&samples, None)).unwrap()), bits(&expected));
        }
        let ids =
            |scorer: &ModelScorer| scorer.table_lookups().iter().map(|table| [table.ids, table.missing]).collect();
        let (twice, once): (Vec<[u64; 2]>, Vec<[u64; 2]>) = (ids(&shared), ids(&alone));
        assert_eq!(twice, once.iter().map(|counts| counts.map(|count| count * 2)).collect::<Vec<_>>());
    }

    #[test]
    fn permuted_scores_are_those_of_permuted_rows() {
        let SavedFixture { folder: _folder, saved, job } = mixed_model(mixed_job());
        let (mut permuted, mut plain) = (scorer(&saved, &job), scorer(&saved, &job));
        let samples: Vec<usize> = (0..40).collect();
        let order: Vec<u32> = (0..40).map(|place| (place * 7 + 3) % 40).collect();
        let rows = batch(&samples, None);
        let gathered = permuted.gather_batch(&rows).unwrap();
        let unchanged = plain.score_batch(&rows).unwrap();
        for feature in 0..6 {
            let expected = plain.score_batch(&batch(&samples, Some((feature, &order)))).unwrap();
            assert_ne!(expected, unchanged, "{feature}");
            assert_eq!(gathered.score_permuted(feature, &order).unwrap(), expected, "{feature}");
        }
        assert_eq!(gathered.score_unchanged().unwrap(), unchanged);
        assert_refused(gathered.score_permuted(6, &order), &["no feature 6"]);
        assert_refused(gathered.score_permuted(0, &order[1..]), &["39 samples"]);
    }

    #[test]
    fn batches_of_another_shape_are_refused_and_ids_without_a_row_are_counted() {
        let SavedFixture { folder: _folder, saved, job } = mixed_model(mixed_job());
        let mut scorer = scorer(&saved, &job);
        let mut short = batch(&[1, 2], None);
        short.categorical[0].ids.pop();
        assert_refused(scorer.score_batch(&short), &["shape", "expected 2, found 1"]);
        assert!(scorer.score_batch(&batch(&[], None)).unwrap().is_empty());
        // Their ids of the first table: 5 and 12, 10 and 11.
        scorer.score_batch(&batch(&[5, 12], None)).unwrap();
        let first = TableLookups { table: "t0".to_owned(), ids: 4, missing: 3 };
        assert_eq!(scorer.table_lookups()[0], first);
    }

    /// What is saved of streamed weights are rows, of those that were changed.
    #[test]
    fn streamed_weights_score_as_resident_ones_and_are_read_from_the_rows() {
        let samples: Vec<usize> = (0..SAMPLES).collect();
        let scores =
            |SavedFixture { folder: _folder, saved, job }| scorer(&saved, &job).score_batch(&batch(&samples, None));
        let mut job = mixed_job();
        let resident = scores(mixed_model(job.clone())).unwrap();
        job.train.weights = WeightStore::Streamed;
        let streamed = scores(mixed_model(job.clone())).unwrap();
        assert!(resident.iter().zip_eq(&streamed).all(|(one, other)| (one - other).abs() < 1e-5));
        let features = job.tables.len();
        assert!(job.server_tables().len() > features);
        let changed = scores(save_model(job, &[(features, 0)])).unwrap();
        assert_ne!(changed, streamed);
    }

    #[test]
    fn scores_are_calibrated_where_that_is_wanted() {
        let SavedFixture { folder: _folder, mut saved, job } = mixed_model(mixed_job());
        let temperature = vec![Some(Calibrator::Temperature { temperature: 2.0 })];
        let (name, content) = ModelCalibrators::from_targets(&job.features.targets, temperature).unwrap().to_file();
        saved.folder.write(name, &content).unwrap();
        saved.manifest.files.push(FileRecord::new(name, &content));
        let (mut scorer, rows) = (scorer(&saved, &job), batch(&[1, 2, 3], None));
        let plain = scorer.score_batch(&rows).unwrap();
        scorer.calibrate_scores().unwrap();
        let halves: Vec<f32> = plain.iter().map(|output| output / 2.0).collect();
        assert_eq!(scorer.score_batch(&rows).unwrap(), halves);
    }
}
