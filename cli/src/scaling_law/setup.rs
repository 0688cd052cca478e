//! A family of sizes as the command line describes it, checked before anything is trained.

use std::path::Path;

use serde_json::{Value, json};
use zagros_experiments::scaling::FamilyRequest;
use zagros_ingest::find_files;
use zagros_job::{HeldOutRows, Job, ModelSize, RateSchedule};
use zagros_shell::{Exit, Failure, OrFailure, load_job, note};

use crate::args::ScalingLawArgs;
use crate::experiment::{ExperimentSetup, default_folder};
use crate::steps::EpochPlan;

/// Sizes of a family without `--sizes`, a factor of four apart.
const SIZES: [ModelSize; 5] =
    [ModelSize(28_000), ModelSize(111_000), ModelSize(440_000), ModelSize(1_800_000), ModelSize(7_000_000)];
const LEAST_SIZES: usize = 3;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct FamilySize {
    /// As it was asked for.
    pub(super) size: ModelSize,
    /// Dense parameters that the network really has.
    pub(super) parameters: u64,
}

pub(super) struct FamilySetup {
    pub(super) base: ExperimentSetup,
    /// From small to large.
    pub(super) sizes: Vec<FamilySize>,
    pub(super) next: FamilySize,
    pub(super) request: FamilyRequest,
    /// Steps after which a run has read the first share of the rows.
    pub(super) unit: u64,
}

impl FamilySetup {
    pub(super) fn load(args: &ScalingLawArgs) -> Result<Self, Failure> {
        let sets = args.job.sets();
        check_sets(&sets)?;
        let load = |size: ModelSize| load_size(&args.job.job, &sets, size);
        let sizes = family_sizes(&args.sizes, &load)?;
        let next = load(args.next.unwrap_or_else(|| next_size(&sizes))).map(|(_, size)| size)?;
        let largest = &sizes[sizes.len() - 1];
        if next.parameters <= largest.parameters {
            let what = format!("the next size {} is not larger than the largest one, {}", next.size, largest.size);
            return Err(Failure::usage(what, "give a larger one: --next SIZE"));
        }
        let (job, _) = load(sizes[0].size)?;
        check_job(&job)?;
        let shares = shares(&args.data)?;
        let rows = rows(&job)?;
        let unit = (shares[0] * rows as f64 / job.train.batch_size as f64) as u64;
        if unit == 0 {
            let what = format!("{:.4} of the {rows} training rows are less than one step", shares[0]);
            return Err(Failure::usage(what, "give larger shares (--data), or a smaller train.batch_size"));
        }
        let run_for_each_share = follows_length(&job)?;
        let folder = args.folder.clone().unwrap_or_else(|| default_folder(&job, "scaling"));
        let base = ExperimentSetup::new("family", &args.job, job, args.jobs, folder)?;
        let request = FamilyRequest {
            sizes: sizes.iter().map(|size| size.parameters).collect(),
            seeds: args.seeds,
            shares,
            run_for_each_share,
            rows,
            // A short run counts them.
            held_out: 0,
            next: args.verify.then_some(next.parameters),
            jobs: base.jobs,
        };
        Ok(Self { base, sizes, next, request, unit })
    }

    /// What a family is known by. A command with another one is another family.
    pub(super) fn identity(&self) -> Value {
        json!({
            "sizes": self.sizes.iter().map(|size| size.size.to_string()).collect::<Vec<_>>(),
            "parameters": self.request.sizes,
            "next": self.next.size.to_string(),
            "seeds": self.request.seeds,
            "shares": self.request.shares.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "batch_size": self.base.job.train.batch_size,
            "rows": self.request.rows,
        })
    }

    pub(super) fn step_count(&self, share: f64) -> u64 {
        // A halved family has shares of half a unit.
        ((share / self.request.shares[0]) * self.unit as f64).round().max(1.0) as u64
    }

    pub(super) fn sample_count(&self, steps: u64) -> f64 {
        (steps * self.base.job.train.batch_size as u64) as f64
    }
}

