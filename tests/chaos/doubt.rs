//! Which gradients in doubt a row has: those of workers that were killed before they heard an answer.
//!
//! Of a rare id they are few, and every choice can be tried. Of a frequent id they are a hundred, and some choice
//! explains nearly any sum. So the rare rows decide first: a server applies a part of a push as a whole. A frequent row
//! must have just those parts, but for a few: a server may have been killed in the middle of a part.

use std::collections::{HashMap, HashSet};

use crate::ledger::{DoubtedGradient, RowId};

/// Rows with as many doubts are explained by trying every choice.
const TRIED: usize = 10;
/// Parts of which a frequent row may differ from what rare rows say.
const MOST_DIFFERENT: usize = 3;

/// A row whose sum is not that of its acknowledged pushes.
#[derive(Clone, Debug)]
pub(crate) struct DoubtedRow {
    pub(crate) row: RowId,
    /// Grid units that its acknowledged pushes leave unexplained, to be made up by gradients in doubt.
    pub(crate) missing: Vec<i64>,
}

#[derive(Debug)]
pub(crate) struct DoubtSolver<'a> {
    by_row: HashMap<RowId, Vec<DoubtedGradient<'a>>>,
    /// How many rows say that a part was applied, less those that say it was not.
    votes: HashMap<u64, i64>,
    frequent: Vec<DoubtedRow>,
}

impl<'a> DoubtSolver<'a> {
    pub(crate) fn new(by_row: HashMap<RowId, Vec<DoubtedGradient<'a>>>) -> Self {
        Self { by_row, votes: HashMap::new(), frequent: Vec::new() }
    }

    pub(crate) fn has(&self, row: RowId) -> bool {
        self.by_row.contains_key(&row)
    }

    /// Takes a row. Answers whether it is explained; `None` if that is decided once all rows are there.
    pub(crate) fn take(&mut self, row: DoubtedRow) -> Option<bool> {
        let doubts = self.by_row.get(&row.row).map(Vec::as_slice).unwrap_or_default();
        if doubts.len() > TRIED {
            self.frequent.push(row);
            return None;
        }
        let chosen = (0_u32..1 << doubts.len())
            .find(|chosen| sum(doubts, row.missing.len(), |at, _| chosen >> at & 1 == 1) == row.missing);
        let Some(chosen) = chosen else { return Some(false) };
        for (at, doubt) in zagros_zip::number_from(0, doubts) {
            *self.votes.entry(doubt.part).or_default() += if chosen >> at & 1 == 1 { 1 } else { -1 };
        }
        Some(true)
    }

    /// Frequent rows that are not explained.
    pub(crate) fn finish(self) -> Vec<DoubtedRow> {
        let applied: HashSet<u64> = self.votes.iter().filter(|(_, votes)| **votes > 0).map(|(part, _)| *part).collect();
        let is_explained = |row: &DoubtedRow| {
            let doubts = &self.by_row[&row.row];
            let found = sum(doubts, row.missing.len(), |_, doubt| applied.contains(&doubt.part));
            let left: Vec<i64> = (0..found.len()).map(|at| row.missing[at] - found[at]).collect();
            let change = |doubt: &DoubtedGradient<'_>| if applied.contains(&doubt.part) { -1 } else { 1 };
            let changes: Vec<(i64, &[i32])> = doubts.iter().map(|doubt| (change(doubt), doubt.gradient)).collect();
            makes_up(&changes, &left, MOST_DIFFERENT)
        };
        self.frequent.iter().filter(|row| !is_explained(row)).cloned().collect()
    }
}

fn sum(
    doubts: &[DoubtedGradient<'_>],
    dim: usize,
    is_chosen: impl Fn(usize, &DoubtedGradient<'_>) -> bool,
) -> Vec<i64> {
    let chosen = zagros_zip::number_from(0, doubts).filter(|(at, doubt)| is_chosen(*at, doubt));
    chosen.fold(vec![0; dim], |mut sum, (_, doubt)| {
        sum.iter_mut().enumerate().for_each(|(at, sum)| *sum += value(doubt.gradient, at));
        sum
    })
}

/// What a row that is shorter than the others does not have is 0.
fn value(gradient: &[i32], at: usize) -> i64 {
    i64::from(gradient.get(at).copied().unwrap_or(0))
}

/// Whether at most so many of the changes make up what is left.
fn makes_up(changes: &[(i64, &[i32])], left: &[i64], most: usize) -> bool {
    if left.iter().all(|left| *left == 0) {
        return true;
    }
    most > 0
        && zagros_zip::number_from(0, changes).any(|(place, (sign, gradient))| {
            let rest = left.iter().enumerate().map(|(at, left)| left - sign * value(gradient, at));
            let rest: Vec<i64> = rest.collect();
            makes_up(&changes[place + 1..], &rest, most - 1)
        })
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;

    const DIM: usize = 4;
    const FREQUENT: RowId = (0, 1);

    /// Parts, each with a row of its own and a gradient of the frequent row.
    fn gradients(parts: u64) -> Vec<(u64, Vec<i32>)> {
        let mut random = Pcg64::seed_from_u64(5);
        (0..parts).map(|part| (part, (0..DIM).map(|_| random.random_range(-50_000..50_000)).collect())).collect()
    }

    /// Whether the frequent row is explained, and how many rare rows are not, when it has the parts that `has` says.
    fn explained(of: &[(u64, Vec<i32>)], applied: impl Fn(u64) -> bool, has: impl Fn(u64) -> i64) -> (bool, usize) {
        let mut by_row: HashMap<RowId, Vec<DoubtedGradient<'_>>> = HashMap::new();
        for (part, gradient) in of {
            let doubt = DoubtedGradient { part: *part, gradient };
            by_row.entry(FREQUENT).or_default().push(doubt);
            by_row.entry((0, 100 + part)).or_default().push(doubt);
        }
        let mut solver = DoubtSolver::new(by_row);
        let times =
            |gradient: &[i32], times: i64| gradient.iter().map(|value| i64::from(*value) * times).collect::<Vec<_>>();
        let missing = of.iter().fold(vec![0; DIM], |sum: Vec<i64>, (part, gradient)| {
            let more = times(gradient, has(*part));
            (0..DIM).map(|at| sum[at] + more[at]).collect()
        });
        assert_eq!(solver.take(DoubtedRow { row: FREQUENT, missing }), None);
        let rare = |(part, gradient): &(u64, Vec<i32>)| DoubtedRow {
            row: (0, 100 + part),
            missing: times(gradient, i64::from(applied(*part))),
        };
        let wrong = of.iter().filter(|part| solver.take(rare(part)) == Some(false)).count();
        (solver.finish().is_empty(), wrong)
    }

    #[test]
    fn a_frequent_row_has_the_parts_that_rare_rows_have() {
        let parts = gradients(60);
        let applied = |part: u64| !part.is_multiple_of(3);
        assert_eq!(explained(&parts, applied, |part| i64::from(applied(part))), (true, 0));
        // A server was killed in the middle of a part.
        assert_eq!(explained(&parts, applied, |part| i64::from(applied(part) && part != 7)), (true, 0));
        // One is there twice; one is there that no worker sent.
        assert_eq!(explained(&parts, applied, |part| i64::from(applied(part)) + i64::from(part == 7)), (false, 0));
        assert_eq!(explained(&parts, applied, |part| if part < 30 { 1 } else { 0 }), (false, 0));
    }
}
