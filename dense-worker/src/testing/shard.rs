//! A fake embedding server. Its rows are constants, and it can be slow or broken.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use zagros_embedding_client::Shard;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, FileDigest, LoadRequest, LoadResponse, SaveRequest, SaveResponse, TableStatus,
};
use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest, PushResponse};
use zagros_protocol::packed::{RequestBags, encode_values};
use zagros_protocol::{Refusal, RefusalKind, Segments};

/// Every value of every row is 0.5. Gradients are ignored. Reports one row.
#[derive(Debug, Default)]
pub(crate) struct FakeShard {
    lookups: AtomicU64,
    pushes: AtomicU64,
    /// Batches between lookup and acknowledgement: now, and the most so far.
    open: AtomicUsize,
    most_open: AtomicUsize,
    /// Pushes are acknowledged only once this many batches were open at the same time.
    open_first: usize,
    /// The first refused lookup, counted from 1.
    first_bad_lookup: Option<u64>,
    first_bad_push: Option<u64>,
    hangs: bool,
    cannot_save: bool,
    /// Position among the servers.
    index: u32,
}

impl FakeShard {
    pub(crate) fn acknowledging_once_open(self, open_first: usize) -> Self {
        Self { open_first, ..self }
    }

    pub(crate) fn failing_at_lookup(self, call: u64) -> Self {
        Self { first_bad_lookup: Some(call), ..self }
    }

    pub(crate) fn failing_at_push(self, call: u64) -> Self {
        Self { first_bad_push: Some(call), ..self }
    }

    /// Never answers a lookup.
    pub(crate) fn hanging(self) -> Self {
        Self { hangs: true, ..self }
    }

    pub(crate) fn at(self, index: u32) -> Self {
        Self { index, ..self }
    }

    pub(crate) fn failing_to_save(self) -> Self {
        Self { cannot_save: true, ..self }
    }

    pub(crate) fn pushes(&self) -> u64 {
        self.pushes.load(Ordering::Acquire)
    }

    pub(crate) fn most_open(&self) -> usize {
        self.most_open.load(Ordering::Acquire)
    }
}

fn broken() -> Refusal {
    Refusal::new(RefusalKind::Internal, "as the test wants")
}

impl Shard for FakeShard {
    fn name(&self) -> &str {
        "fake shard"
    }

    fn lookup(&self, request: LookupRequest, _: Deadline) -> BoxFuture<'_, Result<LookupResponse, Refusal>> {
        let call = self.lookups.fetch_add(1, Ordering::AcqRel) + 1;
        let open = self.open.fetch_add(1, Ordering::AcqRel) + 1;
        self.most_open.fetch_max(open, Ordering::AcqRel);
        async move {
            if self.hangs {
                std::future::pending::<()>().await;
            }
            if self.first_bad_lookup.is_some_and(|bad| call >= bad) {
                return Err(broken());
            }
            let segments = Segments::unpack(&request.segments, &request.ids)?;
            let values = RequestBags::unpack(&request.bags, &segments)?.wanted_values(&segments)?;
            let rows = encode_values(&vec![0.5; values], request.encoding)?.into();
            Ok(LookupResponse { rows, encoding: request.encoding, created: 0 })
        }
        .boxed()
    }

    fn push(&self, _: PushRequest, _: Deadline) -> BoxFuture<'_, Result<PushResponse, Refusal>> {
        async move {
            while self.most_open() < self.open_first {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let call = self.pushes.fetch_add(1, Ordering::AcqRel) + 1;
            self.open.fetch_sub(1, Ordering::AcqRel);
            if self.first_bad_push.is_some_and(|bad| call >= bad) {
                return Err(broken());
            }
            Ok(PushResponse { duplicate: false })
        }
        .boxed()
    }

    fn describe(&self, _: DescribeRequest) -> BoxFuture<'_, Result<DescribeResponse, Refusal>> {
        let table = TableStatus { name: "t0".to_owned(), rows: 1, bytes: 64 };
        ready(Ok(DescribeResponse { tables: vec![table] })).boxed()
    }

    fn save(&self, _: SaveRequest) -> BoxFuture<'_, Result<SaveResponse, Refusal>> {
        let file = FileDigest { name: format!("rows-{}.zrows", self.index), ..FileDigest::default() };
        let saved = SaveResponse { files: vec![file], rows: 1, ..SaveResponse::default() };
        let disk_full = Refusal::new(RefusalKind::Internal, "disk full");
        ready(if self.cannot_save { Err(disk_full) } else { Ok(saved) }).boxed()
    }

    fn load(&self, _: LoadRequest) -> BoxFuture<'_, Result<LoadResponse, Refusal>> {
        ready(Ok(LoadResponse { rows: 1 })).boxed()
    }
}
