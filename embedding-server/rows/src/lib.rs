//! Rows as files: [`log`] has changed rows until a checkpoint has them, [`cold`] rows that memory has no room for, [`snapshot`] saved rows.

pub mod cold;
pub mod log;
pub mod snapshot;
