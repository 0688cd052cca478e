//! What numeric columns are standardised by: measured by the first worker, told to the others.

use std::time::Duration;

use zagros_protocol::Refusal;
use zagros_protocol::control::{Transform, TransformsRequest, TransformsResponse};

use crate::MemberSlot;
use crate::core::Core;

/// Columns that a job may have.
const MOST_COLUMNS: usize = 1 << 16;

/// What the first worker has told of its measuring.
#[derive(Debug, Default)]
pub(crate) struct Transforms {
    measured: Vec<Transform>,
    bytes: u64,
}

impl Core {
    /// A worker tells what it has measured, or asks for it. What was told first stays: a worker that starts again must not
    /// train on other values than the rest.
    ///
    /// # Errors
    /// `Fenced` when it is no longer a member, `Invalid` when another worker than the first tells, or tells no numbers.
    pub fn transforms(&mut self, now: Duration, request: &TransformsRequest) -> Result<TransformsResponse, Refusal> {
        self.advance(now);
        let (slot, _) = self.worker(request.member, request.incarnation)?;
        if slot == MemberSlot::worker(0) {
            check(&request.measured)?;
            self.transforms.bytes = self.transforms.bytes.max(request.bytes);
            if self.transforms.measured.is_empty() {
                self.transforms.measured.clone_from(&request.measured);
            }
        } else if !request.measured.is_empty() {
            return Err(Refusal::invalid(format!("{slot} tells transforms, which dense worker 0 measures")));
        }
        let Transforms { measured, bytes } = &self.transforms;
        Ok(TransformsResponse { measured: measured.clone(), bytes: *bytes })
    }
}

fn check(measured: &[Transform]) -> Result<(), Refusal> {
    let is_number = |of: &Transform| of.mean.is_finite() && of.deviation.is_finite() && of.deviation > 0.0;
    if measured.len() > MOST_COLUMNS || !measured.iter().all(is_number) {
        return Err(Refusal::invalid("the transforms are no means and deviations of a job's columns"));
    }
    Ok(())
}
