//! Checks of a join request. They read the request alone and run before anything changes.

use zagros_protocol::control::{HeartbeatRequest, JoinRequest, LongWait};
use zagros_protocol::{PROTOCOL_VERSION, Refusal, RefusalKind};

use crate::config::CoreConfig;
use crate::{MemberSlot, Role};

/// Bytes of an address, and of a release.
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
    if request.address.len().max(request.release.len()) > LONGEST_NAME {
        return Err(Refusal::invalid(format!("{slot} sent an address or a release of more than {LONGEST_NAME} bytes")));
    }
    if slot.role == Role::EmbeddingServer && request.address.is_empty() {
        return Err(Refusal::invalid(format!("{slot} does not say where it listens")));
    }
    Ok(())
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
