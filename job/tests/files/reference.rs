//! The committed pages equal the generated ones.

use std::fs;
use std::path::Path;

#[test]
fn the_reference_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/job-file.md");
    let page = zagros_job::reference::reference_page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/job-file.md differs from the code; write it with: UPDATE_DOCS=1 cargo test -p zagros-job --test files reference"
    );
}

#[test]
fn the_schema_is_json_that_refuses_unknown_keys() {
    let schema: serde_json::Value = serde_json::from_str(&zagros_job::schema_json()).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["$defs"]["Train"]["properties"]["batch_size"]["maximum"], 1_048_576);
}
