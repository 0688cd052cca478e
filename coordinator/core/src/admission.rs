//! Who may join: checks of a request alone. They are made before anything changes.

use zagros_protocol::control::{HeartbeatRequest, JoinRequest};
use zagros_protocol::{PROTOCOL_VERSION, Refusal, RefusalKind};

use crate::config::CoreConfig;
use crate::{MemberSlot, Role};

/// Bytes of an address, and of a release.
const LONGEST_NAME: usize = 1 << 10;

/// Release and job of the process must be those of the run.
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

/// The member slot that a process asks for.
pub(crate) fn requested_slot(config: &CoreConfig, request: &JoinRequest) -> Result<MemberSlot, Refusal> {
    let role =
        Role::from_wire(request.role).ok_or_else(|| Refusal::invalid(format!("unknown role {}", request.role)))?;
    let (slot, slots) = (MemberSlot { role, index: request.index }, config.slots(role));
    if slot.index >= slots {
        return Err(Refusal::invalid(format!(
            "there is no {slot}: the job has {slots} (counted from 0); see cluster in the job file"
        )));
    }
    Ok(slot)
}

/// The join payload of every role: a server must bring its address, and no name may be too long.
pub(crate) fn check_join_payload(slot: MemberSlot, request: &JoinRequest) -> Result<(), Refusal> {
    if request.address.len().max(request.release.len()) > LONGEST_NAME {
        return Err(Refusal::invalid(format!("address and release of {slot} have at most {LONGEST_NAME} bytes")));
    }
    if slot.role == Role::EmbeddingServer && request.address.is_empty() {
        return Err(Refusal::invalid(format!("{slot} does not say where it listens")));
    }
    Ok(())
}

/// The coordinator keeps what a member reports until the next report, so its size has a limit.
pub(crate) fn check_report(config: &CoreConfig, request: &HeartbeatRequest) -> Result<(), Refusal> {
    let (waits, servers) = (request.waits.len(), config.servers as usize);
    if waits > servers {
        return Err(Refusal::invalid(format!("a heartbeat reports on {waits} servers, and the job has {servers}")));
    }
    Ok(())
}
