//! Generates the clients and services of the proto files. The messages come from zagros-protocol.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = [
        "../proto/zagros/datapath/v1/embedding.proto",
        "../proto/zagros/control/v1/coordinator.proto",
        "../proto/zagros/control/v1/storage.proto",
    ];
    let descriptors = protox::compile(protos, ["../proto"])?;
    tonic_prost_build::configure()
        .extern_path(".zagros.datapath.v1", "::zagros_protocol::datapath")
        .extern_path(".zagros.control.v1", "::zagros_protocol::control")
        .compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=../proto");
    Ok(())
}
