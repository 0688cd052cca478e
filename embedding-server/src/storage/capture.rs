//! A save in two calls. The first returns when the snapshot is captured, the second when its files are written. Either
//! call may be repeated, for example after a lost answer.
//!
//! A load that is asked for again, for example after a lost answer, is made once.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use zagros_protocol::control::{LoadRequest, SaveRequest, SaveResponse};
use zagros_protocol::{Refusal, RefusalKind};

use super::captures::{LastLoad, LoadAnswer, SnapshotCapture, SnapshotCaptures};
use super::load::load;
use super::save::save;
use crate::EmbeddingService;

impl SnapshotCaptures {
    /// Later pushes are not in the files.
    pub(crate) async fn capture_snapshot(
        service: Arc<EmbeddingService>,
        request: SaveRequest,
    ) -> Result<SaveResponse, Refusal> {
        let SnapshotCapture { pause_seconds, .. } = Self::begin_save(service, request).await?;
        Ok(SaveResponse { pause_seconds, ..SaveResponse::default() })
    }

    pub(crate) async fn save_whole(
        service: Arc<EmbeddingService>,
        request: SaveRequest,
    ) -> Result<SaveResponse, Refusal> {
        let capture = Self::begin_save(service, request).await?;
        let written = capture.files.await;
        capture.collected.notify_one();
        written
    }

    /// Refused as `Invalid` if no snapshot was captured for this folder.
    pub(crate) async fn await_files(
        service: &EmbeddingService,
        request: &SaveRequest,
    ) -> Result<SaveResponse, Refusal> {
        let capture = service.captures.0.lock().clone().filter(|capture| capture.folder == request.folder);
        let none =
            || Refusal::invalid(format!("no snapshot is being written below {}; capture one first", request.folder));
        // The instant of the snapshot is over, so a retry could not write the same files.
        let final_one = |refusal: Refusal| match refusal.kind.is_retryable() {
            true => Refusal { kind: RefusalKind::Internal, ..refusal },
            false => refusal,
        };
        let capture = capture.ok_or_else(none)?;
        let written = capture.files.await.map_err(final_one);
        capture.collected.notify_one();
        written
    }

    /// Captures a snapshot, or finds the snapshot of an earlier try of the same request. The save continues if the
    /// caller goes away, because the caller may repeat the request.
    async fn begin_save(service: Arc<EmbeddingService>, request: SaveRequest) -> Result<SnapshotCapture, Refusal> {
        if let Some(known) = service.captures.made_for(&request) {
            return Ok(known);
        }
        tokio::spawn(start_save(service, request)).await.unwrap_or_else(|error| Err(save_ended(&error)))
    }
}

async fn start_save(service: Arc<EmbeddingService>, request: SaveRequest) -> Result<SnapshotCapture, Refusal> {
    let (report, captured) = oneshot::channel();
    let (folder, attempt, server) = (request.folder.clone(), request.attempt, Arc::clone(&service));
    let write = move || server.metrics.save.observe(|| save(&server, &request, |pause| _ = report.send(pause)));
    let written = tokio::task::spawn_blocking(write);
    let files = async move { written.await.unwrap_or_else(|error| Err(save_ended(&error))) }.boxed().shared();
    let Ok(pause_seconds) = captured.await else {
        let refusal = Refusal::new(RefusalKind::Internal, "the save ended before it had captured a snapshot");
        return Err(files.await.err().unwrap_or(refusal));
    };
    let capture = SnapshotCapture { folder, attempt, pause_seconds, files, collected: Arc::default() };
    // The next capture replaces this one. Files that no caller asked for get no manifest.
    *service.captures.0.lock() = Some(capture.clone());
    Ok(capture)
}

fn save_ended(error: &JoinError) -> Refusal {
    Refusal::new(RefusalKind::Internal, format!("the save ended: {error}"))
}

