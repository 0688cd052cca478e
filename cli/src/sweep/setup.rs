//! A sweep as the command line describes it, checked before anything is trained.

use serde_json::{Value, json};
use zagros_experiments::sweep::{Metric, RungUnit, Rungs, Sampler, Space, SweepPlan, TrialTask, Values};
use zagros_job::{HeldOutRows, Job};
use zagros_shell::{Exit, Failure, OrFailure, load_job};
use zagros_zip::ZipEq;

use super::trial_folder;
use crate::args::SweepArgs;
use crate::experiment::{ExperimentMember, ExperimentSetup, default_folder};

/// Keys that cannot be searched, and why.
const FIXED: [(&str, &str); 7] = [
    ("name", "all trials are of one job"),
    ("output.folder", "each trial has a folder in that of the sweep"),
    ("output.save_model", "--save-models saves the models"),
    ("data.validation", "trials must be compared on the same rows"),
    ("data.validation_share", "trials must be compared on the same rows"),
    ("data.test", "the test part is for the chosen job alone"),
    ("data.test_fraction", "trials must be compared on the same rows"),
];

pub(super) struct SweepSetup {
    pub(super) base: ExperimentSetup,
    pub(super) plan: SweepPlan,
    pub(super) texts: Vec<String>,
    save_models: bool,
}

impl SweepSetup {
    /// Reads the job and the space, and loads the job with the extremes of each key. Refuses a job without a validation part.
    pub(super) fn load(args: &SweepArgs) -> Result<Self, Failure> {
        let job = load_job(&args.job.job, &args.job.sets())?;
        let metric = args.metric;
        check_job(&job, metric)?;
        let (sampler, texts) = match (&args.grid[..], &args.random[..]) {
            ([_, ..], _) => (Sampler::Grid, args.grid.clone()),
            (_, [_, ..]) => (Sampler::Random, args.random.clone()),
            _ => (Sampler::Tpe, args.tpe.clone()),
        };
        let space = Space::parse(texts.iter().map(String::as_str)).or_exit(Exit::Usage)?;
        let asked = usize::try_from(args.trials).unwrap_or(usize::MAX);
        let trials = SweepPlan::count_trials(&space, sampler, asked).or_exit(Exit::Usage)?;
        let rungs = args.halving.then(|| rungs(&job, trials)).transpose()?;
        let folder = args.folder.clone().unwrap_or_else(|| default_folder(&job, "sweep"));
        let mut base = ExperimentSetup::new("sweep", &args.job, job, args.jobs, folder)?;
        base.jobs = base.jobs.min(trials);
        let plan = SweepPlan { space, sampler, seed: args.seed, trials, metric, rungs };
        let setup = Self { base, plan, texts, save_models: args.save_models };
        setup.check_space()?;
        Ok(setup)
    }

    /// What a sweep is known by. A command with another one is another sweep.
    pub(super) fn identity(&self) -> Value {
        let SweepPlan { sampler, seed, metric, rungs, trials, .. } = &self.plan;
        // Without rungs, more trials continue the sweep. With them, they would change who goes on.
        let trials = rungs.as_ref().map(|_| trials);
        json!({
            "sampler": sampler, "space": self.texts, "seed": seed, "metric": metric, "rungs": rungs, "trials": trials,
        })
    }

    /// Changes to the job that make it a trial's.
    pub(super) fn trial_sets(&self, values: &Values) -> Vec<String> {
        let pairs = self.plan.space.parameters().iter().zip_eq(values);
        let own = pairs.map(|(parameter, value)| format!("{}={value}", parameter.key));
        self.base.sets.iter().cloned().chain(own).collect()
    }

    /// A trial with these values, as far as its next rung.
    pub(super) fn member(&self, TrialTask { trial, rung }: TrialTask, values: &Values) -> ExperimentMember {
        let (mut sets, mut options) = (self.trial_sets(values), Vec::new());
        if !self.save_models {
            sets.push("output.save_model=false".to_owned());
        }
        if let Some(Rungs { unit, levels }) = &self.plan.rungs {
            sets.push(format!("checkpoint.keep={}", self.base.job.checkpoint.keep.max(1)));
            if *unit == RungUnit::Steps {
                // The others are multiples of it.
                sets.push(format!("train.evaluate_every={}", levels[0]));
            }
            if rung + 1 < levels.len() {
                options = vec![format!("--pause-after-{}", unit_name(*unit)), levels[rung].to_string()];
            }
        }
        let (name, folder) = (format!("trial {trial}"), trial_folder(&self.base.folder, trial));
        ExperimentMember { number: trial, name, folder, sets, options }
    }

