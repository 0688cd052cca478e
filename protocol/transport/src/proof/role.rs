//! What a peer proves to be. The order is that of the rights: a role may do what the roles before it may do.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerRole {
    /// Reads the status of the run.
    Client,
    /// Trains: looks rows up, pushes gradients, saves and loads below the folders of the job.
    DenseWorker,
    EmbeddingServer,
    /// Coordinates the run. A person or an operator who controls the run has this role too.
    Coordinator,
}

impl PeerRole {
    /// Every role, from the fewest rights to the most.
    pub const ALL: [Self; 4] = [Self::Client, Self::DenseWorker, Self::EmbeddingServer, Self::Coordinator];

    /// Its name in key files, in certificates and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::DenseWorker => "dense-worker",
            Self::EmbeddingServer => "embedding-server",
            Self::Coordinator => "coordinator",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    pub(super) fn to_byte(self) -> u8 {
        Self::ALL.iter().position(|role| *role == self).map_or(0, |place| place as u8)
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

impl fmt::Display for PeerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_is_found_by_its_name_and_its_byte() {
        for role in PeerRole::ALL {
            assert_eq!(
                (PeerRole::from_name(role.name()), PeerRole::from_byte(role.to_byte())),
                (Some(role), Some(role))
            );
        }
        assert_eq!((PeerRole::from_name("root"), PeerRole::from_byte(4)), (None, None));
        assert!(PeerRole::ALL.is_sorted());
    }
}
