//! Clients that work as dense workers do, each in its own loop: distinct ids, rows for them, gradients back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use zagros_coordinator_client::Membership;
use zagros_embedding_client::{
    BatchRows, ClientConfig, ClientError, Deduplicator, EmbeddingClient, FeatureIds, RoutedIds, UniqueIds,
};
use zagros_ingest::Batch;
use zagros_plumbing::Shutdown;
use zagros_protocol::TableId;
use zagros_protocol::control::{DataFile, DescribeRequest, JoinRequest, Outcome, Role};
use zagros_protocol::datapath::{Access, Encoding};
use zagros_shell::{Exit, Failure, OrFailure};
use zagros_zip::number_from;

use crate::cluster::{CpuTimes, ServerSide};

/// Batches that each client keeps for the measurements of lookups and updates alone.
const KEPT: usize = 8;

#[derive(Clone, Debug, Default)]
pub struct MeasuredStretch {
    /// From the first start to the last end.
    pub seconds: f64,
    pub cpu: CpuTimes,
    pub tally: ClientTally,
}

/// Batches that went through, and the times of their requests.
#[derive(Clone, Debug, Default)]
pub struct ClientTally {
    pub batches: usize,
    /// Distinct ids of all batches.
    pub rows: usize,
    /// Times from request to rows.
    pub lookups: Vec<Duration>,
    /// Times from gradients to acknowledgement.
    pub pushes: Vec<Duration>,
}

/// What clients do with servers, one after another.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan<'a> {
    pub clients: usize,
    pub wire: Encoding,
    pub dim: usize,
    /// Batches that are not counted: tables grow, caches warm and connections open.
    pub warm_up: &'a [Batch],
    pub counted: &'a [Batch],
    /// Lookups alone, and updates alone, of all clients together.
    pub calls: usize,
    /// Batches of few samples, trained on at last.
    pub small: &'a [Batch],
}

#[derive(Debug, Default)]
pub struct MeasuredCase {
    pub clients: usize,
    /// Batches with distinct ids, lookup and push.
    pub trained: MeasuredStretch,
    pub looked_up: MeasuredStretch,
    pub pushed: MeasuredStretch,
    /// The small batches.
    pub trips: MeasuredStretch,
    /// Rows of the last batches after training.
    rows: Vec<BatchRows>,
    /// Rows that the servers held after training.
    held: u64,
}

struct BenchClients(Vec<BenchClient>);

struct BenchClient {
    client: EmbeddingClient,
    /// Servers accept updates from members only.
    membership: Membership,
    dim: u32,
    deduplicator: Deduplicator,
    seq: u64,
    /// The last trained batches, and their rows, which serve as gradients.
    kept: Vec<(RoutedIds, BatchRows)>,
    tally: ClientTally,
}

/// Of all clients together.
#[derive(Clone)]
enum ClientWork {
    /// On all batches, which are dealt out one by one.
    Train(Arc<[Batch]>),
    /// Rows of trained batches.
    LookUp { calls: usize },
    /// Of trained batches again.
    Push { calls: usize },
}

impl MeasuredCase {
    pub async fn measure(side: ServerSide, plan: ClientPlan<'_>) -> Result<Self, Failure> {
        let ClientPlan { clients, wire, dim, calls, .. } = plan;
        let mut drivers = BenchClients::join(&side, wire, clients, dim as u32).await?;
        drivers.run(&side, &ClientWork::Train(plan.warm_up.into())).await?;
        let trained = drivers.run(&side, &ClientWork::Train(plan.counted.into())).await?;
        let (rows, held) = (drivers.read_last().await?, drivers.count_rows().await?);
        let looked_up = drivers.run(&side, &ClientWork::LookUp { calls }).await?;
        let pushed = drivers.run(&side, &ClientWork::Push { calls }).await?;
        let trips = drivers.run(&side, &ClientWork::Train(plan.small.into())).await?;
        drivers.leave().await?;
        side.stop_processes().await;
        Ok(Self { clients, trained, looked_up, pushed, trips, rows, held })
    }

    /// Checks that servers in other processes hold the same rows as servers in this one after the same training.
    pub fn check_against(&self, embedded: &Self) -> Result<(), Failure> {
        let differ = |what: String| {
            let help = "this is a bug: the rows that a server gives must not depend on where it runs";
            Err(Failure::with_help(Exit::Internal, what, help))
        };
        if self.held != embedded.held {
            return differ(format!("servers hold {} rows, embedded ones {}", self.held, embedded.held));
        }
        // Adagrad depends on the order of updates, which is fixed only for a single client.
        if self.clients == 1 && self.rows != embedded.rows {
            return differ("rows looked up across sockets differ from the embedded servers'".to_owned());
        }
        Ok(())
    }
}

