//! Where the checkpoints of runs are: in the folder of each run, or all below the job's `checkpoint.folder`.

use zagros_job::Job;
use zagros_store::Folder;

use crate::error::WorkerError;
use crate::report::RunFolder;

/// Parent of the checkpoints of all runs, where the job names one.
#[derive(Debug)]
pub(crate) struct CheckpointRoot {
    parent: Option<Folder>,
}

impl CheckpointRoot {
    /// As the job has it. Requests to a store take as long as the job is patient.
    pub(crate) fn new(job: &Job) -> Result<Self, WorkerError> {
        let open = |text: &String| Folder::open(text, job.cluster.timeout);
        Ok(Self { parent: job.checkpoint.folder.as_ref().map(open).transpose()? })
    }

    pub(crate) fn of_run(&self, run: &RunFolder) -> Folder {
        match &self.parent {
            Some(parent) => parent.join(&run.name()),
            None => Folder::on_disk(run.checkpoints_folder()),
        }
    }

    /// Names of the runs that have some there; none where each run has its own folder.
    pub(super) fn run_names(&self) -> Result<Vec<String>, WorkerError> {
        Ok(self.parent.as_ref().map_or_else(|| Ok(Vec::new()), Folder::folder_names)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job;

    #[test]
    fn checkpoints_are_in_the_run_or_below_the_folder_that_the_job_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = job(1, &[2], zagros_job::Model::Ffnn { hidden: vec![], dropout: 0.0 });
        job.output.folder = folder.path().join("runs");
        let run = RunFolder::create(&job).unwrap();
        let own = CheckpointRoot::new(&job).unwrap();
        assert_eq!(own.of_run(&run).path(), Some(run.checkpoints_folder().as_path()));
        assert_eq!(own.run_names().unwrap(), [""; 0]);
        let shared = folder.path().join("shared");
        job.checkpoint.folder = Some(shared.display().to_string());
        let root = CheckpointRoot::new(&job).unwrap();
        root.of_run(&run).make().unwrap();
        assert_eq!(root.run_names().unwrap(), [run.name()]);
        assert!(shared.join(run.name()).is_dir());
    }
}
