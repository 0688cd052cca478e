//! Whether a round lost nothing.

use zagros_job::{Job, Mode};
use zagros_shell::Failure;

use crate::ledger::PushLedger;
use crate::losses::RunFacts;
use crate::oracle::RowVerdict;

/// One promise, and whether it was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedPromise {
    pub(crate) is_kept: bool,
    pub(crate) what: String,
}

/// A round that has ended.
pub(crate) struct EndedRound {
    pub(crate) facts: RunFacts,
    pub(crate) rows: RowVerdict,
    pub(crate) ledger: PushLedger,
    /// Pushes without an answer of workers to which nothing was done.
    pub(crate) unanswered: usize,
    /// Whether a dense worker was killed or stopped.
    pub(crate) hit_workers: bool,
}

impl CheckedPromise {
    fn new(is_kept: bool, what: String) -> Self {
        Self { is_kept, what }
    }

    /// The promise that the run ends well.
    pub(crate) fn ended(failure: Option<&Failure>) -> Self {
        match failure {
            None => Self::new(true, "the run ended well".to_owned()),
            Some(failure) => Self::new(false, format!("the run failed: {}", first_line(failure))),
        }
    }
}

fn first_line(failure: &Failure) -> String {
    let text = format!("{failure:?}");
    text.lines().take(12).collect::<Vec<_>>().join("\n      ")
}

/// What a round promised, compared with the undisturbed round.
pub(crate) fn promises(job: &Job, round: &EndedRound, undisturbed: Option<&EndedRound>) -> Vec<CheckedPromise> {
    let mut promises = vec![rows(round), answers(round)];
    if round.ledger.returns() > 0 {
        promises.push(CheckedPromise::new(
            true,
            format!("the run went back to its newest checkpoint {} times", round.ledger.returns()),
        ));
    }
    promises.extend(round.ledger.problems().map(|problem| CheckedPromise::new(false, problem.clone())));
    if let Some(undisturbed) = undisturbed {
        promises.push(samples(job, round, &undisturbed.facts));
        promises.push(losses(job, round, undisturbed));
    }
    promises
}

fn rows(round: &EndedRound) -> CheckedPromise {
    let RowVerdict { rows, wrong, examples, in_doubt, applied, .. } = &round.rows;
    let parts = round.ledger.parts();
    if *wrong > 0 {
        let examples: Vec<String> = examples.iter().map(|row| format!("\n      {row}")).collect();
        let what =
            format!("{wrong} of {rows} rows are not what the {parts} acknowledged pushes give:{}", examples.concat());
        return CheckedPromise::new(false, what);
    }
    let doubt = match in_doubt {
        0 => String::new(),
        _ => format!("; {in_doubt} rows had a push of a killed worker on the way, {applied} of them have it once"),
    };
    let is_checked = *rows > 0 && parts > 0;
    let what =
        format!("{rows} rows are exactly minus the sum of {parts} acknowledged pushes: 0 lost, 0 doubled{doubt}");
    CheckedPromise::new(is_checked, what)
}

fn answers(round: &EndedRound) -> CheckedPromise {
    match round.unanswered {
        0 => CheckedPromise::new(true, "no push of a living worker is without an answer".to_owned()),
        count => {
            CheckedPromise::new(false, format!("{count} pushes of workers that nothing was done to have no answer"))
        }
    }
}

/// Splits of a lost worker are trained on again from their start, so some samples then count twice, unless the run goes back.
fn samples(job: &Job, round: &EndedRound, undisturbed: &RunFacts) -> CheckedPromise {
    let (found, expected) = (round.facts.samples, undisturbed.samples);
    if round.hit_workers && found < expected && job.train.mode == Mode::Async {
        // Each worker counts for itself, and what it counted since its last barrier ends with it (ADR 47). The run itself has
        // checked at the end of each epoch that every split is complete, and would have failed.
        let what =
            format!("{found} samples counted of {expected}: not those of killed workers since their last barrier");
        return CheckedPromise::new(true, what);
    }
    if round.hit_workers && found > expected && job.train.mode != Mode::Sync {
        let again = found - expected;
        let what = format!("{found} samples: all {expected}, and {again} of lost workers' open splits once more");
        return CheckedPromise::new(true, what);
    }
    let what = if found == expected {
        format!("{found} samples, as in the undisturbed run")
    } else {
        format!("{found} samples; the undisturbed run has {expected}")
    };
    CheckedPromise::new(found == expected, what)
}

