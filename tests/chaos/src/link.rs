//! Faults of the network. Every connection of a round passes through a link: a port of this process that forwards bytes.
//!
//! ```text
//! dense workers ──► link ──► embedding server        one for each server: the address that it advertises
//! each member   ──► link ──► coordinator             one for each member, so that one alone can be cut off
//! ```
//!
//! A link forwards bytes and understands none of them. What it breaks are therefore whole connections, as a network does.

mod connection;
mod gate;
mod name;
mod set;

pub(crate) use gate::LinkState;
pub(crate) use name::LinkName;
pub(crate) use set::RoundLinks;
