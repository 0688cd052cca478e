//! What the coordinator has booked in this worker's name, against what this worker has read.
//!
//! The two differ where an answer was lost on its way, or another process speaks in this worker's name:
//!
//! | booked | this worker | then |
//! |---|---|---|
//! | to be read | never got it | it reads it now: no row of the data is skipped |
//! | complete | never read it | the run ends: rows were not trained on, and no other check would find that |

use zagros_ingest::{SplitTask, StreamStart};
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::Refusal;
use zagros_protocol::control::{PositionRequest, PositionResponse};

use super::splits::{AssignedStream, control_error};
use crate::control::trainer::Trainer;
use crate::error::WorkerError;

impl Trainer {
    /// Splits of an epoch that are this worker's to read and that it was never given. It is in no stream now, and has reported
    /// all that it has read: it does not know what the coordinator still counts as its own.
    ///
    /// # Errors
    /// When the coordinator does not answer in time.
    pub(super) async fn never_given(&mut self, epoch: u32) -> Result<Option<AssignedStream>, WorkerError> {
        let PositionResponse { position, held, .. } = self.books(epoch).await?;
        if held.is_empty() {
            return Ok(None);
        }
        tracing::warn!(
            epoch,
            splits = held.len(),
            "splits were assigned to this worker and never arrived: reading them now"
        );
        let plan = position.unwrap_or_default().plan;
        let mine = plan.into_iter().filter(|split| held.contains(&split.id));
        let tasks: Vec<SplitTask> = mine.map(|split| self.run.splits.task(split)).collect::<Result<_, _>>()?;
        Ok(Some(AssignedStream { order: self.group.row_order(), tasks, start: StreamStart::default() }))
    }

    /// At the end of an epoch: every split is complete, and what is so in this worker's name it has read.
    ///
    /// # Errors
    /// [`WorkerError::Books`] where that is not so; as [`Self::never_given`].
    pub(crate) async fn check_books(&mut self, epoch: u32) -> Result<(), WorkerError> {
        let PositionResponse { position, completed, .. } = self.books(epoch).await?;
        // Not those of this epoch: its end is met again where another worker is lost at it. An id starts with its epoch.
        self.stream.splits_read.retain(|split| split >> 32 >= u64::from(epoch));
        let foreign = completed.iter().filter(|split| !self.stream.splits_read.contains(split)).count();
        let (index, epoch) = (self.run.splits.member as u32, epoch + 1);
        if foreign > 0 {
            let reason = format!(
                "{foreign} splits were reported complete in the name of dense worker {index}, which never read them"
            );
            return Err(WorkerError::Books { epoch, reason });
        }
        let position = position.unwrap_or_default();
        let (splits, done) = (position.plan.len(), position.done.len());
        if done < splits && self.group.leads() {
            let reason = format!("{} of {splits} splits were read by no worker", splits - done);
            return Err(WorkerError::Books { epoch, reason });
        }
        Ok(())
    }

    async fn books(&self, epoch: u32) -> Result<PositionResponse, WorkerError> {
        let (member, incarnation) = (self.run.splits.member, self.run.splits.incarnation);
        let deadline = Deadline::from_now(self.run.job.cluster.timeout);
        let is_away = |refusal: &Refusal| refusal.kind.is_retryable();
        let ask = || self.run.splits.control.position(PositionRequest { member, incarnation, epoch });
        // Not ended by a request to stop: workers who step together go on to their next call together.
        let answer = Backoff::default().retry(deadline, is_away, ask).await;
        answer.map_err(|refusal| control_error(&*self.run.splits.control, "tell the position", deadline, refusal))
    }
}
