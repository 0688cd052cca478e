//! Gradients summed while the step goes back, beside one sum after it: two workers over loopback, and over a network
//! that is slower.
//!
//! `cargo bench -p zagros-dense-worker --bench overlap -- [--samples N] [--rounds N] [--quick]`
//!
//! Each worker is a thread with one thread of libtorch and a connection of its own. A step is forward, backward, the sum,
//! the rows' gradients, the optimiser: all but lookups and pushes, on batches of samples with 13 numbers and 26
//! vectors of 16. Both ways take turns, so that what else runs on the machine meets both, and must make the same
//! weights.

use std::collections::VecDeque;
use std::error::Error;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use zagros_collective::{CollectiveError, CollectiveGroup, PendingSum, ProcessGroupConfig, Rendezvous};
use zagros_dense_worker::WorkerError;
use zagros_dense_worker::datapath::buckets::{BUCKET, GradientBuckets};
use zagros_job::{CollectiveKind, Job, Overrides};
use zagros_model::{DenseModel, InputColumns, LabelledSamples, RowPositions, scatter_add};
use zagros_torch::StoreRendezvous;
use zagros_zip::{ZipEq, number_from};

type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

const WORKERS: usize = 2;
const NUMERIC: usize = 13;
const FEATURES: usize = 26;
const DIM: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(60);
const NETWORKS: [(&str, &str); 2] = [
    ("dlrm", "kind = \"dlrm\"\nbottom = [512, 256]\ntop = [512, 256]"),
    ("ffnn", "kind = \"ffnn\"\nhidden = [1024, 512, 256]"),
];
/// Name, time on the way, bytes a second.
const WIRES: [(&str, Duration, f64); 3] = [
    ("loopback", Duration::ZERO, f64::INFINITY),
    ("1 ms", Duration::from_millis(1), f64::INFINITY),
    ("1 ms, 1 Gbit/s", Duration::from_millis(1), 125e6),
];

fn main() -> BenchResult<()> {
    let (rounds, samples) = plan(std::env::args().skip(1))?;
    println!("{WORKERS} workers of one thread, {samples} samples a batch each, least of {rounds} steps\n");
    println!("network  wire               one sum after   buckets of 1 MiB   ratio (4 MiB)");
    for (name, text) in NETWORKS {
        for (wire, latency, rate) in WIRES {
            let sizes = [usize::MAX, BUCKET, 4 * BUCKET];
            let [after, while_back, larger] = compare(text, samples, rounds, sizes, (latency, rate))?;
            let ms = |time: Duration| 1e3 * time.as_secs_f64();
            let ratio = |time: Duration| time.as_secs_f64() / after.as_secs_f64();
            println!(
                "{name:<8} {wire:<16} {:>13.2} ms {:>15.2} ms {:>7.3} ({:.3})",
                ms(after),
                ms(while_back),
                ratio(while_back),
                ratio(larger)
            );
        }
    }
    Ok(())
}

/// The least step of worker 0 for each size of buckets; the largest size is one sum, after the step.
fn compare<const N: usize>(
    network: &str,
    samples: usize,
    rounds: usize,
    sizes: [usize; N],
    wire: (Duration, f64),
) -> BenchResult<[Duration; N]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let store = listener.local_addr()?.to_string();
    let rendezvous = [listener, TcpListener::bind("127.0.0.1:0")?].map(|listener| {
        let address = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
        StoreRendezvous::new(listener, address, CollectiveKind::Gloo)
    });
    let play = |rank: usize, rendezvous: StoreRendezvous| -> BenchResult<Vec<Vec<Duration>>> {
        let place = ProcessGroupConfig {
            rank,
            world: WORKERS,
            generation: 1,
            addresses: vec![store.clone()],
            timeout: TIMEOUT,
            ..ProcessGroupConfig::default()
        };
        let group = DelayedGroup {
            group: rendezvous.form_group(&place)?,
            latency: wire.0,
            rate: wire.1,
            arrivals: VecDeque::new(),
        };
        let mut workers = Vec::new();
        for size in sizes {
            workers.push(BenchWorker::new(network, samples, size, rank)?);
        }
        let mut group = group;
        let mut times = vec![Vec::new(); N];
        for round in 0..rounds + 2 {
            for (worker, times) in workers.iter_mut().zip_eq(&mut times) {
                group.barrier()?;
                let started = Instant::now();
                worker.step(&mut group)?;
                // The first ones only warm up.
                times.extend((round > 1).then(|| started.elapsed()));
            }
        }
        let weights = workers.iter().map(|worker| worker.model.to_safetensors()).collect::<Result<Vec<_>, _>>()?;
        assert!(weights.iter().all(|others| *others == weights[0]), "buckets changed what the step makes");
        Ok(times)
    };
    let times = thread::scope(|scope| {
        let ranks = number_from(0, rendezvous).map(|(rank, rendezvous)| {
            let play = &play;
            scope.spawn(move || play(rank, rendezvous?))
        });
        let ranks: Vec<_> = ranks.collect();
        let times: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("a worker panicked")).collect();
        times.into_iter().collect::<BenchResult<Vec<_>>>()
    })?;
    Ok(std::array::from_fn(|size| times[0][size].iter().copied().min().unwrap_or_default()))
}

