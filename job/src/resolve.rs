//! From the job file to the job: defaults that depend on other keys, references between sections, and rules across
//! keys.

mod categorical;
mod cluster;
mod data;
mod eval;
mod features;
mod model;
mod numeric;
mod parts;
mod sequences;
mod size;
mod tables;
mod targets;

use std::path::Path as FilePath;

use serde::Deserialize;

use crate::document::{KeyPath, TomlNode};
use crate::error::JobProblem;
use crate::file::{DataLayout, JobFile, ModelFile};
use crate::settings::{Features, Job, Model, OutputSettings, Parametrization};
use crate::threads::ThreadPlan;

pub(crate) struct ResolveContext<'a> {
    pub(crate) document: &'a TomlNode,
    pub(crate) file: &'a FilePath,
    /// Threads of the machine, for keys that the job does not set.
    pub(crate) threads: ThreadPlan,
}

/// `context.document` has passed the check against the schema. Fails with every broken rule.
pub(crate) fn resolve(context: &ResolveContext<'_>) -> Result<Job, Vec<JobProblem>> {
    let mut resolver = JobResolver {
        context,
        has_lists: false,
        columns: None,
        labels: Vec::new(),
        weight: None,
        problems: Vec::new(),
    };
    let file =
        JobFile::deserialize(context.document.to_json()).map_err(|error| vec![JobProblem::new(error.to_string())])?;
    let job = resolver.resolve_job(file);
    if resolver.problems.is_empty() { Ok(job) } else { Err(resolver.problems) }
}

struct JobResolver<'a> {
    context: &'a ResolveContext<'a>,
    has_lists: bool,
    /// Names of all columns, if they are known before a file is opened.
    columns: Option<Vec<String>>,
    /// Columns of labels. No feature may be one of them, or the weight.
    labels: Vec<String>,
    weight: Option<String>,
    problems: Vec<JobProblem>,
}

