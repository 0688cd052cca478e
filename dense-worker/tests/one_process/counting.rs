//! Counts the payload bytes of what a shard is asked and what it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zagros_protocol::datapath::{LookupRequest, LookupResponse, PushRequest};

use crate::watched::ShardWatch;

pub(crate) struct PayloadCounter(pub(crate) Arc<AtomicU64>);

impl PayloadCounter {
    fn count(&self, payloads: &[&[u8]]) {
        let bytes: usize = payloads.iter().map(|payload| payload.len()).sum();
        self.0.fetch_add(bytes as u64, Ordering::AcqRel);
    }
}

impl ShardWatch for PayloadCounter {
    fn looks_up(&self, request: &LookupRequest) {
        self.count(&[&request.segments, &request.ids, &request.bags]);
    }

    fn looked_up(&self, answer: &LookupResponse) {
        self.count(&[&answer.rows]);
    }

    fn pushes(&self, request: &PushRequest) {
        self.count(&[&request.segments, &request.ids, &request.bags, &request.gradients]);
    }
}
