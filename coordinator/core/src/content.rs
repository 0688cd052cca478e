//! What an embedding server that joins has of the rows that the run has put there.
//!
//! | the process before in its slot | the server joins with | its content |
//! |---|---|---|
//! | none | a log that it has recovered | of another run |
//! | none, or one without a log | no log, or a log that it has made | empty |
//! | one with a log | the same log, recovered | kept |
//! | one with a log | another log, or none | lost |
//!
//! Only kept content serves in the place of the process before (invariant MB-6). A recovered log vouches that the process before is gone: a server locks its log as long as it lives. So a server with
//! kept content takes its slot at once.

use zagros_protocol::Lineage;
use zagros_protocol::control::JoinRequest;

use crate::members::MemberRecord;
use crate::{MemberSlot, Role};

/// The content of an embedding server that joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerContent {
    /// It has no rows. A worker's content, too.
    Empty,
    /// It has every row that the run has put there.
    Kept,
    /// It has rows that the run has not put there.
    Foreign,
    /// It has not the rows that the run has put there.
    Lost { known: Lineage, brought: Option<Lineage> },
}

impl ServerContent {
    /// The content of the asker. `before` is the newest process in its slot.
    pub(crate) fn new(slot: MemberSlot, before: Option<&MemberRecord>, request: &JoinRequest) -> Self {
        let brought = Lineage::from_wire(request.lineage);
        let known = before.and_then(|before| before.lineage);
        // A process asks again when it did not hear the answer.
        let is_same = before.is_some_and(|before| before.instance == request.instance);
        match known {
            _ if slot.role == Role::DenseWorker => Self::Empty,
            None if request.recovered && !is_same => Self::Foreign,
            None => Self::Empty,
            Some(known) if brought == Some(known) && (request.recovered || is_same) => Self::Kept,
            Some(known) => Self::Lost { known, brought },
        }
    }

    /// The content before training has started, when a run has put no rows anywhere.
    pub(crate) fn before_training(self, request: &JoinRequest) -> Self {
        match self {
            Self::Lost { .. } if request.recovered => Self::Foreign,
            Self::Lost { .. } => Self::Empty,
            other => other,
        }
    }
}

/// Why a run ends whose server has come back without its rows, in words.
pub(crate) fn why_lost(slot: MemberSlot, known: Lineage, brought: Option<Lineage>) -> String {
    let brought = match brought {
        Some(brought) => format!("its log is of lineage {brought}, and the rows are in that of lineage {known}"),
        None => format!("it has no log, and the rows are in that of lineage {known}"),
    };
    format!(
        "{slot} came back without the rows that it held: {brought}; its own log lines say why: see that it starts with the \
         same folder (`cluster.log_folder`); start the run again, and it goes on from its newest checkpoint"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::members::Members;

    const SLOT: MemberSlot = MemberSlot::server(1);

    fn request(instance: u64, lineage: u64, recovered: bool) -> JoinRequest {
        JoinRequest { instance, lineage, recovered, ..JoinRequest::default() }
    }

    /// What a server joins with after a process that joined with `before`.
    fn content(before: Option<JoinRequest>, now: &JoinRequest) -> ServerContent {
        let mut members = Members::new(Duration::from_secs(10));
        if let Some(before) = &before {
            members.admit_member(Duration::ZERO, SLOT, before);
        }
        ServerContent::new(SLOT, members.iter().next().map(|(_, record)| record), now)
    }

    #[test]
    fn rows_are_kept_by_the_same_log_alone() {
        let lost = |brought| ServerContent::Lost { known: Lineage(7), brought };
        for (before, now, expected) in [
            (None, request(1, 0, false), ServerContent::Empty),
            (None, request(1, 7, false), ServerContent::Empty),
            (None, request(1, 7, true), ServerContent::Foreign),
            (Some(request(1, 0, false)), request(2, 0, false), ServerContent::Empty),
            (Some(request(1, 0, false)), request(2, 7, true), ServerContent::Foreign),
            (Some(request(1, 7, false)), request(2, 7, true), ServerContent::Kept),
            (Some(request(1, 7, true)), request(2, 7, true), ServerContent::Kept),
            // The answer to its first join was lost.
            (Some(request(1, 7, false)), request(1, 7, false), ServerContent::Kept),
            (Some(request(1, 7, false)), request(2, 7, false), lost(Some(Lineage(7)))),
            (Some(request(1, 7, false)), request(2, 8, true), lost(Some(Lineage(8)))),
            (Some(request(1, 7, false)), request(2, 0, false), lost(None)),
        ] {
            assert_eq!(content(before, &now), expected, "{now:?}");
        }
    }

    #[test]
    fn before_training_nothing_can_be_lost() {
        let lost = ServerContent::Lost { known: Lineage(7), brought: None };
        assert_eq!(lost.before_training(&request(2, 8, true)), ServerContent::Foreign);
        assert_eq!(lost.before_training(&request(2, 8, false)), ServerContent::Empty);
        assert_eq!(ServerContent::Kept.before_training(&request(2, 7, true)), ServerContent::Kept);
    }
}
