//! The threads of a step: each takes a share of the batch, then a share of summing up the gradients.

use super::{CHUNK, Pass, Share};
use crate::model::flat::Flat;
use crate::model::mlp::Dropout;
use crate::model::{InputShape, ModelError, Network};

/// Threads that make one step together. There is no wait inside a share, so they meet twice a step and not
/// in every product. What a step gives depends on how many they are, by rounding (and dropout), and on nothing else.
#[derive(Debug)]
pub(in crate::model) struct Team {
    lead: Member,
    /// Each with the gradients that its pass writes.
    others: Vec<(Member, Flat)>,
}

#[derive(Debug)]
struct Member {
    pass: Pass,
    dropout: Dropout,
}

impl Team {
    /// None for networks that have only autograd. Steps write to `gradients`.
    pub(in crate::model) fn of(
        network: &Network,
        shape: &InputShape,
        gradients: &Flat,
        threads: usize,
        dropout: impl Fn(u64) -> Dropout,
    ) -> Result<Option<Self>, ModelError> {
        let Some(pass) = Pass::of(network, shape, gradients.views())? else { return Ok(None) };
        let lead = Member { pass, dropout: dropout(0) };
        let mut others = Vec::new();
        for index in 1..threads {
            let own = gradients.twin()?;
            let Some(pass) = Pass::of(network, shape, own.views())? else { return Ok(None) };
            others.push((Member { pass, dropout: dropout(index as u64) }, own));
        }
        Ok(Some(Self { lead, others }))
    }

    /// Has other units dropped from now on; `dropout` is asked for each thread's.
    pub(in crate::model) fn drop_by(&mut self, dropout: impl Fn(u64) -> Dropout) {
        self.lead.dropout = dropout(0);
        for (index, (member, _)) in self.others.iter_mut().enumerate() {
            member.dropout = dropout(index as u64 + 1);
        }
    }

    /// Dropout draws as it does in this step.
    pub(in crate::model) fn draw_for(&mut self, step: u64) {
        self.lead.dropout.draw_for(step);
        self.others.iter_mut().for_each(|(member, _)| member.dropout.draw_for(step));
    }

    /// Forward and backward; the variables' gradients are then those of the mean loss of the batch, which is given.
    pub(in crate::model) fn run(&mut self, mut batch: Share<'_>, gradients: &mut Flat) -> Result<f32, ModelError> {
        let samples = batch.labels.len();
        let each = samples.div_ceil(self.others.len() + 1).next_multiple_of(CHUNK.min(samples.max(1)));
        let Self { lead, others } = self;
        let first = batch.split_off(each.min(samples));
        let (sum, busy) = std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (member, _) in others.iter_mut() {
                // A member without samples would bring what it wrote for an earlier batch.
                if batch.labels.is_empty() {
                    break;
                }
                let share = batch.split_off(each.min(batch.labels.len()));
                running.push(scope.spawn(move || member.run(share, samples)));
            }
            let mut sum = lead.run(first, samples)?;
            let busy = running.len();
            for thread in running {
                sum += thread.join().unwrap_or(Err(ModelError::Thread))?;
            }
            Ok::<_, ModelError>((sum, busy))
        })?;
        let parts: Vec<&[f32]> = others.iter().take(busy).map(|(_, own)| own.values()).collect();
        add_up(gradients.values_mut(), &parts);
        Ok((sum / samples as f64) as f32)
    }
}

impl Member {
    fn run(&mut self, share: Share<'_>, batch: usize) -> Result<f64, ModelError> {
        // The parallelism is between shares; libtorch counts its threads by calling thread.
        tch::set_num_threads(1);
        self.pass.run(share, batch, &mut self.dropout)
    }
}

/// Adds the parts in their order, each thread its piece of all of them.
fn add_up(sum: &mut [f32], parts: &[&[f32]]) {
    if parts.is_empty() {
        return;
    }
    let piece = sum.len().div_ceil(parts.len() + 1).max(1);
    std::thread::scope(|scope| {
        for (index, sum) in sum.chunks_mut(piece).enumerate() {
            scope.spawn(move || {
                for part in parts {
                    let part = &part[index * piece..][..sum.len()];
                    sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_whatever_the_pieces() {
        for length in [1, 5, 64] {
            let parts: Vec<Vec<f32>> = (0..3).map(|part| (0..length).map(|at| (at * part) as f32).collect()).collect();
            let mut sum = vec![1.0; length];
            add_up(&mut sum, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let expected: Vec<f32> = (0..length).map(|at| (1 + 3 * at) as f32).collect();
            assert_eq!(sum, expected);
        }
    }
}
