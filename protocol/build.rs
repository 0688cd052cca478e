//! Generates the messages of the proto files. The crate zagros-transport generates their services. protox is a protobuf
//! compiler in Rust, so the machine needs no `protoc`.

/// Messages that the coordinator keeps as part of its state, which it writes to its journal.
const KEPT: [&str; 11] = [
    "DataFile",
    "Disk",
    "Evaluation",
    "HistoryPoint",
    "Progress",
    "ResumeCursor",
    "ServerLoad",
    "ServerWait",
    "Split",
    "StageSeconds",
    "Transform",
];
const KEEPS: &str = "#[derive(serde::Serialize, serde::Deserialize)]";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = [
        "proto/zagros/datapath/v1/embedding.proto",
        "proto/zagros/control/v1/coordinator.proto",
        "proto/zagros/control/v1/storage.proto",
    ];
    let descriptors = protox::compile(protos, ["proto"])?;
    let mut config = tonic_prost_build::configure().build_client(false).build_server(false);
    for message in KEPT {
        config = config.type_attribute(format!("zagros.control.v1.{message}"), KEEPS);
    }
    config
        // Payloads are slices of the receive buffer, not copies.
        .bytes(".")
        .compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