fn check_sets(sets: &[String]) -> Result<(), Failure> {
    let fixed =
        ["model.size", "train.seed", "train.max_steps", "train.epochs", "train.evaluate_every", "output.folder"];
    let key = |set: &String| set.split('=').next().unwrap_or_default().trim().to_owned();
    match sets.iter().map(key).find(|key| fixed.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let what = format!("`{key}` is decided by the family");
            Err(Failure::usage(what, "use --sizes, --seeds, --data and --folder instead"))
        }
    }
}

/// The job with a size, and how many dense parameters it then has.
fn load_size(file: &Path, sets: &[String], size: ModelSize) -> Result<(Job, FamilySize), Failure> {
    let sets: Vec<String> = sets.iter().cloned().chain([size_set(size)]).collect();
    let job = load_job(file, &sets)?;
    let Some(parameters) = job.dense_parameters() else {
        let what = "the network is a module of its own, whose size no key changes";
        return Err(Failure::usage(what, "choose another model.kind"));
    };
    Ok((job, FamilySize { size, parameters }))
}

pub(super) fn size_set(size: ModelSize) -> String {
    format!("model.size=\"{size}\"")
}

/// The given sizes, otherwise the default ones that the features allow. From small to large.
fn family_sizes(
    given: &[ModelSize],
    load: &impl Fn(ModelSize) -> Result<(Job, FamilySize), Failure>,
) -> Result<Vec<FamilySize>, Failure> {
    let wanted = if given.is_empty() { &SIZES[..] } else { given };
    let (mut sizes, mut failure) = (Vec::new(), None);
    for size in wanted {
        match load(*size) {
            Ok((_, size)) => sizes.push(size),
            Err(error) if !given.is_empty() => return Err(error),
            Err(error) => {
                note!("the size {size} cannot be had with this job, and is skipped");
                failure = failure.or(Some(error));
            }
        }
    }
    sizes.sort_by_key(|size| size.parameters);
    sizes.dedup_by_key(|size| size.parameters);
    if sizes.len() >= LEAST_SIZES {
        return Ok(sizes);
    }
    // The job's own error, if it has none of the default sizes.
    Err(failure.unwrap_or_else(|| {
        let what = format!("{} different sizes are given, and a law needs {LEAST_SIZES}", sizes.len());
        Failure::usage(what, "give more, such as --sizes 111k,440k,1.8m,7m")
    }))
}

/// As much larger than the largest size as that is than the one before.
fn next_size(sizes: &[FamilySize]) -> ModelSize {
    let size = |from_end: usize| sizes[sizes.len() - from_end].size.0 as f64;
    let next = size(1) * size(1) / size(2);
    // Three digits, as a size is written.
    let digit = 10_f64.powf(next.log10().floor() - 2.0);
    ModelSize(((next / digit).round() * digit) as u64)
}

fn check_job(job: &Job) -> Result<(), Failure> {
    let usage = |what: &str, help: &str| Err(Failure::usage(what, help));
    if job.data.validation == HeldOutRows::None && job.data.test == HeldOutRows::None {
        return usage(
            "the job has no held-out part, on which sizes are compared",
            "set data.validation_share = 0.1, or data.test",
        );
    }
    if job.train.start_from.is_some() {
        return usage("`train.start_from` names a model, which has one size", "remove it: every size begins anew");
    }
    Ok(())
}

/// Shares from small to large, whole multiples of the first.
fn shares(given: &[f64]) -> Result<Vec<f64>, Failure> {
    let mut shares = given.to_vec();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let is_multiple = |share: &f64| ((share / shares[0]).round() - share / shares[0]).abs() < 1e-6;
    match shares.iter().find(|share| !is_multiple(share)) {
        None => Ok(shares),
        Some(share) => {
            let what = format!("the share {share} of --data is not a whole multiple of the smallest, {}", shares[0]);
            Err(Failure::usage(what, "runs are measured every so many steps; give shares such as 0.125,0.25,0.5,1"))
        }
    }
}

fn rows(job: &Job) -> Result<u64, Failure> {
    let found = find_files(job, &job.data.train).or_exit(Exit::Data)?;
    EpochPlan::new(job, &found).map(|plan| plan.least_rows()).filter(|rows| *rows > 0).ok_or_else(|| {
        let what = "the rows of the training part can neither be counted nor estimated";
        let help = "a family reads the training files again and again: standard input cannot be one";
        Failure::with_help(Exit::Data, what, help)
    })
}

