//! Rows of embeddings: their lookup and update in this process and over loopback, and the sockets alone.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use zagros_embedding_client::Deduplicator;
use zagros_ingest::Batch;
use zagros_model::{InputColumns, RowPositions, gather, scatter_add};
use zagros_planner::{RowCost, WireCosts};
use zagros_plumbing::process::cpu_time;
use zagros_protocol::datapath::Encoding;
use zagros_shell::Failure;
use zagros_zip::ZipEq;

use crate::clients::{ClientPlan, MeasuredCase, MeasuredStretch, feature_ids};
use crate::cluster::{ByteExchange, ServerSide, measure_loopback};
use crate::workload;

/// Batches of a stretch: their rows are created before they are counted, and are far more than a cache holds.
const COUNTED: usize = 24;
const CALLS: usize = 64;
/// Samples of a batch that shows the time of a round trip, and how many batches do.
const SMALL: usize = 8;
const TRIPS: usize = 100;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RowMeasurement {
    pub(crate) cost: RowCost,
    /// ns of CPU for each id, to find the distinct ones.
    pub(crate) dedup: f64,
    /// ns of CPU for each id, to move its row into the network's input and its gradient out of it.
    pub(crate) moved: f64,
    pub(crate) rows: f64,
    pub(crate) ids: f64,
    wire: WireCosts,
}

/// ns of CPU a row of client and server.
struct EndCosts {
    client: f64,
    server: f64,
}

impl RowMeasurement {
    /// Of the sockets, by the widest rows; of the round trip, by the fastest.
    pub(crate) fn wire(measured: &[Self]) -> WireCosts {
        let round_trip_us = measured.iter().map(|row| row.wire.round_trip_us).fold(f64::INFINITY, f64::min);
        measured.last().map(|last| WireCosts { round_trip_us, ..last.wire }).unwrap_or_default()
    }
}

/// Measures rows of `dim` with Adagrad in f32.
pub(crate) async fn measure(program: &Path, dim: usize) -> Result<RowMeasurement, Failure> {
    let text = workload::job_text(dim, "kind = \"ffnn\"\nhidden = []", "", "servers = 1\nworkers = 1");
    let job = workload::parse_job(&text)?;
    let batches = workload::make_batches(COUNTED);
    let small: Vec<Batch> = small_batches(TRIPS);
    let dedup = dedup(&batches, dim);

    let plan = ClientPlan {
        clients: 1,
        wire: Encoding::F32,
        dim,
        warm_up: &batches,
        counted: &batches,
        calls: CALLS,
        small: &[],
    };
    let MeasuredCase { trained, looked_up, pushed, .. } =
        MeasuredCase::measure(ServerSide::start_embedded(&job).await?, plan).await?;
    let (rows, ids) = (trained.tally.rows as f64, (COUNTED * batches[0].categorical.len() * workload::BATCH) as f64);
    // Alone, the same few batches stay in cache. What a training takes of both is shared in their proportion.
    let whole = EndCosts::per_row(&trained).client - dedup * ids / rows;
    let (lookup, push) = (EndCosts::per_row(&looked_up).client, EndCosts::per_row(&pushed).client);
    let colder = (whole / (lookup + push)).max(1.0);

    let side = ServerSide::start_processes(program, &text, &job).await?;
    let remote = MeasuredCase::measure(side, ClientPlan { small: &small, ..plan }).await?;
    let trips = &remote.trips;
    let (far_lookup, far_push) = (EndCosts::per_row(&remote.looked_up), EndCosts::per_row(&remote.pushed));
    let far = EndCosts::per_row(&remote.trained);
    let client_colder = ((far.client - dedup * ids / rows) / (far_lookup.client + far_push.client)).max(1.0);
    let server_colder = (far.server / (far_lookup.server + far_push.server)).max(1.0);

    let exchange = ByteExchange::new(trained.batch_rows(), dim, Encoding::F32);
    let sockets = measure_loopback(exchange, CALLS, 1)?;
    let bytes = exchange.total_bytes() as f64;
    // What the requests of a small batch take beside their rows.
    let steps = trips.tally.batches.max(1) as f64;
    let of_step =
        |cpu: Duration, of_row: f64| ((cpu.as_secs_f64() * 1e9 - trips.tally.rows as f64 * of_row) / steps).max(0.0);
    Ok(RowMeasurement {
        cost: RowCost {
            dim: dim as f64,
            lookup: lookup * colder,
            push: push * colder,
            client_lookup: far_lookup.client * client_colder,
            client_push: far_push.client * client_colder,
            server_lookup: far_lookup.server * server_colder,
            server_push: far_push.server * server_colder,
        },
        dedup,
        moved: ns_per_id(&batches, dim)?,
        rows: rows / (COUNTED * workload::BATCH) as f64,
        ids: ids / (COUNTED * workload::BATCH) as f64,
        wire: WireCosts {
            bytes_per_second: sockets.rate * bytes,
            cpu_ns_per_byte: sockets.cpu / bytes * 1e9,
            round_trip_us: workload::middle_value(trips.tally.lookups.iter().map(Duration::as_secs_f64)) * 1e6,
            client_step: of_step(trips.cpu.client, far_lookup.client + far_push.client),
            server_step: of_step(trips.cpu.server, far_lookup.server + far_push.server),
        },
    })
}

