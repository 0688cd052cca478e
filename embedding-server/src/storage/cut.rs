//! A save in two calls: the first returns once it is settled which rows are saved, the second when they are written. Either
//! may be asked for again, as when its answer was lost.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use zagros_protocol::control::{SaveRequest, SaveResponse};
use zagros_protocol::{Refusal, RefusalKind};

use super::save::save;
use crate::EmbeddingService;

/// The last cut, whose files are being written or were.
#[derive(Debug, Default)]
pub(crate) struct Cuts(Mutex<Option<Cut>>);

#[derive(Clone, Debug)]
struct Cut {
    folder: String,
    attempt: u64,
    pause_seconds: f64,
    /// What has become of the files.
    files: Shared<BoxFuture<'static, Result<SaveResponse, Refusal>>>,
}

impl Cuts {
    /// Answers as soon as the cut is made; what is pushed after the answer is not in the files.
    ///
    /// # Errors
    /// As those of a save up to there.
    pub(crate) async fn make(service: Arc<EmbeddingService>, request: SaveRequest) -> Result<SaveResponse, Refusal> {
        let Cut { pause_seconds, .. } = Self::begin(service, request).await?;
        Ok(SaveResponse { pause_seconds, ..SaveResponse::default() })
    }

    /// Answers once the files are written.
    ///
    /// # Errors
    /// As those of a save.
    pub(crate) async fn whole(service: Arc<EmbeddingService>, request: SaveRequest) -> Result<SaveResponse, Refusal> {
        Self::begin(service, request).await?.files.await
    }

    /// Waits for the files of the cut before.
    ///
    /// # Errors
    /// `Invalid` when there was none of this folder; as those of a save.
    pub(crate) async fn files(service: &EmbeddingService, request: &SaveRequest) -> Result<SaveResponse, Refusal> {
        let cut = service.cuts.0.lock().clone().filter(|cut| cut.folder == request.folder);
        let none = || Refusal::invalid(format!("no cut is being written below {}; cut first", request.folder));
        // Its moment is over: asking again makes no files of it.
        let final_one = |refusal: Refusal| match refusal.kind.is_retryable() {
            true => Refusal { kind: RefusalKind::Internal, ..refusal },
            false => refusal,
        };
        cut.ok_or_else(none)?.files.await.map_err(final_one)
    }

    /// Cuts, or finds the cut that an earlier try of the same request made. A caller that is gone ends no save: it may ask
    /// again.
    async fn begin(service: Arc<EmbeddingService>, request: SaveRequest) -> Result<Cut, Refusal> {
        if let Some(cut) = service.cuts.made_for(&request) {
            return Ok(cut);
        }
        tokio::spawn(cut(service, request)).await.unwrap_or_else(|error| Err(ended(&error)))
    }

    /// The cut of this very attempt, unless its files could not be written.
    fn made_for(&self, request: &SaveRequest) -> Option<Cut> {
        let is_retry =
            |cut: &Cut| request.attempt != 0 && (cut.attempt, &cut.folder) == (request.attempt, &request.folder);
        let has_failed = |cut: &Cut| cut.files.peek().is_some_and(Result::is_err);
        self.0.lock().clone().filter(|cut| is_retry(cut) && !has_failed(cut))
    }
}

async fn cut(service: Arc<EmbeddingService>, request: SaveRequest) -> Result<Cut, Refusal> {
    let (tell, made) = oneshot::channel();
    let (folder, attempt, server) = (request.folder.clone(), request.attempt, Arc::clone(&service));
    let write = move || server.metrics.save.observe(|| save(&server, &request, |pause| _ = tell.send(pause)));
    let written = tokio::task::spawn_blocking(write);
    let files = async move { written.await.unwrap_or_else(|error| Err(ended(&error))) }.boxed().shared();
    let Ok(pause_seconds) = made.await else {
        let without = Refusal::new(RefusalKind::Internal, "the save ended without saying which rows are in it");
        return Err(files.await.err().unwrap_or(without));
    };
    let cut = Cut { folder, attempt, pause_seconds, files };
    // One that nobody asks for is forgotten with the next: its files lack a manifest.
    *service.cuts.0.lock() = Some(cut.clone());
    Ok(cut)
}

