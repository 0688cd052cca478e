//! The process group: the dense workers that make steps together.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::Refusal;
use zagros_protocol::control::GroupResponse;
use zagros_zip::ZipEq;

use crate::ballots::Voter;
use crate::members::MemberState;
use crate::roster::Roster;
use crate::{MemberSlot, Role};

/// The process groups of a run. A new group forms when a worker is replaced, and when all workers of a group have given it
/// up.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProcessGroups {
    /// Of the newest group; 0 before the first.
    pub(crate) generation: u64,
    /// The newest group, by rank.
    members: Vec<GroupMember>,
    /// By rank: the newest group that the worker can no longer use.
    given_up: Vec<u64>,
    /// The newest group that lost a worker, and whose other workers would wait for it in vain. 0 before the first.
    pub(crate) broken: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GroupMember {
    index: u32,
    incarnation: u32,
}

impl ProcessGroups {
    /// Indices of the workers of the newest group, by rank.
    pub(crate) fn worker_indices(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.index)
    }

    pub(crate) fn has_member(&self, slot: MemberSlot, incarnation: u32) -> bool {
        self.members.contains(&GroupMember { index: slot.index, incarnation })
    }

    pub(crate) fn note_loss(&mut self, slot: MemberSlot) {
        let is_in_group = self.members.iter().any(|member| member.index == slot.index);
        if slot.role == Role::DenseWorker && is_in_group {
            self.broken = self.generation;
        }
    }

    /// The group of a worker that asks for one newer than `after`, once all workers have joined.
    pub(crate) fn form_group(
        &mut self,
        roster: Roster<'_>,
        slot: MemberSlot,
        after: u64,
    ) -> Result<GroupResponse, Refusal> {
        check_nobody_finished(roster)?;
        if let Some(waiting_for) = roster.missing_workers() {
            return Ok(GroupResponse { waiting_for, ..GroupResponse::default() });
        }
        let hidden = roster.group_workers().find(|(_, member)| member.address.is_empty());
        if let Some((hidden, _)) = hidden.filter(|_| roster.config.has_groups()) {
            return Err(Refusal::invalid(format!("{hidden} does not say where it listens")));
        }
        let addresses = roster.group_workers().map(|(_, member)| member.address.clone()).collect();
        let members: Vec<GroupMember> = roster
            .group_workers()
            .map(|(slot, member)| GroupMember { index: slot.index, incarnation: member.incarnation })
            .collect();
        let workers: Vec<u32> = members.iter().map(|member| member.index).collect();
        // The asker is alive, or it would have been refused.
        let Some(rank) = workers.iter().position(|index| *index == slot.index) else {
            return Err(Refusal::invalid(format!("{slot} leaves the run, and is in no process group any more")));
        };
        let generation = match roster.config.asynchronous {
            true => self.generation_of_any(members, after),
            false => self.generation_of(members, rank, after),
        };
        if generation <= after {
            return Ok(GroupResponse { waiting_for: self.waiting_for(), ..GroupResponse::default() });
        }
        let (rank, world) = (rank as u32, workers.len() as u32);
        Ok(GroupResponse { generation, rank, world, waiting_for: String::new(), workers, addresses })
    }

    /// The workers that vote at the barriers of the group of this `generation`, by rank, and the rank of the asker.
    pub(crate) fn voters(
        &self,
        roster: Roster<'_>,
        now: Duration,
        generation: u64,
        (slot, incarnation): (MemberSlot, u32),
    ) -> Result<(Vec<Voter>, usize), Refusal> {
        let asker = GroupMember { index: slot.index, incarnation };
        let rank = self.members.iter().position(|member| *member == asker);
        let Some(rank) = rank.filter(|_| generation == self.generation) else {
            let newest = self.generation;
            return Err(Refusal::invalid(format!(
                "{slot} (incarnation {incarnation}) votes in the process group of generation {generation} and is not in it; \
                 the newest group has generation {newest}"
            )));
        };
        let voter = |member: &GroupMember| member.voter(roster, now);
        Ok((self.members.iter().map(voter).collect(), rank))
    }

    /// The generation of the group with these members, by rank. The newest group keeps its generation if it has the same
    /// members and one of them may still use it.
    fn generation_of(&mut self, members: Vec<GroupMember>, rank: usize, after: u64) -> u64 {
        if self.generation == 0 || self.members != members {
            self.generation += 1;
            self.given_up = vec![0; members.len()];
            self.members = members;
        }
        self.given_up[rank] = self.given_up[rank].max(after);
        if self.remaining().next().is_none() {
            self.generation += 1;
        }
        self.generation
    }

    /// As [`Self::generation_of`] of asynchronous workers: one that gives the group up is enough. The others need the group
    /// only now and then, so they learn from their heartbeats that there is a newer one.
    fn generation_of_any(&mut self, members: Vec<GroupMember>, after: u64) -> u64 {
        if after >= self.generation {
            self.members.clear();
        }
        self.generation_of(members, 0, 0)
    }

    /// Whether a worker of an older group asks, which must join the newest one first.
    pub(crate) fn is_outdated(&self, generation: u64) -> bool {
        (1..self.generation).contains(&generation)
    }

    /// Indices of the workers that have not given the group up.
    fn remaining(&self) -> impl Iterator<Item = u32> {
        let remains = |(member, after): (&GroupMember, &u64)| (*after < self.generation).then_some(member.index);
        self.members.iter().zip_eq(&self.given_up).filter_map(remains)
    }

    fn waiting_for(&self) -> String {
        let remaining: Vec<String> = self.remaining().map(|index| MemberSlot::worker(index).to_string()).collect();
        format!(
            "{} must give up the group of generation {}, or be replaced by another process",
            remaining.join(" and "),
            self.generation
        )
    }
}

