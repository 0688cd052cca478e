//! Checkpoints that write what has changed: each loads to exactly the rows of its moment, on any number of servers.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use zagros_embedding_client::Shard;
use zagros_protocol::control::{FileDigest, SaveRequest, SaveResponse, SaveStage};
use zagros_protocol::{BucketMap, Generation};

use super::{changed, own};
use crate::testing::{BUCKETS, Content, content, even_map, load_request, placed, push_of, save_request};
use crate::{EmbeddingService, LocalShard, testing};

/// Servers whose checkpoints may be followed by so many deltas.
fn servers(count: u32, deltas: usize) -> Vec<Arc<EmbeddingService>> {
    changed(count, |job| job.checkpoint.deltas = deltas)
}

fn push(services: &[Arc<EmbeddingService>], ids: &[u64], seq: u64) {
    for service in services {
        let [users, items] = own(service, ids.iter().copied());
        testing::push(service, &push_of(&[(0, &users), (1, &items)], seq, 0.25 * seq as f32)).unwrap();
    }
}

fn request(folder: &Path, stage: SaveStage, attempt: u64) -> SaveRequest {
    SaveRequest { stage: stage.into(), attempt, ..save_request(folder) }
}

/// A checkpoint in two calls. `between` happens after its moment.
async fn checkpoint(services: &[Arc<EmbeddingService>], folder: &Path, between: impl FnOnce()) -> Vec<SaveResponse> {
    let shards: Vec<_> = services.iter().map(|service| LocalShard::new(Arc::clone(service))).collect();
    for shard in &shards {
        shard.save(request(folder, SaveStage::Capture, 1)).await.unwrap();
    }
    between();
    let mut saved = Vec::new();
    for shard in &shards {
        saved.push(shard.save(request(folder, SaveStage::Files, 2)).await.unwrap());
    }
    saved
}

/// Invariant CK-6. A delta would list the removed ids, and the files before it have their rows.
#[tokio::test]
async fn the_checkpoint_after_rows_were_forgotten_has_all_rows() {
    let folder = tempfile::tempdir().unwrap();
    let service = servers(1, 4);
    push(&service, &[1, 2, 3, 4, 5, 6, 7, 8], 1);
    let base = checkpoint(&service, &folder.path().join("resume-1"), || ()).await;
    push(&service, &[1], 2);
    let delta = checkpoint(&service, &folder.path().join("resume-2"), || ()).await;
    assert_eq!((names(&base).len(), names(&delta).len()), (1, 2));
    let ids = zagros_protocol::packed::encode_ids(&[2]).into();
    let request = zagros_protocol::control::ForgetRequest { table: "item".to_owned(), ids, generation: 1 };
    crate::storage::forget(&service[0], &request).unwrap();
    let whole = checkpoint(&service, &folder.path().join("resume-3"), || ()).await;
    assert_eq!((whole[0].rows, names(&whole).len()), (15, 1), "all rows in one file");
}

fn digests(saved: &[SaveResponse]) -> Vec<FileDigest> {
    saved.iter().flat_map(|saved| saved.files.clone()).collect()
}

fn names(saved: &[SaveResponse]) -> Vec<String> {
    digests(saved).into_iter().map(|file| file.name).collect()
}

