//! The committed code is what the proto files generate. `UPDATE_PROTO=1` writes it anew.

use std::path::Path;
use std::{env, fs};

use zagros_generate::GENERATED_FILES;

#[test]
fn committed_code_is_what_the_proto_files_generate() {
    let protocol = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (path, code) in GENERATED_FILES {
        let path = protocol.join(path);
        if env::var_os("UPDATE_PROTO").is_some() {
            fs::write(&path, code).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == code,
            "{} is not what protocol/proto generates: run UPDATE_PROTO=1 cargo test --release -p zagros-generate",
            path.display()
        );
    }
}