impl JobResolver<'_> {
    fn resolve_job(&mut self, file: JobFile) -> Job {
        self.early_stop_fits(&file);
        self.calibration_fits(&file);
        self.has_lists = matches!(file.data.format, DataLayout::Parquet | DataLayout::Arrow | DataLayout::Jsonl);
        self.columns = data::known_columns(&file.data);
        let (mut features, categorical) = self.resolve_features(file.data.format, file.features);
        let ModelFile { size, size_embeddings, mup_base_width, network } = file.model;
        let size = self.model_size(size.as_deref(), &network);
        let embedding = self.sized_tables(&file.embedding, size, size_embeddings);
        let (tables, categorical) = self.resolve_tables(&categorical, &embedding, &file.tables);
        features.categorical = categorical;
        self.names_are_free(&file.train, &tables);
        self.eviction_fits(&tables, &file.tables, &file.cluster);
        self.sync_fits(file.cluster.workers, file.train.mode, &tables);
        self.collective_fits(&file.cluster, file.train.mode);
        self.embedding_fits(&network, &features);
        self.outputs_fit(&network, &features.targets);
        self.steps_fit(&file.train, &tables, &file.tables);
        self.target_encodings_fit(&file.data, &features);
        self.statistics_fit(&features, &file.cluster);
        self.stdin_fits(&file.data, file.train.epochs, file.cluster.workers, &features);
        self.mlp_fits(file.mlp, &network, file.train.mode);
        self.measures_fit(&file.eval, &features.targets);
        self.names_a_folder("checkpoint.folder", file.checkpoint.folder.as_deref());
        self.worker_bounds_fit(&file.cluster, file.train.mode);
        self.mode_fits(file.cluster.most_workers(), &file.train, &file.optimizer);
        let (stops_early, epoch_steps) = (file.train.early_stop.is_some(), file.train.epoch_steps);
        let mut job = Job {
            mlp: file.mlp,
            model: self.resolve_model(network, &features, &tables),
            parametrization: Parametrization::Standard,
            name: self.run_name(file.name),
            data: self.resolve_data(&file.data, &features),
            tables,
            dense_optimizer: file.optimizer,
            eval: file.eval,
            checkpoint: file.checkpoint,
            cluster: self.resolve_cluster(file.cluster),
            train: {
                let train = self.set_stop_metric(file.train, &features.targets);
                self.penalties_fit(&train, &features);
                self.resolve_train(train)
            },
            output: self.resolve_output(file.output, stops_early),
            features,
        };
        self.set_widths(&mut job, size);
        self.streams_split(&job.model);
        job.parametrization = self.resolve_parametrization(mup_base_width, size.is_some(), &job.model);
        self.weights_fit(&mut job);
        if let Some(steps) = epoch_steps {
            job.count_epochs(steps);
        }
        job
    }

    fn embedding_fits(&mut self, model: &Model, features: &Features) {
        if features.numeric_embedding.is_some() && matches!(model, Model::TorchScript { .. }) {
            let message = "a TorchScript module reads numbers, and not `features.numeric_embedding`";
            let help = "remove the key, and embed the numbers inside the module";
            self.problem("features.numeric_embedding", message, "not for a module", help);
        }
    }

    fn resolve_output(&mut self, output: OutputSettings, stops_early: bool) -> OutputSettings {
        self.names_a_folder("output.model_folder", output.model_folder.as_deref());
        let keep_best = if self.is_given("output.keep_best") { output.keep_best } else { u32::from(stops_early) };
        OutputSettings { keep_best, ..output }
    }

    fn is_given(&self, key: &str) -> bool {
        self.context.document.find(&KeyPath::from(key)).is_some()
    }

    fn run_name(&mut self, given: Option<String>) -> String {
        let Some(name) = given else {
            // This is always a valid name: odd characters of a file name are replaced, not refused.
            let stem = self.context.file.file_stem().unwrap_or_default().to_string_lossy();
            let name: String = stem.chars().take(100).map(|c| if is_name_character(c) { c } else { '-' }).collect();
            return if name.is_empty() { "job".to_owned() } else { name };
        };
        if name.is_empty() || name.chars().count() > 100 || !name.chars().all(is_name_character) {
            let help = "use letters, digits, `-`, `_` and `.`, at most 100";
            let message = format!("\"{name}\" is not a valid name for a run");
            self.problem("name", message, "names folders and metrics", help);
        }
        name
    }

    /// Notes each of these keys that is given.
    fn refuse_keys(
        &mut self,
        path: &KeyPath,
        keys: &[&str],
        message: impl Fn(&str) -> String,
        label: &str,
        help: &str,
    ) {
        for (key, path) in keys.iter().map(|key| (key, path.key(key))) {
            if self.context.document.find(&path).is_some() {
                self.problem(path, message(key), label, help);
            }
        }
    }

    /// Notes a broken rule. Its position is that of the key, or of the nearest written table around it.
    fn problem(
        &mut self,
        path: impl Into<KeyPath>,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) {
        let place = self.context.document.place(&path.into());
        self.problems.push(JobProblem::new(message).at_place(place, label).help(help));
    }
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::fixture::{CRITEO, assert_problems_with, job};
    use crate::{Job, Overrides};

    #[test]
    fn the_name_is_that_of_the_file_unless_given() {
        assert_eq!(job(CRITEO, "").name, "ads");
        assert_eq!(job("name = 'x-1_y.z'\n", CRITEO).name, "x-1_y.z");
        let odd = Job::parse(CRITEO, Path::new("/jobs/my job é.toml"), &Overrides::none()).unwrap();
        assert_eq!(odd.name, "my-job--");
        assert_eq!(Job::parse(CRITEO, Path::new(""), &Overrides::none()).unwrap().name, "job");
    }

    /// The name becomes part of a path.
    #[test]
    fn a_name_cannot_be_a_path() {
        let long = "x".repeat(101);
        let rows = r#"
            ''    => "" is not a valid name for a run
            'a/b' => "a/b" is not a valid name for a run
            'a b' => "a b" is not a valid name for a run
            'é'   => "é" is not a valid name for a run
        "#;
        assert_problems_with("", |name| format!("name = {name}\n{CRITEO}"), &format!("{rows}\n'{long}' => …"));
    }
}
