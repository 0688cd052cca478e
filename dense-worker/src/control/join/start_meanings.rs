//! Features that mean other things than in the model that a run starts from: their names are the same, and their ids or numbers are made
//! otherwise.

use std::collections::BTreeSet;

use zagros_job::{Categorical, Job, Numeric, StartChanged};

/// The features of a job that are made otherwise than in the model, by name, and what becomes of what the model has learned of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangedMeanings {
    choice: StartChanged,
    numbers: Vec<String>,
    /// Of a feature and its table.
    ids: Vec<[String; 2]>,
}

impl ChangedMeanings {
    /// Between a job and that of the model that it starts from.
    pub(crate) fn compare(job: &Job, of_model: &Job) -> Self {
        let (ours, its) = (&job.features, &of_model.features);
        let number_changed =
            |one: &&Numeric| its.numeric.iter().any(|other| other.name() == one.name() && !other.makes_inputs_of(one));
        let ids_changed = |one: &&Categorical| {
            its.categorical.iter().any(|other| other.name == one.name && !ours.makes_ids_of(one, its, other))
        };
        let numbers = ours.numeric.iter().filter(number_changed).map(|feature| feature.name().to_owned());
        let ids = ours.categorical.iter().filter(ids_changed);
        Self {
            choice: job.train.start_changed,
            numbers: numbers.collect(),
            ids: ids.map(|feature| [feature.name.clone(), job.tables[feature.table].name.clone()]).collect(),
        }
    }

    pub(super) fn keep_numbers(&self) -> bool {
        self.choice == StartChanged::Keep || self.numbers.is_empty()
    }

    pub(super) fn tables_anew(&self) -> BTreeSet<&String> {
        let is_anew = self.choice == StartChanged::Anew;
        self.ids.iter().filter(|_| is_anew).map(|[_, table]| table).collect()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let otherwise = "otherwise than in the model";
        let numbers = self.numbers.iter().map(|name| match self.choice {
            StartChanged::Anew => format!(
                "feature `{name}` transforms its number {otherwise}: the layers that read numbers begin anew \
                 (train.start_changed = \"keep\" keeps their weights)"
            ),
            StartChanged::Keep => {
                format!("feature `{name}` transforms its number {otherwise}, and the network's weights stay")
            }
        });
        let ids = self.ids.iter().map(|[name, table]| match self.choice {
            StartChanged::Anew => format!(
                "table `{table}` begins empty: feature `{name}` makes its ids {otherwise} (train.start_changed = \"keep\" keeps the rows)"
            ),
            StartChanged::Keep => {
                format!("feature `{name}` makes its ids {otherwise}, and the rows of table `{table}` stay: they now belong to other values")
            }
        });
        numbers.chain(ids).collect()
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::{ColumnReading, IdSource, Model, ValueBuckets};

    use super::*;
    use crate::testing::job;

    #[test]
    fn a_feature_of_the_same_name_with_other_values_begins_anew_unless_it_is_to_stay() {
        let model = job(1, &[2, 2], Model::Ffnn { hidden: vec![], dropout: 0.0 });
        let same = ChangedMeanings::compare(&model, &model);
        assert_eq!((same.lines(), same.keep_numbers(), same.tables_anew().len()), (vec![], true, 0));
        let mut changed = model.clone();
        changed.features.numeric[0].log = !changed.features.numeric[0].log;
        let name = changed.features.categorical[1].name.clone();
        changed.features.categorical[1].source =
            IdSource::Column { column: name.clone(), reading: ColumnReading::Buckets(ValueBuckets::Edges(vec![1.0])) };
        let anew = ChangedMeanings::compare(&changed, &model);
        assert!(!anew.keep_numbers());
        assert_eq!(Vec::from_iter(anew.tables_anew()), [&changed.tables[1].name]);
        let lines = anew.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("the layers that read numbers begin anew"), "{}", lines[0]);
        assert!(
            lines[1].ends_with(
                "begins empty: feature `C1` makes its ids otherwise than in the model \
            (train.start_changed = \"keep\" keeps the rows)"
            ),
            "{}",
            lines[1]
        );
        changed.train.start_changed = StartChanged::Keep;
        let kept = ChangedMeanings::compare(&changed, &model);
        assert!(kept.keep_numbers() && kept.tables_anew().is_empty());
        let lines = kept.lines();
        assert!(lines[0].ends_with("and the network's weights stay"), "{}", lines[0]);
        assert!(lines[1].starts_with(&format!("feature `{name}` makes its ids otherwise")), "{}", lines[1]);
    }
}
