//! Counts how often each id is pushed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use zagros_embedding_client::{Connect, Shard};

use crate::watched::{Watch, Watched};

/// By id of any table, how many acknowledged pushes it was in.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Tally {
    /// Counts what goes to any of the shards.
    pub(crate) fn of(&self, connect: &Connect) -> Connect {
        let (tally, connect) = (self.clone(), Arc::clone(connect));
        Arc::new(move |entry| Ok(Arc::new(Watched::new(connect(entry)?, tally.clone())) as Arc<dyn Shard>))
    }

    pub(crate) fn by_id(&self) -> BTreeMap<u64, u32> {
        self.0.lock().unwrap().clone()
    }
}

impl Watch for Tally {
    fn pushed(&self, ids: &[u8]) {
        let mut pushes = self.0.lock().unwrap();
        for id in ids.as_chunks::<8>().0 {
            *pushes.entry(u64::from_le_bytes(*id)).or_default() += 1;
        }
    }
}
