//! The coordinator's process over real ports.

mod cluster;
mod page;
