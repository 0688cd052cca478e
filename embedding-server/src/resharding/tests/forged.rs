//! Requests and answers of moves that are forged or damaged: each is refused whole, and nothing is put in. A target whose log
//! takes nothing.

use zagros_job::Job;
use zagros_protocol::control::{FreezeMoveResponse, MoveRowsRequest, MoveRowsResponse, MovedWindow, MovedWindows};

use zagros_table::{AdmissionPolicy, FrequencyCounter};

use super::*;
use crate::durability::LogHost;
use crate::testing::{DIM, FaultyDisk};

/// Server 1, to which buckets 0 … 31 move. Table 1 counts ids in a sketch, table 0 does not count.
fn target() -> (Arc<EmbeddingService>, LocalMove) {
    let mut job: Job = job_with(2, "");
    let counter = FrequencyCounter::CountMin { error: 0.01, failure: 0.1 };
    job.tables[1].admission = AdmissionPolicy::Count { threshold: 3, counter };
    let service = EmbeddingService::new(&job, ServerIndex(1), &Registry::new()).unwrap();
    let moving = LocalMove::from_placement(Arc::clone(&service), &placement(1, Some(7))).unwrap();
    (service, moving)
}

fn bytes_of(words: &[u32]) -> bytes::Bytes {
    words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>().into()
}

fn ids_as_bytes(ids: &[u64]) -> bytes::Bytes {
    zagros_protocol::packed::encode_ids(ids).into()
}

/// One row with all that its table has, which the target accepts.
fn good(service: &EmbeddingService) -> MoveRowsResponse {
    let id = id_of(0);
    let width = service.tables.table(ITEM).unwrap().stride();
    MoveRowsResponse {
        table: ITEM,
        ids: ids_as_bytes(&[id]),
        slots: bytes_of(&vec![1.0_f32.to_bits(); width]),
        access: bytes_of(&[0]),
        counted: ids_as_bytes(&[id]),
        counts: bytes_of(&[2]),
        sketch: bytes_of(&[1, 1]),
        step: 3,
        step_ids: ids_as_bytes(&[id]),
        step_before: bytes_of(&vec![2.0_f32.to_bits(); width]),
        step_sums: bytes_of(&[0; DIM as usize]),
        steps: 10,
        ..MoveRowsResponse::default()
    }
}

/// Rows, counts and clock of the target.
fn content(service: &EmbeddingService) -> (u64, Vec<u32>, u64) {
    let (table, mut cells) = (service.tables.table(ITEM).unwrap(), Vec::new());
    for stripe in 0..table.stripes() {
        assert!(table.read_sketch(stripe, 0, usize::MAX, &mut cells), "that is all of it");
    }
    (service.current_load().rows, cells, service.tables.table_time().steps)
}

#[test]
fn rows_that_do_not_fit_are_refused_whole() {
    let (service, target) = target();
    let (good, before) = (good(&service), content(&service));
    let (alien, huge) = (ids_as_bytes(&[id_of(1)]), bytes_of(&vec![0; 1000]));
    let forged = |change: &dyn Fn(&mut MoveRowsResponse)| {
        let mut sent = good.clone();
        change(&mut sent);
        sent
    };
    let cases = [
        ("there is no table", forged(&|sent| sent.table = u32::MAX)),
        ("a row of a bucket that does not move", forged(&|sent| sent.ids = alien.clone())),
        ("a removal of such a row", forged(&|sent| sent.removed = alien.clone())),
        ("a count of such an id", forged(&|sent| sent.counted = alien.clone())),
        ("half an id", forged(&|sent| sent.removed = vec![0; 12].into())),
        ("half a word", forged(&|sent| sent.slots = vec![0; 4 * DIM as usize + 1].into())),
        ("more words than rows", forged(&|sent| sent.slots = huge.clone())),
        ("more rows than words", forged(&|sent| sent.ids = ids_as_bytes(&[id_of(0); 100]))),
        ("rows without words", forged(&|sent| sent.slots = bytes::Bytes::new())),
        ("no access metadata", forged(&|sent| sent.access = bytes::Bytes::new())),
        ("more access metadata than rows", forged(&|sent| sent.access = huge.clone())),
        ("more counts than ids", forged(&|sent| sent.counts = huge.clone())),
        ("a row of the step of a bucket that does not move", forged(&|sent| sent.step_ids = alien.clone())),
        ("more rows of the step than words", forged(&|sent| sent.step_ids = ids_as_bytes(&[id_of(0); 100]))),
        ("sums without rows of the step", forged(&|sent| sent.step_sums = huge.clone())),
        ("half a row of the step", forged(&|sent| sent.step_before = vec![0; 4].into())),
        ("a stripe that is not there", forged(&|sent| sent.sketch_stripe = u32::MAX)),
        ("cells past the end", forged(&|sent| sent.sketch_from = u32::MAX)),
        ("more cells than there are", forged(&|sent| sent.sketch = bytes_of(&vec![u32::MAX; 1 << 16]))),
        ("half a cell", forged(&|sent| sent.sketch = vec![1; 3].into())),
        ("counts for a table that counts nothing", forged(&|sent| (sent.table, sent.access) = (0, Default::default()))),
    ];
    for (what, sent) in cases {
        let refused = target.put_rows(&sent).expect_err(what);
        assert_eq!((refused.kind, content(&service)), (RefusalKind::Invalid, before.clone()), "{what}: {refused}");
    }
    let late = target.put_rows(&forged(&|sent| sent.steps = u64::MAX)).unwrap_err();
    assert!(late.kind == RefusalKind::Unavailable && late.message.contains("no worker can be"), "{late}");
    assert_eq!(content(&service), before, "rows do not age by a clock that no server has");
    target.put_rows(&good).unwrap();
    let new_content = content(&service);
    assert!(new_content.0 == 1 && new_content.1.iter().any(|cell| *cell > 0) && new_content.2 == 10, "{new_content:?}");
    // A clock that is far ahead in seconds makes a row as old as can be, and nothing else.
    target.put_rows(&MoveRowsResponse { seconds: u64::MAX, ..good }).unwrap();
    assert_eq!(content(&service), new_content, "the same again");
}

