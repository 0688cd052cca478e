//! The family: which runs are trained, so that all end within a budget.

use serde::{Deserialize, Serialize};

use crate::ExperimentError;

/// Sizes below which no further size is skipped: a law needs three, and the choice of a law one more.
const LEAST_SIZES: usize = 4;
/// Seeds below which no further seed is skipped: with one, nothing tells chance from gain.
const LEAST_SEEDS: u64 = 2;
/// Share of all rows below which no further rows are skipped.
const LEAST_SHARE: f64 = 0.125;
/// Work of scoring a sample, as a share of that of training on it with the dense network.
const FORWARD: f64 = 1.0 / 3.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCost {
    /// Seconds of a process besides its samples.
    pub start: f64,
    /// Seconds of a sample, whatever the size.
    pub sample: f64,
    /// Seconds of a sample for each dense parameter.
    pub parameter: f64,
}

impl RunCost {
    /// The cost by two short runs of a small and a large size: dense parameters, and seconds of a sample.
    pub fn from_runs(start: f64, small: (f64, f64), large: (f64, f64)) -> Self {
        let growth = (large.1 - small.1) / (large.0 - small.0);
        let parameter = if growth.is_finite() { growth.max(0.0) } else { 0.0 };
        Self { start, sample: (small.1 - parameter * small.0).max(0.0), parameter }
    }

