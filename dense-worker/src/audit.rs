//! What a worker means to push, reported above the client that routes it: the code below does not notice a part that routing drops.

use zagros_embedding_client::push_record::StartedPush;

/// Keeps account of a worker's pushes, and of the dense network that it ends with. It is called on the training path.
pub trait PushAudit: Send + Sync {
    /// The client is about to route the gradients of a batch.
    fn note_start(&self, push: StartedPush);
    /// By the client's word, all gradients of batch `seq` are acknowledged.
    fn note_end(&self, seq: u64);
    /// Training is over, and these are the weights of the dense network, as they are saved.
    fn note_weights(&self, weights: &[u8]);
}
