//! Who may join: the checks, all made before anything changes.

use zagros_protocol::control::{DataFile, HeartbeatRequest, JoinRequest};
use zagros_protocol::{PROTOCOL_VERSION, Refusal, RefusalKind};

use crate::core::Core;
use crate::{MemberSlot, Role};

/// Training files of a run.
const MOST_FILES: usize = 1 << 18;
/// Bytes of an address, and of a release.
const LONGEST_NAME: usize = 1 << 10;

impl Core {
    pub(crate) fn check_not_ended(&self) -> Result<(), Refusal> {
        match self.run.outcome() {
            Some(outcome) => Err(Refusal::new(RefusalKind::Fenced, format!("the run is over ({outcome})"))),
            None => Ok(()),
        }
    }

    pub(crate) fn check_same_run(&self, request: &JoinRequest) -> Result<(), Refusal> {
        let mismatch = |message: String| Err(Refusal::new(RefusalKind::Mismatch, message));
        if request.protocol_version != PROTOCOL_VERSION {
            return mismatch(format!(
                "this process (release {:?}) speaks protocol {}, the coordinator speaks {PROTOCOL_VERSION}; run the \
                 same release everywhere",
                request.release, request.protocol_version
            ));
        }
        if request.job_fingerprint != self.config.fingerprint {
            return mismatch(format!(
                "the job of this process has fingerprint {:016x}, the coordinator's has {:016x}; give every role the \
                 same job file and the same --set values (features, tables, model, train and cluster must agree)",
                request.job_fingerprint, self.config.fingerprint
            ));
        }
        Ok(())
    }

    pub(crate) fn slot(&self, request: &JoinRequest) -> Result<MemberSlot, Refusal> {
        let role =
            Role::from_wire(request.role).ok_or_else(|| Refusal::invalid(format!("unknown role {}", request.role)))?;
        let slot = MemberSlot { role, index: request.index };
        let slots = match role {
            Role::EmbeddingServer => self.config.servers,
            Role::DenseWorker => self.config.workers,
        };
        if slot.index >= slots {
            let message =
                format!("there is no {slot}: the job has {slots} (counted from 0); see cluster in the job file");
            return Err(Refusal::invalid(message));
        }
        Ok(slot)
    }

    /// What a role must bring along: a server its address, a worker its files.
    pub(crate) fn check_baggage(&self, slot: MemberSlot, request: &JoinRequest) -> Result<(), Refusal> {
        if request.address.len().max(request.release.len()) > LONGEST_NAME {
            return Err(Refusal::invalid(format!("address and release of {slot} have at most {LONGEST_NAME} bytes")));
        }
        match slot.role {
            Role::EmbeddingServer if request.address.is_empty() => {
                Err(Refusal::invalid(format!("{slot} does not say where it listens")))
            }
            Role::EmbeddingServer => Ok(()),
            Role::DenseWorker => self.check_files(slot, &request.files),
        }
    }

    /// What a member tells of itself is kept until it tells something else.
    pub(crate) fn check_report(&self, request: &HeartbeatRequest) -> Result<(), Refusal> {
        let (waits, servers) = (request.waits.len(), self.config.servers as usize);
        if waits > servers {
            return Err(Refusal::invalid(format!("a heartbeat tells of {waits} servers, and the job has {servers}")));
        }
        Ok(())
    }

    /// The first worker's files become the run's; the others must have the same.
    fn check_files(&self, slot: MemberSlot, files: &[DataFile]) -> Result<(), Refusal> {
        if files.len() > MOST_FILES {
            let message = format!("{slot} brought {} training files, and a run has at most {MOST_FILES}", files.len());
            return Err(Refusal::invalid(message));
        }
        if files.iter().all(|file| file.bytes == 0) {
            return Err(Refusal::invalid(format!("{slot} brought no training data: {} files, 0 bytes", files.len())));
        }
        if self.epochs.is_none() || self.files == files {
            return Ok(());
        }
        let differs = (0..files.len().max(self.files.len())).find(|index| self.files.get(*index) != files.get(*index));
        let describe = |files: &[DataFile]| match differs.and_then(|index| files.get(index)) {
            Some(file) => format!("{} ({} bytes, content {:016x})", file.path, file.bytes, file.fingerprint),
            None => "nothing".to_owned(),
        };
        let message = format!(
            "{slot} reads other training files than the worker that joined first: {} where that has {}",
            describe(files),
            describe(&self.files)
        );
        Err(Refusal::new(RefusalKind::Mismatch, message))
    }
}
