//! How a worker comes into a group: what it brings, and whose state all go on with.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use zagros_collective::Collective;

use super::dense::Dense;
use super::group::{Together, all_say, seed_of_rank};
use crate::error::WorkerError;

/// How far a worker is. Of two, the one that is further is the greater: the fields count in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// It has trained in this run, so that its state is worth going on with.
    pub(crate) begun: bool,
    /// Epoch over the data that it is in, from 0; their number once all are over.
    pub(crate) epoch: u32,
    /// Steps made.
    pub(crate) steps: u64,
    /// Steps made before its last evaluation.
    pub(crate) evaluated: u64,
}

/// What a worker shows to the others when it comes.
#[derive(Serialize, Deserialize)]
struct Card {
    standing: Standing,
    /// Checksum of the dense network's weights.
    weights: u32,
    /// Checksum of whatever else must be equal.
    like: u32,
}

/// The rank whose state all go on with: the furthest, of equals the lowest; `None` when nobody has begun.
pub(crate) fn furthest(all: &[Standing]) -> Option<usize> {
    let begun = all.iter().enumerate().filter(|(_, standing)| standing.begun);
    begun.max_by_key(|(rank, standing)| (**standing, Reverse(*rank))).map(|(rank, _)| rank)
}

impl Dense {
    /// Joins the group, once all are sure that they fit together: `like` stands for what must be equal on all, and so
    /// must weights be where nobody has begun. Answers how far each is, by rank.
    ///
    /// # Errors
    /// [`WorkerError::Unequal`] names the workers whose weights or `like` are not rank 0's. When one does not take part.
    pub(crate) fn join(
        &mut self,
        group: Box<dyn Collective>,
        seed: u64,
        like: &[u8],
        standing: Standing,
    ) -> Result<Vec<Standing>, WorkerError> {
        let mut together = Together::of(group);
        let weights = crc32c::crc32c(&self.model.to_safetensors()?);
        let mine = Card { standing, weights, like: crc32c::crc32c(like) };
        let cards = all_say(&mine, |mine| Ok(together.group.all_gather(mine)?))?;
        let has_begun = cards.iter().any(|card| card.standing.begun);
        let differs = |card: &Card| card.like != cards[0].like || (!has_begun && card.weights != cards[0].weights);
        let workers: Vec<usize> = (0..cards.len()).filter(|rank| differs(&cards[*rank])).collect();
        if !workers.is_empty() {
            return Err(WorkerError::Unequal { workers });
        }
        if !standing.begun {
            self.model.drop_by(seed_of_rank(seed, together.group.rank() as u64));
        }
        self.together = Some(together);
        Ok(cards.iter().map(|card| card.standing).collect())
    }

    /// Lets go of a group in which a call has failed. Answers the step that this worker does not know to be made.
    pub(crate) fn leave_group(&mut self) -> Option<super::dense::Stepped> {
        self.together = None;
        self.unapplied.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_furthest_is_followed_and_of_equals_the_lowest_rank() {
        let at = |epoch, steps, evaluated| Standing { begun: true, epoch, steps, evaluated };
        let new = Standing { begun: false, epoch: 9, steps: 9, evaluated: 9 };
        assert_eq!(furthest(&[new, new]), None);
        assert_eq!(furthest(&[new, at(0, 0, 0)]), Some(1));
        assert_eq!(furthest(&[at(0, 7, 0), at(0, 8, 0), at(0, 8, 0)]), Some(1));
        assert_eq!(furthest(&[at(0, 8, 0), at(0, 8, 8), at(0, 7, 0)]), Some(1));
        assert_eq!(furthest(&[at(0, 9, 0), at(1, 8, 0), new]), Some(1));
    }
}