    /// Seconds of a run that trains on `samples` and scores `scored` samples.
    pub fn run_seconds(&self, parameters: f64, samples: f64, scored: f64) -> f64 {
        let dense = self.parameter * parameters;
        self.start + samples * (self.sample + dense) + scored * (self.sample + FORWARD * dense)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FamilyRequest {
    /// Dense parameters of each size, from small to large.
    pub sizes: Vec<u64>,
    /// Seeds of each size: 1, 2, …
    pub seeds: u64,
    /// Shares of the rows after which a run is measured, from small to large.
    pub shares: Vec<f64>,
    /// Whether each share is a run of its own, as where the learning rate follows the length of a run.
    pub run_for_each_share: bool,
    /// Rows of the training part.
    pub rows: u64,
    /// Rows of the part that is scored.
    pub held_out: u64,
    /// Dense parameters of the size that is trained afterwards, to compare it with its forecast.
    pub next: Option<u64>,
    /// Runs side by side.
    pub jobs: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberRun {
    /// Number of its size, from 0.
    pub size: usize,
    pub seed: u64,
    /// Shares of the rows after which it is measured; the last one is its length.
    pub shares: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// Sizes: the first ones of the request.
    pub sizes: usize,
    pub seeds: u64,
    pub shares: Vec<f64>,
    /// All runs, the longest first.
    pub runs: Vec<MemberRun>,
    /// Seconds that they take, about.
    pub seconds: f64,
    /// What was asked for and is not trained, in words.
    pub skipped: Vec<String>,
}

impl Family {
    /// As much of the request as takes at most `budget` seconds: first the largest sizes are skipped, then seeds, then rows.
    pub fn within_budget(request: &FamilyRequest, cost: &RunCost, budget: f64) -> Result<Self, ExperimentError> {
        let (mut sizes, mut seeds, mut shares) = (request.sizes.len(), request.seeds, request.shares.clone());
        let mut skipped = Vec::new();
        loop {
            let family = Self::new(request, cost, sizes, seeds, &shares);
            let longest = shares.last().copied().unwrap_or(1.0);
            if family.seconds <= budget {
                if longest < request.shares.last().copied().unwrap_or(1.0) {
                    skipped.push(format!("rows: each run has {:.1} % of them", longest * 100.0));
                }
                return Ok(Self { skipped, ..family });
            }
            if sizes > LEAST_SIZES {
                sizes -= 1;
                let seconds = cost.run_seconds(
                    request.sizes[sizes] as f64,
                    longest * request.rows as f64,
                    request.held_out as f64,
                );
                skipped.push(format!("the size of {} parameters, about {seconds:.0} s a run", request.sizes[sizes]));
            } else if seeds > LEAST_SEEDS {
                skipped.push(format!("seed {seeds}"));
                seeds -= 1;
            } else if longest / 2.0 >= LEAST_SHARE {
                shares.iter_mut().for_each(|share| *share /= 2.0);
            } else {
                let what = format!(
                    "the smallest family, {sizes} sizes with {seeds} seeds on an eighth of the data, takes about {:.0} s, and the budget is \
                     {budget:.0} s: give more time, smaller sizes or fewer seeds",
                    family.seconds
                );
                return Err(ExperimentError(what));
            }
        }
    }

    fn new(request: &FamilyRequest, cost: &RunCost, sizes: usize, seeds: u64, shares: &[f64]) -> Self {
        let rows = request.rows as f64;
        let seconds = |run: &MemberRun| {
            let longest = run.shares.last().copied().unwrap_or(0.0);
            // A run is scored after every so many rows as the first share has.
            let evaluations = run.shares.first().map_or(1.0, |first| (longest / first).round());
            let scored = evaluations * request.held_out as f64;
            cost.run_seconds(request.sizes[run.size] as f64, longest * rows, scored)
        };
        let groups: Vec<Vec<f64>> = if request.run_for_each_share {
            shares.iter().map(|share| vec![*share]).collect()
        } else {
            vec![shares.to_vec()]
        };
        let mut runs = Vec::new();
        for size in 0..sizes {
            for seed in 1..=seeds {
                runs.extend(groups.iter().map(|shares| MemberRun { size, seed, shares: shares.clone() }));
            }
        }
        runs.sort_by(|one, other| seconds(other).total_cmp(&seconds(one)));
        // The longest first, each where there is least to do.
        let mut busy = vec![0.0_f64; request.jobs.max(1)];
        for run in &runs {
            if let Some(least) = busy.iter_mut().min_by(|one, other| one.total_cmp(other)) {
                *least += seconds(run);
            }
        }
        let next = request.next.map_or(0.0, |next| {
            let longest = shares.last().copied().unwrap_or(0.0);
            cost.run_seconds(next as f64, longest * rows, request.held_out as f64)
        });
        let seconds = busy.into_iter().fold(0.0, f64::max) + next;
        Self { sizes, seeds, shares: shares.to_vec(), runs, seconds, skipped: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COST: RunCost = RunCost { start: 1.0, sample: 1e-5, parameter: 1e-11 };

    fn request() -> FamilyRequest {
        FamilyRequest {
            sizes: vec![100_000, 400_000, 1_600_000, 6_400_000, 25_600_000],
            seeds: 3,
            shares: vec![0.125, 0.25, 0.5, 1.0],
            run_for_each_share: false,
            rows: 1_000_000,
            held_out: 100_000,
            next: None,
            jobs: 2,
        }
    }

    fn whole_family(request: &FamilyRequest) -> Family {
        Family::within_budget(request, &COST, f64::INFINITY).unwrap()
    }

    #[test]
    fn without_a_budget_all_is_trained() {
        let family = whole_family(&request());
        assert_eq!((family.runs.len(), family.skipped.len()), (15, 0));
        assert_eq!((family.runs[0].size, family.runs[14].size), (4, 0));
        let each = whole_family(&FamilyRequest { run_for_each_share: true, ..request() });
        assert_eq!((each.runs.len(), each.runs[0].shares.clone()), (60, vec![1.0]));
        let next = whole_family(&FamilyRequest { next: Some(100_000_000), ..request() });
        assert!(next.seconds > family.seconds + 1000.0, "the next size is part of the time");
    }

    #[test]
    fn sizes_seeds_and_rows_are_skipped_in_this_order_and_named() {
        let whole = whole_family(&request()).seconds;
        let family = Family::within_budget(&request(), &COST, whole - 1.0).unwrap();
        assert_eq!((family.sizes, family.seeds), (4, 3));
        assert!(family.skipped[0].contains("25600000 parameters"), "{:?}", family.skipped);
        let family = Family::within_budget(&request(), &COST, 200.0).unwrap();
        assert!(family.seconds <= 200.0 && family.skipped.contains(&"seed 3".to_owned()), "{family:?}");
        let family = Family::within_budget(&request(), &COST, 100.0).unwrap();
        assert!(family.shares[3] < 1.0 && family.skipped.last().unwrap().starts_with("rows"), "{family:?}");
        let error = Family::within_budget(&request(), &COST, 5.0).unwrap_err().to_string();
        assert!(error.contains("the budget is 5 s"), "{error}");
    }

    #[test]
    fn the_cost_is_a_line_through_two_sizes() {
        let cost = RunCost::from_runs(1.0, (1e5, 2e-5), (1e6, 2.9e-5));
        assert!((cost.parameter - 1e-11).abs() < 1e-15 && (cost.sample - 1.9e-5).abs() < 1e-9, "{cost:?}");
        // A busy machine made the small one slower.
        assert_eq!(RunCost::from_runs(1.0, (1e5, 3e-5), (1e6, 2e-5)).parameter, 0.0);
        assert_eq!(RunCost::from_runs(1.0, (1e5, 3e-5), (1e5, 3e-5)).parameter, 0.0);
    }

    proptest! {
        #[test]
        fn a_family_ends_within_its_budget_and_is_part_of_the_request(budget in 1.0_f64..5000.0, jobs in 1_usize..8) {
            let request = FamilyRequest { jobs, ..request() };
            if let Ok(family) = Family::within_budget(&request, &COST, budget) {
                prop_assert!(family.seconds <= budget && family.sizes >= LEAST_SIZES && family.seeds >= LEAST_SEEDS);
                prop_assert_eq!(family.runs.len(), family.sizes * family.seeds as usize);
                let is_whole = family.sizes == 5 && family.seeds == 3 && family.shares == request.shares;
                prop_assert_eq!(family.skipped.is_empty(), is_whole);
            }
        }
    }
}