struct BenchWorker {
    model: DenseModel,
    buckets: GradientBuckets,
    /// Whether gradients leave before all are there.
    early: bool,
    columns: InputColumns,
    numeric: Vec<f32>,
    vectors: Vec<f32>,
    labels: Vec<f32>,
    inverse: Vec<u32>,
    rows: Vec<f32>,
}

impl BenchWorker {
    fn new(network: &str, samples: usize, bucket: usize, rank: usize) -> BenchResult<Self> {
        let job = job(network)?;
        let values = |count: usize, stream: u64| -> Vec<f32> {
            let seed = stream * 1_000_003 + rank as u64 * 7_919;
            (0..count as u64).map(|index| (mixed(seed + index) >> 40) as f32 / (1 << 24) as f32 - 0.5).collect()
        };
        Ok(Self {
            model: DenseModel::new(&job, zagros_torch::backend())?,
            buckets: GradientBuckets::new(bucket),
            early: bucket < usize::MAX,
            columns: InputColumns::new(&job),
            numeric: values(samples * NUMERIC, 1),
            vectors: values(samples * FEATURES * DIM, 2),
            labels: values(samples, 3).into_iter().map(|value| f32::from(value > 0.0)).collect(),
            inverse: (0..samples).map(|sample| mixed(sample as u64) as u32 % (samples as u32 / 2)).collect(),
            rows: vec![0.0; samples / 2 * DIM],
        })
    }

    fn step(&mut self, group: &mut dyn CollectiveGroup) -> BenchResult<()> {
        let share = 1.0 / WORKERS as f32;
        self.buckets.begin_step(self.model.weight_count(), share);
        let (numeric, embeddings, labels) = (&self.numeric[..], &self.vectors[..], &self.labels[..]);
        let samples = LabelledSamples { numeric, embeddings, labels, weights: &[] };
        let (buckets, early) = (&mut self.buckets, self.early);
        let ready = &mut |from: usize, gradients: &[f32]| {
            if early {
                buckets.send_ready(group, from, gradients);
            }
        };
        let output = self.model.backward_in_parts(samples, ready)?;
        self.model.check_finite(&output)?;
        self.buckets.send_remaining(group, self.model.gradients(), &[]);
        if self.early {
            self.scatter(&output.gradients);
        }
        let model = &mut self.model;
        self.buckets.wait_for_sums(group, |first, sums| {
            model.replace_gradients(first, sums).map_err(|source| WorkerError::Step { step: 0, source })
        })?;
        self.model.apply_gradients()?;
        if !self.early {
            self.scatter(&output.gradients);
        }
        Ok(())
    }

    fn scatter(&mut self, gradients: &[f32]) {
        for column in &self.columns.features {
            self.rows.fill(0.0);
            scatter_add(column, self.columns.width, RowPositions::One(&self.inverse), gradients, &mut self.rows);
        }
    }
}

/// A group whose sums come later: each takes its time on the way, one after another.
struct DelayedGroup {
    group: Box<dyn CollectiveGroup>,
    latency: Duration,
    rate: f64,
    /// Of the sums under way, in their order.
    arrivals: VecDeque<Instant>,
}

impl CollectiveGroup for DelayedGroup {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn world_size(&self) -> usize {
        self.group.world_size()
    }

    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<PendingSum, CollectiveError> {
        let now = Instant::now();
        let begins = self.arrivals.back().map_or(now, |before| now.max(*before));
        let sent = Duration::from_secs_f64((values.len() * size_of::<f32>()) as f64 / self.rate);
        self.arrivals.push_back(begins + self.latency + sent);
        self.group.start_all_reduce_sum(values)
    }

    /// In the order of the starts.
    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError> {
        let sums = self.group.wait(pending)?;
        if let Some(arrival) = self.arrivals.pop_front() {
            thread::sleep(arrival.saturating_duration_since(Instant::now()));
        }
        Ok(sums)
    }

    fn reduce_scatter_sum(&mut self, values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        self.group.reduce_scatter_sum(values, bounds)
    }

    fn all_gather_parts(&mut self, values: Vec<f32>, bounds: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        self.group.all_gather_parts(values, bounds)
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.group.all_gather(mine)
    }
}

fn job(network: &str) -> BenchResult<Job> {
    let text = format!(
        r#"
        [data]
        format = "criteo"
        train = "memory"
        [embedding]
        dim = {DIM}
        [model]
        {network}
        [optimizer]
        kind = "adam"
        lr = 0.001
        [train]
        threads = 1
        "#
    );
    Job::parse(&text, Path::new("overlap.toml"), &Overrides::none()).map_err(|errors| errors.to_string().into())
}

/// SplitMix64's finaliser.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Passes and samples of a batch.
fn plan(arguments: impl Iterator<Item = String>) -> BenchResult<(usize, usize)> {
    let (mut rounds, mut samples) = (40, 4096);
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => (rounds, samples) = (2, 256),
            "--rounds" => rounds = arguments.next().ok_or("a number is missing")?.parse()?,
            "--samples" => samples = arguments.next().ok_or("a number is missing")?.parse()?,
            unknown => return Err(format!("unknown argument {unknown}").into()),
        }
    }
    Ok((rounds, samples))
}
