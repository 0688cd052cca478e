//! Faults of the network. Every connection of a round passes through a link: a port of this process that forwards bytes.
//!
//! ```text
//! dense workers ──► link ──► embedding server        one for each server: the address that it advertises
//! each member   ──► link ──► coordinator             one for each member, so that one alone can be cut off
//! ```
//!
//! A link forwards bytes and understands none of them. What it breaks are therefore whole connections, as a network does.

mod connection;
mod set;

use std::path::Path;

use zagros_shell::Announcement;
use zagros_shell::launch::RoleName;

pub(crate) use connection::LinkState;
pub(crate) use set::RoundLinks;

/// Which link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkName {
    /// All workers, and an embedding server.
    Server(u32),
    /// A member, and the coordinator.
    Coordinator(RoleName),
}

impl LinkName {
    /// The name for people.
    pub(crate) fn display(self) -> String {
        match self {
            Self::Server(index) => format!("workers ↔ embedding server {index}"),
            Self::Coordinator(member) => format!("{} ↔ coordinator", member.display_name()),
        }
    }

    /// Where the process behind the link listens now; `None` while there is none.
    pub(crate) fn destination(self, run: &Path) -> Option<String> {
        let role = match self {
            Self::Server(index) => RoleName::EmbeddingServer(index),
            Self::Coordinator(_) => RoleName::Coordinator,
        };
        Announcement::read(&role.announcement_file(run)).map(|announced| announced.address)
    }
}