impl BenchClients {
    /// Joins `clients` workers, each with its own connections.
    async fn join(side: &ServerSide, wire: Encoding, clients: usize, dim: u32) -> Result<Self, Failure> {
        let mut drivers = Vec::new();
        for index in 0..clients {
            drivers.push(BenchClient::join(side, wire, index as u32, dim).await?);
        }
        Ok(Self(drivers))
    }

    /// Ends the run, whose servers would otherwise wait for its workers to save.
    async fn leave(&self) -> Result<(), Failure> {
        for driver in &self.0 {
            let left = driver.membership.leave(Outcome::Finished, "").await;
            left.or_exit(Exit::Cluster)?;
        }
        Ok(())
    }

    /// The present rows of the first client's last batches.
    async fn read_last(&self) -> Result<Vec<BatchRows>, Failure> {
        let Some(first) = self.0.first() else { return Ok(Vec::new()) };
        let reads = first.kept.iter().map(|(unique, _)| first.client.lookup(unique, Access::Read));
        try_join_all(reads).await.or_exit(Exit::Cluster)
    }

    async fn count_rows(&self) -> Result<u64, Failure> {
        let servers = self.0.first().map(|first| first.client.known_servers()).unwrap_or_default();
        let mut held = 0;
        for server in servers {
            let tables = server.describe(DescribeRequest {}).await.or_internal()?.tables;
            held += tables.iter().map(|table| table.rows).sum::<u64>();
        }
        Ok(held)
    }

    /// Runs all clients at once. Measures from the first start to the last end.
    async fn run(&mut self, side: &ServerSide, work: &ClientWork) -> Result<MeasuredStretch, Failure> {
        let clients = self.0.len();
        let (started, before) = (Instant::now(), side.cpu_times()?);
        let tasks = self.0.drain(..).enumerate().map(|(index, driver)| {
            let work = work.clone();
            tokio::spawn(async move { driver.run(work, index, clients).await })
        });
        let tasks: Vec<_> = tasks.collect();
        for task in tasks {
            self.0.push(task.await.or_internal()??);
        }
        let (seconds, cpu) = (started.elapsed().as_secs_f64(), side.cpu_times()?.since(before));
        let tally = self
            .0
            .iter_mut()
            .map(|driver| std::mem::take(&mut driver.tally))
            .fold(ClientTally::default(), ClientTally::add);
        Ok(MeasuredStretch { seconds, cpu, tally })
    }
}

impl BenchClient {
    async fn join(side: &ServerSide, wire: Encoding, index: u32, dim: u32) -> Result<Self, Failure> {
        let memory = DataFile { path: "(memory)".to_owned(), bytes: 1, splittable: false, fingerprint: 0 };
        let request = JoinRequest {
            role: Role::DenseWorker.into(),
            index,
            instance: u64::from(index),
            job_fingerprint: side.fingerprint,
            files: vec![memory],
            ..JoinRequest::default()
        };
        let joined = Membership::join(Arc::clone(&side.control), request, side.timeout, &Shutdown::new()).await;
        let membership = joined.or_exit(Exit::Cluster)?;
        let (writer, incarnation) = (membership.member_id(), membership.incarnation());
        let config = ClientConfig { writer, incarnation, wire, timeout: side.timeout };
        Ok(Self {
            client: EmbeddingClient::new(config, Arc::clone(&side.control), Arc::clone(&side.connect)),
            membership,
            dim,
            deduplicator: Deduplicator::new(),
            seq: 0,
            kept: Vec::new(),
            tally: ClientTally::default(),
        })
    }

    /// This client's share of the work: every `clients`-th piece, from the `index`-th on.
    async fn run(mut self, work: ClientWork, index: usize, clients: usize) -> Result<Self, Failure> {
        match work {
            ClientWork::Train(batches) => {
                for batch in batches.iter().skip(index).step_by(clients) {
                    self.train(batch).await?;
                }
            }
            ClientWork::LookUp { calls } => self.look_up((index..calls).step_by(clients).len()).await?,
            ClientWork::Push { calls } => self.push((index..calls).step_by(clients).len()).await?,
        }
        Ok(self)
    }