#[test]
fn windows_that_no_server_can_have_are_refused_whole() {
    let (service, target) = target();
    let all: Vec<u32> = (0..BUCKETS / 2).collect();
    let window = |applied: &[u64]| MovedWindow { writer: 9, incarnation: 1, applied: ids_as_bytes(applied) };
    let group = |buckets: &[u32], windows| MovedWindows { buckets: bytes_of(buckets), windows };
    let frozen = |groups| FreezeMoveResponse { changed: 0, groups };
    let one = |applied: &[u64]| frozen(vec![group(&all, vec![window(applied)])]);
    let half = MovedWindows { buckets: vec![0; 4 * all.len() + 2].into(), windows: Vec::new() };
    let half_number = MovedWindow { applied: vec![0; 17].into(), ..window(&[]) };
    let cases = [
        ("no group", frozen(Vec::new())),
        ("buckets are missing", frozen(vec![group(&all[1..], Vec::new())])),
        ("a bucket that does not move", frozen(vec![group(&(0..=BUCKETS / 2).collect::<Vec<_>>(), Vec::new())])),
        ("a bucket twice", frozen(vec![group(&all, Vec::new()), group(&[0], Vec::new())])),
        ("a group without buckets", frozen(vec![group(&all, Vec::new()), group(&[], vec![window(&[1, 1])])])),
        ("half a bucket", frozen(vec![half])),
        ("half a number", frozen(vec![group(&all, vec![half_number])])),
        ("half a range", one(&[1, 2, 3])),
        ("a range that ends before it begins", one(&[5, 4])),
        ("ranges that overlap", one(&[1, 5, 5, 9])),
        ("all numbers that there are", one(&[0, u64::MAX])),
        ("more numbers than a window has", one(&[1, 1, 5000, 5000])),
        ("more windows than a run can have", frozen(vec![group(&all, vec![window(&[]); (1 << 16) + 1])])),
    ];
    for (what, sent) in cases {
        let refused = target.put_windows(&sent).expect_err(what);
        assert_eq!(refused.kind, RefusalKind::Invalid, "{what}: {refused}");
        assert!(service.windows.group_images().iter().all(|group| group.windows.is_empty()), "{what}");
    }
    target.put_windows(&one(&[3, 7, 9, 4098])).unwrap();
    assert_eq!(service.windows.group_images()[1].windows[0].applied, [[3, 7], [9, 4098]]);
}

/// Another move, a number out of order, and the same request again.
#[test]
fn requests_for_rows_of_another_move_or_out_of_order_are_refused_and_a_repeated_one_changes_nothing() {
    let source = announced(0);
    let ids: Vec<u64> = vec![id_of(0), id_of(1)];
    push(&source, &push_of(&[(ITEM, &ids[..1])], 1, 1.0)).unwrap();
    let calls = LocalMove::from_placement(Arc::clone(&source), &placement(1, Some(7))).unwrap();
    let rows = |bucket_move, number| calls.next_rows(&MoveRowsRequest { bucket_move, number });
    let kind_of = |refused: Result<MoveRowsResponse, Refusal>| refused.unwrap_err().kind;
    assert_eq!(kind_of(rows(7, 0)), RefusalKind::Invalid, "the copy has not begun");
    assert_eq!(freeze_source(&source, 7).unwrap_err().kind, RefusalKind::Invalid);
    for other in [0, 6, 8, u64::MAX] {
        let refused = begin_copy(&source, other).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Unavailable, "{refused}");
    }
    begin_copy(&source, 7).unwrap();
    let first = rows(7, 0).unwrap();
    for (bucket_move, number) in [(6, 1), (8, 0), (7, 2), (7, u64::MAX), (7, u64::MAX - 1)] {
        assert_eq!(kind_of(rows(bucket_move, number)), RefusalKind::Invalid, "{bucket_move} {number}");
    }
    assert_eq!(freeze_source(&source, 8).unwrap_err().kind, RefusalKind::Invalid);
    assert!(!source.is_frozen());
    assert_eq!(rows(7, 0).unwrap(), first, "the same request again");
    let second = rows(7, 1).unwrap();
    assert_eq!((kind_of(rows(7, 0)), rows(7, 1).unwrap()), (RefusalKind::Invalid, second));
    assert!(calls.put_rows(&first).unwrap_err().message.contains("no rows come"), "a source takes no rows");
}

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
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while let Err(refusal) = target.put_rows(&chunk) {
        assert!(refusal.kind.is_retryable() && std::time::Instant::now() < deadline, "{refusal}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(service.current_load().rows, 1);
}
