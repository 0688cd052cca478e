//! A dense worker's servers, with every push rounded to the grid and reported to the recorder.

use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse,
};
use zagros_protocol::datapath::{
    Encoding, HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse,
};
use zagros_protocol::{Refusal, RefusalKind, Segments};

use super::{Frame, StartedPush, grid};
use crate::Shard;

#[derive(Debug)]
pub struct PushRecorder {
    socket: Mutex<UnixStream>,
    calls: AtomicU64,
    /// Tables of features. The dense table of mode `async` is not recorded.
    tables: u32,
}

impl PushRecorder {
    /// Connects to the recorder at `path`, for the worker of an index in a job with so many tables of features.
    pub fn connect(path: &Path, worker: u32, tables: u32) -> io::Result<Arc<Self>> {
        let recorder = Self { socket: Mutex::new(UnixStream::connect(path)?), calls: AtomicU64::new(0), tables };
        recorder.write(&Frame::Hello { worker })?;
        Ok(Arc::new(recorder))
    }

    /// The same server, with its pushes recorded.
    pub fn record_shard(self: &Arc<Self>, shard: Arc<dyn Shard>) -> Arc<dyn Shard> {
        Arc::new(RecordedShard { shard, recorder: Arc::clone(self) })
    }

    pub fn report_join(&self, writer: u64, incarnation: u32) {
        self.tell(&Frame::Joined { writer, incarnation });
    }

    /// Reports a push, before it is routed. Only tables of features are recorded.
    pub fn report_started_push(&self, mut push: StartedPush) {
        push.tables.retain(|rows| rows.table < self.tables);
        self.tell(&Frame::Started(push));
    }

    /// Reports that the worker takes a push as acknowledged.
    pub fn report_finished_push(&self, seq: u64) {
        self.tell(&Frame::Finished { seq });
    }

    pub fn report_network(&self, weights: &[u8]) {
        // The same in every process of this program.
        let mut hasher = DefaultHasher::new();
        hasher.write(weights);
        self.tell(&Frame::Trained { network: hasher.finish() });
    }

    /// Without the recorder the next push ends the worker.
    fn tell(&self, frame: &Frame) {
        let _ = self.write(frame);
    }

    fn write(&self, frame: &Frame) -> io::Result<()> {
        // Whole frames only: no other thread writes in between.
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame.encode())
    }

    fn report(&self, frame: &Frame) -> Result<(), Refusal> {
        self.write(frame)
            .map_err(|error| Refusal::new(RefusalKind::Internal, format!("the push recorder is gone: {error}")))
    }

    /// Rounds the gradients of features' tables to the grid.
    fn round_gradients(&self, push: &mut PushRequest) -> Result<(), Refusal> {
        if push.encoding != Encoding::F32 as i32 || !push.bags.is_empty() {
            return Err(Refusal::invalid("chaos: a push that is recorded has rows in f32, and no bags"));
        }
        let segments =
            Segments::unpack(&push.segments, &push.ids).map_err(|error| Refusal::invalid(error.to_string()))?;
        let mut gradients = push.gradients.to_vec();
        let (values, _) = gradients.as_chunks_mut::<4>();
        let mut place = 0;
        for segment in segments.iter() {
            let count = segment.rows as usize * segment.dim as usize;
            let of_segment = values.get_mut(place..place + count).unwrap_or_default();
            place += count;
            if segment.table.0 >= self.tables {
                continue;
            }
            for bytes in of_segment {
                *bytes = grid::units_to_value(grid::round_to_units(f32::from_le_bytes(*bytes))?).to_le_bytes();
            }
        }
        push.gradients = gradients.into();
        Ok(())
    }

    fn begin_call(self: &Arc<Self>, push: &PushRequest) -> Result<RecordedCall, Refusal> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.report(&Frame::Sent { call, push: push.clone() })?;
        Ok(RecordedCall { call, recorder: Arc::clone(self), is_open: true })
    }
}

/// A push that was reported as sent. It is given up when it is dropped.
struct RecordedCall {
    call: u64,
    recorder: Arc<PushRecorder>,
    is_open: bool,
}

impl RecordedCall {
    fn report_acknowledged(mut self) -> Result<(), Refusal> {
        self.is_open = false;
        self.recorder.report(&Frame::Acknowledged { call: self.call })
    }
}

impl Drop for RecordedCall {
    fn drop(&mut self) {
        if self.is_open {
            self.recorder.tell(&Frame::GivenUp { call: self.call });
        }
    }
}

struct RecordedShard {
    shard: Arc<dyn Shard>,
    recorder: Arc<PushRecorder>,
}

impl Shard for RecordedShard {
    fn name(&self) -> &str {
        self.shard.name()
    }

    fn lookup(&self, request: LookupRequest, deadline: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        self.shard.lookup(request, deadline)
    }

    fn push(&self, mut request: PushRequest, deadline: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        async move {
            self.recorder.round_gradients(&mut request)?;
            let call = self.recorder.begin_call(&request)?;
            let answer = self.shard.push(request, deadline).await?;
            call.report_acknowledged()?;
            Ok(answer)
        }
        .boxed()
    }

    fn hint(&self, request: HintRequest, deadline: Deadline) -> BoxFuture<'_, Result<HintResponse, Refusal>> {
        self.shard.hint(request, deadline)
    }

    fn describe(&self, request: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        self.shard.describe(request)
    }

    fn save(&self, request: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        self.shard.save(request)
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        self.shard.load(request)
    }

    fn forget(&self, request: ForgetRequest) -> BoxFuture<'_, Result<ForgetResponse, Refusal>> {
        self.shard.forget(request)
    }
}