    async fn train(&mut self, batch: &Batch) -> Result<(), Failure> {
        let (unique, _inverse) = self.deduplicator.dedup_batch(&feature_ids(batch, self.dim));
        let unique = RoutedIds::from(unique);
        let rows = timed(self.client.lookup(&unique, Access::Train), &mut self.tally.lookups).await?;
        timed(self.client.push(self.seq, &unique, &rows), &mut self.tally.pushes).await?;
        self.seq += 1;
        self.tally.add_batch(&unique);
        if self.kept.len() == KEPT {
            self.kept.remove(0);
        }
        self.kept.push((unique, rows));
        Ok(())
    }

    async fn look_up(&mut self, calls: usize) -> Result<(), Failure> {
        for (unique, _) in self.kept.iter().cycle().take(calls) {
            // The ids of a batch that was never looked up have no route yet.
            let unique = RoutedIds::from(UniqueIds::clone(unique));
            timed(self.client.lookup(&unique, Access::Train), &mut self.tally.lookups).await?;
            self.tally.add_batch(&unique);
        }
        Ok(())
    }

    async fn push(&mut self, calls: usize) -> Result<(), Failure> {
        for (unique, gradients) in self.kept.iter().cycle().take(calls) {
            timed(self.client.push(self.seq, unique, gradients), &mut self.tally.pushes).await?;
            self.seq += 1;
            self.tally.add_batch(unique);
        }
        Ok(())
    }
}

impl MeasuredStretch {
    /// Distinct rows of a mean batch.
    pub fn batch_rows(&self) -> usize {
        self.tally.rows / self.tally.batches.max(1)
    }
}

impl ClientTally {
    fn add_batch(&mut self, unique: &RoutedIds) {
        self.batches += 1;
        self.rows += unique.id_count();
    }

    fn add(mut self, other: Self) -> Self {
        self.batches += other.batches;
        self.rows += other.rows;
        self.lookups.extend(other.lookups);
        self.pushes.extend(other.pushes);
        self
    }
}

/// The ids of a batch, with the table of each. In the job, each column has its own table, with the same number.
pub fn feature_ids(batch: &Batch, dim: u32) -> Vec<FeatureIds<'_>> {
    let columns = number_from(0, &batch.categorical);
    columns.map(|(table, ids)| FeatureIds { table: TableId(table), dim, ids: &ids.ids }).collect()
}

async fn timed<T>(call: impl Future<Output = Result<T, ClientError>>, spent: &mut Vec<Duration>) -> Result<T, Failure> {
    let started = Instant::now();
    let answer = call.await.or_exit(Exit::Cluster)?;
    spent.push(started.elapsed());
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    fn measured(clients: usize, value: f32, held: u64) -> MeasuredCase {
        let rows = vec![BatchRows { tables: vec![vec![value]] }];
        MeasuredCase { clients, rows, held, ..MeasuredCase::default() }
    }

    #[test]
    fn other_rows_than_the_embedded_servers_are_a_failure() {
        let embedded = measured(1, 0.5, 3);
        assert!(measured(1, 0.5, 3).check_against(&embedded).is_ok());
        assert!(measured(1, 0.25, 3).check_against(&embedded).is_err());
        assert!(measured(1, 0.5, 4).check_against(&embedded).is_err());
        // The order of updates differs, but the number of rows does not.
        assert!(measured(2, 0.25, 3).check_against(&embedded).is_ok());
    }

    #[tokio::test]
    async fn clients_share_the_work_and_each_piece_is_counted_once() {
        let job =
            workload::parse_job(&workload::job_text(4, "kind = \"ffnn\"", "", "servers = 2\nworkers = 2")).unwrap();
        let side = ServerSide::start_embedded(&job).await.unwrap();
        let batches = workload::make_batches(3);
        let mut drivers = BenchClients::join(&side, Encoding::F32, 2, 4).await.unwrap();
        let trained = drivers.run(&side, &ClientWork::Train(batches.into())).await.unwrap().tally;
        assert_eq!((trained.batches, trained.lookups.len(), trained.pushes.len()), (3, 3, 3));
        assert!(trained.rows as u64 >= drivers.count_rows().await.unwrap());
        let looked_up = drivers.run(&side, &ClientWork::LookUp { calls: 5 }).await.unwrap().tally;
        assert_eq!((looked_up.batches, looked_up.lookups.len(), looked_up.pushes.len()), (5, 5, 0));
        let earlier_rows = drivers.read_last().await.unwrap();
        let pushed = drivers.run(&side, &ClientWork::Push { calls: 5 }).await.unwrap().tally;
        assert_eq!((pushed.batches, pushed.lookups.len(), pushed.pushes.len()), (5, 0, 5));
        assert_ne!(earlier_rows, drivers.read_last().await.unwrap());
    }
}
