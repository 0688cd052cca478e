//! What a job says about its embedding servers as a whole.

use super::{AdmissionPolicy, Job, Table};

impl Job {
    /// Why the number of embedding servers of this job cannot change while it trains. `None` if it can.
    #[must_use]
    pub fn fixed_servers(&self) -> Option<String> {
        if self.cluster.memory.is_some() {
            return Some("rows beyond memory (`cluster.memory`) cannot move yet".to_owned());
        }
        let counts = |table: &&Table| matches!(table.admission, AdmissionPolicy::Count { .. });
        let table = self.tables.iter().find(counts)?;
        let name = &table.name;
        Some(format!("table `{name}` counts ids before it admits them (`admission`), and counts cannot move yet"))
    }
}
