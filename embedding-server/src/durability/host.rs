//! What a log is kept on.

use std::sync::Arc;

use zagros_log::{LogDisk, SystemDisk};
use zagros_plumbing::boot_id;

use super::tail_bound::LogSizes;

/// The disk and the machine of a log. Tests have a disk that fails, small sizes, and machines that start again.
#[derive(Clone, Debug)]
pub(crate) struct LogHost {
    pub(crate) disk: Arc<dyn LogDisk>,
    pub(crate) sizes: LogSizes,
    /// This start of the machine. `None` where the system does not say it.
    pub(crate) boot: Option<String>,
}

impl Default for LogHost {
    fn default() -> Self {
        Self { disk: Arc::new(SystemDisk), sizes: LogSizes::default(), boot: boot_id() }
    }
}
