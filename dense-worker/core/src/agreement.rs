//! What the ranks of a synchronous group agree on before a step.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepVote {
    pub stop: bool,
    /// A checkpoint is due after the step. Rank 0 says so.
    pub checkpoint: bool,
    /// Another worker waits to join, as rank 0 says. Or this rank leaves the run, which goes on without it.
    pub regroup: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepAgreement {
    /// Samples of all ranks; 0 when no rank has a batch.
    pub samples: u64,
    pub stop: bool,
    pub checkpoint: bool,
    /// All leave the group, for one with more or fewer workers, in place of the step.
    pub regroup: bool,
}

impl StepAgreement {
    /// The agreement with one more rank in it, which brings so many samples.
    #[must_use]
    pub fn with_vote(self, vote: StepVote, samples: u64) -> Self {
        let StepVote { stop, checkpoint, regroup } = vote;
        Self {
            samples: self.samples + samples,
            stop: self.stop | stop,
            checkpoint: self.checkpoint | checkpoint,
            regroup: self.regroup | regroup,
        }
    }
}

/// What a vote depends on besides the loop's own state. The driver looks it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepFacts {
    /// So much time has passed since the last checkpoint that another is due.
    pub checkpoint_by_time: bool,
    /// The generation of the newest group that the coordinator has formed.
    pub newest_group: u64,
    /// This worker was asked to end, and the run goes on without it.
    pub leaves: bool,
}

/// How a rank votes on one step. The driver asks it early when the next batch is there before a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteRule {
    pub(crate) leads: bool,
    pub(crate) is_due_by_step: bool,
    pub(crate) generation: u64,
}

impl VoteRule {
    #[must_use]
    pub fn vote(self, facts: StepFacts) -> StepVote {
        let checkpoint = self.leads && (self.is_due_by_step || facts.checkpoint_by_time);
        let regroup = self.leads && facts.newest_group > self.generation;
        StepVote { stop: false, checkpoint, regroup }
    }
}