/// Loads into so many servers. Returns their rows, and how many the servers say.
async fn loaded(folder: &Path, saved: &[SaveResponse], count: u32) -> (Content, u64) {
    let services: Vec<_> = (0..count).map(|index| placed(count, index)).collect();
    let request = load_request(folder, digests(saved));
    let mut rows = 0;
    for service in &services {
        rows += LocalShard::new(Arc::clone(service)).load(request.clone()).await.unwrap().rows;
    }
    (content(&services), rows)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Pushes, removals and checkpoints in any order; older checkpoints go as a run lets them go.
    #[test]
    fn each_checkpoint_loads_to_the_rows_of_its_moment(
        rounds in prop::collection::vec((
            prop::collection::btree_set(0_u64..200, 0..40),
            prop::collection::btree_set(0_u64..200, 0..20),
            prop::collection::btree_set(0_u64..200, 0..40),
        ), 2..7),
        count in 1_u32..4,
        deltas in 0_usize..4,
    ) {
        block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let services = servers(count, deltas);
            push(&services, &(0..150).collect::<Vec<_>>(), 1);
            let (mut seq, mut kept) = (1, Vec::new());
            for (number, (before, gone, during)) in rounds.iter().enumerate() {
                seq += 2;
                push(&services, &before.iter().copied().collect::<Vec<_>>(), seq);
                for service in &services {
                    service.tables.iter().for_each(|table| table.remove_again(&gone.iter().copied().collect::<Vec<_>>()).unwrap());
                }
                let expected = content(&services);
                let place = folder.path().join(format!("resume-{number}"));
                let during: Vec<u64> = during.iter().copied().collect();
                let saved = checkpoint(&services, &place, || push(&services, &during, seq + 1)).await;
                kept.push((place, saved, expected));
                // Two are kept.
                if kept.len() > 2 {
                    fs::remove_dir_all(kept.remove(0).0).unwrap();
                }
                for (place, saved, expected) in &kept {
                    let other = 1 + (count + number as u32) % 3;
                    let (found, rows) = loaded(place, saved, other).await;
                    assert!((&found, rows) == (expected, expected.len() as u64), "{} of {}", found.len(), expected.len());
                    assert_eq!(saved.iter().map(|saved| saved.rows).sum::<u64>(), rows);
                }
            }
        });
    }
}

/// What was written, in the order of six checkpoints.
async fn sizes(services: &[Arc<EmbeddingService>], folder: &Path) -> Vec<(usize, u64)> {
    let mut sizes = Vec::new();
    for number in 0..6_u64 {
        push(services, &[number], 10 + number);
        let saved = checkpoint(services, &folder.join(number.to_string()), || ()).await;
        sizes.push((saved[0].files.len(), saved[0].bytes));
    }
    sizes
}

#[test]
fn all_rows_are_written_again_after_as_many_deltas_as_the_job_allows() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let services = servers(1, 2);
        push(&services, &(0..2000).collect::<Vec<_>>(), 1);
        let sizes = sizes(&services, folder.path()).await;
        assert_eq!(sizes.iter().map(|size| size.0).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 3]);
        assert!(sizes[1].1 * 10 < sizes[0].1, "{sizes:?}");
        // The manifest of many servers names few files of each.
        let many = crate::storage::CheckpointFiles::new(50, 600);
        assert_eq!(format!("{many:?}"), format!("{:?}", crate::storage::CheckpointFiles::new(0, 1)));
    });
}

#[test]
fn all_rows_are_written_again_once_the_deltas_are_half_as_large() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let services = servers(1, 9);
        let ids: Vec<u64> = (0..2000).collect();
        push(&services, &ids, 1);
        let mut files = Vec::new();
        for number in 0..5_u64 {
            push(&services, &ids[..600], 10 + number);
            let saved = checkpoint(&services, &folder.path().join(number.to_string()), || ()).await;
            files.push(saved[0].files.len());
        }
        assert_eq!(files, [1, 2, 3, 1, 2]);
    });
}

/// A process that is killed in the middle of a save is one whose files have no manifest. Here the save itself fails, at
/// the file and at the links, and the server goes on.
#[test]
fn a_checkpoint_that_fails_is_followed_by_one_of_all_rows_and_the_one_before_still_loads() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let services = servers(1, 9);
        push(&services, &(0..200).collect::<Vec<_>>(), 1);
        let first = folder.path().join("1");
        let (saved, expected) = (checkpoint(&services, &first, || ()).await, content(&services));
        push(&services, &[5], 2);
        // The file of the delta cannot appear where a folder is.
        let second = folder.path().join("2");
        fs::create_dir_all(second.join("rows-0-of-1.delta-1.zrows/in-the-way")).unwrap();
        let shard = LocalShard::new(Arc::clone(&services[0]));
        shard.save(request(&second, SaveStage::Capture, 1)).await.unwrap();
        shard.save(request(&second, SaveStage::Files, 2)).await.unwrap_err();
        assert!(loaded(&first, &saved, 2).await == (expected, 400));
        push(&services, &[6], 3);
        let third = folder.path().join("3");
        let saved = checkpoint(&services, &third, || ()).await;
        assert_eq!(names(&saved), ["rows-0-of-1.zrows"]);
        assert!(loaded(&third, &saved, 1).await == (content(&services), 400));
        // The folder before is gone, so nothing can be linked.
        fs::remove_dir_all(&third).unwrap();
        let saved = checkpoint(&services, &folder.path().join("4"), || ()).await;
        assert_eq!(names(&saved), ["rows-0-of-1.zrows"]);
    });
}

