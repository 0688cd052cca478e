//! Rows beyond memory, as a server runs them: the store behind the tables, what is known of its health, and the thread
//! that keeps the tables within their memory.

mod health;
mod open;
mod tending;
#[cfg(test)]
mod tests;

pub(crate) use health::{Calls, Watched};
pub(crate) use open::{Tier, folder, open};
pub(crate) use tending::Tending;
