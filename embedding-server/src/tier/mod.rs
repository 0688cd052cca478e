//! Rows beyond memory, as a server runs them: the store behind the tables, what is known of its health, and the thread
//! that keeps the tables within their memory.

mod health;
mod heap;
mod open;
mod tending;
#[cfg(test)]
mod tests;

pub(crate) use health::{Calls, Watched};
pub(crate) use heap::keep_little;
pub(crate) use open::{Memory, Tier, folder, open};
pub(crate) use tending::Tending;
