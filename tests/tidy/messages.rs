//! The committed code of messages and services is what the proto files generate (docs/adr/0002).

use std::{env, fs};

use zagros_tests::repository;

/// By their paths from the folder `protocol` on: messages, then services.
const GENERATED_FILES: [(&str, &str); 4] = [
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

/// `UPDATE_PROTO=1` writes it anew.
#[test]
fn committed_code_is_what_the_proto_files_generate() {
    for (path, code) in GENERATED_FILES {
        let path = repository().join("protocol").join(path);
        if env::var_os("UPDATE_PROTO").is_some() {
            fs::write(&path, code).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == code,
            "{} is not what protocol/proto generates: run UPDATE_PROTO=1 cargo test --release -p zagros-tests -- tidy::messages",
            path.display()
        );
    }
}
