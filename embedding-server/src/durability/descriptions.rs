//! What decides whether the rows of a log fit into the tables of a job.
//!
//! Rows of another dim, optimiser state or access metadata cannot be put in. Rows that a lookup alone made are not in the log:
//! they are made again, so seed and first weights belong to the description. Learning rate, schedule, clipping, times to live
//! and the threshold of admission do not: a server goes on under other ones.

use std::collections::BTreeSet;

use zagros_job::Job;
use zagros_log::TableDescription;
use zagros_table::{AdmissionPolicy, FrequencyCounter, Initializer, TableConfig};
use zagros_zip::ZipEq;

/// Describes the tables of a job. The text of a description is part of the log's format: it stays the same in later releases.
pub(super) fn describe_tables(job: &Job, configs: &[TableConfig]) -> Vec<TableDescription> {
    let describe = |(config, table): (&TableConfig, zagros_job::ServerTable)| {
        let settings = [
            ("dim", config.dim.to_string()),
            ("weights", config.element.name().to_owned()),
            ("optimizer", config.optimizer.state_layout().to_owned()),
            ("words of a row", config.stride().to_string()),
            ("first weights", first_weights(config.init)),
            ("seed", job.train.seed.to_string()),
            ("access metadata", describe_access(job, config)),
            ("admission", describe_admission(config.admission)),
            // Frequency counts and the order of replay go by stripes.
            ("stripes (by `cluster.memory`)", config.stripes.to_string()),
        ];
        let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        TableDescription { name: table.name, settings }
    };
    configs.iter().zip_eq(job.server_tables()).map(describe).collect()
}

/// The first difference, in words. `None` if rows of `there` fit into `here`.
pub(super) fn find_difference(there: &[TableDescription], here: &[TableDescription]) -> Option<String> {
    let names = |tables: &[TableDescription]| {
        let names: Vec<_> = tables.iter().map(|table| format!("`{}`", table.name)).collect();
        names.join(", ")
    };
    if there.len() != here.len() || there.iter().zip_eq(here).any(|(there, here)| there.name != here.name) {
        return Some(format!("it has the tables {}, and the job {}", names(there), names(here)));
    }
    there.iter().zip_eq(here).find_map(|(there, here)| {
        let none = String::from("unknown");
        let keys: BTreeSet<_> = there.settings.keys().chain(here.settings.keys()).collect();
        let differing = keys.into_iter().find(|key| there.settings.get(*key) != here.settings.get(*key))?;
        let value = |table: &TableDescription| table.settings.get(differing).unwrap_or(&none).clone();
        Some(format!("{differing} of table `{}` is {} there, and {} in the job", there.name, value(there), value(here)))
    })
}

fn first_weights(init: Initializer) -> String {
    match init {
        Initializer::Zero => "zero".to_owned(),
        Initializer::Uniform { bound } => format!("uniform within {bound}"),
        Initializer::Normal { deviation } => format!("normal of deviation {deviation}"),
        Initializer::TruncatedNormal { deviation } => format!("truncated normal of deviation {deviation}"),
        Initializer::Xavier { rows } => format!("xavier for {rows} rows"),
        Initializer::Constant { value } => format!("constant {value}"),
    }
}

fn describe_access(job: &Job, config: &TableConfig) -> String {
    match config.has_access(job.cluster.memory.is_some()) {
        true => config.access_format(),
        false => "none".to_owned(),
    }
}

fn describe_admission(policy: AdmissionPolicy) -> String {
    match policy {
        AdmissionPolicy::Always => "always".to_owned(),
        AdmissionPolicy::Count { counter: FrequencyCounter::Exact, .. } => "exact counts".to_owned(),
        AdmissionPolicy::Count { counter: FrequencyCounter::CountMin { error, failure }, .. } => {
            format!("counts in a sketch of error {error} and failure {failure}")
        }
        AdmissionPolicy::Probability { share } => format!("a share of {share}"),
    }
}

#[cfg(test)]
mod tests {
    use zagros_table::{EvictionOrder, EvictionPolicy, LearningRateSchedule, Optimizer, Ttl};

    use super::*;
    use crate::tables::table_configs;
    use crate::testing::job;

    /// A change of this text would refuse the logs of an earlier release.
    #[test]
    fn the_text_of_a_description_stays() {
        let job = job(1);
        let described = describe_tables(&job, &table_configs(&job));
        let text: Vec<_> = described[0].settings.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(described[0].name, "user");
        assert_eq!(
            text,
            [
                "access metadata: none",
                "admission: always",
                "dim: 4",
                "first weights: uniform within 0.01",
                "optimizer: adagrad",
                &format!("seed: {}", job.train.seed),
                "stripes (by `cluster.memory`): 64",
                "weights: f32",
                "words of a row: 8",
            ]
        );
    }

    #[test]
    fn what_a_row_is_made_of_differs_and_how_it_learns_does_not() {
        let job = job(1);
        let configs = table_configs(&job);
        let expected = describe_tables(&job, &configs);
        let difference_with = |change: fn(&mut TableConfig)| {
            let mut configs = configs.clone();
            configs.iter_mut().for_each(change);
            find_difference(&expected, &describe_tables(&job, &configs))
        };
        assert_eq!(difference_with(|_| ()), None);
        assert_eq!(
            difference_with(|config| config.schedule = LearningRateSchedule::Step { warmup: 5, every: 7, factor: 0.5 }),
            None
        );
        let faster = |config: &mut TableConfig| {
            if let Optimizer::Adagrad { lr, .. } | Optimizer::Sgd { lr, .. } = &mut config.optimizer {
                *lr *= 2.0;
            }
        };
        assert_eq!(difference_with(faster), None);
        assert_eq!(difference_with(|config| config.limits.clip_norm = 1.0), None);
        let wider = difference_with(|config| config.dim = 8).unwrap();
        assert_eq!(wider, "dim of table `user` is 4 there, and 8 in the job");
        assert!(
            difference_with(|config| config.init = Initializer::Zero)
                .unwrap()
                .starts_with("first weights of table `user`")
        );
        let ttl = |seconds| {
            let retention =
                EvictionPolicy { order: EvictionOrder::Lru, ttl: Some(seconds), ..EvictionPolicy::default() };
            let mut configs = configs.clone();
            configs.iter_mut().for_each(|config| config.retention = retention);
            describe_tables(&job, &configs)
        };
        assert_eq!(find_difference(&ttl(Ttl::Steps(5)), &ttl(Ttl::Steps(500))), None);
        assert!(find_difference(&ttl(Ttl::Steps(5)), &ttl(Ttl::Seconds(5))).unwrap().contains("access metadata"));
        assert!(
            find_difference(&expected, &expected[..1])
                .unwrap()
                .contains("it has the tables `user`, `item`, and the job `user`")
        );
    }
}