impl EndCosts {
    fn per_row(stretch: &MeasuredStretch) -> Self {
        let of_row = |time: Duration| time.as_secs_f64() * 1e9 / stretch.tally.rows.max(1) as f64;
        Self { client: of_row(stretch.cpu.client), server: of_row(stretch.cpu.server) }
    }
}

/// ns of CPU for each id.
fn dedup(batches: &[Batch], dim: usize) -> f64 {
    let mut deduplicator = Deduplicator::new();
    let mut ids = 0;
    let start = cpu_time();
    for batch in batches {
        std::hint::black_box(deduplicator.dedup_batch(&feature_ids(batch, dim as u32)));
        ids += batch.categorical.iter().map(|feature| feature.ids.len()).sum::<usize>();
    }
    (cpu_time() - start).as_secs_f64() * 1e9 / ids.max(1) as f64
}

fn small_batches(count: usize) -> Vec<Batch> {
    let whole = workload::make_batches(1).remove(0);
    (0..count.min(whole.size / SMALL)).map(|index| workload::part(&whole, index, SMALL)).collect()
}

struct FeatureRows {
    /// The row of each sample.
    inverse: Vec<u32>,
    rows: Vec<f32>,
}

/// ns of CPU for each id of `dim` values, by the kernels of the dense thread: gather, and scatter with its cleared rows.
fn ns_per_id(batches: &[Batch], dim: usize) -> Result<f64, Failure> {
    let job = workload::parse_job(&workload::job_text(dim, "kind = \"ffnn\"\nhidden = []", "threads = 1", ""))?;
    let columns = InputColumns::new(&job);
    let mut input = vec![0.0; workload::BATCH * columns.width];
    let (mut spent, mut ids) = (0.0, 0);
    for batch in batches {
        let mut features: Vec<FeatureRows> =
            batch.categorical.iter().map(|ids| FeatureRows::new(&ids.ids, dim)).collect();
        let start = cpu_time();
        for (column, feature) in columns.features.iter().zip_eq(&features) {
            gather(column, columns.width, RowPositions::One(&feature.inverse), &feature.rows, &mut input);
        }
        for (column, feature) in columns.features.iter().zip_eq(&mut features) {
            feature.rows.fill(0.0);
            scatter_add(column, columns.width, RowPositions::One(&feature.inverse), &input, &mut feature.rows);
        }
        spent += (cpu_time() - start).as_secs_f64();
        ids += features.len() * batch.size;
    }
    Ok(spent * 1e9 / ids.max(1) as f64)
}

impl FeatureRows {
    fn new(ids: &[u64], dim: usize) -> Self {
        let mut places = HashMap::new();
        let mut place = |id: &u64| {
            let next = places.len() as u32;
            *places.entry(*id).or_insert(next)
        };
        let inverse: Vec<u32> = ids.iter().map(&mut place).collect();
        Self { inverse, rows: vec![0.5; places.len() * dim] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_batch_has_the_ids_of_its_samples() {
        let small = small_batches(3);
        let whole = workload::make_batches(1).remove(0);
        assert_eq!((small.len(), small[2].size, small[2].numeric.len()), (3, SMALL, SMALL * 13));
        assert_eq!(small[2].categorical[5].ids, whole.categorical[5].ids[2 * SMALL..3 * SMALL]);
        assert!(dedup(&small, 16) > 0.0);
    }

    #[test]
    fn wide_rows_take_longer_to_move() {
        let batches = workload::make_batches(2);
        let repeated = [batches.clone(), batches].concat();
        let (narrow, wide) = (ns_per_id(&repeated, 4).unwrap(), ns_per_id(&repeated, 128).unwrap());
        assert!(narrow > 0.0 && wide > narrow, "{narrow} {wide}");
        assert_eq!(FeatureRows::new(&[5, 7, 5], 2).inverse, [0, 1, 0]);
    }
}
