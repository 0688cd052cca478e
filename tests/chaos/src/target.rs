//! What a fault hits.

use zagros_launch::RoleName;

use crate::link::LinkName;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultTarget {
    Process(RoleName),
    Link(LinkName),
    Servers(u32),
}

impl FaultTarget {
    pub(crate) fn display(self) -> String {
        match self {
            Self::Process(role) => role.display_name(),
            Self::Link(link) => link.display(),
            Self::Servers(count) => format!("{count} embedding servers"),
        }
    }

    /// The process that may be started again because of the fault: one that is cut off from the coordinator ends itself.
    pub(crate) fn role(self) -> Option<RoleName> {
        match self {
            Self::Process(role) | Self::Link(LinkName::Coordinator(role)) => Some(role),
            Self::Link(LinkName::Server(_)) | Self::Servers(_) => None,
        }
    }

    pub(crate) fn group(self) -> String {
        match self {
            Self::Process(role) => role.word_and_index().0.to_owned(),
            Self::Link(LinkName::Server(_)) => "workers ↔ server".to_owned(),
            Self::Link(LinkName::Coordinator(role)) => format!("{} ↔ coordinator", role.word_and_index().0),
            Self::Servers(_) => "servers".to_owned(),
        }
    }
}
