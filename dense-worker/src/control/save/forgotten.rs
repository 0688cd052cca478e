//! Ids whose rows were removed while the run trained: their list in the run folder, and the request to the embedding servers.
//!
//! A state that was saved before still has the rows. A run that gives such a state back to the servers removes them again, by this
//! list. It is written before a server is asked, so no state brings back what a server has removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zagros_embedding_client::{EmbeddingClient, Shard};
use zagros_plumbing::durable;
use zagros_protocol::control::ForgetRequest;
use zagros_protocol::packed::{decode_ids, encode_ids};

use super::saved_model::{on_all, storage_error};
use crate::control::trainer::Trainer;
use crate::error::WorkerError;
use crate::report::{file_error, run_blocking};

const LIST: &str = "forgotten-ids.jsonl";
/// Ids of one request. With 8 bytes each they are within what a request may be.
const AT_ONCE: usize = 16_384;

#[derive(Debug, Serialize, Deserialize)]
struct ListLine {
    table: String,
    /// As text, because programs that read numbers as floats cannot hold 64 bits.
    ids: Vec<String>,
}

/// Adds ids of a table to the list of a run. An id that is there stays there once.
pub fn note_forgotten(run: &Path, table: &str, ids: &BTreeSet<u64>) -> io::Result<()> {
    let list = run.join(LIST);
    let mut noted = read(&list)?;
    noted.entry(table.to_owned()).or_default().extend(ids);
    let mut text = Vec::new();
    for (table, ids) in noted {
        let line = ListLine { table, ids: ids.iter().map(ToString::to_string).collect() };
        serde_json::to_writer(&mut text, &line)?;
        text.push(b'\n');
    }
    durable::write(&list, &text)
}

/// Empty without a list.
fn read(path: &Path) -> io::Result<BTreeMap<String, BTreeSet<u64>>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text.map_err(durable::add_path(path))?,
    };
    let odd = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()));
    let mut noted = BTreeMap::<String, BTreeSet<u64>>::new();
    for line in text.lines() {
        let ListLine { table, ids } = serde_json::from_str(line).map_err(|error| odd(error.to_string()))?;
        let ids = ids.iter().map(|id| id.parse().map_err(|_| odd(format!("{id:?} is no id"))));
        noted.entry(table).or_default().extend(ids.collect::<Result<Vec<u64>, _>>()?);
    }
    Ok(noted)
}

/// Removes the rows of ids of a table from all embedding servers of a run. Answers the ids that had a row or a frequency count.
///
/// # Errors
/// When a server refuses, or does not answer for the timeout of the client. The same call then finishes.
pub async fn forget_rows(
    client: &EmbeddingClient,
    table: &str,
    ids: &BTreeSet<u64>,
) -> Result<BTreeSet<u64>, WorkerError> {
    let ids: Vec<u64> = ids.iter().copied().collect();
    let mut removed = BTreeSet::new();
    for part in ids.chunks(AT_ONCE) {
        let request = ForgetRequest { table: table.to_owned(), ids: encode_ids(part).into(), generation: 0 };
        let (_, answers) = on_all(client, |_, server| forget_at(server, request.clone())).await?;
        removed.extend(answers.into_iter().flatten());
    }
    Ok(removed)
}

async fn forget_at(server: Arc<dyn Shard>, request: ForgetRequest) -> Result<Vec<u64>, WorkerError> {
    let answer = server.forget(request).await;
    let answer = answer.map_err(|refusal| storage_error(&*server, "forget rows", refusal))?;
    Ok(decode_ids(&answer.removed))
}

impl Trainer {
    /// Removes again what was forgotten while the run trained: the servers have the rows of an earlier state.
    pub(crate) async fn forget_again(&self) -> Result<(), WorkerError> {
        let Some(folder) = &self.run.folder else { return Ok(()) };
        let path = folder.path().join(LIST);
        let list = path.clone();
        let noted = run_blocking("forgotten ids", move || read(&list)).await?;
        let noted = noted.map_err(|source| file_error("read", &path, source))?;
        for (table, ids) in noted {
            let removed = forget_rows(&self.run.client, &table, &ids).await?;
            tracing::info!(table, rows = removed.len(), "rows that were forgotten are removed from the loaded state");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zagros_fakes::FakeShard;

    use super::*;
    use crate::testing::{WorkerShard, servers_client};

    #[test]
    fn a_list_has_every_id_of_every_table_once() {
        let run = tempfile::tempdir().unwrap();
        let list = run.path().join(LIST);
        assert!(read(&list).unwrap().is_empty());
        note_forgotten(run.path(), "user", &BTreeSet::from([u64::MAX, 1])).unwrap();
        note_forgotten(run.path(), "item", &BTreeSet::from([1])).unwrap();
        note_forgotten(run.path(), "user", &BTreeSet::from([1, 2])).unwrap();
        let noted = read(&list).unwrap();
        assert_eq!(noted["user"], BTreeSet::from([1, 2, u64::MAX]));
        assert_eq!((noted["item"].len(), noted.len()), (1, 2));
        std::fs::write(run.path().join(LIST), "{\"table\":\"user\",\"ids\":[\"u17\"]}\n").unwrap();
        let odd = read(&list).unwrap_err().to_string();
        assert!(odd.contains(LIST) && odd.contains("\"u17\" is no id"), "{odd}");
    }

    #[tokio::test]
    async fn every_server_hears_of_all_ids_in_parts() {
        let shards = [Arc::new(WorkerShard(FakeShard::default())), Arc::new(WorkerShard::default())];
        let servers = shards.iter().map(|shard| Arc::clone(shard) as Arc<dyn Shard>).collect();
        let ids: BTreeSet<u64> = (0..AT_ONCE as u64 + 3).collect();
        forget_rows(&servers_client(&[2], servers), "user", &ids).await.unwrap();
        for shard in shards {
            let asked = shard.forgotten.lock().unwrap().clone();
            let heard: Vec<u64> = asked.iter().flat_map(|request| decode_ids(&request.ids)).collect();
            assert_eq!((asked.len(), heard), (2, ids.iter().copied().collect()));
        }
    }
}
