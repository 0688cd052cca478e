//! Every request and every answer of the services: what is no message is refused, and what is one says the same when it is sent on.

use std::path::Path;

use bolero::check;
use prost::Message;
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

use crate::allocations::AllocatedBytes;
use crate::coordinator::{A_BYTE, LEAST};

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
