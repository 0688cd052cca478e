//! Whether a round lost nothing.

use zagros_job::{Job, Mode};
use zagros_shell::Failure;

use crate::incarnations::IncarnationLog;
use crate::ledger::PushLedger;
use crate::losses::RunFacts;
use crate::oracle::RowVerdict;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedPromise {
    pub(crate) is_kept: bool,
    pub(crate) what: String,
}

pub(crate) struct EndedRound {
    pub(crate) facts: RunFacts,
    pub(crate) rows: RowVerdict,
    pub(crate) ledger: PushLedger,
    pub(crate) incarnations: IncarnationLog,
    /// Pushes without an answer of processes that nothing was done to.
    pub(crate) unanswered: usize,
}

impl CheckedPromise {
    fn new(is_kept: bool, what: String) -> Self {
        Self { is_kept, what }
    }

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
    let mut promises = vec![rows(round), answers(round), count(job, round), networks(job, round)];
    if round.ledger.history.returns > 0 {
        let what = format!("the run went back to its newest checkpoint {} times", round.ledger.history.returns);
        promises.push(CheckedPromise::new(true, what));
    }
    promises.extend(round.ledger.problems.iter().map(|problem| CheckedPromise::new(false, problem.clone())));
    if let Some(undisturbed) = undisturbed {
        promises.push(samples(job, round, undisturbed));
        promises.push(losses(job, round, undisturbed));
    }
    promises
}

