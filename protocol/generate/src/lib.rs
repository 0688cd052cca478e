//! The code that the proto files generate. The same code is committed, so that a build of the programs needs no protobuf
//! compiler (docs/adr/0002); the test of this crate holds the two equal.

/// The files of the checkout, by their paths from the folder `protocol` on, and what each must hold: messages, then services.
pub const GENERATED_FILES: [(&str, &str); 4] = [
    ("generated/zagros.control.v1.rs", include_str!(concat!(env!("OUT_DIR"), "/messages/zagros.control.v1.rs"))),
    ("generated/zagros.datapath.v1.rs", include_str!(concat!(env!("OUT_DIR"), "/messages/zagros.datapath.v1.rs"))),
    (
        "transport/generated/zagros.control.v1.rs",
        include_str!(concat!(env!("OUT_DIR"), "/services/zagros.control.v1.rs")),
    ),
    (
        "transport/generated/zagros.datapath.v1.rs",
        include_str!(concat!(env!("OUT_DIR"), "/services/zagros.datapath.v1.rs")),
    ),
];
