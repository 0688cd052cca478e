//! A group of one rank: its calls return at once what they were given.

use crate::{CollectiveError, CollectiveGroup, PendingSum};

#[derive(Clone, Copy, Debug, Default)]
pub struct SingleRank;

impl CollectiveGroup for SingleRank {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn start_all_reduce_sum(&mut self, values: Vec<f32>) -> Result<PendingSum, CollectiveError> {
        Ok(PendingSum::new(values))
    }

    fn wait(&mut self, pending: PendingSum) -> Result<Vec<f32>, CollectiveError> {
        pending.into_state()
    }

    fn reduce_scatter_sum(&mut self, values: Vec<f32>, _: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        Ok(values)
    }

    fn all_gather_parts(&mut self, values: Vec<f32>, _: &[usize]) -> Result<Vec<f32>, CollectiveError> {
        Ok(values)
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(vec![mine.to_vec()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_of_one_changes_nothing() {
        let mut values = [1.5, f32::NAN];
        SingleRank.all_reduce_sum(&mut values).unwrap();
        assert!(values[0] == 1.5 && values[1].is_nan());
        assert_eq!(SingleRank.all_gather(b"all").unwrap(), [b"all"]);
        let pending = SingleRank.start_all_reduce_sum(vec![2.5]).unwrap();
        assert_eq!(SingleRank.wait(pending).unwrap(), [2.5]);
        assert_eq!(SingleRank.reduce_scatter_sum(vec![1.5], &[0, 1]).unwrap(), [1.5]);
        assert_eq!(SingleRank.all_gather_parts(vec![1.5], &[0, 1]).unwrap(), [1.5]);
        SingleRank.barrier().unwrap();
    }
}
