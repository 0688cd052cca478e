//! Requests to an embedding server: noise on the wire, and messages whose parts disagree (invariant DP-2). And every request and every
//! answer of the services: what is no message is refused, and what is one says the same when it is sent on.
//! Flat payloads of the data path, and the owners of buckets.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bolero::check;
use prometheus::Registry;
use prost::Message;
use zagros_embedding_client::Shard;
use zagros_embedding_server::{EmbeddingService, LocalShard};
use zagros_job::{Job, Overrides};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    AssignRequest, AssignResponse, BarrierRequest, BarrierResponse, BeginMoveRequest, BeginMoveResponse,
    CompleteRequest, CompleteResponse, DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse,
    FreezeMoveRequest, FreezeMoveResponse, GroupRequest, GroupResponse, HeartbeatRequest, HeartbeatResponse,
    JoinRequest, JoinResponse, LeaveRequest, LeaveResponse, LoadRequest, LoadResponse, MoveRowsRequest,
    MoveRowsResponse, PlacementRequest, PlacementResponse, PositionRequest, PositionResponse, ReportEvaluationRequest,
    ReportEvaluationResponse, ReportMoveRequest, ReportMoveResponse, SaveRequest, SaveResponse, ScaleRequest,
    ScaleResponse, StatusRequest, StatusResponse, TransformsRequest, TransformsResponse,
};
use zagros_protocol::datapath::{HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::packed::{PayloadValues, ValueBuffers, decode_values, encode_values};
use zagros_protocol::{BucketMap, Generation, Segments, ServerIndex};
use zagros_zip::ZipEq;

use crate::allocations::AllocatedBytes;
use crate::coordinator::{A_BYTE, LEAST};

const JOB: &str = r#"
[data]
format = "delimited"
train = "train.csv"
columns = ["label", "user", "item"]
header = false
[features]
label = "label"
categorical = ["user", "item"]
[embedding]
dim = 2
[model]
kind = "ffnn"
"#;

pub(crate) fn service() -> Arc<EmbeddingService> {
    let job = Job::parse(JOB, Path::new("job.toml"), &Overrides::none()).expect("the job is good");
    let service = EmbeddingService::new(&job, ServerIndex(0), &Registry::new()).expect("tables are good");
    service.set_placement(Arc::new(BucketMap::split_evenly(Generation(1), 16, 1)));
    service
}

/// Longer than any request takes.
fn later() -> Deadline {
    Deadline::from_now(Duration::from_secs(3600))
}

struct FuzzedServer {
    service: Arc<EmbeddingService>,
    shard: LocalShard,
    runtime: tokio::runtime::Runtime,
}

impl FuzzedServer {
    fn new() -> Self {
        let service = service();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { shard: LocalShard::new(Arc::clone(&service)), service, runtime }
    }

    /// Whether it was answered; a refusal has created nothing.
    fn lookup(&self, request: LookupRequest) -> bool {
        let held = self.service.current_load().rows;
        let ids = request.ids.len() / 8;
        match self.runtime.block_on(self.shard.lookup(request, later())) {
            Ok(answer) => {
                assert!(answer.rows.len() == ids * 8 || answer.rows.len() == ids * 4, "two values for each id");
                true
            }
            Err(_) => {
                assert_eq!(self.service.current_load().rows, held, "a refused lookup created rows");
                false
            }
        }
    }

    fn push(&self, request: PushRequest) -> bool {
        let held = self.service.current_load().rows;
        let pushed = self.runtime.block_on(self.shard.push(request, later()));
        assert!(pushed.is_ok() || self.service.current_load().rows == held, "a refused push created rows");
        pushed.is_ok()
    }
}

#[test]
fn noise_is_answered_or_refused_whole() {
    let server = AssertUnwindSafe(FuzzedServer::new());
    check!().with_type::<Vec<u8>>().for_each(|bytes| {
        if let Ok(request) = LookupRequest::decode(&bytes[..]) {
            server.lookup(request);
        }
        if let Ok(request) = PushRequest::decode(&bytes[..]) {
            server.push(request);
        }
    });
}

/// What a request says of itself, in small numbers, so that many requests are good and most others nearly so.
type Claims = (Vec<(u8, u8)>, u8, u8, u8, u8, Vec<u8>, Vec<u8>);

#[test]
fn requests_whose_parts_disagree_are_refused_whole() {
    let server = AssertUnwindSafe(FuzzedServer::new());
    let (answered, refused, seq) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    check!().with_type::<Claims>().for_each(|(segments, access, encoding, dim, slip, ids, bags)| {
        // Usually tables 0 and 1 of dim 2, usually as many ids as are claimed.
        let dim = if *dim < 230 { 2 } else { u32::from(*dim) };
        let triple = |(table, rows): &(u8, u8)| [u32::from(table % 3), u32::from(rows % 5), dim];
        let triples: Vec<[u32; 3]> = segments.iter().take(3).map(triple).collect();
        let rows: usize = triples.iter().map(|triple| triple[1] as usize).sum();
        let slip = if *slip < 200 { 0 } else { usize::from(slip - 200) };
        let bytes = |len: usize| ids.iter().chain(std::iter::repeat(&7)).take(len).copied().collect::<Vec<u8>>();
        let packed: Vec<u8> = triples.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        // Heads, lengths and positions of bags, most of them wrong: usually there are none.
        let bags = if *encoding < 200 { &[] } else { &bags[..] };
        let encoding = if *encoding < 200 { 1 } else { i32::from(encoding % 5) };
        let access = if *access < 200 { 1 } else { i32::from(access % 4) };
        let bags: Vec<u8> = bags.iter().flat_map(|word| u32::from(word % 4).to_le_bytes()).collect();
        let lookup = LookupRequest {
            generation: 1,
            segments: packed.clone().into(),
            ids: bytes(8 * rows + slip).into(),
            access,
            encoding,
            bags: bags.clone().into(),
            ..LookupRequest::default()
        };
        let push = PushRequest {
            generation: 1,
            writer: 1,
            incarnation: 1,
            seq: seq.fetch_add(1, Ordering::Relaxed),
            segments: packed.into(),
            ids: bytes(8 * rows).into(),
            gradients: vec![0; rows * 8 + slip].into(),
            encoding,
            bags: bags.into(),
            whole: slip == 0,
            ..PushRequest::default()
        };
        for good in [server.lookup(lookup), server.push(push)] {
            (if good { &answered } else { &refused }).fetch_add(1, Ordering::Relaxed);
        }
    });
    let [answered, refused] = [answered, refused].map(AtomicU64::into_inner);
    assert!(answered > 0 && refused > 0, "{answered} answered, {refused} refused: both paths must be walked");
}

/// Reads a message. Returns whether there is one.
fn read<M: Message + Default + PartialEq>(bytes: &[u8]) -> bool {
    let count = AllocatedBytes::new();
    count.count_this_thread();
    let (read, taken) = count.during(|| M::decode(bytes));
    assert!(taken <= LEAST + A_BYTE * bytes.len(), "{taken} bytes for {}", bytes.len());
    let Ok(message) = read else { return false };
    let sent = message.encode_to_vec();
    // A number that is not a number differs from itself, so the bytes are compared.
    assert_eq!(M::decode(&sent[..]).expect("it was just written").encode_to_vec(), sent);
    true
}

macro_rules! read_all {
    ($bytes:expr, $($message:ident),* $(,)?) => {
        [$((stringify!($message), read::<$message>($bytes))),*]
    };
}

fn read_all(bytes: &[u8]) -> Vec<(&'static str, bool)> {
    let control = read_all! {
        bytes,
        AssignRequest, AssignResponse, BarrierRequest, BarrierResponse, BeginMoveRequest, BeginMoveResponse, CompleteRequest, CompleteResponse, DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, FreezeMoveRequest, FreezeMoveResponse, GroupRequest, GroupResponse, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaveRequest, LeaveResponse, LoadRequest, LoadResponse, MoveRowsRequest, MoveRowsResponse, PlacementRequest, PlacementResponse, PositionRequest, PositionResponse, ReportEvaluationRequest, ReportEvaluationResponse, ReportMoveRequest, ReportMoveResponse, SaveRequest, SaveResponse, ScaleRequest, ScaleResponse, StatusRequest, StatusResponse, TransformsRequest, TransformsResponse,
    };
    let datapath =
        read_all! { bytes, HintRequest, HintResponse, LookupRequest, LookupResponse, PushRequest, PushResponse };
    [&control[..], &datapath[..]].concat()
}

#[test]
fn noise_is_a_message_or_refused() {
    check!().with_type::<Vec<u8>>().for_each(|bytes| {
        read_all(bytes);
    });
}

/// A new request or answer is noticed here.
#[test]
fn every_request_and_every_answer_of_the_services_is_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol/proto/zagros");
    let protos = ["control/v1/coordinator", "control/v1/storage", "control/v1/migration", "datapath/v1/embedding"];
    let text = protos
        .map(|name| std::fs::read_to_string(root.join(format!("{name}.proto"))).expect("it is in the repository"));
    let calls: Vec<&str> =
        text.iter().flat_map(|text| text.lines()).filter_map(|line| line.trim().strip_prefix("rpc ")).collect();
    assert!(calls.len() > 20, "the check finds what is there: {calls:?}");
    let read: Vec<&str> = read_all(&[]).into_iter().map(|(name, _)| name).collect();
    for call in calls {
        let types = call.split(['(', ')']).skip(1).step_by(2);
        for message in types.map(|name| name.trim_start_matches("stream ").rsplit('.').next().unwrap_or_default()) {
            assert!(read.contains(&message), "{message} of the call {call} is not among the messages above");
        }
    }
}

