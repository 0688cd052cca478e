//! A server with limited memory.

use prometheus::Registry;
use zagros_plumbing::metrics::render_text;
use zagros_protocol::datapath::Access;
use zagros_protocol::{Refusal, RefusalKind};

use crate::testing::{even_map, limited, lookup_of, placed, read};
use crate::{EmbeddingService, testing};

#[test]
fn its_rows_have_a_folder_for_as_long_as_it_lives() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("server-0");
    let service = limited(folder.path(), &Registry::new()).unwrap();
    assert!(service.reads_disk() && service.writes_disk() && rows.join("LOCK").exists());
    drop(service);
    assert!(!rows.exists());
    assert!(!placed(1, 0).writes_disk());
}

#[test]
fn a_folder_of_another_server_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let _first = limited(folder.path(), &Registry::new()).unwrap();
    let error = limited(folder.path(), &Registry::new()).err().unwrap();
    assert_eq!(error.to_string(), "embedding server 0 cannot open the cold tier for rows beyond `cluster.memory`");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("server-0 is in use by another process; give each run a `cluster.cold_folder`"), "{cause}");
}

#[test]
fn its_cold_tier_has_metrics_until_it_ends() {
    let (folder, registry) = (tempfile::tempdir().unwrap(), Registry::new());
    let service = limited(folder.path(), &registry).unwrap();
    let text = render_text(&registry);
    for line in [
        r#"zagros_embedding_cold_bytes{server="0"} 0"#,
        r#"zagros_embedding_cold_written_bytes_total{server="0",what="moved"} 0"#,
        r#"zagros_embedding_cold_index_bytes{server="0"} 0"#,
        r#"zagros_embedding_cold_rows_total{call="write",server="0"} 0"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    drop(service);
    assert!(!render_text(&registry).contains("cold_bytes{"));
}

/// Looks up a thousand new ids at a time until `ended`. At most a million ids.
fn grow(
    service: &EmbeddingService,
    first: u64,
    ended: impl Fn(&Result<(), Refusal>) -> bool,
) -> (u64, Result<(), Refusal>) {
    for start in (first..first + 1_000_000).step_by(1000) {
        let ids: Vec<u64> = (start..start + 1000).collect();
        let looked_up = testing::lookup(service, &lookup_of(&[(0, &ids)], Access::Train)).map(|_| ());
        if ended(&looked_up) {
            return (start, looked_up);
        }
    }
    panic!("a million new rows came into 1 MiB");
}

/// The folder of the cold tier is deleted. The server still serves rows in memory, loses no row silently, and gives the
/// reason in its readiness.
#[test]
fn without_a_disk_a_server_serves_from_memory_and_refuses_new_rows() {
    let folder = tempfile::tempdir().unwrap();
    let service = limited(folder.path(), &Registry::new()).unwrap();
    service.set_placement(even_map(1));
    assert_eq!(service.check_ready(), Ok(()));
    std::fs::remove_dir_all(folder.path()).unwrap();
    let (next, _) = grow(&service, 0, |_| service.check_ready().is_err());
    let reason = service.check_ready().unwrap_err();
    assert!(reason.starts_with("embedding server 0 serves from memory alone: the cold tier cannot write"), "{reason}");
    assert!(reason.contains("No such file") && reason.contains("server-0"), "{reason}");
    let (_, refused) = grow(&service, next, Result::is_err);
    let refusal = refused.unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Disk, "{refusal}");
    for named in ["table `user`", "memory is full", "No such file"] {
        assert!(refusal.message.contains(named), "{refusal}");
    }
    // Rows that were admitted before are still served.
    assert!(read(&service, &[(0, &[next])]).iter().all(|value| value.is_finite()));
}
