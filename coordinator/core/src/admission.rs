//! What a process that joins or reports brings: checks of its request, which read the request alone and run before anything
//! changes, and what an embedding server has of the rows that the run has put there.
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

use zagros_protocol::control::{HeartbeatRequest, JoinRequest, LongWait};
use zagros_protocol::{Lineage, PROTOCOL_VERSION, Refusal, RefusalKind};

use crate::config::CoreConfig;
use crate::members::MemberRecord;
use crate::roster::Roster;
use crate::{MemberSlot, Role};

/// Bytes of an address, of a release and of a transport.
const LONGEST_NAME: usize = 1 << 10;

pub(crate) fn check_same_run(config: &CoreConfig, request: &JoinRequest) -> Result<(), Refusal> {
    let mismatch = |message: String| Err(Refusal::new(RefusalKind::Mismatch, message));
    if request.protocol_version != PROTOCOL_VERSION {
        return mismatch(format!(
            "this process (release {:?}) speaks protocol {}, the coordinator speaks {PROTOCOL_VERSION}; run the \
             same release everywhere",
            request.release, request.protocol_version
        ));
    }
    if request.job_fingerprint != config.fingerprint {
        return mismatch(format!(
            "the job of this process has fingerprint {:016x}, the coordinator's has {:016x}; give every role the \
             same job file and the same --set values (features, tables, model, train and cluster must agree)",
            request.job_fingerprint, config.fingerprint
        ));
    }
    Ok(())
}

pub(crate) fn requested_slot(config: &CoreConfig, request: &JoinRequest) -> Result<MemberSlot, Refusal> {
    let role =
        Role::from_wire(request.role).ok_or_else(|| Refusal::invalid(format!("unknown role {}", request.role)))?;
    let (slot, slots) = (MemberSlot { role, index: request.index }, config.slot_count(role));
    if slot.index >= slots {
        let key = if role == Role::DenseWorker { "cluster.max_workers" } else { "cluster" };
        return Err(Refusal::invalid(format!(
            "there is no {slot}: the job has {slots} (counted from 0); see {key} in the job file"
        )));
    }
    Ok(slot)
}

/// Why a process gets no slot once more.
pub(crate) fn replaced_refusal(slot: MemberSlot) -> Refusal {
    let message = format!(
        "this process has held the place of {slot} before, and was lost, has left, or was replaced by another process since; \
         stop it and start another one"
    );
    Refusal::new(RefusalKind::Fenced, message)
}

/// Checks what a join carries: a server gives its address, and no text is too long.
pub(crate) fn check_join_payload(slot: MemberSlot, request: &JoinRequest) -> Result<(), Refusal> {
    if request.address.len().max(request.release.len()).max(request.transport.len()) > LONGEST_NAME {
        return Err(Refusal::invalid(format!(
            "{slot} sent an address, release or transport above {LONGEST_NAME} bytes"
        )));
    }
    if slot.role == Role::EmbeddingServer && request.address.is_empty() {
        return Err(Refusal::invalid(format!("{slot} does not say where it listens")));
    }
    Ok(())
}

/// Checks that a worker exchanges values with the others as they do.
pub(crate) fn check_same_transport(roster: Roster<'_>, slot: MemberSlot, transport: &str) -> Result<(), Refusal> {
    let other = roster.alive_workers().find(|(other, member)| *other != slot && member.transport != transport);
    let Some((other, member)) = other else { return Ok(()) };
    let message = format!(
        "{slot} exchanges values with other workers by {transport:?}, and {other} by {:?}; start every worker with the same \
         program, with libtorch or without it (docs/models.md)",
        member.transport
    );
    Err(Refusal::new(RefusalKind::Mismatch, message))
}

/// Waits of one process, and bytes and servers of each: no process has as many parts.
const MOST_WAITS: usize = 16;
const LONGEST_WAIT: usize = 512;

/// Limits the size of a report, because the coordinator keeps each report until the next.
pub(crate) fn check_report(config: &CoreConfig, request: &HeartbeatRequest) -> Result<(), Refusal> {
    let is_large = |wait: &LongWait| wait.part.len().max(wait.what.len()).max(wait.indices.len()) > LONGEST_WAIT;
    let waits = &request.long_waits;
    if waits.len() > MOST_WAITS || waits.iter().any(is_large) {
        return Err(Refusal::invalid(format!(
            "a heartbeat reports {} waits, and may report {MOST_WAITS} of at most {LONGEST_WAIT} bytes each",
            waits.len()
        )));
    }
    // A worker may still wait for servers that have left. A server owns a bucket at least.
    let (waits, most) = (request.waits.len(), config.buckets as usize);
    if waits > most {
        return Err(Refusal::invalid(format!(
            "a heartbeat reports on {waits} servers, but {most} buckets can be on {most} servers at most"
        )));
    }
    Ok(())
}

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
}
