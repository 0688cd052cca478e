//! The statistics by which features are transformed. The first worker measures and reports them; the others ask for them.

use serde::{Deserialize, Serialize};
use zagros_protocol::Refusal;
use zagros_protocol::control::{Transform, TransformsRequest, TransformsResponse};

use crate::MemberSlot;

/// Statistics that a job may have.
const MOST_STATISTICS: usize = 1 << 16;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Transforms {
    measured: Vec<Transform>,
    bytes: u64,
}

impl Transforms {
    /// Keeps what a worker has measured, or answers with it. The first report stays, because a worker that starts again
    /// must train on the same values as the others.
    pub(crate) fn exchange(
        &mut self,
        slot: MemberSlot,
        request: &TransformsRequest,
    ) -> Result<TransformsResponse, Refusal> {
        if slot == MemberSlot::worker(0) {
            check(&request.measured)?;
            self.bytes = self.bytes.max(request.bytes);
            if self.measured.is_empty() {
                self.measured.clone_from(&request.measured);
            }
        } else if !request.measured.is_empty() {
            return Err(Refusal::invalid(format!("{slot} reports transforms, but only dense worker 0 measures them")));
        }
        Ok(TransformsResponse { measured: self.measured.clone(), bytes: self.bytes })
    }
}

fn check(measured: &[Transform]) -> Result<(), Refusal> {
    let is_number = |of: &Transform| {
        of.mean.is_finite()
            && of.deviation.is_finite()
            && of.deviation >= 0.0
            && of.numbers.iter().all(|n| n.is_finite())
            && of.values.iter().all(|n| n.is_finite())
    };
    if measured.len() > MOST_STATISTICS || !measured.iter().all(is_number) {
        return Err(Refusal::invalid("a number of the transforms is not finite, or there are too many transforms"));
    }
    Ok(())
}
