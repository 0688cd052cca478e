//! Logs, cold tiers and saved rows on real disks.

mod log;
mod store;
mod versions;
