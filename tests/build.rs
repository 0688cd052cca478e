//! Generates messages and services of the proto files into the build's folder, for the test that the committed code is the same. protox is
//! a protobuf compiler in Rust: no `protoc` on the machine. No program that is shipped stands on this package, so a build of those does not
//! compile protox.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// Messages that the coordinator writes to files and prints: its inputs, what it keeps as part of its state, and what the doctor and
/// `/status` show.
const KEPT: [&str; 34] = [
    "AssignRequest",
    "AssignResponse",
    "AssignResponse.work",
    "BarrierFailure",
    "BarrierRequest",
    "BarrierResult",
    "BarrierVote",
    "CheckpointMark",
    "CompleteRequest",
    "CountedVote",
    "DataFile",
    "Disk",
    "EpochDone",
    "Evaluation",
    "GroupRequest",
    "HeartbeatRequest",
    "HistoryPoint",
    "JoinRequest",
    "LeaveRequest",
    "LongWait",
    "Position",
    "Progress",
    "ReportEvaluationRequest",
    "ReportMoveRequest",
    "ResumeCursor",
    "ScaleRequest",
    "ScaleStatus",
    "ServerLoad",
    "ServerWait",
    "Split",
    "StageSeconds",
    "Transform",
    "TransformsRequest",
    "Wait",
];
const KEEPS: &str = "#[derive(serde::Serialize, serde::Deserialize)]";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../protocol/proto");
    let protos = [
        "../protocol/proto/zagros/datapath/v1/embedding.proto",
        "../protocol/proto/zagros/control/v1/coordinator.proto",
        "../protocol/proto/zagros/control/v1/storage.proto",
        "../protocol/proto/zagros/control/v1/migration.proto",
    ];
    let descriptors = protox::compile(protos, ["../protocol/proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let folder = |name: &str| -> Result<PathBuf, std::io::Error> {
        fs::create_dir_all(out.join(name))?;
        Ok(out.join(name))
    };
    let mut messages = tonic_prost_build::configure().build_client(false).build_server(false);
    for message in KEPT {
        messages = messages.type_attribute(format!("zagros.control.v1.{message}"), KEEPS);
    }
    messages
        // Payloads are slices of the receive buffer, not copies.
        .bytes(".")
        .out_dir(folder("messages")?)
        .compile_fds(descriptors.clone())?;
    tonic_prost_build::configure()
        .extern_path(".zagros.datapath.v1", "::zagros_protocol::datapath")
        .extern_path(".zagros.control.v1", "::zagros_protocol::control")
        .out_dir(folder("services")?)
        .compile_fds(descriptors)?;
    Ok(())
}
