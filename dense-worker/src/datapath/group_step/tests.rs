//! Steps of a process group: workers on threads of one process, without servers.

use std::thread;
use std::time::Duration;

use safetensors::SafeTensors;
use zagros_collective::{ProcessGroupConfig, Rendezvous};
use zagros_fakes::InProcess;
use zagros_job::{
    DenseOptimizer, Job, MissingLabel, Model, NonFinitePolicy, Precision, RegressionLoss, Target, TargetKind,
};
use zagros_protocol::datapath::Access;

use super::*;
use crate::datapath::buckets::GradientBuckets;
use crate::datapath::prepared::BatchPreparer;
use crate::testing::{assert_refused, batch, ffnn, job, metrics, normed_net};
use zagros_worker_core::{RankProgress, StepAgreement, StepVote};
use zagros_zip::ZipEq;

fn job_of(seed: u64) -> Job {
    let mut job = job(1, &[2], ffnn(&[3]));
    job.dense_optimizer = DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.0 };
    job.train.seed = seed;
    job
}

/// Plays one rank per job, each on a thread. Returns their answers, by rank.
fn ranks<T: Send>(jobs: &[Job], play: impl Fn(usize, DenseStage) -> T + Sync) -> Vec<Result<T, WorkerError>> {
    let barrier = InProcess::default();
    let rank = |rank: usize| -> Result<T, WorkerError> {
        let (world, timeout) = (jobs.len(), Duration::from_secs(60));
        let place = ProcessGroupConfig { rank, world, generation: 1, timeout, ..ProcessGroupConfig::default() };
        let group = barrier.form_group(&place)?;
        let mut dense = DenseStage::new(&jobs[rank], zagros_torch::backend(), metrics())?;
        dense.join_group((group, None), 11, b"same", RankProgress::default())?;
        Ok(play(rank, dense))
    };
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..jobs.len()).map(|index| scope.spawn(move || rank(index))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// As [`ranks`], where all are well.
fn all_ranks<T: Send>(jobs: &[Job], play: impl Fn(usize, DenseStage) -> T + Sync) -> Vec<T> {
    ranks(jobs, play).into_iter().map(Result::unwrap).collect()
}

fn same_jobs(count: usize) -> Vec<Job> {
    vec![job_of(1); count]
}

fn samples(values: &[f32]) -> (PreparedBatch, BatchRows) {
    let ids: Vec<u64> = (0..values.len() as u64).collect();
    let mut batch = batch(values.len(), &[&ids]);
    batch.numeric = values.to_vec();
    batch.labels = values.iter().map(|value| f32::from(*value > 0.0)).collect();
    let prepared = BatchPreparer::new(&job_of(1), Access::Train).prepare(batch).unwrap();
    (prepared, BatchRows { tables: vec![values.iter().flat_map(|value| [value / 2.0, -value]).collect()] })
}

fn step(dense: &mut DenseStage, values: &[f32]) -> Result<(f32, Vec<f32>), WorkerError> {
    let (samples_here, weight) = (values.len() as u32, values.len() as f32);
    let agreed = dense.agree_on_step(RankTurn { samples: samples_here, weight, bytes: 10.0, ..RankTurn::default() })?;
    let (prepared, rows) = samples(values);
    let batch = (!values.is_empty()).then_some((&prepared, rows));
    let rank = dense.process_group.as_ref().map_or(0, |process_group| process_group.group.rank());
    let (stepped, _) = dense.group_step(batch, agreed.share_of_rank(rank), 1, &TurnAhead::default())?;
    Ok((stepped.loss, stepped.gradients.tables.concat()))
}

fn near(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len() && found.iter().zip_eq(expected).all(|(a, b)| (a - b).abs() < 1e-6)
}

/// Clicks and a number that some samples do not have, whose samples have weights: those of the given numbers.
fn weighted(job: &Job, numbers: &[usize]) -> (PreparedBatch, BatchRows) {
    let ids: Vec<u64> = numbers.iter().map(|number| *number as u64).collect();
    let mut batch = batch(numbers.len(), &[&ids]);
    let value = |number: &usize| (*number as f32 * 0.7).sin();
    batch.numeric = numbers.iter().map(value).collect();
    let second = |number: usize| if number.is_multiple_of(3) { f32::NAN } else { number as f32 / 2.0 };
    batch.labels = numbers.iter().flat_map(|number| [(number % 2) as f32, second(*number)]).collect();
    batch.weights = numbers.iter().map(|number| (number % 4) as f32 / 2.0).collect();
    let rows = numbers.iter().flat_map(|number| [value(number) / 2.0, -value(number)]).collect();
    (BatchPreparer::new(job, Access::Train).prepare(batch).unwrap(), BatchRows { tables: vec![rows] })
}

/// Invariant RK-1, of samples that have weights and of labels that are missing.
#[test]
fn workers_share_a_step_by_the_weights_of_their_samples() {
    let mut job = job_of(1);
    // Each sample of a step has the same part of the penalty.
    job.train.embedding_l2 = 0.5;
    let number = TargetKind::Regression { loss: RegressionLoss::Mse };
    let number = Target { kind: number, missing: MissingLabel::Skip, weight: 0.5, ..Target::from("number") };
    job.features.targets = vec![Target::from("click"), number];
    let steps = |numbers: &[&[usize]]| {
        let jobs = vec![job.clone(); numbers.len()];
        all_ranks(&jobs, |rank, mut dense| {
            let mut made = Vec::new();
            for _ in 0..4 {
                let (prepared, rows) = weighted(&jobs[rank], numbers[rank]);
                let agreed = dense.agree_on_step(RankTurn::default().with_batch(&prepared.batch)).unwrap();
                let share = agreed.share_of_rank(rank);
                let (stepped, _) = dense.group_step(Some((&prepared, rows)), share, 1, &TurnAhead::default()).unwrap();
                made.push((stepped.loss, stepped.gradients.tables.concat()));
            }
            made
        })
    };
    let alone = steps(&[&[1, 2, 3, 4, 5, 6, 7]]).remove(0);
    // The samples of the last worker have no weight.
    let joint = steps(&[&[1, 2, 3], &[5, 6, 7], &[4]]);
    for (index, (loss, gradients)) in alone.iter().enumerate() {
        let of_rank = |rank: usize| joint[rank][index].1.clone();
        let found = [of_rank(0), of_rank(2), of_rank(1)].concat();
        assert!(near(&found, gradients), "step {index}: {found:?}, alone {gradients:?}");
        assert!(joint.iter().all(|steps| near(&[steps[index].0], &[*loss])), "step {index}");
    }
    assert!(alone[0].1.iter().any(|gradient| *gradient != 0.0));
}

/// The weights of a worker's network after steps with buckets of this size.
fn weights_after(bucket: usize, model: &Model, worlds_samples: &[&[f32]]) -> Vec<Vec<u8>> {
    let job = |_| Job { model: model.clone(), ..job_of(1) };
    let jobs: Vec<Job> = worlds_samples.iter().map(job).collect();
    all_ranks(&jobs, |rank, mut dense| {
        dense.process_group.as_mut().unwrap().buckets = GradientBuckets::new(bucket);
        (0..4).for_each(|_| drop(step(&mut dense, worlds_samples[rank]).unwrap()));
        dense.model.to_safetensors().unwrap()
    })
}

#[test]
fn buckets_of_any_size_make_the_step_of_one_sum_bit_for_bit() {
    let many: Vec<f32> = (0..1500).map(|sample| (sample as f32 * 0.7).sin()).collect();
    let structure = zagros_job::CrossStructure::Parallel;
    let dcnv2 = Model::Dcnv2 { cross_layers: 1, rank: None, structure, hidden: vec![3], dropout: 0.0 };
    // With this crate's own backward in one chunk and in two, with autograd, and for a worker without samples.
    for model in [ffnn(&[5, 3]), dcnv2] {
        for samples in [[&many[..3], &many[3..7]], [&many, &many[..9]], [&many[..4], &[]]] {
            let whole = weights_after(usize::MAX, &model, &samples);
            assert_eq!(whole[0], whole[1]);
            for bucket in [1, 7] {
                assert!(weights_after(bucket, &model, &samples) == whole, "{model:?} in buckets of {bucket}");
            }
        }
    }
}

#[test]
fn every_rank_gets_the_turns_of_all_ranks() {
    let turns = [(4, false), (0, true), (2, false)];
    let reported = all_ranks(&same_jobs(3), |rank, mut dense| {
        let (samples, stop) = turns[rank];
        dense.wait_for_all().unwrap();
        assert_eq!(dense.all_gather(&[rank as u8]).unwrap(), [[0], [1], [2]]);
        let vote = StepVote { stop, ..StepVote::default() };
        dense.agree_on_step(RankTurn { samples, weight: 2.0 * samples as f32, bytes: 10.0, vote }).unwrap()
    });
    for agreed in reported {
        assert!(agreed.step_agreement().stop);
        assert_eq!((agreed.step_agreement().samples, agreed.bytes_read()), (6, 30));
        assert_eq!(agreed.busy_ranks().collect::<Vec<_>>(), [0, 2]);
        assert_eq!([0, 1, 2].map(|rank| agreed.share_of_rank(rank).weight), [4.0 / 6.0, 0.0, 2.0 / 6.0]);
    }
}

#[test]
fn ranks_that_know_their_next_turn_agree_on_it_with_this_step() {
    let next = |knowing: &[usize]| {
        all_ranks(&same_jobs(2), |rank, mut dense| {
            let (prepared, rows) = samples(&[0.5]);
            let turn_ahead = TurnAhead::default();
            if knowing.contains(&rank) {
                let vote = StepVote { checkpoint: rank == 0, ..StepVote::default() };
                turn_ahead.set(RankTurn { samples: 3 + rank as u32, weight: 1.0, bytes: 0.0, vote }).unwrap();
            }
            let half = RankShare { weight: 0.5, samples: 0.5 };
            let (stepped, next) = dense.group_step(Some((&prepared, rows)), half, 1, &turn_ahead).unwrap();
            (stepped.loss, next)
        })
    };
    let (known, unknown) = (next(&[0, 1]), next(&[1]));
    let agreed = known[0].1.as_ref().unwrap();
    let all = StepAgreement { samples: 7, checkpoint: true, ..StepAgreement::default() };
    assert_eq!(agreed.step_agreement(), all);
    assert_eq!(known[1], known[0]);
    assert_eq!(unknown, [(known[0].0, None), (known[0].0, None)]);
}

#[test]
fn a_value_that_is_not_finite_on_one_worker_stops_all_and_changes_nothing() {
    let ended = all_ranks(&same_jobs(2), |rank, mut dense| {
        let saved = dense.model.to_safetensors().unwrap();
        let value = [0.5, f32::NAN][rank];
        let error = step(&mut dense, &[value]).unwrap_err();
        assert_eq!(dense.model.to_safetensors().unwrap(), saved);
        error
    });
    assert!(matches!(&ended[0], WorkerError::PeerDiverged { step: 1, workers } if *workers == [1]), "{}", ended[0]);
    assert!(matches!(&ended[1], WorkerError::Step { step: 1, source: ModelError::NotFinite { .. } }), "{}", ended[1]);
}

#[test]
fn all_skip_a_step_that_is_not_finite_on_one_worker_if_the_job_says_so() {
    let skips = |precision| {
        let mut job = job_of(1);
        (job.train.updates.non_finite, job.train.precision) = (NonFinitePolicy::Skip, precision);
        job
    };
    for precision in [Precision::F32, Precision::F16] {
        let ended = all_ranks(&[skips(precision), skips(precision)], |rank, mut dense| {
            let saved = dense.model.to_safetensors().unwrap();
            let skipped = step(&mut dense, &[[0.5, f32::NAN][rank]]).unwrap_err();
            assert!(matches!(&skipped, WorkerError::Skipped { step: 1, workers } if *workers == [1]), "{skipped}");
            assert_eq!(dense.model.to_safetensors().unwrap(), saved);
            step(&mut dense, &[0.5]).unwrap();
            (dense.model.to_safetensors().unwrap(), dense.model.optimizer_state().unwrap())
        });
        // The loss scale is the same on all workers too.
        assert_eq!(ended[0], ended[1]);
    }
}

#[test]
fn values_arrive_by_rank_and_a_worker_that_sends_another_kind_is_named() {
    let said = all_ranks(&same_jobs(2), |rank, mut dense| {
        assert_eq!(dense.all_gather_values(&(rank as u64 + 7)).unwrap(), [7, 8]);
        if rank == 0 { dense.all_gather_values(&1_u64) } else { dense.all_gather(b"one").map(|_| Vec::new()) }
    });
    assert_refused(said[0].as_ref(), &["what dense worker 1 sent"]);
    let mut alone = DenseStage::new(&job_of(1), zagros_torch::backend(), metrics()).unwrap();
    assert_eq!(alone.all_gather_values(&"here".to_owned()).unwrap(), ["here"]);
}

#[test]
fn workers_that_start_with_other_weights_are_named() {
    for ended in ranks(&[job_of(1), job_of(2), job_of(1)], |_, _| ()) {
        assert!(matches!(&ended, Err(WorkerError::Unequal { workers }) if *workers == [1]), "{ended:?}");
    }
}

#[test]
fn a_worker_that_is_gone_is_named() {
    let play =
        |rank: usize, mut dense: DenseStage| if rank == 1 { Ok(()) } else { step(&mut dense, &[0.5]).map(|_| ()) };
    let error = all_ranks(&same_jobs(2), play).remove(0).unwrap_err();
    assert!(error.to_string().starts_with("dense worker 1 gone or late"), "{error}");
}

/// Buffers of a module change by the mean of the workers' changes, weighed by their samples.
#[test]
fn buffers_of_a_module_are_the_same_on_all_workers() {
    let count = |parts: &[&[f32]]| {
        let jobs = vec![Job { model: normed_net(), ..job_of(1) }; parts.len()];
        all_ranks(&jobs, |rank, mut dense| {
            (0..2).for_each(|_| drop(step(&mut dense, parts[rank]).unwrap()));
            dense.model.to_safetensors().unwrap()
        })
    };
    let running_mean = |saved: &[u8]| {
        let stored = SafeTensors::deserialize(saved).unwrap();
        for (name, count) in [("norm_num_batches_tracked", 2), ("seen", 2), ("salt", (1 << 53) + 1)] {
            assert_eq!(stored.tensor(name).unwrap().data(), i64::to_le_bytes(count), "{name}");
        }
        let mean = stored.tensor("norm_running_mean").unwrap();
        mean.data().as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect::<Vec<f32>>()
    };
    let all = [0.5, -1.0, 2.0, 0.25, -0.75];
    let (alone, together) = (count(&[&all]), count(&[&all[..3], &all[3..], &[]]));
    assert!(together.iter().all(|saved| *saved == together[0]), "they differ");
    assert!(near(&running_mean(&together[0]), &running_mean(&alone[0])), "{:?}", running_mean(&together[0]));
    assert!((running_mean(&alone[0])[0] - 0.19 * 0.2).abs() < 1e-6, "{:?}", running_mean(&alone[0]));
}
