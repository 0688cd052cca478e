//! One member in the status of a run.

use serde::Serialize;
use zagros_coordinator_core::{MemberSlot, Role};
use zagros_protocol::control::{MemberStatus, ServerWait};

/// What a member reports of these is shown as it is.
pub use zagros_protocol::control::{
    Disk as DiskReport, Progress as ProgressReport, ServerLoad as LoadReport, StageSeconds as StageReport,
};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemberReport {
    /// `embedding server 1`.
    pub name: String,
    /// `embedding server` or `dense worker`.
    pub role: String,
    pub index: u32,
    /// `host:port` of its data path; empty for workers.
    pub address: String,
    /// `alive`, `left` or `lost`.
    pub state: String,
    /// How many processes have taken this slot.
    pub incarnation: u32,
    pub silent_seconds: f64,
    pub splits_held: u32,
    pub progress: Option<ProgressReport>,
    pub load: Option<LoadReport>,
    pub buckets: u32,
    /// Servers that let a worker wait for a second or longer.
    pub waits: Vec<WaitReport>,
    /// The disk it writes to, where it writes to one: a worker's run folder, a server's cold tier.
    pub disk: Option<DiskReport>,
    /// Seconds since a worker's step last changed; `null` before its first.
    pub still_seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaitReport {
    pub server: u32,
    pub lookups: u32,
    pub pushes: u32,
    /// How long the oldest of them has waited, seconds, retries included.
    pub oldest_seconds: f64,
}

impl MemberReport {
    pub fn activity_in_words(&self) -> String {
        let address = (!self.address.is_empty()).then(|| self.address.clone());
        let load = self.load.map(|load| load_in_words(&load, self.buckets));
        let progress = self.progress.map(|progress| {
            let ProgressReport { step, samples_per_second, loss, .. } = progress;
            format!("step {step}, {samples_per_second:.0} samples/s, loss {loss:.4}, {} splits held", self.splits_held)
        });
        let wait = |wait: &WaitReport| format!("waits for server {} ({:.1} s)", wait.server, wait.oldest_seconds);
        let waits = (!self.waits.is_empty()).then(|| self.waits.iter().map(wait).collect::<Vec<_>>().join(", "));
        let silence = (self.state != "left").then(|| format!("heard {:.1} s ago", self.silent_seconds));
        [address, load, progress, waits, silence].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl From<MemberStatus> for MemberReport {
    fn from(member: MemberStatus) -> Self {
        let role = Role::from_wire(member.role);
        let unknown = || format!("role {}", member.role);
        Self {
            name: role.map_or_else(unknown, |role| MemberSlot { role, index: member.index }.to_string()),
            role: role.map_or_else(unknown, |role| role.to_string()),
            index: member.index,
            address: member.address,
            state: member.state,
            incarnation: member.incarnation,
            silent_seconds: member.silent_ms as f64 / 1e3,
            splits_held: member.splits_held,
            progress: member.progress,
            load: member.load,
            buckets: member.buckets,
            waits: member.waits.into_iter().map(WaitReport::from).collect(),
            disk: member.disk,
            still_seconds: member.still_ms.map(|millis| millis as f64 / 1e3),
        }
    }
}

impl From<ServerWait> for WaitReport {
    fn from(ServerWait { server, lookups, pushes, oldest_ms }: ServerWait) -> Self {
        Self { server, lookups, pushes, oldest_seconds: oldest_ms as f64 / 1e3 }
    }
}

fn load_in_words(load: &LoadReport, buckets: u32) -> String {
    let held = format!("{buckets} buckets, {} rows, {:.1} MiB", load.rows, load.bytes as f64 / f64::from(1 << 20));
    let hit_rate = load.hit_rate.map(|rate| format!("{:.0} % hits", rate * 100.0));
    let p99 = load.lookup_seconds_p99.map(|seconds| format!("lookups p99 {:.1} ms", seconds * 1e3));
    std::iter::once(held).chain(hit_rate).chain(p99).collect::<Vec<_>>().join(", ")
}
