//! Saves and loads of all servers' rows.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use zagros_embedding_client::Shard;
use zagros_protocol::Refusal;
use zagros_protocol::control::{DescribeRequest, FileDigest, LoadRequest, SaveRequest, SaveStage, TableStatus};
use zagros_zip::ZipEq;

use crate::{Look, Session, SessionError, wait_for_work};

/// The longest time of a save or a load: that of a server's storage call, with retries.
const LIMIT: Duration = Duration::from_secs(3600 + 600);

impl Session {
    /// The files, and how many rows. `folder` is a path or `s3://bucket/prefix` that all servers reach. Waits for all pushes first.
    pub fn save_rows(&self, folder: &str, look: Look<'_>) -> Result<(Vec<FileDigest>, u64), SessionError> {
        self.flush(look)?;
        let stage = SaveStage::Whole.into();
        let request = SaveRequest { folder: folder.to_owned(), stage, ..Default::default() };
        let save = |server: Arc<dyn Shard>| {
            let request = request.clone();
            async move { server.save(request).await }
        };
        let saved = self.call_servers("save its rows", LIMIT, look, save)?;
        let rows = saved.iter().map(|saved| saved.rows).sum();
        Ok((saved.into_iter().flat_map(|saved| saved.files).collect(), rows))
    }

    /// Every server takes its part of the rows in place of those that it has. Returns how many rows all servers took. A
    /// push that was refused before does not matter: [`Session::forget_refused_push`] forgets it.
    pub fn load_rows(&self, folder: &str, files: Vec<FileDigest>, look: Look<'_>) -> Result<u64, SessionError> {
        self.wait_for_pushes(look)?;
        match self.check_usable() {
            Ok(()) | Err(SessionError::RefusedPush(_)) => {}
            Err(error) => return Err(error),
        }
        let request = LoadRequest { folder: folder.to_owned(), files, ..Default::default() };
        let load = |server: Arc<dyn Shard>| {
            let request = request.clone();
            async move { server.load(request).await }
        };
        let loaded = self.call_servers("load rows", LIMIT, look, load)?;
        Ok(loaded.iter().map(|loaded| loaded.rows).sum())
    }

    /// The rows of all servers, by table, after all pushes.
    pub fn describe_tables(&self, look: Look<'_>) -> Result<Vec<TableStatus>, SessionError> {
        self.flush(look)?;
        let describe = |server: Arc<dyn Shard>| async move { server.describe(DescribeRequest {}).await };
        let described = self.call_servers("describe its rows", 3 * self.timeout, look, describe)?;
        let none = |table: &crate::SessionTable| TableStatus { name: table.name.clone(), ..TableStatus::default() };
        let mut tables: Vec<TableStatus> = self.tables().iter().map(none).collect();
        for table in described.into_iter().flat_map(|server| server.tables) {
            if let Some(sum) = tables.iter_mut().find(|sum| sum.name == table.name) {
                sum.rows += table.rows;
                sum.bytes += table.bytes;
            }
        }
        Ok(tables)
    }

    /// The first error is returned once every server has answered: one that still works on a call would refuse the next
    /// one.
    fn call_servers<T, F>(
        &self,
        what: &'static str,
        limit: Duration,
        look: Look<'_>,
        call: impl Fn(Arc<dyn Shard>) -> F,
    ) -> Result<Vec<T>, SessionError>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        let answers = async {
            let servers = self.link.client.newest_servers().await?;
            let answers = join_all(servers.iter().map(|server| call(Arc::clone(server)))).await;
            let named = |(server, answer): (&Arc<dyn Shard>, Result<T, Refusal>)| {
                let server = server.name().to_owned();
                answer.map_err(|refusal| SessionError::Storage { server, what, reason: refusal.to_string() })
            };
            servers.iter().zip_eq(answers).map(named).collect::<Result<Vec<T>, SessionError>>()
        };
        wait_for_work(&self.runtime, "for all servers' rows", limit, look, answers)?
    }
}
