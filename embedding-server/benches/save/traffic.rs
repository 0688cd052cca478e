//! A thread that pushes as fast as possible, and the duration of each push.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use zagros_embedding_client::Shard;
use zagros_embedding_server::LocalShard;
use zagros_plumbing::Deadline;
use zagros_protocol::datapath::{Encoding, PushRequest};
use zagros_protocol::packed::encode_values;

use crate::servers::{BATCH, DIM, TIMEOUT, request_of};

/// Start and duration of a push.
type Timed = (Instant, Duration);

/// Number of the first push: above those of the checkpoints of changes, which the same writer made.
const FIRST: u64 = 1 << 21;

pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Timed>>,
}

pub(crate) struct Pushes {
    /// Durations in ascending order.
    times: Vec<Duration>,
    span: Duration,
}

impl Traffic {
    /// Starts pushes to rows 0 to `rows`, in an order far from sequential.
    pub(crate) fn start(runtime: &Handle, shard: &LocalShard, rows: u64) -> Self {
        let (runtime, shard) = (runtime.clone(), shard.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let request = |seq: u64| push_of(seq, rows);
            let go_on = |_: &u64| !is_over.load(Ordering::Relaxed);
            (FIRST..).take_while(go_on).map(|seq| timed(&runtime, &shard, request(seq))).collect()
        });
        Self { stop, thread }
    }

    pub(crate) fn stop(self) -> Vec<Timed> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("pushes go through")
    }
}

fn timed(runtime: &Handle, shard: &LocalShard, request: PushRequest) -> Timed {
    let start = Instant::now();
    runtime.block_on(shard.push(request, Deadline::from_now(TIMEOUT))).expect("a push");
    (start, start.elapsed())
}

fn push_of(seq: u64, rows: u64) -> PushRequest {
    // An odd factor visits the rows in an order that hardware prefetchers cannot predict.
    let id = |index: u64| (seq * BATCH + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) % rows;
    let mut ids: Vec<u64> = (0..BATCH).map(id).collect();
    ids.sort_unstable();
    ids.dedup();
    push_to(seq, &ids)
}

pub(crate) fn push_to(seq: u64, ids: &[u64]) -> PushRequest {
    let encoding = Encoding::F32 as i32;
    let gradients = encode_values(&vec![0.25; ids.len() * DIM as usize], encoding).expect("f32 is known").into();
    let (segments, ids) = request_of(ids);
    let payload = PushRequest { segments, ids, gradients, encoding, ..PushRequest::default() };
    PushRequest { generation: 1, writer: 1, incarnation: 1, seq, ..payload }
}

impl Pushes {
    pub(crate) fn started_between(pushes: &[Timed], from: Instant, until: Instant) -> Self {
        let inside = |(start, _): &&Timed| (from..until).contains(start);
        let mut times: Vec<Duration> = pushes.iter().filter(inside).map(|push| push.1).collect();
        times.sort_unstable();
        Self { times, span: until - from }
    }

    fn rate(&self) -> f64 {
        (self.times.len() as u64 * BATCH) as f64 / self.span.as_secs_f64()
    }

    fn quantile(&self, share: f64) -> Duration {
        let place = (self.times.len() as f64 * share) as usize;
        self.times.get(place.min(self.times.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    /// The figures relative to `before`.
    pub(crate) fn compare_to(&self, before: &Self) -> String {
        let ratio = |of: &dyn Fn(&Self) -> f64| of(self) / of(before);
        let p99 = ratio(&|pushes| pushes.quantile(0.99).as_secs_f64());
        format!("{:.0} % of the rows, p99 {p99:.2} ×", 100.0 * ratio(&Self::rate))
    }
}

impl fmt::Display for Pushes {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |share| 1e3 * self.quantile(share).as_secs_f64();
        let (half, most, longest) = (milliseconds(0.5), milliseconds(0.99), milliseconds(1.0));
        let rate = self.rate() / 1e6;
        write!(to, "{rate:.2} M rows/s, p50 {half:.2} ms, p99 {most:.2} ms, longest {longest:.2} ms")
    }
}
