//! What a sample of the data holds: measured on the first rows, or assumed.

use zagros_job::{Job, Values};

/// Values of a cell that holds any number of them, where nothing is known.
const VALUES_OF_A_LIST: f64 = 4.0;
/// Distinct rows for each id of a batch where nothing is known: ids by Zipf's law, 26 columns, a batch of 4,096.
const DISTINCT_SHARE: f64 = 0.225;
/// Bytes of a cell of text where nothing is known.
const CELL_BYTES: f64 = 6.0;

/// The mean sample of a job's data.
#[derive(Clone, Debug, PartialEq)]
pub struct DataShape {
    /// Bytes on disk.
    pub bytes: f64,
    /// Ids of each categorical feature.
    pub ids: Vec<f64>,
    /// Rows of each table that a batch of the job looks up, for each of its samples.
    pub distinct: Vec<f64>,
    /// Samples of one epoch over the data, if that is known.
    pub samples: Option<u64>,
    /// Rows of all tables, if that is known.
    pub rows: Option<u64>,
    /// Whether the figures were measured on the first rows.
    pub is_measured: bool,
}

impl DataShape {
    /// What holds for a job where nothing is known of its data.
    #[must_use]
    pub fn from_job(job: &Job) -> Self {
        let ids = |values: &Values| match values {
            Values::One => 1.0,
            Values::Many { .. } => VALUES_OF_A_LIST,
            Values::Sequence { sequence, .. } => sequence.length as f64,
        };
        let features = &job.features.categorical;
        let mut distinct = vec![0.0; job.tables.len()];
        for feature in features {
            distinct[feature.table] += ids(&feature.values) * DISTINCT_SHARE;
        }
        let ids: Vec<f64> = features.iter().map(|feature| ids(&feature.values)).collect();
        let cells = 1.0 + job.features.numeric.len() as f64 + ids.iter().sum::<f64>();
        Self { bytes: cells * CELL_BYTES, ids, distinct, samples: None, rows: None, is_measured: false }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    #[test]
    fn a_list_and_a_sequence_have_more_ids_than_a_cell_of_one() {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[features]\ncategorical = ['C1', { column = 'C2', separator = ',' }, \
                    { column = 'C3', table = 'C1', separator = '|', sequence = { length = 9 } }]\n[model]\nkind = 'din'";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::none()).unwrap();
        let shape = DataShape::from_job(&job);
        assert_eq!(shape.ids, [1.0, VALUES_OF_A_LIST, 9.0]);
        // The first and the last feature read one table.
        assert_eq!(shape.distinct, [10.0 * DISTINCT_SHARE, VALUES_OF_A_LIST * DISTINCT_SHARE]);
        assert!(!shape.is_measured && shape.bytes > 0.0);
    }
}
