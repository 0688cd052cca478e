//! Saves and loads of all servers' rows.

use futures::future::join_all;
use zagros_embedding_client::Shard;
use zagros_protocol::Refusal;
use zagros_protocol::control::{DescribeRequest, FileDigest, LoadRequest, SaveRequest, SaveStage};

use crate::waiting::{Look, wait_for_work};
use crate::{Session, SessionError};

/// The longest time of a save or a load: that of a server's storage call, with retries.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(3600 + 600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRows {
    pub files: Vec<FileDigest>,
    pub rows: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRows {
    pub table: String,
    pub rows: u64,
    /// Memory that they take, in bytes.
    pub bytes: u64,
}

impl Session {
    /// `folder` is a path or `s3://bucket/prefix` that all servers reach. Waits for all pushes first.
    pub fn save_rows(&self, folder: &str, look: Look<'_>) -> Result<SavedRows, SessionError> {
        self.flush(look)?;
        let save = async {
            let servers = self.link.client.newest_servers().await?;
            let save = |server: &std::sync::Arc<dyn Shard>| {
                let stage = SaveStage::Whole.into();
                let (server, request) =
                    (server.clone(), SaveRequest { folder: folder.to_owned(), stage, ..Default::default() });
                async move { server.save(request).await.map_err(|refusal| refused(&*server, "save its rows", &refusal)) }
            };
            all(servers.iter().map(save)).await
        };
        let saved = wait_for_work(&self.runtime, "for servers to save their rows", LIMIT, look, save)??;
        let rows = saved.iter().map(|saved| saved.rows).sum();
        Ok(SavedRows { files: saved.into_iter().flat_map(|saved| saved.files).collect(), rows })
    }

    /// Every server takes its part of the rows in place of those that it has. Returns how many rows all servers took. A
    /// push that was refused before does not matter: [`Session::forget_refused_push`] forgets it.
    pub fn load_rows(&self, folder: &str, files: Vec<FileDigest>, look: Look<'_>) -> Result<u64, SessionError> {
        self.wait_for_pushes(look)?;
        match self.check_usable() {
            Ok(()) | Err(SessionError::RefusedPush(_)) => {}
            Err(error) => return Err(error),
        }
        let load = async {
            let servers = self.link.client.newest_servers().await?;
            let load = |server: &std::sync::Arc<dyn Shard>| {
                let request = LoadRequest { folder: folder.to_owned(), files: files.clone(), ..Default::default() };
                let server = server.clone();
                async move { server.load(request).await.map_err(|refusal| refused(&*server, "load rows", &refusal)) }
            };
            all(servers.iter().map(load)).await
        };
        let loaded = wait_for_work(&self.runtime, "for servers to load rows", LIMIT, look, load)??;
        Ok(loaded.iter().map(|loaded| loaded.rows).sum())
    }

    /// The rows of all servers, by table, after all pushes.
    pub fn describe_tables(&self, look: Look<'_>) -> Result<Vec<TableRows>, SessionError> {
        self.flush(look)?;
        let describe = async {
            let servers = self.link.client.newest_servers().await?;
            let describe = |server: &std::sync::Arc<dyn Shard>| {
                let server = server.clone();
                async move {
                    let described = server.describe(DescribeRequest {}).await;
                    described.map_err(|refusal| refused(&*server, "describe its rows", &refusal))
                }
            };
            all(servers.iter().map(describe)).await
        };
        let described =
            wait_for_work(&self.runtime, "for servers to describe their rows", 3 * self.timeout, look, describe)??;
        let none = |table: &crate::SessionTable| TableRows { table: table.name.clone(), rows: 0, bytes: 0 };
        let mut tables: Vec<TableRows> = self.tables().iter().map(none).collect();
        for table in described.into_iter().flat_map(|server| server.tables) {
            if let Some(sum) = tables.iter_mut().find(|sum| sum.table == table.name) {
                sum.rows += table.rows;
                sum.bytes += table.bytes;
            }
        }
        Ok(tables)
    }
}

/// The first error is returned once every server has answered: one that still works on a call would refuse the next
/// one.
async fn all<T>(
    calls: impl Iterator<Item = impl Future<Output = Result<T, SessionError>>>,
) -> Result<Vec<T>, SessionError> {
    join_all(calls).await.into_iter().collect()
}

fn refused(server: &dyn Shard, what: &'static str, refusal: &Refusal) -> SessionError {
    SessionError::Storage { server: server.name().to_owned(), what, reason: refusal.to_string() }
}
