//! Embedding servers and their clients: in this process or over loopback.

pub mod drive;
pub mod limits;
pub mod side;
