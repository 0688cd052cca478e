//! Checks every row of a job's files.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use zagros_job::Job;

use crate::parse::bad_budget::BadBudget;
use crate::parse::sink::NullSink;
use crate::pipeline::{BLOCK_BYTES, ParsePipeline, PipelineConfig};
use crate::{BadRow, DataPart, IngestError, WholeFiles, find_files};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationReport {
    /// Files read, training, validation and test.
    pub files: usize,
    pub good: u64,
    pub bad: u64,
    pub first_bad: Vec<BadRow>,
}

/// Reads all training, validation and test files and lists the first `shown` malformed rows (100 at most).
/// Malformed rows are no error here.
pub fn validate_rows(job: &Job, shown: usize) -> Result<ValidationReport, IngestError> {
    let paths: Vec<_> = job.data_files().into_iter().map(Path::to_owned).collect();
    let found = find_files(job, &paths)?;
    let splits = Box::new(WholeFiles::new(&found));
    let (part, cancel) = (DataPart::All, Arc::default());
    let config = PipelineConfig { job: Arc::new(job.clone()), part, splits, block_bytes: BLOCK_BYTES, cancel };
    let mut pipeline = ParsePipeline::start(config, &NullSink)?;
    let mut bad = BadBudget::without_limit(shown);
    let mut good = 0;
    while let Some(parsed) = pipeline.next()? {
        bad.add(&parsed.outcome, &parsed.layout, parsed.place)?;
        good += parsed.outcome.rows;
    }
    Ok(ValidationReport { files: found.len(), good, bad: bad.count, first_bad: bad.first_rows()? })
}

impl fmt::Display for ValidationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, good, bad, first_bad } = self;
        let plural = if *files == 1 { "" } else { "s" };
        writeln!(f, "{good} good rows and {bad} malformed ones in {files} file{plural}")?;
        for row in first_bad {
            writeln!(f, "  {row}")?;
        }
        let more = bad - first_bad.len() as u64;
        if more > 0 {
            writeln!(f, "  and {more} more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::HeldOutRows;

    use super::*;
    use crate::fixture;

    #[test]
    fn all_files_are_checked_to_their_end() {
        let (_first, train) = fixture::file("click,age,city,tags\n1,2,x,y\n1,two,x,y\n0,3,x,y\n");
        let (_second, test) = fixture::file("age,click,city,tags\n2,1,x,y\n2,maybe,x,y\n2,1,x\n");
        let mut job = fixture::delimited(|_| ());
        job.data.train = vec![train.clone()];
        job.data.test = HeldOutRows::Files(vec![test.clone()]);
        let found = validate_rows(&job, 2).unwrap();
        assert_eq!((found.files, found.good, found.bad), (2, 3, 3));
        let places: Vec<_> = found.first_bad.iter().map(|row| (row.path.clone(), row.line, row.column)).collect();
        assert_eq!(places, [(train, 3, 2), (test, 3, 2)]);
        let text = found.to_string();
        assert!(text.starts_with("3 good rows and 3 malformed ones in 2 files\n"), "{text}");
        assert!(text.ends_with("  and 1 more\n"), "{text}");
    }
}
