//! States of a run on disk while it trains: the best few and the last, each a whole model.
//!
//! An older one is deleted only once the manifest of the newest is in place (invariant CK-1).

use serde::{Deserialize, Serialize};
use zagros_embedding_client::EmbeddingClient;
use zagros_scoring::MANIFEST;
use zagros_store::{Folder, StoreError};

use super::saved_model::{TrainedModel, load_model, open_model, save};
use crate::datapath::dense::DenseThread;
use crate::error::WorkerError;
use crate::report::run_blocking;

#[derive(Debug)]
pub(crate) struct BestStates {
    folder: Folder,
    /// Best states that are kept, at least one.
    most: usize,
    pub(crate) inventory: StateInventory,
}

/// Which states there are. Every worker knows, the first one has them written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StateInventory {
    /// Best first; of equals the earlier.
    best: Vec<KeptState>,
    last: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct KeptState {
    step: u64,
    /// More is better.
    merit: f64,
}

impl BestStates {
    pub(crate) fn new(folder: Folder, most: usize) -> Self {
        Self { folder, most: most.max(1), inventory: StateInventory::default() }
    }

    /// Keeps the state as it is now, and lets go of what is neither among the best nor the last any more. Without a
    /// `merit` it is kept as the last one only.
    pub(crate) async fn keep_state(
        &mut self,
        merit: Option<f64>,
        trained: TrainedModel<'_>,
        dense: &DenseThread,
        servers: &EmbeddingClient,
    ) -> Result<(), WorkerError> {
        let step = trained.steps;
        save(&self.path(step), trained, dense, servers).await?;
        let gone = self.inventory.note_state(step, merit, self.most);
        let gone: Vec<Folder> = gone.into_iter().map(|step| self.path(step)).collect();
        Ok(run_blocking("model files", move || gone.iter().try_for_each(delete)).await??)
    }

    pub(crate) fn best_step(&self) -> Option<u64> {
        self.inventory.best.first().map(|kept| kept.step)
    }

    pub(crate) fn best_place(&self) -> Option<(u64, String)> {
        self.best_step().map(|step| (step, self.path(step).to_string()))
    }

    pub(crate) async fn restore(
        &self,
        step: u64,
        dense: &DenseThread,
        servers: &EmbeddingClient,
    ) -> Result<(), WorkerError> {
        load_model(&open_model(&self.path(step)).await?, dense, servers).await
    }

    pub(crate) async fn delete_all(&mut self) -> Result<(), WorkerError> {
        self.inventory = StateInventory::default();
        let folder = self.folder.clone();
        Ok(run_blocking("model files", move || folder.delete()).await??)
    }

    fn path(&self, step: u64) -> Folder {
        self.folder.join(&format!("step-{step:09}"))
    }
}

impl StateInventory {
    pub(crate) fn note_state(&mut self, step: u64, merit: Option<f64>, most: usize) -> Vec<u64> {
        let mut gone: Vec<u64> = self.last.replace(step).into_iter().collect();
        if let Some(merit) = merit {
            let place = self.best.partition_point(|kept| kept.merit >= merit);
            self.best.insert(place, KeptState { step, merit });
            gone.extend(self.best.drain(most.max(1).min(self.best.len())..).map(|kept| kept.step));
        }
        // The last one before may have been the worst of the best.
        gone.sort_unstable();
        gone.dedup();
        gone.retain(|gone| *gone != step && self.best.iter().all(|kept| kept.step != *gone));
        gone
    }
}

/// The manifest first: half a folder is no model.
fn delete(folder: &Folder) -> Result<(), StoreError> {
    folder.delete_file(MANIFEST)?;
    folder.delete()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use proptest::prelude::*;
    use zagros_fakes::FakeShard;
    use zagros_job::Job;

    use super::*;
    use crate::testing::{WorkerShard, assert_refused, metrics, servers_client, small_job};

    async fn setting() -> (tempfile::TempDir, Job, DenseThread, EmbeddingClient) {
        let job = small_job();
        let dense = DenseThread::start(&job, zagros_torch::backend(), metrics()).await.unwrap();
        (tempfile::tempdir().unwrap(), job, dense, servers_client(&[1], vec![Arc::new(WorkerShard::default())]))
    }

    fn folders(parent: &Path) -> Vec<String> {
        let entries = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap());
        let whole = entries.filter(|entry| entry.path().join(MANIFEST).is_file());
        let mut names: Vec<String> = whole.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn the_best_and_the_last_are_on_disk_and_the_best_comes_back() {
        let (folder, job, dense, servers) = setting().await;
        let mut checkpoints = BestStates::new(Folder::on_disk(folder.path().join("checkpoints")), 1);
        for (step, merit) in [(10, 0.7), (20, 0.9), (30, 0.8), (40, 0.6)] {
            checkpoints.keep_state(Some(merit), TrainedModel::of_test(&job, step), &dense, &servers).await.unwrap();
        }
        assert_eq!(folders(&folder.path().join("checkpoints")), ["step-000000020", "step-000000040"]);
        assert_eq!(checkpoints.best_step(), Some(20));
        checkpoints.restore(20, &dense, &servers).await.unwrap();
        assert_refused(checkpoints.restore(30, &dense, &servers).await, &["no model here"]);
        checkpoints.delete_all().await.unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_state_that_cannot_be_written_takes_no_other_away() {
        let (folder, job, dense, servers) = setting().await;
        let mut checkpoints = BestStates::new(Folder::on_disk(folder.path()), 1);
        checkpoints.keep_state(Some(0.5), TrainedModel::of_test(&job, 1), &dense, &servers).await.unwrap();
        let full = servers_client(&[1], vec![Arc::new(WorkerShard(FakeShard::default().failing_to_save()))]);
        assert!(checkpoints.keep_state(Some(0.6), TrainedModel::of_test(&job, 2), &dense, &full).await.is_err());
        assert_eq!((folders(folder.path()), checkpoints.best_step()), (vec!["step-000000001".to_owned()], Some(1)));
    }

    proptest! {
        /// Against a list of all states, sorted.
        #[test]
        fn what_is_kept_is_the_best_and_the_last(
            merits in prop::collection::vec(prop::option::of(0_u8..6), 1..30), most in 1_usize..4,
        ) {
            let mut checkpoints = BestStates::new(Folder::on_disk(""), most);
            let (mut on_disk, mut all) = (BTreeSet::new(), Vec::new());
            for (step, merit) in merits.into_iter().enumerate() {
                let step = step as u64;
                on_disk.insert(step);
                all.extend(merit.map(|merit| (std::cmp::Reverse(merit), step)));
                for gone in checkpoints.inventory.note_state(step, merit.map(f64::from), most) {
                    prop_assert!(on_disk.remove(&gone), "step {gone} is deleted twice");
                }
                all.sort_unstable();
                let mut expected: BTreeSet<u64> = all.iter().take(most).map(|(_, step)| *step).collect();
                expected.insert(step);
                prop_assert_eq!(&on_disk, &expected);
                prop_assert_eq!(checkpoints.best_step(), all.first().map(|(_, step)| *step));
            }
        }
    }
}
