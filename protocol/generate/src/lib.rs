//! The code that the proto files generate. The same code is committed, so that a build of the programs needs no protobuf
//! compiler (docs/adr/0002); the test of this crate holds the two equal.

/// A file of the checkout, and what the proto files generate for it.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedFile {
    /// From the folder `protocol` on.
    pub path: &'static str,
    /// What it must hold.
    pub code: &'static str,
}

/// All of them: messages, then services.
pub const GENERATED_FILES: [GeneratedFile; 4] = [
    GeneratedFile {
        path: "generated/zagros.control.v1.rs",
        code: include_str!(concat!(env!("OUT_DIR"), "/messages/zagros.control.v1.rs")),
    },
    GeneratedFile {
        path: "generated/zagros.datapath.v1.rs",
        code: include_str!(concat!(env!("OUT_DIR"), "/messages/zagros.datapath.v1.rs")),
    },
    GeneratedFile {
        path: "transport/generated/zagros.control.v1.rs",
        code: include_str!(concat!(env!("OUT_DIR"), "/services/zagros.control.v1.rs")),
    },
    GeneratedFile {
        path: "transport/generated/zagros.datapath.v1.rs",
        code: include_str!(concat!(env!("OUT_DIR"), "/services/zagros.datapath.v1.rs")),
    },
];
