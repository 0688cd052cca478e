//! Generates the messages of the proto files. The crate zagros-transport generates their services. protox is a protobuf
//! compiler in Rust, so the machine needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = [
        "proto/zagros/datapath/v1/embedding.proto",
        "proto/zagros/control/v1/coordinator.proto",
        "proto/zagros/control/v1/storage.proto",
    ];
    let descriptors = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        // Payloads are slices of the receive buffer, not copies.
        .bytes(".")
        .compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
