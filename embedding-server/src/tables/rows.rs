//! What the job says about rows, in the table's terms.

use zagros_job as job;
use zagros_table::{Admission, Counter, Element, EvictionOrder, EvictionTarget, NonFinite, Retention, Schedule, Ttl};

pub(super) fn non_finite(non_finite: job::NonFinite) -> NonFinite {
    match non_finite {
        job::NonFinite::Refuse => NonFinite::Refuse,
        job::NonFinite::Skip => NonFinite::Skip,
    }
}

pub(super) fn element(element: job::Element) -> Element {
    match element {
        job::Element::F32 => Element::F32,
        job::Element::F16 => Element::F16,
        job::Element::Bf16 => Element::Bf16,
    }
}

pub(super) fn schedule(schedule: job::Schedule) -> Schedule {
    match schedule {
        job::Schedule::Constant => Schedule::Constant,
        job::Schedule::Linear { warmup, decay, floor } => Schedule::Linear { warmup, decay, floor },
        job::Schedule::Cosine { warmup, decay, floor } => Schedule::Cosine { warmup, decay, floor },
        job::Schedule::Step { warmup, every, factor } => Schedule::Step { warmup, every, factor },
    }
}

pub(super) fn admission(admission: job::Admission) -> Admission {
    match admission {
        job::Admission::Always => Admission::Always,
        job::Admission::Count { sightings, counter } => {
            let counter = match counter {
                job::Counter::Exact => Counter::Exact,
                job::Counter::CountMin { error, failure } => Counter::CountMin { error, failure },
            };
            Admission::Count { sightings, counter }
        }
        job::Admission::Probability { share } => Admission::Probability { share },
    }
}

pub(super) fn retention(retention: job::Retention) -> Retention {
    Retention {
        order: match retention.order {
            job::Order::Lru => EvictionOrder::Lru,
            job::Order::Lfu { half_life } => EvictionOrder::Lfu { half_life },
        },
        ttl: retention.ttl.map(|ttl| match ttl {
            job::Ttl::Steps(steps) => Ttl::Steps(steps),
            job::Ttl::Seconds(seconds) => Ttl::Seconds(seconds),
        }),
        small_norm: retention.small_norm,
        victims: match retention.victims {
            job::Victims::Cold => EvictionTarget::Cold,
            job::Victims::Drop => EvictionTarget::Drop,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::{Job, Overrides};
    use zagros_table::TableConfig;

    use super::*;
    use crate::table_config;

    /// The table of a job with these keys in `[embedding]`, as its server checks it.
    fn config(keys: &str) -> TableConfig {
        let text = format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\n{keys}\n");
        let job = Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap();
        let config = table_config(&job.tables[0]);
        zagros_table::Table::new(1, 0, &config).unwrap();
        config
    }

    #[test]
    fn what_the_job_says_of_rows_reaches_the_table() {
        let config = config(
            "element = 'bf16'\nnon_finite = 'skip'\nadmission = { kind = 'probability', share = 0.25 }\n\
             schedule = { kind = 'cosine', warmup = 5, decay = 7, floor = 0.5 }\nttl_steps = 9\n\
             evict = { kind = 'lfu', half_life = 3 }\nsmall_norm = 0.125\nvictims = 'drop'",
        );
        assert_eq!((config.element, config.non_finite), (Element::Bf16, NonFinite::Skip));
        assert_eq!(config.admission, Admission::Probability { share: 0.25 });
        assert_eq!(config.schedule, Schedule::Cosine { warmup: 5, decay: 7, floor: 0.5 });
        let (order, ttl) = (EvictionOrder::Lfu { half_life: 3 }, Some(Ttl::Steps(9)));
        assert_eq!(config.retention, Retention { order, ttl, small_norm: 0.125, victims: EvictionTarget::Drop });
    }

    /// The widest ranges of the job file are within those of the table.
    #[test]
    fn what_the_job_file_allows_the_table_takes() {
        for counter in ["exact", "count_min"] {
            let config = config(&format!(
                "admission = {{ kind = 'count', sightings = 65535, counter = '{counter}', error = 0.5, failure = 1e-9 }}"
            ));
            assert!(matches!(config.admission, Admission::Count { sightings: 65535, .. }));
        }
        config("schedule = { kind = 'linear', warmup = 1000000000000, decay = 1 }");
        config(
            "schedule = { kind = 'step', every = 1, factor = 0 }\nttl_seconds = 4294967295\nsmall_norm = 1e30\nvictims = 'drop'",
        );
    }
}