impl LastLoad {
    /// Begins a load, or finds the answer of an earlier try of the same request. The load continues if the caller goes away.
    /// After an error, the next try is made anew.
    pub(crate) fn begin_load(service: &Arc<EmbeddingService>, request: LoadRequest) -> LoadAnswer {
        let (attempt, mut last) = (request.attempt, service.loads.0.lock());
        let has_failed = |answer: &LoadAnswer| answer.peek().is_some_and(Result::is_err);
        if let Some((known, answer)) = &*last
            && attempt != 0
            && (*known, has_failed(answer)) == (attempt, false)
        {
            return answer.clone();
        }
        let server = Arc::clone(service);
        let loading = tokio::task::spawn_blocking(move || server.metrics.load.observe(|| load(&server, &request)));
        let ended = |error| Err(Refusal::new(RefusalKind::Internal, format!("the load ended: {error}")));
        let answer = async move { loading.await.unwrap_or_else(ended) }.boxed().shared();
        *last = Some((attempt, answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use zagros_embedding_client::Shard;
    use zagros_protocol::RefusalKind;
    use zagros_protocol::control::{LoadRequest, SaveStage};
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::LocalShard;
    use crate::testing::{job_with, later, load_request, lookup_of, placed, placed_with, push_of, save_request};

    fn request(folder: &tempfile::TempDir, stage: SaveStage) -> SaveRequest {
        SaveRequest { stage: stage.into(), ..save_request(folder.path()) }
    }

    #[tokio::test]
    async fn pushes_after_the_capture_are_not_saved() {
        let folder = tempfile::tempdir().unwrap();
        let shard = LocalShard::new(placed(1, 0));
        let lookup = || lookup_of(&[(0, &[1, 2, 3])], Access::Train);
        let old_rows = shard.lookup(lookup(), later()).await.unwrap().rows;
        let captured = shard.save(request(&folder, SaveStage::Capture)).await.unwrap();
        assert!(captured.files.is_empty() && captured.pause_seconds >= 0.0);
        shard.push(push_of(&[(0, &[1, 2, 3])], 1, 0.5), later()).await.unwrap();
        assert_ne!(shard.lookup(lookup(), later()).await.unwrap().rows, old_rows);
        let saved = shard.save(request(&folder, SaveStage::Files)).await.unwrap();
        assert_eq!((saved.files.len(), saved.rows), (1, 3));
        let again = LocalShard::new(placed(1, 0));
        again.load(load_request(folder.path(), saved.files)).await.unwrap();
        assert_eq!(again.lookup(lookup(), later()).await.unwrap().rows, old_rows);
    }

    /// Invariant CK-2: a server that owns nothing any more ends once the checkpoint has its files.
    #[tokio::test]
    async fn the_files_of_a_capture_are_waited_for_until_a_caller_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let service = placed(1, 0);
        let shard = LocalShard::new(Arc::clone(&service));
        let timeout = std::time::Duration::from_secs(3600);
        service.captures.await_delivery(timeout).await;
        shard.save(request(&folder, SaveStage::Capture)).await.unwrap();
        let mut delivered = Box::pin(service.captures.await_delivery(timeout));
        let capture = service.captures.0.lock().clone().unwrap();
        let written = capture.files.await;
        assert!(written.is_ok() && futures::poll!(&mut delivered).is_pending());
        assert_eq!(shard.save(request(&folder, SaveStage::Files)).await.unwrap().files.len(), 1);
        delivered.await;
    }

    /// A retry gets the same snapshot, however late it comes.
    #[tokio::test]
    async fn a_save_that_is_asked_for_again_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let shard = LocalShard::new(placed(1, 0));
        let save = |attempt, stage| shard.save(SaveRequest { attempt, ..request(&folder, stage) });
        let touch = |ids: &'static [u64]| shard.lookup(lookup_of(&[(0, ids)], Access::Train), later());
        touch(&[1, 2, 3]).await.unwrap();
        let first = save(7, SaveStage::Whole).await.unwrap();
        touch(&[4]).await.unwrap();
        assert_eq!(save(7, SaveStage::Whole).await.unwrap(), first);
        assert_eq!(save(8, SaveStage::Whole).await.unwrap().rows, 4);
        let captured = save(9, SaveStage::Capture).await.unwrap();
        touch(&[5]).await.unwrap();
        assert_eq!(save(9, SaveStage::Capture).await.unwrap(), captured);
        let files = save(10, SaveStage::Files).await.unwrap();
        assert_eq!((files.rows, save(11, SaveStage::Files).await.unwrap()), (4, files));
        // Requests without a name are different saves.
        for _ in 0..2 {
            assert_eq!(save(0, SaveStage::Whole).await.unwrap().rows, 5);
        }
    }

    #[tokio::test]
    async fn a_save_that_failed_is_tried_anew() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("file");
        std::fs::write(&below, "").unwrap();
        let shard = LocalShard::new(placed(1, 0));
        let save = || shard.save(SaveRequest { attempt: 7, ..save_request(&below) });
        let refused = save().await.unwrap_err();
        assert!(refused.message.contains("cannot create") && refused.message.contains("file"), "{refused}");
        std::fs::remove_file(&below).unwrap();
        assert_eq!(save().await.unwrap().rows, 0);
    }

