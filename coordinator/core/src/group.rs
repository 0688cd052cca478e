//! Which processes make up the dense workers that train together.

use std::time::Duration;

use zagros_protocol::Refusal;
use zagros_protocol::control::{GroupRequest, GroupResponse};

use crate::core::Core;
use crate::members::{Member, MemberState};
use crate::{MemberSlot, Role};

/// The group of a run. A worker that is replaced makes another one, and so do workers who have all given it up.
#[derive(Debug, Default)]
pub(crate) struct Group {
    generation: u64,
    /// By rank.
    members: Vec<Place>,
    /// By rank: the newest group that the worker can no longer use.
    given_up: Vec<u64>,
    /// The newest one of which a worker was lost.
    broken: u64,
}

/// A process in a group: index and incarnation of the worker.
type Place = (u32, u32);

impl Group {
    /// The newest; 0 before the first.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The newest of which a worker was lost: its other workers would wait for that one. 0 before the first.
    pub(crate) fn broken(&self) -> u64 {
        self.broken
    }

    /// A worker was lost, perhaps one of the newest group's.
    pub(crate) fn lost(&mut self, slot: MemberSlot) {
        if slot.role == Role::DenseWorker && self.members.iter().any(|(index, _)| *index == slot.index) {
            self.broken = self.generation;
        }
    }

    /// The generation of the group of these workers, by rank: a new one unless they are those of the last and one of
    /// them may still be in it.
    fn generation_of(&mut self, members: Vec<Place>, rank: usize, after: u64) -> u64 {
        if self.generation == 0 || self.members != members {
            self.generation += 1;
            self.given_up = vec![0; members.len()];
            self.members = members;
        }
        self.given_up[rank] = self.given_up[rank].max(after);
        if self.staying().next().is_none() {
            self.generation += 1;
        }
        self.generation
    }

    /// Indices of the workers that have not given the group up.
    fn staying(&self) -> impl Iterator<Item = u32> {
        let stays = |((index, _), after): (&Place, &u64)| (*after < self.generation).then_some(*index);
        self.members.iter().zip(&self.given_up).filter_map(stays)
    }
}

impl Core {
    /// Who the workers are that train together, once each of them is in.
    ///
    /// # Errors
    /// `Fenced` when the caller is no longer a member or the run is over, `Invalid` when rank 0 cannot be reached, or
    /// when a worker has finished and so nobody will train with the caller.
    pub fn group(&mut self, now: Duration, request: &GroupRequest) -> Result<GroupResponse, Refusal> {
        self.advance(now);
        self.check_not_ended()?;
        let (slot, _) = self.worker(request.member, request.incarnation)?;
        self.check_nobody_finished()?;
        if let Some(waiting_for) = self.waiting_for_workers() {
            return Ok(GroupResponse { waiting_for, ..GroupResponse::default() });
        }
        let alive = |index| self.members.alive(MemberSlot::worker(index)).map(|member| (index, member));
        let members: Vec<(u32, &Member)> = (0..self.config.workers).filter_map(alive).collect();
        let store = members.first().map(|(_, first)| first.address.clone()).unwrap_or_default();
        if store.is_empty() && self.config.workers > 1 {
            return Err(Refusal::invalid(format!("{} does not say where it listens", MemberSlot::worker(0))));
        }
        let workers: Vec<u32> = members.iter().map(|(index, _)| *index).collect();
        let places = members.iter().map(|(index, member)| (*index, member.incarnation)).collect();
        // The caller is alive, or it would have been refused.
        let rank = workers.iter().position(|index| *index == slot.index).unwrap_or_default();
        let generation = self.group.generation_of(places, rank, request.after);
        if generation <= request.after {
            let staying: Vec<String> =
                self.group.staying().map(|index| MemberSlot::worker(index).to_string()).collect();
            let waiting_for = format!(
                "neither has {} given up the group of generation {generation}, nor has another process taken its place",
                staying.join(", nor ")
            );
            return Ok(GroupResponse { waiting_for, ..GroupResponse::default() });
        }
        let (rank, world) = (rank as u32, workers.len() as u32);
        Ok(GroupResponse { generation, rank, world, store, waiting_for: String::new(), workers })
    }

    /// What has finished comes into no group any more.
    fn check_nobody_finished(&self) -> Result<(), Refusal> {
        let finished = MemberState::Left { finished: true };
        let gone =
            self.members.iter().find(|(slot, member)| slot.role == Role::DenseWorker && member.state == finished);
        match gone {
            Some((slot, _)) => Err(Refusal::invalid(format!(
                "{slot} has finished its part of the run and trains with nobody any more; start the run again, and it \
                 goes on from its newest checkpoint"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_one_set_of_processes() {
        let mut group = Group::default();
        let mut ask = |members: &[Place], rank, after| group.generation_of(members.to_vec(), rank, after);
        assert_eq!([ask(&[(0, 1), (1, 1)], 0, 0), ask(&[(0, 1), (1, 1)], 1, 0)], [1, 1]);
        assert_eq!([ask(&[(0, 1), (1, 2)], 0, 1), ask(&[(0, 1), (1, 2)], 1, 0)], [2, 2]);
        // Without the second, and with it again.
        assert_eq!([ask(&[(0, 1)], 0, 2), ask(&[(0, 1), (1, 3)], 1, 0), ask(&[(0, 1), (1, 3)], 0, 3)], [3, 4, 4]);
    }

    #[test]
    fn the_same_processes_get_another_group_once_all_have_given_theirs_up() {
        let mut group = Group::default();
        // The second of four workers is not in it.
        let members = vec![(0, 1), (2, 1), (3, 1)];
        let mut ask =
            |rank, after| (group.generation_of(members.clone(), rank, after), group.staying().collect::<Vec<_>>());
        assert_eq!(ask(0, 0), (1, vec![0, 2, 3]));
        assert_eq!(ask(0, 1), (1, vec![2, 3]));
        assert_eq!(ask(2, 1), (1, vec![2]));
        // Asked again while it waits.
        assert_eq!(ask(0, 1), (1, vec![2]));
        assert_eq!(ask(1, 1), (2, vec![0, 2, 3]));
        assert_eq!([ask(0, 1), ask(2, 1)], [(2, vec![0, 2, 3]), (2, vec![0, 2, 3])]);
    }
}
