//! A load that is asked for again, for example after a lost answer, is made once.

use std::sync::Arc;

use futures::FutureExt;
use zagros_protocol::control::LoadRequest;
use zagros_protocol::{Refusal, RefusalKind};

use super::captures::{LastLoad, LoadAnswer};
use super::load::load;
use crate::EmbeddingService;

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
    use zagros_protocol::control::LoadRequest;
    use zagros_protocol::datapath::Access;

    use crate::LocalShard;
    use crate::testing::{job_with, later, load_request, lookup_of, placed, placed_with, save_request};
    use zagros_protocol::RefusalKind;

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