#[test]
fn segments_that_unpack_are_those_that_were_packed() {
    check!().with_type::<(Vec<u8>, Vec<[u8; 3]>)>().for_each(|(noise, triples)| {
        if let Ok(segments) = Segments::unpack(noise, &[]) {
            assert_eq!(&segments.pack(), noise);
        }
        // Small numbers in place of noise: what a good message is made of.
        let words: Vec<u8> = triples.iter().flatten().flat_map(|small| u32::from(*small).to_le_bytes()).collect();
        let rows: usize = triples.iter().map(|triple| usize::from(triple[1])).sum();
        let segments = Segments::unpack(&words, &vec![0; 8 * rows]).expect("lengths agree");
        assert_eq!(segments.pack(), words);
        Segments::unpack(&words, &vec![0; 8 * rows + 1]).expect_err("half an id too much");
    });
}

#[test]
fn values_have_the_length_they_claim_or_are_refused() {
    check!().with_type::<(Vec<u8>, i8, u8)>().for_each(|(bytes, encoding, count)| {
        let (encoding, count) = (i32::from(*encoding), usize::from(*count));
        let Ok(values) = PayloadValues::read("values", bytes, encoding, count, &Arc::new(ValueBuffers::default()))
        else {
            return;
        };
        assert_eq!(values.len(), count);
        let mut again = vec![0.0; count];
        decode_values(bytes, encoding, &mut again).expect("it was read before");
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(values.iter().zip_eq(&again).all(same));
        let bytes_again = encode_values(&values, encoding).expect("the encoding is known");
        assert_eq!(bytes_again.len(), bytes.len());
    });
}

#[test]
fn owners_of_buckets_are_a_map_or_are_refused() {
    check!().with_type::<(u64, Vec<u8>)>().for_each(|(generation, owners)| {
        let Ok(map) = BucketMap::unpack_owners(Generation(*generation), owners) else { return };
        assert_eq!(map.bucket_count() as usize * 4, owners.len());
        assert!((0..map.bucket_count()).all(|bucket| map.bucket_owner(bucket).is_some()));
        assert_eq!(map.bucket_owner(map.bucket_count()), None);
        assert!(map.server_count() <= 1 << 16);
    });
}
