//! Features that mean other things than in the model that a run starts from: their names, and so their rows and weights, are the same.

use zagros_job::{Categorical, Features, Job, Numeric};

/// A line for each feature whose ids or numbers are made otherwise than in the model.
pub(super) fn changed_meanings(job: &Job, of_model: &Job) -> Vec<String> {
    let numbers = numeric(&job.features, &of_model.features).map(|feature| {
        format!(
            "feature `{}` transforms its number otherwise than in the model, and the network's weights stay",
            feature.name()
        )
    });
    let ids = categorical(&job.features, &of_model.features).map(|feature| {
        let (name, table) = (&feature.name, &job.tables[feature.table].name);
        format!(
            "feature `{name}` makes its ids otherwise than in the model, and the rows of table `{table}` stay: they now belong to other \
             values; another table begins empty"
        )
    });
    numbers.chain(ids).collect()
}

fn numeric<'a>(ours: &'a Features, its: &'a Features) -> impl Iterator<Item = &'a Numeric> {
    let same = |one: &Numeric, other: &Numeric| {
        let transform = |of: &Numeric| (of.clip, of.log, of.standardise.clone(), of.min_max.clone(), of.missing);
        (transform(one), &one.encode) == (transform(other), &other.encode)
    };
    let its = its.numeric.iter();
    ours.numeric.iter().filter(move |one| its.clone().any(|other| other.name() == one.name() && !same(one, other)))
}

fn categorical<'a>(ours: &'a Features, its: &'a Features) -> impl Iterator<Item = &'a Categorical> {
    let same = |one: &Categorical, other: &Categorical| {
        (&one.source, &one.ids, &one.default) == (&other.source, &other.ids, &other.default)
    };
    let its = its.categorical.iter();
    ours.categorical.iter().filter(move |one| its.clone().any(|other| other.name == one.name && !same(one, other)))
}

#[cfg(test)]
mod tests {
    use zagros_job::{Buckets, Model, Reading, Source};

    use super::*;
    use crate::testing::job;

    #[test]
    fn a_feature_of_the_same_name_with_other_values_is_named() {
        let model = job(1, &[2, 2], Model::Ffnn { hidden: vec![], dropout: 0.0 });
        assert_eq!(changed_meanings(&model, &model), [""; 0]);
        let mut changed = model.clone();
        changed.features.numeric[0].log = !changed.features.numeric[0].log;
        let name = changed.features.categorical[1].name.clone();
        changed.features.categorical[1].source =
            Source::Column { column: name.clone(), reading: Reading::Buckets(Buckets::Edges(vec![1.0])) };
        let lines = changed_meanings(&changed, &model);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("transforms its number otherwise"), "{}", lines[0]);
        assert!(lines[1].starts_with(&format!("feature `{name}` makes its ids otherwise")), "{}", lines[1]);
    }
}