    #[tokio::test]
    async fn files_without_a_capture_and_a_capture_that_fails_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let shard = LocalShard::new(placed(1, 0));
        let refused = shard.save(request(&folder, SaveStage::Files)).await.unwrap_err();
        assert!(refused.message.contains("no snapshot is being written below"), "{refused}");
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let below = SaveRequest { stage: SaveStage::Capture.into(), ..save_request(&blocked) };
        let refused = shard.save(below).await.unwrap_err();
        assert!(refused.message.contains("cannot create"), "{refused}");
    }

    #[tokio::test]
    async fn all_rows_are_removed_on_request_and_steps_go_on() {
        let service = placed_with(&job_with(1, "[train]\nreset_embeddings = true"));
        let shard = LocalShard::new(std::sync::Arc::clone(&service));
        shard.lookup(lookup_of(&[(0, &[1, 2, 3])], Access::Train), later()).await.unwrap();
        shard.lookup(lookup_of(&[(1, &[1])], Access::Train), later()).await.unwrap();
        let rows = || service.tables.iter().map(zagros_table::Table::row_count).collect::<Vec<_>>();
        assert_eq!(rows(), [3, 1]);
        let files = vec![zagros_protocol::control::FileDigest::default()];
        let refused = shard.load(LoadRequest { clear: true, files, ..LoadRequest::default() }).await.unwrap_err();
        assert!(refused.message.contains("removes all rows names files"), "{refused}");
        assert_eq!(rows(), [3, 1]);
        let cleared = shard.load(LoadRequest { clear: true, ..LoadRequest::default() }).await.unwrap();
        assert_eq!((cleared.rows, rows()), (0, vec![0, 0]));
        shard.lookup(lookup_of(&[(0, &[1])], Access::Train), later()).await.unwrap();
        assert_eq!(rows(), [1, 0]);
    }

    /// Otherwise any process with a worker's key could empty every table.
    #[tokio::test]
    async fn no_rows_are_removed_on_request_where_the_job_never_does() {
        let service = placed(1, 0);
        let shard = LocalShard::new(std::sync::Arc::clone(&service));
        shard.lookup(lookup_of(&[(0, &[1, 2, 3])], Access::Train), later()).await.unwrap();
        let refused = shard.load(LoadRequest { clear: true, ..LoadRequest::default() }).await.unwrap_err();
        assert!(refused.kind == RefusalKind::Forbidden && refused.message.contains("reset_embeddings"), "{refused}");
        assert_eq!(service.tables.iter().map(zagros_table::Table::row_count).sum::<usize>(), 3);
    }

    #[tokio::test]
    async fn a_load_that_is_asked_for_again_is_made_once_unless_it_failed() {
        let folder = tempfile::tempdir().unwrap();
        let service = placed(1, 0);
        let shard = LocalShard::new(std::sync::Arc::clone(&service));
        let touch = |ids: &'static [u64]| shard.lookup(lookup_of(&[(0, ids)], Access::Train), later());
        let rows = || service.tables.iter().map(zagros_table::Table::row_count).sum::<usize>();
        touch(&[1, 2, 3]).await.unwrap();
        let files = shard.save(save_request(folder.path())).await.unwrap().files;
        let load = |attempt| shard.load(LoadRequest { attempt, ..load_request(folder.path(), files.clone()) });
        let aside = folder.path().join("aside");
        let saved = folder.path().join(&files[0].name);
        std::fs::rename(&saved, &aside).unwrap();
        load(7).await.unwrap_err();
        std::fs::rename(&aside, &saved).unwrap();
        assert_eq!(load(7).await.unwrap().rows, 3);
        touch(&[4]).await.unwrap();
        // The answer of the first try was lost. Training has gone on since, and stays.
        assert_eq!((load(7).await.unwrap().rows, rows()), (3, 4));
        assert_eq!((load(8).await.unwrap().rows, rows()), (3, 3));
        touch(&[5]).await.unwrap();
        assert_eq!((load(0).await.unwrap().rows, rows()), (3, 3));
    }
}