fn losses(job: &Job, round: &EndedRound, undisturbed: &EndedRound) -> CheckedPromise {
    let found = &round.facts.losses;
    let last =
        format!("loss {:.4} at the end; undisturbed {:.4}", round.facts.last_loss(), undisturbed.facts.last_loss());
    if job.train.mode != Mode::Sync {
        return CheckedPromise::new(round.facts.last_loss().is_finite(), last);
    }
    match round.facts.first_difference(&undisturbed.facts) {
        Some(step) => CheckedPromise::new(false, format!("the losses differ at step {step}: {last}")),
        None if !round.ledger.has_sums_of(&undisturbed.ledger) => {
            CheckedPromise::new(false, "the losses are equal, and the sums of gradients are not".to_owned())
        }
        None if round.facts.files != undisturbed.facts.files || round.facts.files.is_empty() => {
            CheckedPromise::new(false, "the losses are equal, and the files of the model are not".to_owned())
        }
        None => CheckedPromise::new(
            round.facts.steps == undisturbed.facts.steps && !found.is_empty(),
            format!(
                "losses, rows and dense network equal those of the undisturbed run bit for bit after {} steps",
                round.facts.steps
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;
    use crate::ledger::PushKey;

    fn job(mode: &str) -> Job {
        let text = format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[train]\nmode = '{mode}'\n");
        Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    fn round() -> EndedRound {
        let mut ledger = PushLedger::default();
        let key = PushKey { writer: 1, incarnation: 1, seq: 1 };
        ledger.sent(key, 0, vec![((0, 1), vec![2])]);
        ledger.acknowledged(key, &[(0, 1)]);
        let facts = RunFacts {
            losses: vec![(1, 0.7), (2, 0.6)],
            void: Vec::new(),
            files: vec![("rows".into(), "ab".into())],
            samples: 8,
            steps: 2,
            auc: None,
        };
        let rows = RowVerdict { rows: 1, ..RowVerdict::default() };
        EndedRound { facts, rows, ledger, unanswered: 0, hit_workers: false }
    }

    fn broken(mode: &str, change: impl FnOnce(&mut EndedRound)) -> Vec<String> {
        let mut changed = round();
        change(&mut changed);
        let promises = promises(&job(mode), &changed, Some(&round()));
        promises.into_iter().filter(|promise| !promise.is_kept).map(|promise| promise.what).collect()
    }

    #[test]
    fn every_promise_can_be_broken() {
        assert!(broken("sync", |_| ()).is_empty() && broken("hybrid", |_| ()).is_empty());
        assert!(broken("hybrid", |round| round.rows.wrong = 1)[0].contains("1 of 1 rows are not"));
        assert!(broken("hybrid", |round| round.rows.rows = 0).len() == 1, "nothing was checked");
        assert!(broken("hybrid", |round| round.unanswered = 2)[0].contains("2 pushes"));
        assert!(broken("hybrid", |round| round.facts.samples = 9)[0].contains("9 samples; the undisturbed run has 8"));
        assert!(broken("sync", |round| round.facts.losses[1].1 = 0.6000001)[0].contains("differ at step 2"));
        assert_eq!(broken("sync", |round| round.facts.steps = 3).len(), 1);
        assert!(broken("sync", |round| round.facts.files[0].1 = "cd".into())[0].contains("files of the model are not"));
        assert!(broken("hybrid", |round| round.facts.losses[1].1 = 0.61).is_empty());
        let other = PushKey { writer: 1, incarnation: 1, seq: 2 };
        let more = |round: &mut EndedRound| {
            round.ledger.sent(other, 0, vec![((0, 1), vec![1])]);
            round.ledger.acknowledged(other, &[(0, 1)]);
        };
        assert!(broken("sync", more)[0].contains("the sums of gradients are not"));
    }

    #[test]
    fn a_lost_worker_may_repeat_samples_and_never_drop_one() {
        let hit = |mode: &str, samples: u64| {
            broken(mode, |round| (round.hit_workers, round.facts.samples) = (true, samples)).is_empty()
        };
        assert!(hit("hybrid", 8) && hit("hybrid", 12) && !hit("hybrid", 7));
        assert!(hit("async", 7) && hit("async", 9), "counts of a killed worker end with it");
        assert!(hit("sync", 8) && !hit("sync", 12), "a run that went back has each sample once");
    }
}
