//! Requests to describe, save and load: into the real handlers of an embedding server. No message makes the server take more memory than its
//! size allows. Files of rows that may have been cut, changed or never been any.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use bolero::{TypeGenerator, check};
use prost::Message;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use zagros_embedding_client::Shard;
use zagros_embedding_server::LocalShard;
use zagros_protocol::control::{DescribeRequest, FileDigest, LoadRequest, SaveRequest};
use zagros_rows::snapshot::{SavedFile, verify_file};

use crate::allocations::AllocatedBytes;
use crate::messages::service;

/// What any request may take: buffers of a file, of which a load opens one after another.
const LEAST: usize = 4 << 20;
/// What a byte of a message may take: names are copied into paths and errors.
const A_BYTE: usize = 256;

#[derive(Clone, Debug, TypeGenerator)]
struct StorageClaims {
    saves: bool,
    stage: u8,
    attempt: u8,
    folder: u8,
    files: Vec<(u8, u8, Vec<u8>)>,
}

struct FuzzedStorage {
    folder: TempDir,
    shard: LocalShard,
    runtime: Runtime,
    /// Of this thread and of those that serve.
    count: &'static AllocatedBytes,
}

impl FuzzedStorage {
    fn new() -> Self {
        let (service, count) = (service(), AllocatedBytes::new());
        count.count_this_thread();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).enable_all().on_thread_start(|| count.count_this_thread());
        let runtime = runtime.build().expect("a runtime");
        let shard = LocalShard::new(service);
        Self { folder: TempDir::new().expect("a folder"), shard, runtime, count }
    }

    fn below(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn save(&self, request: SaveRequest) -> bool {
        let size = request.encoded_len();
        let (saved, bytes) = self.count.during(|| self.runtime.block_on(self.shard.save(request)));
        assert!(bytes <= LEAST + A_BYTE * size, "{bytes} bytes for a message of {size}");
        saved.is_ok()
    }

    fn load(&self, request: LoadRequest) -> bool {
        let size = request.encoded_len();
        let (loaded, bytes) = self.count.during(|| self.runtime.block_on(self.shard.load(request)));
        assert!(bytes <= LEAST + A_BYTE * size, "{bytes} bytes for a message of {size}");
        self.runtime.block_on(self.shard.describe(DescribeRequest {})).expect("it says what it holds");
        loaded.is_ok()
    }
}

impl StorageClaims {
    /// A good name, or one that leads elsewhere.
    fn file(&self, (name, bytes, text): &(u8, u8, Vec<u8>), good: &FileDigest) -> FileDigest {
        let name = match name % 8 {
            0 => "../rows.zrows".to_owned(),
            1 => "/etc/passwd".to_owned(),
            2 => String::new(),
            3 => String::from_utf8_lossy(text).into_owned(),
            _ => good.name.clone(),
        };
        let bytes = match bytes % 4 {
            0 => u64::MAX,
            1 => u64::from(*bytes),
            _ => good.bytes,
        };
        let sha256 = if text.len().is_multiple_of(2) { good.sha256.clone() } else { text.clone().into() };
        FileDigest { name, bytes, sha256 }
    }
}

#[test]
fn requests_to_save_and_load_take_no_more_memory_than_their_size_allows() {
    let server = AssertUnwindSafe(FuzzedStorage::new());
    let request = SaveRequest { folder: server.below("good"), ..SaveRequest::default() };
    let saved = server.runtime.block_on(server.shard.save(request)).expect("an empty model is saved");
    let (done, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    check!().with_iterations(600).with_type::<StorageClaims>().for_each(|claims| {
        let server = &server;
        let folder = server.below(["good", "", "new", "good/below", "gone/../good"][usize::from(claims.folder % 5)]);
        let is_done = if claims.saves {
            let (stage, attempt) = (i32::from(claims.stage % 5), u64::from(claims.attempt % 4));
            server.save(SaveRequest { folder, stage, attempt, ..SaveRequest::default() })
        } else {
            let files = claims.files.iter().map(|file| claims.file(file, &saved.files[0])).collect();
            server.load(LoadRequest { folder, files, ..LoadRequest::default() })
        };
        if is_done { &done } else { &refused }.fetch_add(1, Ordering::Relaxed);
    });
    let (done, refused) = (done.into_inner(), refused.into_inner());
    assert!(done > 50 && refused > 50, "{done} done, {refused} refused");
}

#[test]
fn noise_is_answered_or_refused() {
    let server = AssertUnwindSafe(FuzzedStorage::new());
    check!().with_iterations(2_000).with_type::<Vec<u8>>().for_each(|bytes| {
        let server = &server;
        if let Ok(request) = LoadRequest::decode(&bytes[..]) {
            server.load(LoadRequest { folder: server.below("good"), ..request });
        }
        if let Ok(request) = SaveRequest::decode(&bytes[..]) {
            server.save(SaveRequest { folder: server.below("noise"), ..request });
        }
    });
}

const GOOD: [&[u8]; 2] = [
    include_bytes!("../../../embedding-server/rows/tests/fixtures/v3.zrows"),
    include_bytes!("../../../embedding-server/rows/tests/fixtures/v2.zrows"),
];

/// Whether the bytes are a whole file; if not, the reason names the file.
fn is_whole(folder: &TempDir, bytes: &[u8]) -> bool {
    let path = folder.path().join("rows.zrows");
    fs::write(&path, bytes).expect("room for a small file");
    verify_file(&SavedFile::on_disk(&path), |_| ())
        .map_err(|error| assert!(error.to_string().contains("rows.zrows"), "{error}"))
        .is_ok()
}

#[test]
fn noise_is_no_file_of_rows() {
    let folder = TempDir::new().expect("a folder");
    check!().with_type::<Vec<u8>>().for_each(|noise| {
        assert!(!is_whole(&folder, noise));
        // Behind a start that looks right.
        assert!(!is_whole(&folder, &[&GOOD[1][..16], noise].concat()));
    });
}

#[test]
fn a_file_that_was_changed_anywhere_is_noticed() {
    let folder = TempDir::new().expect("a folder");
    check!().with_type::<(bool, u16, u8, u8)>().for_each(|(newer, place, kind, byte)| {
        let good = GOOD[usize::from(*newer)];
        assert!(is_whole(&folder, good));
        let (place, mut bytes) = (usize::from(*place) % good.len(), good.to_vec());
        match kind % 4 {
            0 => bytes[place] = *byte,
            1 => bytes.truncate(place),
            2 => bytes.insert(place, *byte),
            _ => drop(bytes.remove(place)),
        }
        assert!(bytes == good || !is_whole(&folder, &bytes), "a change at byte {place} went unnoticed");
    });
}