/// Whether the learning rate follows the length of a run, so that each number of rows needs a run of its own.
fn follows_length(job: &Job) -> Result<bool, Failure> {
    let is_constant = |schedule: &RateSchedule| matches!(schedule, RateSchedule::Constant);
    let all = [job.train.updates.schedule].into_iter().chain(job.tables.iter().map(|table| table.settings.schedule));
    if all.clone().all(|schedule| is_constant(&schedule)) {
        return Ok(false);
    }
    if job.uncounted_keys().iter().any(|key| key.contains("schedule")) {
        return Ok(true);
    }
    let what = "the learning rate follows a schedule in steps, and the runs of a family are of different lengths";
    let help = "give it in epochs, such as decay = { epochs = 1 }, without train.epoch_steps; or remove it";
    Err(Failure::usage(what, help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use crate::args::tests::parse_command;

    const JOB: &str = "name = 'ads'\n[data]\nformat = 'delimited'\ntrain = 'rows.csv'\nvalidation_share = 0.1\n\
         [features]\nlabel = 'y'\ncategorical = ['a', 'b']\n[embedding]\ndim = 4\n[model]\nkind = 'ffnn'\n[train]\nbatch_size = 10\n";

    fn setup(text: &str, arguments: &str) -> Result<FamilySetup, String> {
        let folder = tempfile::tempdir().unwrap();
        let rows: String = (0..1000).map(|row| format!("{},{},{}\n", row % 2, row % 7, row % 11)).collect();
        std::fs::write(folder.path().join("rows.csv"), format!("y,a,b\n{rows}")).unwrap();
        let command = parse_command(folder.path(), text, "scaling-law", arguments)?;
        let Command::ScalingLaw(args) = command else { panic!("another command") };
        FamilySetup::load(&args).map_err(|failure| format!("{failure:?}").replace("\n  │ ", " "))
    }

    #[test]
    fn a_family_is_planned_from_few_words() {
        let family = setup(JOB, "--sizes 4k,1k,2k --data 0.25,1,0.5 --jobs 3").unwrap();
        assert_eq!(family.sizes.iter().map(|size| size.size.0).collect::<Vec<_>>(), [1000, 2000, 4000]);
        // A factor of two further; the network has about as many weights.
        let (wanted, real) = (family.next.size.0 as f64, family.next.parameters as f64);
        assert!((wanted / 8000.0 - 1.0).abs() < 0.1 && (real / wanted - 1.0).abs() < 0.1, "{:?}", family.next);
        assert_eq!(
            (family.request.shares.clone(), family.base.jobs, family.request.run_for_each_share),
            (vec![0.25, 0.5, 1.0], 3, false)
        );
        // About 900 rows are trained on, a quarter of which are 22 steps of 10.
        assert!((20..=24).contains(&family.unit), "{}", family.unit);
        let steps = [0.25, 1.0].map(|share| family.step_count(share));
        assert_eq!((steps, family.sample_count(8)), ([family.unit, 4 * family.unit], 80.0));
        assert!(family.base.folder.ends_with("runs/ads-scaling"), "{}", family.base.folder.display());
        let defaults = setup(JOB, "").unwrap();
        assert_eq!((defaults.sizes.len(), defaults.request.seeds, defaults.request.shares.len()), (5, 3, 4));
        assert_eq!(defaults.next.size.to_string(), "27.2m");
    }

    #[test]
    fn a_schedule_in_epochs_makes_a_run_of_each_share() {
        let linear = |decay: &str| format!("{JOB}schedule = {{ kind = 'linear', decay = {decay} }}\n");
        assert!(setup(&linear("{ epochs = 1 }"), "--sizes 1k,2k,4k").unwrap().request.run_for_each_share);
    }

    #[test]
    fn what_makes_no_family_is_refused() {
        let refused = |text: &str, arguments: &str| setup(text, arguments).err().unwrap();
        assert!(refused(JOB, "--sizes 1k,2k,4k --data 0.001,1").contains("less than one step"));
        let no_validation = JOB.replace("validation_share = 0.1\n", "");
        assert!(refused(&no_validation, "--sizes 1k,2k,4k").contains("no held-out part"));
        assert!(refused(&JOB.replace("batch_size", "start_from = '/model'\nbatch_size"), "").contains("start_from"));
    }
}