#[test]
fn rows_of_another_bucket_map_another_model_or_a_saved_model_are_written_whole() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let services = servers(1, 9);
        push(&services, &(0..100).collect::<Vec<_>>(), 1);
        let first = checkpoint(&services, &place("1"), || ()).await;
        services[0].set_placement(Arc::new(BucketMap::split_evenly(Generation(2), BUCKETS, 1)));
        assert_eq!(checkpoint(&services, &place("2"), || ()).await[0].files.len(), 1);
        services[0].set_placement(even_map(1));
        assert_eq!(checkpoint(&services, &place("3"), || ()).await[0].files.len(), 1);
        // A saved model has one file, and the next checkpoint still adds to the one before.
        let shard = LocalShard::new(Arc::clone(&services[0]));
        assert_eq!(shard.save(request(&place("model"), SaveStage::Whole, 3)).await.unwrap().files.len(), 1);
        assert_eq!(checkpoint(&services, &place("4"), || ()).await[0].files.len(), 2);
        shard.load(load_request(&place("1"), digests(&first))).await.unwrap();
        assert_eq!(checkpoint(&services, &place("5"), || ()).await[0].files.len(), 1);
    });
}

/// Invariant CK-4: the files of two checkpoints are never taken for one.
#[test]
fn a_delta_is_loaded_with_the_files_that_it_follows_alone() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let services = servers(1, 9);
        push(&services, &(0..100).collect::<Vec<_>>(), 1);
        checkpoint(&services, &folder.path().join("1"), || ()).await;
        push(&services, &[1], 2);
        let place = folder.path().join("2");
        let saved = checkpoint(&services, &place, || ()).await;
        let load = |files: &[FileDigest]| {
            let (request, shard) = (load_request(&place, files.to_vec()), LocalShard::new(placed(1, 0)));
            async move { shard.load(request).await.map(|loaded| loaded.rows).map_err(|refusal| refusal.message) }
        };
        let files = digests(&saved);
        assert_eq!(load(&files).await, Ok(200));
        let refused = load(&files[1..]).await.unwrap_err();
        assert!(refused.contains("follow rows-0-of-1.zrows, which is not named before it"), "{refused}");
        let mut other = files.clone();
        other[0].sha256 = vec![0; 32].into();
        assert!(load(&other).await.unwrap_err().contains("another SHA-256"));
        // A reader of the folder alone finds a damaged byte in the linked file.
        let base = place.join("rows-0-of-1.zrows");
        let mut bytes = fs::read(&base).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&base, bytes).unwrap();
        assert!(load(&files).await.is_err());
    });
}

/// Invariant CK-6, where a checkpoint names files of earlier ones. Each server loads them from where they are.
#[test]
fn files_of_earlier_checkpoints_load_from_the_folders_beside() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let services = servers(2, 9);
        let place = |number: u64| folder.path().join(format!("resume-{number}"));
        push(&services, &(0..100).collect::<Vec<_>>(), 1);
        checkpoint(&services, &place(1), || ()).await;
        push(&services, &[1, 2], 2);
        let mut saved = checkpoint(&services, &place(2), || ()).await;
        for saved in &mut saved {
            fs::remove_file(place(2).join(&saved.files[0].name)).unwrap();
            saved.files[0].name = format!("../resume-1/{}", saved.files[0].name);
        }
        for count in 1..4 {
            assert!(loaded(&place(2), &saved, count).await == (content(&services), 200));
        }
        let load = |name: &str| {
            let files = vec![FileDigest { name: name.to_owned(), ..saved[0].files[0].clone() }];
            let (request, shard) = (load_request(&place(2), files), LocalShard::new(placed(1, 0)));
            async move { shard.load(request).await.unwrap_err().message }
        };
        let missing = load("../resume-3/rows-0-of-2.zrows").await;
        assert!(missing.contains("resume-3/rows-0-of-2.zrows"), "{missing}");
        for path in ["../../rows", "../resume-1/../rows", "/etc/passwd", "resume-1/rows"] {
            assert!(load(path).await.contains("is not the name of a file in the folder"), "{path}");
        }
    });
}