fn rows(round: &EndedRound) -> CheckedPromise {
    let RowVerdict { rows, wrong, examples, in_doubt, applied, .. } = &round.rows;
    let parts = round.ledger.parts;
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

/// Splits that a lost worker had not completed are trained on again from their start, unless the run goes back: so many
/// samples may count twice, and no more.
fn samples(job: &Job, round: &EndedRound, undisturbed: &EndedRound) -> CheckedPromise {
    let (found, expected) = (round.incarnations.samples(), undisturbed.incarnations.samples());
    let (splits, trained) = (undisturbed.incarnations.splits(), round.incarnations.splits());
    let missing = splits.difference(&trained).count();
    if missing > 0 {
        let what = format!("{missing} of {} splits were not trained on to their end", splits.len());
        return CheckedPromise::new(false, what);
    }
    let most =
        if job.train.mode == Mode::Sync { 0 } else { round.incarnations.most_repeated(job.data.shuffle_rows as u64) };
    let again = found.saturating_sub(expected);
    let is_kept = found >= expected && again <= most;
    let what = match (is_kept, again) {
        (true, 0) => format!("{found} samples, as in the undisturbed run"),
        (true, _) => format!(
            "{found} samples: all {expected}, and {again} of lost workers' open splits once more, of {most} that those pushed"
        ),
        _ => format!(
            "{found} samples; the undisturbed run has {expected}, and at most {most} of open splits may come twice"
        ),
    };
    CheckedPromise::new(is_kept, what)
}

/// The counts of the run and of acknowledged pushes agree; in mode `hybrid` but for the batch that a lost worker pushed
/// and no worker counted, or the other way round, and but for pushes on their way. In mode `async` each worker counts
/// for itself, and what it counted since its last barrier ends with it (ADR 47).
fn count(job: &Job, round: &EndedRound) -> CheckedPromise {
    let (counted, pushed) = (round.facts.samples, round.incarnations.samples());
    let (lost, pushed_by_lost) = round.incarnations.lost();
    let (fewer, more) = match job.train.mode {
        Mode::Sync => (0, 0),
        Mode::Hybrid => {
            let batches = lost * job.train.batch_size as u64;
            (batches, batches + round.incarnations.under_way())
        }
        Mode::Async => (pushed_by_lost, 0),
    };
    let is_kept = (pushed.saturating_sub(fewer)..=pushed + more).contains(&counted);
    CheckedPromise::new(is_kept, format!("the run reports {counted} samples, and {pushed} were pushed"))
}

/// In mode `async` the one network is the table on the servers, as each worker reads it after the last barrier.
fn networks(job: &Job, round: &EndedRound) -> CheckedPromise {
    let (hashes, missing) = round.incarnations.networks(job.cluster.workers);
    let what = match (hashes.len(), missing) {
        (1, 0) => "the workers ended with the same dense network, bit for bit".to_owned(),
        (_, 0) => format!("the workers ended with {} dense networks in place of one", hashes.len()),
        _ => format!("{missing} workers that nothing was done to did not end with a dense network"),
    };
    CheckedPromise::new((hashes.len(), missing) == (1, 0), what)
}

/// In mode `sync` every loss is that of the undisturbed round, in mode `hybrid` the last one within a bound: kills
/// change which batches come last. In mode `async` first weights end within it too, so that the round must only have
/// learned; [`networks`] finds a process that goes on from other weights.
fn losses(job: &Job, round: &EndedRound, undisturbed: &EndedRound) -> CheckedPromise {
    let found = &round.facts.losses;
    let (loss, expected) = (round.facts.last_loss(), undisturbed.facts.last_loss());
    let last = format!("loss {loss:.4} at the end; undisturbed {expected:.4}");
    match job.train.mode {
        Mode::Sync => {}
        Mode::Hybrid => {
            let far = undisturbed.facts.farthest();
            return CheckedPromise::new((loss - expected).abs() <= far, format!("{last}, and at most {far:.4} away"));
        }
        Mode::Async => {
            let first = undisturbed.facts.first_loss();
            return CheckedPromise::new(loss < first, format!("{last}, and {first:.4} at its start"));
        }
    }
    match round.facts.first_difference(&undisturbed.facts) {
        Some(step) => CheckedPromise::new(false, format!("the losses differ at step {step}: {last}")),
        None if !round.ledger.has_sums_of(&undisturbed.ledger) => {
            CheckedPromise::new(false, "the losses are equal, and the sums of gradients are not".to_owned())
        }
        None if !has_equal_files(&round.facts, &undisturbed.facts) => {
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

/// Another number of servers has other files of rows, which `PushLedger::has_sums_of` has compared row by row.
fn has_equal_files(one: &RunFacts, other: &RunFacts) -> bool {
    let is_cut_alike = one.files.iter().map(|(name, _)| name).eq(other.files.iter().map(|(name, _)| name));
    let compared = |facts: &RunFacts| {
        let files = facts.files.iter().filter(|(name, _)| is_cut_alike || !name.starts_with("rows-"));
        files.cloned().collect::<Vec<_>>()
    };
    compared(one) == compared(other) && !compared(one).is_empty()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;
    use crate::ledger::PushKey;
    use zagros_embedding_client::push_record::StartedPush;

    /// The worker's process, and the one that takes its place.
    const FIRST: (u64, u32) = (1, 1);
    const SECOND: (u64, u32) = (1, 2);

    fn job(mode: &str) -> Job {
        let text = format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[train]\nmode = '{mode}'\n");
        Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    /// Pushes a batch of 4 samples with the last row of the split of its number.
    fn push(round: &mut EndedRound, process: (u64, u32), seq: u64) {
        round.incarnations.join(process, 0);
        let batch = StartedPush { seq, step: seq, samples: 4, splits: vec![seq], ..StartedPush::default() };
        round.incarnations.start(process, &batch);
        round.incarnations.finish(process, seq);
        round.facts.samples += 4;
    }

    /// The worker is killed after its first batch, and another process trains on these.
    fn killed(seqs: &[u64]) -> EndedRound {
        let mut round = EndedRound { incarnations: IncarnationLog::default(), ..round() };
        round.facts.samples = 0;
        push(&mut round, FIRST, 0);
        seqs.iter().for_each(|seq| push(&mut round, SECOND, *seq));
        round.incarnations.note_network(SECOND, 7);
        round
    }

    fn round() -> EndedRound {
        let mut ledger = PushLedger::default();
        let key = PushKey { writer: 1, incarnation: 1, seq: 1 };
        ledger.sent(key, 0, vec![((0, 1), vec![2])]);
        ledger.acknowledged(key, &[(0, 1)]);
        let (losses, files) = (vec![(1, 0.7), (2, 0.6)], vec![("rows".into(), "ab".into())]);
        let facts = RunFacts { losses, files, steps: 2, ..RunFacts::default() };
        let rows = RowVerdict { rows: 1, ..RowVerdict::default() };
        let mut round = EndedRound { facts, rows, ledger, incarnations: IncarnationLog::default(), unanswered: 0 };
        (0..2).for_each(|seq| push(&mut round, FIRST, seq));
        round.incarnations.note_network(FIRST, 7);
        round
    }

    fn broken(mode: &str, change: impl FnOnce(&mut EndedRound)) -> Vec<String> {
        let mut changed = round();
        change(&mut changed);
        judge(mode, &changed)
    }

    fn judge(mode: &str, round_of: &EndedRound) -> Vec<String> {
        let promises = promises(&job(mode), round_of, Some(&round()));
        promises.into_iter().filter(|promise| !promise.is_kept).map(|promise| promise.what).collect()
    }

    #[test]
    fn every_promise_can_be_broken() {
        assert!(broken("sync", |_| ()).is_empty() && broken("hybrid", |_| ()).is_empty());
        assert!(broken("hybrid", |round| round.rows.wrong = 1)[0].contains("1 of 1 rows are not"));
        assert!(broken("hybrid", |round| round.rows.rows = 0).len() == 1, "nothing was checked");
        assert!(broken("hybrid", |round| round.unanswered = 2)[0].contains("2 pushes"));
        assert!(broken("hybrid", |round| round.facts.samples = 9)[0].contains("reports 9 samples, and 8 were pushed"));
        assert!(broken("sync", |round| round.facts.losses[1].1 = 0.6000001)[0].contains("differ at step 2"));
        assert_eq!(broken("sync", |round| round.facts.steps = 3).len(), 1);
        assert!(broken("sync", |round| round.facts.files[0].1 = "cd".into())[0].contains("files of the model are not"));
        let facts = |files: &[(&str, &str)]| {
            let files = files.iter().map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned())).collect();
            RunFacts { files, ..round().facts }
        };
        let scaled = |dense: &str| facts(&[("rows-0-of-2", "ab"), ("rows-1-of-2", "cd"), ("dense", dense)]);
        let undisturbed = facts(&[("rows-0-of-1", "x"), ("dense", "ee")]);
        assert!(has_equal_files(&scaled("ee"), &undisturbed) && !has_equal_files(&scaled("ef"), &undisturbed));
        assert!(!has_equal_files(&scaled("ee"), &scaled("ef")));
        let other = PushKey { writer: 1, incarnation: 1, seq: 2 };
        let more = |round: &mut EndedRound| {
            round.ledger.sent(other, 0, vec![((0, 1), vec![1])]);
            round.ledger.acknowledged(other, &[(0, 1)]);
        };
        assert!(broken("sync", more)[0].contains("the sums of gradients are not"));
    }

    #[test]
    fn a_lost_worker_may_repeat_samples_of_its_open_splits_and_never_drop_one() {
        for mode in ["hybrid", "async"] {
            assert_eq!(judge(mode, &killed(&[1])), [""; 0]);
            assert_eq!(judge(mode, &killed(&[0, 1])), [""; 0], "split 0 was not reported complete");
            let lost = judge(mode, &killed(&[0]));
            assert!(lost[0].contains("1 of 2 splits were not trained on"), "{lost:?}");
            // Every split is there, and samples are not.
            let short = judge(mode, &{
                let mut round = killed(&[]);
                let last = StartedPush { seq: 1, samples: 1, splits: vec![1], ..StartedPush::default() };
                round.incarnations.start(SECOND, &last);
                round.incarnations.finish(SECOND, 1);
                round
            });
            assert!(short[0].contains("5 samples; the undisturbed run has 8"), "{short:?}");
            // More than the lost worker had pushed.
            let doubled = judge(mode, &killed(&[0, 1, 2]));
            assert!(doubled[0].contains("16 samples; the undisturbed run has 8, and at most 4"), "{doubled:?}");
        }
        let twice = judge("sync", &killed(&[0, 1]));
        assert!(twice[0].contains("12 samples; the undisturbed run has 8, and at most 0"), "{twice:?}");
    }

    #[test]
    fn a_lost_worker_may_have_batches_on_their_way() {
        let batch = job("hybrid").train.batch_size as u64;
        for (under_way, more, is_kept) in
            [(0, batch, true), (0, batch + 1, false), (4, batch + 4, true), (4, batch + 5, false)]
        {
            let mut round = killed(&[0, 1]);
            let sent = StartedPush { seq: 9, samples: under_way, ..StartedPush::default() };
            round.incarnations.start(FIRST, &sent);
            let counted = round.incarnations.samples() + more;
            round.facts.samples = counted;
            let found = judge("hybrid", &round);
            assert_eq!(found.iter().all(|what| !what.contains("the run reports")), is_kept, "{counted}: {found:?}");
        }
    }

    /// A survivor's batch that comes twice is not hidden by a loss, and a survivor alone repeats nothing.
    #[test]
    fn a_worker_that_lives_repeats_nothing() {
        let doubled = broken("hybrid", |round| push(round, FIRST, 2));
        assert!(doubled[0].contains("12 samples; the undisturbed run has 8, and at most 0"), "{doubled:?}");
    }

    #[test]
    fn a_dense_network_of_its_own_or_a_loss_far_away_is_found() {
        for mode in ["hybrid", "async", "sync"] {
            let other = broken(mode, |round| {
                push(round, (2, 1), 1);
                round.incarnations.note_network((2, 1), 8);
            });
            assert!(other.iter().any(|what| what.contains("2 dense networks in place of one")), "{other:?}");
        }
        let silent = broken("hybrid", |round| push(round, SECOND, 0));
        assert!(silent.iter().any(|what| what.contains("1 workers that nothing was done to")), "{silent:?}");
        for mode in ["hybrid", "async"] {
            let far = broken(mode, |round| round.facts.losses.iter_mut().for_each(|(_, loss)| *loss += 0.4));
            assert!(far[0].contains("undisturbed"), "{far:?}");
        }
    }
}