    /// Each value of a list, and both ends of a range, must be a job with the first values of the other keys. So a key that does not
    /// exist, or a value of another type, shows now.
    fn check_space(&self) -> Result<(), Failure> {
        let parameters = self.plan.space.parameters();
        let first: Values = parameters.iter().map(|parameter| parameter.value_at(0.0)).collect();
        for (number, parameter) in parameters.iter().enumerate() {
            let is_fixed = |(key, _): &&(&str, &str)| parameter.key == *key;
            if let Some((key, why)) = FIXED.iter().find(is_fixed) {
                let what = format!("`{key}` cannot be searched");
                return Err(Failure::usage(what, *why));
            }
            let is_length =
                ["train.max_steps", "train.epochs", "train.evaluate_every"].contains(&parameter.key.as_str());
            if self.plan.rungs.is_some() && is_length {
                let what = format!("`{}` cannot be searched with --halving", parameter.key);
                return Err(Failure::usage(what, "all trials must be as long, so that halves can be compared"));
            }
            for value in parameter.extreme_values() {
                let mut values = first.clone();
                values[number] = value;
                load_job(&self.base.file, &self.trial_sets(&values))?;
            }
        }
        Ok(())
    }
}

fn check_job(job: &Job, metric: Metric) -> Result<(), Failure> {
    let usage = |what: &str, help: &str| Err(Failure::usage(what, help));
    if job.data.validation == HeldOutRows::None {
        return usage(
            "the job has no validation part, by which trials are compared",
            "set data.validation_share = 0.1, or data.validation; to choose by the test part would make its measures too good",
        );
    }
    if metric == Metric::Gauc && job.eval.group_by.is_none() {
        return usage("--metric gauc needs `eval.group_by`", "name the column of the groups: --set eval.group_by=user");
    }
    Ok(())
}

fn rungs(job: &Job, trials: usize) -> Result<Rungs, Failure> {
    let (unit, length) = match job.train.max_steps {
        Some(steps) => (RungUnit::Steps, steps),
        None => (RungUnit::Epochs, u64::from(job.train.epochs)),
    };
    Rungs::plan(unit, length, trials).ok_or_else(|| {
        let what = format!("{trials} trial(s) of {length} {} cannot be divided for --halving", unit_name(unit));
        let help = "it takes three epochs or steps, and two trials, at least: --set train.max_steps=3000, or more train.epochs";
        Failure::usage(what, help)
    })
}

pub(super) fn unit_name(unit: RungUnit) -> &'static str {
    match unit {
        RungUnit::Steps => "steps",
        RungUnit::Epochs => "epochs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use crate::args::tests::parse_command;

    const JOB: &str = "name = 'ads'\n[data]\nformat = 'criteo'\ntrain = '/a'\nvalidation_share = 0.1\n";

    fn setup(text: &str, arguments: &str) -> Result<SweepSetup, String> {
        let folder = tempfile::tempdir().unwrap();
        let command = parse_command(folder.path(), text, "sweep", arguments)?;
        let Command::Sweep(args) = command else { panic!("another command") };
        SweepSetup::load(&args).map_err(|failure| format!("{failure:?}").replace("\n  │ ", " "))
    }

    #[test]
    fn a_sweep_is_planned_from_few_words() {
        let grid = setup(JOB, "--grid train.batch_size=512,1024 --grid embedding.dim=8,16 --jobs 9").unwrap();
        assert_eq!((grid.plan.trials, grid.plan.sampler, grid.base.jobs), (4, Sampler::Grid, 4));
        assert!(grid.base.folder.ends_with("runs/ads-sweep"), "{}", grid.base.folder.display());
        let values = vec!["512".to_owned(), "8".to_owned()];
        assert_eq!(grid.trial_sets(&values), ["train.batch_size=512", "embedding.dim=8"]);
        let tpe = setup(JOB, "--tpe embedding.dim=8..16 --halving --set train.max_steps=900 --trials 9").unwrap();
        assert_eq!(tpe.plan.rungs.as_ref().map(|rungs| rungs.levels.clone()), Some(vec![100, 300, 900]));
        let member = |rung| tpe.member(TrialTask { trial: 7, rung }, &vec!["8".to_owned()]);
        let (first, last) = (member(0), member(2));
        assert!(first.sets.contains(&"train.evaluate_every=100".to_owned()), "{:?}", first.sets);
        assert_eq!(first.options, ["--pause-after-steps", "100"]);
        assert!(last.options.is_empty() && last.folder.ends_with("trial-007"), "{}", last.folder.display());
    }

    #[test]
    fn what_cannot_be_searched_is_refused_before_anything_is_trained() {
        let refused = |text: &str, arguments: &str| setup(text, arguments).err().unwrap();
        let none = JOB.replace("validation_share = 0.1", "");
        assert!(refused(&none, "--grid embedding.dim=8").contains("no validation part"));
        assert!(refused(JOB, "--grid embeding.dim=8").contains("did you mean"));
        assert!(refused(JOB, "--random embedding.dim=0..8").contains("embedding.dim=0"));
        assert!(refused(JOB, "--grid embedding.dim=8 --metric gauc").contains("eval.group_by"));
        assert!(refused(JOB, "--grid data.validation_share=0.1,0.2").contains("on the same rows"));
        assert!(refused(JOB, "--grid embedding.dim=8,16 --halving").contains("cannot be divided"));
        assert!(refused(JOB, "--grid embedding.dim=8 --random train.seed=1,2").contains("cannot be used with"));
        assert!(refused(JOB, "").contains("required"));
    }
}
