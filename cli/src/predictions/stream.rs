//! Predictions to a stream, such as standard output.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use zagros_ingest::InputRows;

use crate::predictions::{PredictionColumns, PredictionError, PredictionFormat, format};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PredictionCounts {
    /// Rows with a score.
    pub samples: u64,
    /// Malformed rows, which have none.
    pub malformed: u64,
    /// Rows with a score that is no finite number.
    #[serde(default)]
    pub not_finite: u64,
}

impl PredictionCounts {
    pub(crate) fn add(&mut self, more: Self) {
        self.samples += more.samples;
        self.malformed += more.malformed;
        self.not_finite += more.not_finite;
    }

    #[must_use]
    pub(crate) fn row_count(&self) -> u64 {
        self.samples + self.malformed
    }
}

#[derive(Debug)]
pub(crate) struct PredictionStream<W> {
    to: W,
    columns: PredictionColumns,
    format: PredictionFormat,
    counts: PredictionCounts,
}

impl<W: Write> PredictionStream<W> {
    /// Writes what comes before the first row.
    pub(crate) fn start(
        mut to: W,
        columns: PredictionColumns,
        format: PredictionFormat,
    ) -> Result<Self, PredictionError> {
        if format == PredictionFormat::Parquet {
            return Err(PredictionError::Stream);
        }
        columns.write_head(format, &mut to).map_err(ended)?;
        Ok(Self { to, columns, format, counts: PredictionCounts::default() })
    }

    /// Writes rows; `scores` are those of the samples among them, a value of each column a sample.
    pub(crate) fn add_rows(&mut self, rows: &InputRows, scores: &[f64]) -> Result<(), PredictionError> {
        let added = write_rows(&mut self.to, &self.columns, self.format, rows, scores).map_err(ended)?;
        self.counts.add(added);
        Ok(())
    }

    /// Hands over what is buffered.
    pub(crate) fn finish(mut self) -> Result<PredictionCounts, PredictionError> {
        self.to.flush().map_err(ended)?;
        Ok(self.counts)
    }
}

fn ended(source: io::Error) -> PredictionError {
    let kept = "its reader has to read to its end".to_owned();
    PredictionError::Write { path: "standard output".into(), source, kept }
}

/// Writes rows; those of a Parquet file as records.
pub(crate) fn write_rows(
    to: &mut impl Write,
    columns: &PredictionColumns,
    format: PredictionFormat,
    rows: &InputRows,
    scores: &[f64],
) -> io::Result<PredictionCounts> {
    let mut counts = PredictionCounts::default();
    for row in rows.iter() {
        let each = columns.scores.len();
        let score = match row.sample {
            Some(sample) => {
                let own = scores.get(sample * each..(sample + 1) * each);
                Some(own.ok_or_else(|| io::Error::other("a row has no score"))?)
            }
            None => None,
        };
        counts.samples += u64::from(score.is_some());
        counts.malformed += u64::from(score.is_none());
        counts.not_finite += u64::from(score.is_some_and(|score| score.iter().any(|score| !score.is_finite())));
        match format {
            PredictionFormat::Csv => columns.write_csv(row, score, to)?,
            PredictionFormat::Jsonl => columns.write_json(row, score, to)?,
            PredictionFormat::Parquet => format::write_record(row, columns.keys.len(), score, to)?,
        }
    }
    Ok(counts)
}
