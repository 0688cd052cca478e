//! A batch with its unique ids, checked: behind this door every length is right.

use zagros_embedding_client::{Deduplicator, FeatureIds, Permit, Rows, UniqueIds};
use zagros_ingest::{Batch, Ids};

use super::kernels::{Columns, Positions};
use crate::error::WorkerError;

/// A batch with its unique ids.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) batch: Batch,
    pub(crate) unique: UniqueIds,
    /// Per feature, for each id, its position among its table's unique ids.
    inverse: Vec<Vec<u32>>,
    /// Per feature, the position of its table in `unique`.
    slots: Vec<usize>,
}

/// A batch with the rows of its ids.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Counts up from 0 over the life of the worker; the number of its push.
    pub(crate) seq: u64,
    pub(crate) prepared: Prepared,
    pub(crate) rows: Rows,
    /// Its place in the staleness window.
    pub(crate) permit: Permit,
}

impl Prepared {
    /// Finds the unique ids of a batch.
    ///
    /// # Errors
    /// In words, when the batch does not have the job's shape.
    pub(crate) fn new(
        batch: Batch,
        columns: &Columns,
        numeric: usize,
        deduplicator: &mut Deduplicator,
    ) -> Result<Self, String> {
        check(&batch, columns, numeric)?;
        let features: Vec<FeatureIds<'_>> = (columns.features.iter().zip(&batch.categorical))
            .map(|(column, ids)| FeatureIds { table: column.table, dim: column.dim as u32, ids: &ids.ids })
            .collect();
        let (unique, inverse) = deduplicator.dedup(&features);
        let slot = |table| unique.tables.iter().position(|ids| ids.table == table);
        let slots: Option<Vec<usize>> = columns.features.iter().map(|column| slot(column.table)).collect();
        let slots = slots.ok_or("a feature's table has no unique ids")?;
        Ok(Self { batch, unique, inverse, slots })
    }

    /// Feature `index` as the kernels want it, and which table of `unique` it reads.
    pub(crate) fn feature(&self, index: usize) -> (usize, Positions<'_>) {
        (self.slots[index], Positions::new(&self.batch.categorical[index], &self.inverse[index]))
    }
}

/// Whether `rows` has a full row for each row and sum that is wanted.
pub(crate) fn fits(rows: &Rows, unique: &UniqueIds) -> bool {
    rows.tables.len() == unique.tables.len()
        && (rows.tables.iter().zip(&unique.tables)).all(|(rows, ids)| rows.len() == ids.wanted() * ids.dim as usize)
}

fn check(batch: &Batch, columns: &Columns, numeric: usize) -> Result<(), String> {
    expect("labels", batch.size, batch.labels.len())?;
    expect("numeric values", batch.size * numeric, batch.numeric.len())?;
    expect("categorical features", columns.features.len(), batch.categorical.len())?;
    batch.categorical.iter().try_for_each(|ids| check_ids(ids, batch.size))
}

fn check_ids(ids: &Ids, size: usize) -> Result<(), String> {
    let Some(offsets) = &ids.offsets else { return expect("ids of a feature", size, ids.ids.len()) };
    expect("offsets of a feature", size + 1, offsets.len())?;
    let ends = (offsets.first(), offsets.last().map(|last| *last as usize));
    if ends != (Some(&0), Some(ids.ids.len())) || !offsets.is_sorted() {
        return Err("the offsets of a feature do not divide its ids".to_owned());
    }
    Ok(())
}

fn expect(what: &str, expected: usize, found: usize) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{what}: expected {expected}, found {found}")) }
}

/// The error for a batch that is not what it should be.
pub(crate) fn inconsistent(batch: u64, reason: impl Into<String>) -> WorkerError {
    WorkerError::Inconsistent { batch, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use zagros_job::{Model, Pooling};
    use zagros_protocol::TableId;

    use super::*;
    use crate::testing::{job, pool};

    fn columns() -> Columns {
        let mut job = job(1, &[4, 2], Model::Ffnn { hidden: vec![], dropout: 0.0 });
        pool(&mut job, 1, Pooling::Mean);
        // Both features read the second table.
        job.features.categorical[0].table = 1;
        Columns::of(&job)
    }

    fn batch() -> Batch {
        Batch {
            size: 2,
            labels: vec![0.0, 1.0],
            numeric: vec![0.5, 0.5],
            categorical: vec![
                Ids { ids: vec![7, 8], offsets: None },
                Ids { ids: vec![8, 9, 7], offsets: Some(vec![0, 3, 3]) },
            ],
            ..Batch::default()
        }
    }

    fn prepare(batch: Batch) -> Result<Prepared, String> {
        Prepared::new(batch, &columns(), 1, &mut Deduplicator::new())
    }

    #[test]
    fn features_of_one_table_share_its_unique_rows() {
        let prepared = prepare(batch()).unwrap();
        assert_eq!(prepared.unique.tables.len(), 1);
        assert_eq!(prepared.unique.tables[0].table, TableId(1));
        assert_eq!(prepared.unique.tables[0].ids, [7, 8, 9]);
        let (slot, positions) = prepared.feature(1);
        assert_eq!((slot, positions.inverse, positions.offsets), (0, &[1, 2, 0][..], Some(&[0, 3, 3][..])));
        assert!(fits(&Rows { tables: vec![vec![0.0; 6]] }, &prepared.unique));
        assert!(!fits(&Rows { tables: vec![vec![0.0; 5]] }, &prepared.unique));
        assert!(!fits(&Rows { tables: vec![] }, &prepared.unique));
    }

    #[test]
    fn a_batch_of_another_shape_is_refused() {
        let broken: [fn(&mut Batch); 7] = [
            |batch| batch.labels.truncate(1),
            |batch| batch.numeric.truncate(1),
            |batch| batch.categorical.truncate(1),
            |batch| batch.categorical[0].ids.truncate(1),
            |batch| batch.categorical[1].offsets = Some(vec![0, 3]),
            |batch| batch.categorical[1].offsets = Some(vec![0, 3, 2]),
            |batch| batch.categorical[1].offsets = Some(vec![0, 4, 3]),
        ];
        for (index, breaks) in broken.into_iter().enumerate() {
            let mut batch = batch();
            breaks(&mut batch);
            assert!(prepare(batch).is_err(), "case {index}");
        }
    }
}
