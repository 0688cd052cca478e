//! Counts how often each id is pushed, and with which numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use zagros_embedding_client::{Connect, Shard};
use zagros_protocol::datapath::PushRequest;

use crate::watched::{Watch, Watched};

/// By id of any table, how many acknowledged pushes it was in.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<Mutex<BTreeMap<u64, u32>>>, Arc<Mutex<Vec<Pushed>>>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pushed {
    pub(crate) incarnation: u32,
    pub(crate) seq: u64,
    pub(crate) step: u64,
}

impl Tally {
    pub(crate) fn watch(&self, connect: &Connect) -> Connect {
        let (tally, connect) = (self.clone(), Arc::clone(connect));
        Arc::new(move |entry| Ok(Arc::new(Watched::new(connect(entry)?, tally.clone())) as Arc<dyn Shard>))
    }

    /// Pushes in the order in which they were started.
    pub(crate) fn pushes(&self) -> Vec<Pushed> {
        self.1.lock().unwrap().clone()
    }

    pub(crate) fn by_id(&self) -> BTreeMap<u64, u32> {
        self.0.lock().unwrap().clone()
    }
}

impl Watch for Tally {
    fn pushes(&self, request: &PushRequest) {
        let PushRequest { incarnation, seq, step, .. } = *request;
        self.1.lock().unwrap().push(Pushed { incarnation, seq, step });
    }

    fn pushed(&self, ids: &[u8]) {
        let mut pushes = self.0.lock().unwrap();
        for id in ids.as_chunks::<8>().0 {
            *pushes.entry(u64::from_le_bytes(*id)).or_default() += 1;
        }
    }
}
