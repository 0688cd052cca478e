//! A target with a log: what is moved does not pile up before a disk.

use std::time::{Duration, Instant};

use super::*;
use crate::durability::LogHost;
use crate::testing::FaultyDisk;

/// No push comes to a new server, so nothing else than the chunks themselves waits for the disk.
#[test]
fn a_chunk_that_the_log_does_not_take_is_refused_and_put_in_again() {
    let ((_folder, job), disk) = (logged_job(2), Arc::<FaultyDisk>::default());
    let host = LogHost { disk: Arc::clone(&disk) as _, ..LogHost::default() };
    let service = EmbeddingService::open_on_host(&job, ServerIndex(1), &Registry::new(), host).unwrap();
    let target = LocalMove::from_placement(Arc::clone(&service), &placement(1, Some(7))).unwrap();
    let width = service.tables.table(ITEM).unwrap().stride();
    let (ids, slots) = (zagros_protocol::packed::encode_ids(&[id_of(0)]).into(), vec![0; 4 * width].into());
    let chunk = MoveRowsResponse { table: ITEM, ids, slots, ..MoveRowsResponse::default() };
    target.put_rows(&chunk).unwrap();
    disk.fail(Some("write"));
    let refused = target.put_rows(&chunk).unwrap_err();
    assert!(refused.kind == RefusalKind::Disk && refused.message.contains("write failed"), "{refused}");
    disk.fail(None);
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(refusal) = target.put_rows(&chunk) {
        assert!(refusal.kind.is_retryable() && Instant::now() < deadline, "{refusal}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(service.current_load().rows, 1);
}
