//! Which link.

use std::path::Path;

use zagros_launch::RoleName;
use zagros_shell::Announcement;

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