impl GroupMember {
    fn voter(self, roster: Roster<'_>, now: Duration) -> Voter {
        let holder = roster.members.newest_holder(MemberSlot::worker(self.index));
        let holder = holder.filter(|holder| holder.incarnation == self.incarnation);
        let silence = holder.map_or(Duration::ZERO, |holder| now.saturating_sub(holder.heard));
        Voter { index: self.index, state: holder.map(|holder| holder.state), silence }
    }
}

fn check_nobody_finished(roster: Roster<'_>) -> Result<(), Refusal> {
    let finished = MemberState::Left { finished: true };
    let gone = roster.members.iter().find(|(slot, member)| slot.role == Role::DenseWorker && member.state == finished);
    match gone {
        Some((slot, _)) => Err(Refusal::invalid(format!(
            "{slot} has finished its part of the run and joins no process group any more; start the run again, and it \
             goes on from its newest checkpoint"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(workers: &[(u32, u32)]) -> Vec<GroupMember> {
        workers.iter().map(|(index, incarnation)| GroupMember { index: *index, incarnation: *incarnation }).collect()
    }

    #[test]
    fn one_asynchronous_worker_that_gives_its_group_up_is_enough_for_the_next() {
        let mut groups = ProcessGroups::default();
        let mut ask = |after| groups.generation_of_any(members(&[(0, 1), (1, 1)]), after);
        assert_eq!([ask(0), ask(0), ask(1), ask(1), ask(0), ask(2)], [1, 1, 2, 2, 2, 3]);
        assert!(groups.is_outdated(2) && !groups.is_outdated(3) && !groups.is_outdated(0));
    }

    #[test]
    fn a_generation_is_one_set_of_processes() {
        let mut groups = ProcessGroups::default();
        let mut ask = |workers: &[(u32, u32)], rank, after| groups.generation_of(members(workers), rank, after);
        assert_eq!([ask(&[(0, 1), (1, 1)], 0, 0), ask(&[(0, 1), (1, 1)], 1, 0)], [1, 1]);
        assert_eq!([ask(&[(0, 1), (1, 2)], 0, 1), ask(&[(0, 1), (1, 2)], 1, 0)], [2, 2]);
        // Without the second, and with it again.
        assert_eq!([ask(&[(0, 1)], 0, 2), ask(&[(0, 1), (1, 3)], 1, 0), ask(&[(0, 1), (1, 3)], 0, 3)], [3, 4, 4]);
    }

    #[test]
    fn the_same_processes_form_another_group_once_all_have_given_up_theirs() {
        let mut groups = ProcessGroups::default();
        // The second of four workers is not in the group.
        let workers = members(&[(0, 1), (2, 1), (3, 1)]);
        let mut ask =
            |rank, after| (groups.generation_of(workers.clone(), rank, after), groups.remaining().collect::<Vec<_>>());
        assert_eq!(ask(0, 0), (1, vec![0, 2, 3]));
        assert_eq!(ask(0, 1), (1, vec![2, 3]));
        assert_eq!(ask(2, 1), (1, vec![2]));
        // The worker asks again while it waits.
        assert_eq!(ask(0, 1), (1, vec![2]));
        assert_eq!(ask(1, 1), (2, vec![0, 2, 3]));
        assert_eq!([ask(0, 1), ask(2, 1)], [(2, vec![0, 2, 3]), (2, vec![0, 2, 3])]);
    }
}
