//! From files to batches, through the public functions only.

mod column_types;
mod parquet;
mod streams;

use zagros_ingest::{Batch, BatchStream, DataPart, IngestError, SplitSource, SplitTask, find_files};
use zagros_job::Job;

fn read(job: &Job, part: DataPart) -> Result<Vec<Batch>, IngestError> {
    BatchStream::open_files(job, part, &find_files(job, &job.data.train)?)?.collect()
}

/// All samples in one batch, without what depends on how they were assembled.
fn samples(batches: &[Batch]) -> Batch {
    let mut all = batches[0].empty_like();
    batches.iter().for_each(|batch| all.append_samples(batch, 0..batch.size));
    all
}

struct Dealt(std::vec::IntoIter<SplitTask>);

impl SplitSource for Dealt {
    fn next(&mut self) -> Result<Option<SplitTask>, String> {
        Ok(self.0.next())
    }
}
