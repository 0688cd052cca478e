//! From the file's form to the validated job: defaults that depend on other keys, references between sections,
//! rules that no single key can break. Goes on after a problem; a job with problems never leaves this module.

mod cluster;
mod data;
mod eval;
mod features;
mod model;
mod modes;
mod rows;
mod tables;

use std::path::{Path as FilePath, PathBuf};

use crate::document::{Node, Path};
use crate::error::Problem;
use crate::raw;
use crate::spec::{Job, Output};
use crate::threads::ThreadPlan;

/// What resolving depends on besides the file's values.
pub(crate) struct Context<'a> {
    /// The tree that the values came from, for places.
    pub(crate) document: &'a Node,
    /// The job file.
    pub(crate) file: &'a FilePath,
    /// For the keys that leave them to the machine.
    pub(crate) threads: ThreadPlan,
}

/// Makes the job.
///
/// # Errors
/// Every rule that is broken.
pub(crate) fn resolve(raw: raw::Job, context: &Context<'_>) -> Result<Job, Vec<Problem>> {
    let mut resolver = Resolver { context, problems: Vec::new() };
    let job = resolver.job(raw);
    if resolver.problems.is_empty() { Ok(job) } else { Err(resolver.problems) }
}

struct Resolver<'a> {
    context: &'a Context<'a>,
    problems: Vec<Problem>,
}

impl Resolver<'_> {
    fn job(&mut self, raw: raw::Job) -> Job {
        self.early_stop_fits(&raw);
        let columns = data::columns(&raw.data);
        let features = self.features(raw.data.format, raw.features, columns.as_deref());
        let (tables, categorical) = self.tables(&features.categorical, &raw.embedding, &raw.tables);
        self.names_are_free(raw.train.mode, &tables);
        self.retention_fits(&tables, &raw.tables, &raw.cluster);
        self.sync_fits(raw.cluster.workers, raw.train.mode, &tables);
        self.collective_fits(&raw.cluster, raw.train.mode);
        let features = features::assemble(features, categorical);
        self.model(&raw.model, &features, &tables);
        let module = self.module_file(&raw.model);
        Job {
            name: self.name(raw.name),
            data: self.data(&raw.data, &features),
            tables,
            model: model::network(raw.model, module),
            dense_optimizer: model::optimizer(raw.optimizer),
            train: self.train(&raw.train),
            eval: self.eval(raw.eval, &features.label, columns.as_deref()),
            checkpoint: self.checkpoint(&raw.checkpoint),
            cluster: {
                self.min_workers_fit(&raw.cluster, raw.train.mode);
                self.mode_fits(raw.cluster.workers, &raw.train, &raw.optimizer);
                self.cluster(raw.cluster)
            },
            output: self.output(raw.output, raw.train.early_stop.is_some()),
            features,
        }
    }

    fn output(&mut self, raw: raw::Output, chooses: bool) -> Output {
        let raw::Output { folder, save_model, model_folder, tensorboard, keep_best } = raw;
        self.names_a_folder("output.model_folder", model_folder.as_deref());
        let keep_best = keep_best.unwrap_or(u32::from(chooses));
        Output { folder: PathBuf::from(folder), save_model, model_folder, tensorboard, keep_best }
    }

    fn name(&mut self, given: Option<String>) -> String {
        let Some(name) = given else {
            // Always a good name: it came from the file system, so what is odd in it is replaced, not refused.
            let stem = self.context.file.file_stem().unwrap_or_default().to_string_lossy();
            let name: String = stem.chars().take(100).map(|c| if is_name_character(c) { c } else { '-' }).collect();
            return if name.is_empty() { "job".to_owned() } else { name };
        };
        if name.is_empty() || name.chars().count() > 100 || !name.chars().all(is_name_character) {
            let help = "use letters, digits, `-`, `_` and `.`, at most 100";
            self.problem("name", format!("\"{name}\" is no name for a run"), "names folders and metrics", help);
        }
        name
    }

    /// Notes a broken rule; the place is that of the key, or of the nearest table around it that is written.
    fn problem(
        &mut self,
        path: impl Into<Path>,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) {
        let place = self.context.document.place(&path.into());
        self.problems.push(Problem::new(message).at(place, label).help(help));
    }
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::fixture::{CRITEO, job, problems};
    use crate::{Job, Overrides};

    #[test]
    fn the_name_is_the_files_unless_given() {
        assert_eq!(job(CRITEO, "").name, "ads");
        assert_eq!(job("name = 'x-1_y.z'\n", CRITEO).name, "x-1_y.z");
        let odd = Job::parse(CRITEO, Path::new("/jobs/my job é.toml"), &Overrides::none()).unwrap();
        assert_eq!(odd.name, "my-job--");
        assert_eq!(Job::parse(CRITEO, Path::new(""), &Overrides::none()).unwrap().name, "job");
    }

    /// It becomes part of a path.
    #[test]
    fn a_name_is_no_path() {
        for name in ["", "a/b", "a b", "é"] {
            assert_eq!(problems(&format!("name = '{name}'\n"), CRITEO), [format!("\"{name}\" is no name for a run")]);
        }
        assert_eq!(problems(&format!("name = '{}'\n", "x".repeat(101)), CRITEO).len(), 1);
    }
}
