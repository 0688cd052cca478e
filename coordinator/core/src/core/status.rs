//! The status: everything a person wants to see of a run.

use std::collections::BTreeSet;
use std::time::Duration;

use zagros_protocol::control::{MemberStatus, ScaleStatus, StatusResponse};

use super::Core;
use crate::members::{MemberRecord, MemberState};
use crate::totals::TrainingTotals;
use crate::warnings::status_warnings;
use crate::watch::millis;
use crate::{MemberSlot, Role};

impl Core {
    pub fn status(&mut self, now: Duration) -> StatusResponse {
        let now = self.advance(now);
        self.view_status(now)
    }

    /// The status as of the last call, at a time that is not before it. It changes nothing.
    pub fn view_status(&self, now: Duration) -> StatusResponse {
        let Self { config, watch, .. } = self;
        let (epoch, splits_done) = self.data.ledger.current_epoch();
        let totals = TrainingTotals::new(&self.members, config.asynchronous, now);
        let members: Vec<_> = self.members.iter().map(|(slot, member)| self.member_status(now, slot, member)).collect();
        let mut status = StatusResponse {
            job: config.job.clone(),
            state: self.run.as_str().to_owned(),
            reason: self.missing_or_outcome(),
            generation: self.placement.generation().0,
            epochs: config.epochs,
            epoch,
            splits: self.data.ledger.plan.len() as u32,
            splits_done,
            splits_held: members.iter().map(|member| member.splits_held).sum(),
            members,
            evaluations: watch.evaluations.iter().copied().collect(),
            elapsed_ms: millis(now),
            history: watch.history.points.clone(),
            checkpoints: watch.checkpoint_marks(now),
            warnings: Vec::new(),
            staleness_bound: config.staleness,
            samples_per_second: totals.moment.samples_per_second,
            step: totals.moment.step,
            samples: totals.samples,
            checkpoint_every_ms: config.checkpoint_every.map_or(0, millis),
            servers: config.servers,
            workers: self.workers_wanted(),
            lease_ms: millis(config.lease),
            timeout_ms: millis(config.timeout),
            group: self.groups.worker_indices().collect(),
            scale: self.scale_status(),
        };
        status.warnings = status_warnings(&status, watch.training_time(now));
        let uneven = self.data.uneven.as_deref().filter(|_| self.run.outcome().is_none());
        status.warnings.extend(uneven.map(str::to_owned));
        status
    }

    fn scale_status(&self) -> Option<ScaleStatus> {
        let waits = || self.roster().missing_servers().map(|missing| format!("waits: {missing}")).unwrap_or_default();
        let left = self.resharding.buckets_left(self.placement.bucket_map()?);
        let waiting_for = if left == 0 { String::new() } else { waits() };
        let servers = self.config.servers;
        let moves = self.resharding.scale_status(servers, self.placement.bucket_map()?, waiting_for);
        let unmoved = || ScaleStatus { servers, servers_wanted: servers, ..ScaleStatus::default() };
        let scale = moves.or_else(|| self.wanted_workers.map(|_| unmoved()))?;
        // Only a scale request while the run trained asks for a number of workers.
        let Some(workers_wanted) = self.wanted_workers else { return Some(scale) };
        Some(ScaleStatus {
            workers: self.training_workers().count() as u32,
            workers_wanted,
            workers_doing: self.worker_changes(),
            ..scale
        })
    }

    /// The workers that train: those of the newest process group that hold their slot.
    fn training_workers(&self) -> impl Iterator<Item = u32> {
        let is_in = move |slot: MemberSlot| {
            self.groups.generation == 0 || self.groups.worker_indices().any(|index| index == slot.index)
        };
        self.roster().alive_workers().map(|(slot, _)| slot).filter(move |slot| is_in(*slot)).map(|slot| slot.index)
    }

    /// Which workers come and go, in words; empty where the run has the workers that it is to have.
    fn worker_changes(&self) -> String {
        let training: BTreeSet<u32> = self.training_workers().collect();
        let change = |index: u32| {
            let slot = MemberSlot::worker(index);
            match self.members.alive_member(slot) {
                Some(member) if member.is_leaving() => Some(format!("{slot} leaves")),
                Some(_) if training.contains(&index) => None,
                Some(_) => Some(format!("{slot} joins")),
                None if index >= self.workers_wanted() => None,
                None => Some(match self.members.member_state(slot) {
                    None | Some(MemberState::GivenUp) => format!("{slot} has not joined"),
                    Some(_) => format!("{slot} is lost"),
                }),
            }
        };
        let changes: Vec<String> = (0..self.config.slot_count(Role::DenseWorker)).filter_map(change).collect();
        changes.join(", ")
    }

    /// Why the run is not training: what it waits for, or how it ended.
    fn missing_or_outcome(&self) -> String {
        let outcome = self.run.outcome().map(|outcome| outcome.reason().to_owned());
        let missing = || self.roster().missing_servers().or_else(|| self.roster().missing_workers());
        outcome.unwrap_or_else(|| missing().unwrap_or_default())
    }

    fn member_status(&self, now: Duration, slot: MemberSlot, member: &MemberRecord) -> MemberStatus {
        MemberStatus {
            role: slot.role.to_wire(),
            index: slot.index,
            address: member.address.clone(),
            state: member.state.as_str().to_owned(),
            incarnation: member.incarnation,
            silent_ms: millis(now.saturating_sub(member.heard)),
            progress: member.progress,
            load: member.load,
            splits_held: self.data.ledger.held_by(slot) as u32,
            waits: member.waits.clone(),
            long_waits: member.long_waits.clone(),
            disk: member.disk,
            buckets: self.owned_buckets(slot),
            still_ms: member.stepped.map(|stepped| millis(now.saturating_sub(stepped))),
        }
    }

    fn owned_buckets(&self, slot: MemberSlot) -> u32 {
        let Some(map) = self.placement.bucket_map().filter(|_| slot.role == Role::EmbeddingServer) else { return 0 };
        let owners = (0..map.bucket_count()).filter_map(|bucket| map.bucket_owner(bucket));
        owners.filter(|owner| owner.0 == slot.index).count() as u32
    }
}
