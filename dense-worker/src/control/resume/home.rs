//! Where the checkpoints of runs are: in the folder of each run, or all below the job's `checkpoint.folder`.

use zagros_job::Job;
use zagros_store::Folder;

use crate::error::WorkerError;
use crate::report::RunFolder;

/// Parent of the checkpoints of all runs, where the job names one.
#[derive(Debug)]
pub(crate) struct Home {
    parent: Option<Folder>,
}

impl Home {
    /// As the job has it. Requests to a store take as long as the job is patient.
    ///
    /// # Errors
    /// When it names no folder, or the environment contradicts itself.
    pub(crate) fn of(job: &Job) -> Result<Self, WorkerError> {
        let open = |text: &String| Folder::open(text, job.cluster.patience);
        Ok(Self { parent: job.checkpoint.folder.as_ref().map(open).transpose()? })
    }

    /// Where one run's are.
    pub(crate) fn of_run(&self, run: &RunFolder) -> Folder {
        match &self.parent {
            Some(parent) => parent.join(&run.name()),
            None => Folder::disk(run.checkpoints()),
        }
    }

    /// Names of the runs that have some there; none where each run has its own folder.
    pub(super) fn runs(&self) -> Result<Vec<String>, WorkerError> {
        Ok(self.parent.as_ref().map_or_else(|| Ok(Vec::new()), Folder::folders)?)
    }
}

/// That checkpoints can be written where the job wants them, before anything else is done: a bucket that is not there
/// or credentials that are wrong would be noticed only by the first checkpoint.
///
/// # Errors
/// What is wrong, where, and what to do.
pub fn check_checkpoints(job: &Job) -> Result<(), WorkerError> {
    if job.checkpoint.keep == 0 && job.output.keep_best == 0 {
        return Ok(());
    }
    Ok(Home::of(job)?.parent.map_or(Ok(()), |parent| parent.check())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ExitClass;
    use crate::testing::job;

    #[test]
    fn checkpoints_are_in_the_run_or_below_the_folder_that_the_job_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = job(1, &[2], zagros_job::Model::Ffnn { hidden: vec![], dropout: 0.0 });
        job.output.folder = folder.path().join("runs");
        let run = RunFolder::create(&job).unwrap();
        let own = Home::of(&job).unwrap();
        assert_eq!(own.of_run(&run).path(), Some(run.checkpoints().as_path()));
        assert_eq!(own.runs().unwrap(), [""; 0]);
        let elsewhere = folder.path().join("elsewhere");
        job.checkpoint.folder = Some(elsewhere.display().to_string());
        check_checkpoints(&job).unwrap();
        let home = Home::of(&job).unwrap();
        home.of_run(&run).make().unwrap();
        assert_eq!(home.runs().unwrap(), [run.name()]);
        assert!(elsewhere.join(run.name()).is_dir());
    }

    #[test]
    fn a_folder_that_cannot_be_is_told_before_training() {
        let mut job = job(1, &[2], zagros_job::Model::Ffnn { hidden: vec![], dropout: 0.0 });
        job.checkpoint.folder = Some("gs://models".to_owned());
        let error = check_checkpoints(&job).unwrap_err();
        assert_eq!(error.exit_class(), ExitClass::Usage);
        assert!(error.to_string().contains("only s3:// and file:// are known"), "{error}");
        job.checkpoint.keep = 0;
        check_checkpoints(&job).unwrap();
    }
}
