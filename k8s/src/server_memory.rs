//! The memory of embedding servers, and what their rows come back from.

use crate::amount;
use crate::crd::RowsRecovery;
use crate::validate::ValidJob;

/// Memory of a server's container where neither the spec nor the job file says how much, bytes.
const SERVER_MEMORY: u64 = 4 << 30;

impl ValidJob {
    #[must_use]
    pub fn recovery(&self) -> RowsRecovery {
        if self.is_durable() { RowsRecovery::Log } else { RowsRecovery::Checkpoint }
    }

    #[must_use]
    pub fn server_rows(&self) -> u64 {
        let limit = || {
            let resources = self.spec.embedding_servers.pod.resources.as_ref()?;
            let limits = [resources.limits.as_ref(), resources.requests.as_ref()];
            limits.into_iter().flatten().find_map(|amounts| amount::bytes(amounts.get("memory")?))
        };
        self.job.cluster.memory.or_else(limit).unwrap_or(SERVER_MEMORY)
    }

    /// The most bytes of rows that one server writes into a checkpoint: those in its memory and those beyond.
    #[must_use]
    pub fn saved_rows(&self) -> u64 {
        self.server_rows().saturating_add(self.rows_beyond_memory())
    }

    /// Rows that do not fit into `cluster.memory`: as many again, or what a larger disk has room for besides two bases
    /// of the log.
    fn rows_beyond_memory(&self) -> u64 {
        let Some(memory) = self.job.cluster.memory else { return 0 };
        let size = self.spec.embedding_servers.storage.as_ref().and_then(|storage| storage.size.as_ref());
        let room = size.and_then(amount::bytes).map(|disk| disk.saturating_sub(2 * memory));
        room.unwrap_or(0).max(memory)
    }

    /// The memory of a server's container, unless the user says otherwise. It follows from `cluster.memory`.
    #[must_use]
    pub fn default_server_memory(&self) -> String {
        match self.job.cluster.memory {
            // An eighth for rows on their way to the cold tier, an eighth for requests, and the process itself.
            Some(bytes) => format!("{}Mi", (bytes + bytes / 4).div_ceil(1 << 20) + 512),
            None => format!("{}Gi", SERVER_MEMORY >> 30),
        }
    }
}
