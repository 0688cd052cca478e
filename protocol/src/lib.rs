//! Everything that both ends of a wire must agree on: messages, ids, placement, packed rows, refusals.

#[cfg(target_endian = "big")]
compile_error!("payloads are sent and read as memory has them, and the wire is little-endian");

pub mod bucket;
pub mod id;
pub mod pace;
pub mod packed;
pub mod refusal;

/// Generated from the messages of `proto/zagros/datapath/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod datapath {
    include!("../generated/zagros.datapath.v1.rs");
}

/// Generated from the messages of `proto/zagros/control/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod control {
    include!("../generated/zagros.control.v1.rs");
}

pub use bucket::{BucketMap, bucket_of};
pub use id::{Generation, Lineage, RowKey, RunId, ServerIndex, TableId, counts_batches, member_of_writer, tile_writer};
pub use pace::NumberPace;
pub use packed::{PackError, Segment, Segments};
pub use refusal::{Refusal, RefusalKind};

/// Version of the messages and of every pinned constant in this crate. Both ends of a connection need the same version.
/// The coordinator checks it when a process joins.
pub const PROTOCOL_VERSION: u32 = 15;

/// How many pushes of each writer a server remembers, by sequence number. It answers a retry of a remembered push as a
/// duplicate, and refuses an older number. A writer sends no number this far above its oldest unacknowledged push. The
/// value is four times the largest `train.staleness`.
pub const PUSH_WINDOW: u64 = 4096;