fn ended(error: &JoinError) -> Refusal {
    Refusal::new(RefusalKind::Internal, format!("the save ended: {error}"))
}

#[cfg(test)]
mod tests {
    use zagros_embedding_client::Shard;
    use zagros_protocol::control::{LoadRequest, SaveStage};
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::LocalShard;
    use crate::testing::{lookup_of, placed, push_of};

    fn request(folder: &tempfile::TempDir, stage: SaveStage) -> SaveRequest {
        SaveRequest { folder: folder.path().display().to_string(), stage: stage.into(), ..SaveRequest::default() }
    }

    #[tokio::test]
    async fn what_is_pushed_after_the_cut_is_not_saved() {
        let folder = tempfile::tempdir().unwrap();
        let shard = LocalShard::new(placed(1, 0));
        let lookup = || lookup_of(&[(0, &[1, 2, 3])], Access::Train);
        let before = shard.lookup(lookup()).await.unwrap().rows;
        let cut = shard.save(request(&folder, SaveStage::Cut)).await.unwrap();
        assert!(cut.files.is_empty() && cut.pause_seconds >= 0.0);
        shard.push(push_of(&[(0, &[1, 2, 3])], 1, 0.5)).await.unwrap();
        assert_ne!(shard.lookup(lookup()).await.unwrap().rows, before);
        let saved = shard.save(request(&folder, SaveStage::Files)).await.unwrap();
        assert_eq!((saved.files.len(), saved.rows), (1, 3));
        let again = LocalShard::new(placed(1, 0));
        let folder = folder.path().display().to_string();
        again.load(LoadRequest { folder, files: saved.files, replace: true }).await.unwrap();
        assert_eq!(again.lookup(lookup()).await.unwrap().rows, before);
    }

    /// A retry is of the same moment, however late it comes.
    #[tokio::test]
    async fn a_save_that_is_asked_for_again_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let shard = LocalShard::new(placed(1, 0));
        let save = |attempt, stage| shard.save(SaveRequest { attempt, ..request(&folder, stage) });
        let touch = |ids: &'static [u64]| shard.lookup(lookup_of(&[(0, ids)], Access::Train));
        touch(&[1, 2, 3]).await.unwrap();
        let first = save(7, SaveStage::Whole).await.unwrap();
        touch(&[4]).await.unwrap();
        assert_eq!(save(7, SaveStage::Whole).await.unwrap(), first);
        assert_eq!(save(8, SaveStage::Whole).await.unwrap().rows, 4);
        let cut = save(9, SaveStage::Cut).await.unwrap();
        touch(&[5]).await.unwrap();
        assert_eq!(save(9, SaveStage::Cut).await.unwrap(), cut);
        let files = save(10, SaveStage::Files).await.unwrap();
        assert_eq!((files.rows, save(11, SaveStage::Files).await.unwrap()), (4, files));
        // Without a name each is another.
        assert_eq!(
            [save(0, SaveStage::Whole).await.unwrap().rows, save(0, SaveStage::Whole).await.unwrap().rows],
            [5, 5]
        );
    }

    #[tokio::test]
    async fn a_save_that_failed_is_tried_anew() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("file");
        std::fs::write(&below, "").unwrap();
        let shard = LocalShard::new(placed(1, 0));
        let save = || {
            let folder = below.display().to_string();
            shard.save(SaveRequest { folder, attempt: 7, stage: SaveStage::Whole.into() })
        };
        assert!(save().await.is_err());
        std::fs::remove_file(&below).unwrap();
        assert_eq!(save().await.unwrap().rows, 0);
    }

    #[tokio::test]
    async fn files_that_nobody_cut_and_a_cut_that_fails_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let shard = LocalShard::new(placed(1, 0));
        let refused = shard.save(request(&folder, SaveStage::Files)).await.unwrap_err();
        assert!(refused.message.contains("no cut is being written below"), "{refused}");
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let below = SaveRequest { folder: blocked.display().to_string(), ..request(&folder, SaveStage::Cut) };
        let refused = shard.save(below).await.unwrap_err();
        assert!(refused.message.contains("cannot create"), "{refused}");
    }
}
