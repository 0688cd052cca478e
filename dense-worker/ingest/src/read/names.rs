//! Names of columns, and what separates them.

use std::collections::HashSet;

use zagros_job::Job;

/// Names of the columns that a job uses, each once.
pub(crate) fn used_columns(job: &Job) -> Vec<String> {
    let categories = job.features.category_features();
    let (features, predict) = (&job.features, job.eval.predict.as_ref());
    let learned = features.learned_columns().filter(|_| predict.is_none()).map(String::as_str);
    let group = job.eval.group_by.as_deref().filter(|_| predict.is_none());
    let numeric = features.number_features().map(|feature| feature.column.as_str());
    let categorical = categories.iter().flat_map(|feature| features.source_columns(feature));
    let keys = job.eval.noted_columns().iter().map(String::as_str);
    let mut seen = HashSet::new();
    let time = job.data.time_column().filter(|_| predict.is_none());
    let all = learned.chain(numeric).chain(categorical).chain(group).chain(keys).chain(time);
    all.filter(|column| seen.insert(*column)).map(str::to_owned).collect()
}

/// The separators that files usually have, without `delimiter`.
pub(crate) fn usual_separators(delimiter: u8) -> impl Iterator<Item = u8> {
    b",\t;|: ".iter().copied().filter(move |separator| *separator != delimiter)
}

/// The name that a column was probably meant to have.
pub(crate) fn most_similar(names: &[String], column: &str) -> Option<String> {
    let score = |name: &String| strsim::jaro_winkler(&name.to_lowercase(), &column.to_lowercase());
    let nearest = names.iter().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(nearest) > 0.8).then(|| nearest.clone())
}
