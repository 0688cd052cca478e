//! Bases: whole or not at all.

use std::fs;
use std::path::Path;

use zagros_rows::log::{BaseDraft, BaseManifest, LogBase, LogError, LogRecord};
use zagros_table::{FrequencyCounts, RowBatch};

use crate::log::support::LINEAGE;

fn make(folder: &Path, start: u64) -> LogBase {
    let draft = BaseDraft::new(folder, start, LINEAGE).unwrap();
    let (mut rows, mut bytes) = (0, 0);
    for part in 0..2 {
        let mut file = draft.create_part(part).unwrap();
        for stripe in [part, part + 2] {
            let ids: Vec<u64> = (0..50).map(|id| id * 4 + u64::from(stripe)).collect();
            let slots: Vec<u32> = ids.iter().flat_map(|id| [*id as u32; 3]).collect();
            file.append_rows([7, stripe], &ids, &slots, &[]).unwrap();
            let counts = FrequencyCounts { ids: vec![9], counts: vec![u32::from(stripe == 1)], cells: vec![] };
            file.append_stripe_counts([7, stripe], start + 5, &counts).unwrap();
        }
        let size = file.finish().unwrap();
        (rows, bytes) = (rows + size.rows, bytes + size.bytes);
    }
    let manifest =
        BaseManifest { start, end: start + 9, parts: 2, rows, bytes, time: [3, 4], ..BaseManifest::default() };
    draft.finish(manifest).unwrap()
}

fn read(base: &LogBase) -> Result<(usize, usize), LogError> {
    let (mut rows, mut counts) = (0, 0);
    for part in 0..base.manifest.parts {
        base.read_part(part, |head, payload| {
            assert_eq!(head.table, 7);
            match LogRecord::decode(head, payload).unwrap() {
                LogRecord::Rows(None, RowBatch { ids, slots, .. }) => {
                    assert!(ids.iter().all(|id| *id % 4 == u64::from(head.stripe)));
                    assert_eq!(slots.len(), 3 * ids.len());
                    rows += ids.len();
                }
                LogRecord::StripeCounts { lsn, .. } => {
                    assert_eq!(lsn, base.manifest.start + 5);
                    counts += 1;
                }
                other => panic!("{other:?}"),
            }
            Ok::<_, LogError>(())
        })?;
    }
    Ok((rows, counts))
}

#[test]
fn the_newest_whole_base_counts_and_others_go() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(LogBase::find_newest(folder.path()).unwrap(), None);
    make(folder.path(), 100);
    let base = make(folder.path(), 0x2000);
    assert_eq!((base.manifest.rows, base.file_bytes().unwrap()), (200, base.manifest.bytes));
    // One that was being written when the process ended.
    BaseDraft::new(folder.path(), 0x3000, LINEAGE).unwrap().create_part(0).unwrap();
    let newest = LogBase::find_newest(folder.path()).unwrap().unwrap();
    assert_eq!((fs::read_dir(folder.path()).unwrap().count(), &newest), (3, &base), "reading deletes nothing");
    LogBase::delete_others(Some(&newest), folder.path()).unwrap();
    assert_eq!(read(&newest).unwrap(), (200, 4));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_part_that_was_shortened_or_changed_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let base = make(folder.path(), 1);
    let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path().join("part-1.log");
    let whole = fs::read(&path).unwrap();
    for end in [0, 63, 64, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..end]).unwrap();
        assert!(matches!(read(&base), Err(LogError::Damaged { .. })), "{end} bytes of {}", whole.len());
    }
    for place in (0..whole.len()).step_by(41) {
        let mut flipped = whole.clone();
        flipped[place] ^= 1;
        fs::write(&path, &flipped).unwrap();
        match read(&base) {
            Err(LogError::Damaged { path: named, .. }) => assert_eq!(named, path),
            Err(other) => panic!("{other}"),
            Ok(found) => assert_eq!(found, (200, 4), "padding is covered by no checksum"),
        }
    }
}
