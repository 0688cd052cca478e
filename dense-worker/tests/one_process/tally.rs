//! Counts how often each id is pushed, and with which numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use zagros_embedding_client::{Connect, Shard};
use zagros_protocol::datapath::PushRequest;

use crate::watched::{ShardWatch, WatchedShard};

/// By id of any table, how many acknowledged pushes it was in.
#[derive(Clone, Default)]
pub(crate) struct PushTally(Arc<Mutex<BTreeMap<u64, u32>>>, Arc<Mutex<Vec<PushedNumbers>>>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct PushedNumbers {
    pub(crate) incarnation: u32,
    pub(crate) seq: u64,
    pub(crate) step: u64,
}

impl PushTally {
    pub(crate) fn watch(&self, connect: &Connect) -> Connect {
        let (tally, connect) = (self.clone(), Arc::clone(connect));
        Arc::new(move |entry| Ok(Arc::new(WatchedShard::new(connect(entry)?, tally.clone())) as Arc<dyn Shard>))
    }

    /// Pushes in the order in which they were started.
    pub(crate) fn pushes(&self) -> Vec<PushedNumbers> {
        self.1.lock().unwrap().clone()
    }

    pub(crate) fn by_id(&self) -> BTreeMap<u64, u32> {
        self.0.lock().unwrap().clone()
    }
}

impl ShardWatch for PushTally {
    fn pushes(&self, request: &PushRequest) {
        let PushRequest { incarnation, seq, step, .. } = *request;
        self.1.lock().unwrap().push(PushedNumbers { incarnation, seq, step });
    }

    fn pushed(&self, ids: &[u8]) {
        let mut pushes = self.0.lock().unwrap();
        for id in ids.as_chunks::<8>().0 {
            *pushes.entry(u64::from_le_bytes(*id)).or_default() += 1;
        }
    }
}
