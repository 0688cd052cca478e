//! A save in two calls: the first returns once it is settled which rows are saved, the second when they are written.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use zagros_protocol::control::{SaveRequest, SaveResponse};
use zagros_protocol::{Refusal, RefusalKind};

use super::save::save;
use crate::EmbeddingService;

/// The cut whose files are being written, or were and nobody has asked.
#[derive(Debug, Default)]
pub(crate) struct Cuts(Mutex<Option<Cut>>);

#[derive(Debug)]
struct Cut {
    folder: String,
    files: JoinHandle<Result<SaveResponse, Refusal>>,
}

impl Cuts {
    /// Answers as soon as the cut is made; what is pushed after the answer is not in the files.
    ///
    /// # Errors
    /// As those of a save up to there.
    pub(crate) async fn make(service: Arc<EmbeddingService>, request: SaveRequest) -> Result<SaveResponse, Refusal> {
        let (tell, cut) = oneshot::channel();
        let (folder, server) = (request.folder.clone(), Arc::clone(&service));
        let write = move || server.metrics.save.observe(|| save(&server, &request, |pause| _ = tell.send(pause)));
        let files = tokio::task::spawn_blocking(write);
        let Ok(pause_seconds) = cut.await else { return joined(files).await };
        // One that nobody asked for is forgotten: its files lack a manifest.
        *service.cuts.0.lock() = Some(Cut { folder, files });
        Ok(SaveResponse { pause_seconds, ..SaveResponse::default() })
    }

    /// Waits for the files of the cut before.
    ///
    /// # Errors
    /// `Invalid` when there was none of this folder; as those of a save.
    pub(crate) async fn files(service: &EmbeddingService, request: &SaveRequest) -> Result<SaveResponse, Refusal> {
        let cut = service.cuts.0.lock().take_if(|cut| cut.folder == request.folder);
        let none = || Refusal::invalid(format!("no cut is being written below {}; cut first", request.folder));
        joined(cut.ok_or_else(none)?.files).await
    }
}

async fn joined(files: JoinHandle<Result<SaveResponse, Refusal>>) -> Result<SaveResponse, Refusal> {
    files.await.unwrap_or_else(|error| Err(Refusal::new(RefusalKind::Internal, format!("the save ended: {error}"))))
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
