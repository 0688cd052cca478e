//! Moves of buckets between embedding servers while the run trains: what is wanted, what is under way, what came of it.
//!
//! One move at a time changes the owner of some buckets of one server:
//!
//! ```text
//!            the target reports          it has caught up           the source is frozen, the target has every row
//! Planned ──────────────────► Copying ──────────────────► CaughtUp ──────────────────────────► Committed
//!    └───────────────────────────┴───────────────────────────┴── any failure ──────────────► Abandoned
//! ```
//!
//! Only [`MoveState::CaughtUp`] leads to a commit. Until then the source owns the buckets, and an abandoned move leaves
//! nothing behind that counts. The coordinator's answer decides: source and target ask until they have one, and a report
//! of a move that has ended gets the same answer again.

mod plan;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{BucketMove, MoveVerdict, ReportMoveResponse, ScaleStatus};
use zagros_protocol::{BucketMap, Generation};

use crate::watch::push_bounded;
pub(crate) use plan::plan_owners;
use plan::{PlannedMove, buckets_left, next_move};

/// Pause before the next move after one was abandoned.
const PAUSE: Duration = Duration::from_secs(1);
/// Ended moves whose outcome is remembered. A server asks about its last move alone.
const REMEMBERED: usize = 16;
/// Bytes of a reported reason that are kept.
const LONGEST_REASON: usize = 1 << 10;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Resharding {
    goal: Option<ScaleGoal>,
    pub(crate) active: Option<ActiveMove>,
    /// Ids and outcomes, oldest first.
    ended: VecDeque<(u64, MoveOutcome)>,
    /// Id of the newest move.
    newest: u64,
    not_before: Duration,
    totals: MoveTotals,
    last_failure: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct ScaleGoal {
    servers: u32,
    /// Owner of each bucket; empty once it is reached.
    owners: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MoveState {
    /// The target has not reported yet.
    Planned,
    Copying,
    /// The target has all rows but those of the last moments.
    CaughtUp,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ActiveMove {
    pub(crate) id: u64,
    pub(crate) source: u32,
    pub(crate) target: u32,
    pub(crate) buckets: Vec<u32>,
    pub(crate) state: MoveState,
    /// When it started, or its target last reported.
    heard: Duration,
    rows: u64,
    bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum MoveOutcome {
    Committed(Generation),
    Abandoned(String),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct MoveTotals {
    committed: u64,
    abandoned: u64,
    buckets: u64,
    rows: u64,
    bytes: u64,
    longest_frozen: Duration,
}

/// What a target reports with its rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MoveProgress {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) frozen: Duration,
}

impl fmt::Display for ActiveMove {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, source, target, buckets, .. } = self;
        write!(to, "move {id} ({} buckets from embedding server {source} to {target})", buckets.len())
    }
}

impl Resharding {
    /// The caller has abandoned the move that was under way.
    pub(crate) fn set_goal(&mut self, servers: u32, owners: Vec<u32>) {
        self.goal = Some(ScaleGoal { servers, owners });
        self.not_before = Duration::ZERO;
    }

    /// Number of servers that is wanted; `None` if no scale request has asked for another number.
    pub(crate) fn wanted_servers(&self) -> Option<u32> {
        self.goal.as_ref().map(|goal| goal.servers)
    }

    /// Whether buckets are still to move, or servers to go.
    pub(crate) fn has_goal(&self) -> bool {
        self.pending_goal().is_some()
    }

    /// Every bucket is where it is wanted, and the servers that are left over are gone.
    pub(crate) fn reach_goal(&mut self) {
        self.goal.iter_mut().for_each(|goal| goal.owners = Vec::new());
    }

    pub(crate) fn buckets_left(&self, map: &BucketMap) -> u32 {
        self.pending_goal().map_or(0, |goal| buckets_left(&owners_of(map), &goal.owners))
    }

    fn pending_goal(&self) -> Option<&ScaleGoal> {
        self.goal.as_ref().filter(|goal| !goal.owners.is_empty())
    }

    /// Starts the next move, if one is due and none is under way.
    pub(crate) fn start_next(&mut self, now: Duration, map: &BucketMap) -> Option<&ActiveMove> {
        let goal = self.pending_goal().filter(|_| self.active.is_none() && now >= self.not_before)?;
        let PlannedMove { source, target, buckets } = next_move(&owners_of(map), &goal.owners)?;
        self.newest += 1;
        let (id, state) = (self.newest, MoveState::Planned);
        Some(self.active.insert(ActiveMove { id, source, target, buckets, state, heard: now, rows: 0, bytes: 0 }))
    }

    pub(crate) fn note_progress(&mut self, now: Duration, state: MoveState, progress: MoveProgress) {
        if let Some(active) = &mut self.active {
            (active.heard, active.rows, active.bytes) = (now, progress.rows, progress.bytes);
            // A copy does not fall back: a report that is late changes nothing.
            if active.state != MoveState::CaughtUp {
                active.state = state;
            }
        }
    }

    pub(crate) fn commit(&mut self, generation: Generation, progress: MoveProgress) -> Option<ActiveMove> {
        let active = self.active.take()?;
        let totals = &mut self.totals;
        totals.committed += 1;
        totals.buckets += active.buckets.len() as u64;
        totals.rows += progress.rows;
        totals.bytes += progress.bytes;
        totals.longest_frozen = totals.longest_frozen.max(progress.frozen);
        push_bounded(&mut self.ended, REMEMBERED, (active.id, MoveOutcome::Committed(generation)));
        Some(active)
    }

    pub(crate) fn abandon(&mut self, now: Duration, reason: &str) -> Option<ActiveMove> {
        let active = self.active.take()?;
        let reason = &reason[..reason.floor_char_boundary(LONGEST_REASON)];
        self.totals.abandoned += 1;
        self.last_failure = format!("{active}: {reason}");
        self.not_before = now + PAUSE;
        push_bounded(&mut self.ended, REMEMBERED, (active.id, MoveOutcome::Abandoned(reason.to_owned())));
        Some(active)
    }

    pub(crate) fn is_silent(&self, now: Duration, timeout: Duration) -> bool {
        self.active.as_ref().is_some_and(|active| now.saturating_sub(active.heard) > timeout)
    }

    /// The coordinator itself stood still for `gap` and could hear no report.
    pub(crate) fn extend_wait(&mut self, gap: Duration) {
        if let Some(active) = &mut self.active {
            active.heard += gap;
        }
    }

    /// What became of a move, for its source or target.
    pub(crate) fn move_verdict(&self, id: u64) -> ReportMoveResponse {
        let answer = |verdict: MoveVerdict, generation: Generation, reason: &str| ReportMoveResponse {
            verdict: verdict.into(),
            generation: generation.0,
            reason: reason.to_owned(),
        };
        if self.active.as_ref().is_some_and(|active| active.id == id) {
            return answer(MoveVerdict::Continue, Generation::NONE, "");
        }
        match self.ended.iter().find(|(ended, _)| *ended == id).map(|(_, outcome)| outcome) {
            Some(MoveOutcome::Committed(generation)) => answer(MoveVerdict::Committed, *generation, ""),
            Some(MoveOutcome::Abandoned(reason)) => answer(MoveVerdict::Abandoned, Generation::NONE, reason),
            None => answer(MoveVerdict::Abandoned, Generation::NONE, "the coordinator knows no such move"),
        }
    }

    /// The move under way, as its source and target get it.
    pub(crate) fn announced_move(&self) -> Option<BucketMove> {
        self.active.as_ref().map(|ActiveMove { id, source, target, buckets, .. }| BucketMove {
            id: *id,
            source: *source,
            target: *target,
            buckets: buckets.iter().flat_map(|bucket| bucket.to_le_bytes()).collect::<Vec<u8>>().into(),
        })
    }

    /// For the status page. `waiting_for` says in words why no move is under way.
    pub(crate) fn scale_status(&self, servers: u32, map: &BucketMap, waiting_for: String) -> Option<ScaleStatus> {
        let goal = self.goal.as_ref()?;
        let MoveTotals { committed, abandoned, buckets, rows, bytes, longest_frozen } = self.totals;
        let doing = self.active.as_ref().map(|active| {
            let word = match active.state {
                MoveState::Planned => "waits for its target",
                MoveState::Copying => "copies",
                MoveState::CaughtUp => "hands over",
            };
            format!("{active} {word}: {} rows", active.rows)
        });
        Some(ScaleStatus {
            servers,
            servers_wanted: goal.servers,
            buckets_left: self.buckets_left(map),
            doing: doing.unwrap_or(waiting_for),
            moves_committed: committed,
            moves_abandoned: abandoned,
            buckets_moved: buckets,
            rows_moved: rows,
            bytes_moved: bytes,
            longest_freeze_seconds: longest_frozen.as_secs_f64(),
            last_failure: self.last_failure.clone(),
            ..ScaleStatus::default()
        })
    }
}

pub(crate) fn owners_of(map: &BucketMap) -> Vec<u32> {
    (0..map.bucket_count()).filter_map(|bucket| map.bucket_owner(bucket)).map(|owner| owner.0).collect()
}
