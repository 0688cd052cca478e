//! A server whose memory is limited.

use std::path::Path;
use std::sync::Arc;

use prometheus::Registry;
use zagros_plumbing::metrics::render;
use zagros_protocol::ServerIndex;

use crate::testing::{job, job_with};
use crate::{EmbeddingService, ServerError};

fn limited(folder: &Path, registry: &Registry) -> Result<Arc<EmbeddingService>, ServerError> {
    let cluster = format!("memory = \"1MiB\"\ncold_folder = {folder:?}");
    EmbeddingService::new(&job_with(1, &cluster), ServerIndex(0), registry)
}

#[test]
fn its_rows_have_a_folder_for_as_long_as_it_lives() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("server-0");
    let service = limited(folder.path(), &Registry::new()).unwrap();
    assert!(service.may_block() && rows.join("CURRENT").exists());
    drop(service);
    assert!(!rows.exists());
    assert!(!EmbeddingService::new(&job(1), ServerIndex(0), &Registry::new()).unwrap().may_block());
}

#[test]
fn a_folder_of_another_server_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let _first = limited(folder.path(), &Registry::new()).unwrap();
    let error = limited(folder.path(), &Registry::new()).err().unwrap();
    assert_eq!(error.to_string(), "embedding server 0 has no place for rows beyond `cluster.memory`");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("server-0 is in use by another process; give each run a `cluster.cold_folder`"), "{cause}");
}

#[test]
fn its_cold_tier_has_metrics_until_it_ends() {
    let (folder, registry) = (tempfile::tempdir().unwrap(), Registry::new());
    let service = limited(folder.path(), &registry).unwrap();
    let text = render(&registry);
    for line in [
        r#"zagros_embedding_cold_bytes{server="0"} 0"#,
        r#"zagros_embedding_cold_blocks_total{found="file",server="0"} 0"#,
        r#"zagros_embedding_cold_rows_total{call="write",server="0"} 0"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    drop(service);
    assert!(!render(&registry).contains("cold_bytes{"));
}
