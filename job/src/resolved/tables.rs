//! Embedding tables as a job file says them.

use std::collections::BTreeMap;

use super::shortest;
use crate::raw;
use crate::spec::{
    Admission, Counter, Element, Init, Job, NonFinite, Order, Schedule, Table, TableOptimizer, Ttl, Victims,
};

/// Settings of the first table stand for all that equal it.
pub(super) fn common(tables: &[Table]) -> raw::Embedding {
    let of = |table: &Table| raw::Embedding {
        dim: table.dim,
        init: init(table.init),
        optimizer: table_optimizer(table.optimizer),
        clip_value: limit(table.limits.clip_value),
        clip_norm: limit(table.limits.clip_norm),
        weight_bound: limit(table.limits.weight_bound),
        non_finite: non_finite(table.non_finite),
        element: element(table.element),
        schedule: schedule(table.schedule),
        admission: admission(table.admission),
        evict: evict(table.retention.order),
        ttl_steps: ttl(table.retention.ttl)[0],
        ttl_seconds: ttl(table.retention.ttl)[1],
        small_norm: shortest(table.retention.small_norm),
        victims: victims(table.retention.victims),
    };
    tables.first().map(of).unwrap_or_default()
}

/// Tables that differ from the first, and those that no feature's column names.
pub(super) fn own(job: &Job, common: &raw::Embedding) -> BTreeMap<String, raw::Table> {
    let Some(first) = job.tables.first() else { return BTreeMap::new() };
    let named_by_column = |table: &Table| {
        let mut features = job.features.categorical.iter();
        features.any(|feature| feature.column == table.name && job.tables[feature.table].name == table.name)
    };
    let own = |table: &Table| raw::Table {
        dim: (table.dim != common.dim).then_some(table.dim),
        init: (table.init != first.init).then(|| init(table.init)),
        optimizer: (table.optimizer != first.optimizer).then(|| table_optimizer(table.optimizer)),
        clip_value: differing(table.limits.clip_value, first.limits.clip_value),
        clip_norm: differing(table.limits.clip_norm, first.limits.clip_norm),
        weight_bound: differing(table.limits.weight_bound, first.limits.weight_bound),
        ..rows_of(table, first)
    };
    let differs = |own: &raw::Table| *own != raw::Table::default();
    let written = job.tables.iter().map(|table| (table, own(table)));
    let written = written.filter(|(table, own)| differs(own) || !named_by_column(table));
    written.map(|(table, own)| (table.name.clone(), own)).collect()
}

/// Keys about rows in which a table differs from the first.
fn rows_of(table: &Table, first: &Table) -> raw::Table {
    let (own, common) = (table.retention, first.retention);
    let ttl = |position: usize| (own.ttl != common.ttl).then(|| ttl(own.ttl)[position]);
    raw::Table {
        non_finite: (table.non_finite != first.non_finite).then(|| non_finite(table.non_finite)),
        element: (table.element != first.element).then(|| element(table.element)),
        schedule: (table.schedule != first.schedule).then(|| schedule(table.schedule)),
        admission: (table.admission != first.admission).then(|| admission(table.admission)),
        evict: (own.order != common.order).then(|| evict(own.order)),
        ttl_steps: ttl(0),
        ttl_seconds: ttl(1),
        small_norm: (own.small_norm != common.small_norm).then(|| shortest(own.small_norm)),
        victims: (own.victims != common.victims).then(|| victims(own.victims)),
        ..raw::Table::default()
    }
}

fn limit(limit: Option<f32>) -> f64 {
    limit.map_or(0.0, shortest)
}

fn differing(own: Option<f32>, first: Option<f32>) -> Option<f64> {
    (own != first).then(|| limit(own))
}

fn init(init: Init) -> raw::Init {
    match init {
        Init::Zero => raw::Init::Zero,
        Init::Uniform { bound } => raw::Init::Uniform { bound: shortest(bound) },
        Init::Normal { deviation } => raw::Init::Normal { deviation: shortest(deviation) },
        Init::TruncatedNormal { deviation } => raw::Init::TruncatedNormal { deviation: shortest(deviation) },
        Init::Xavier { rows } => raw::Init::Xavier { rows: shortest(rows) },
        Init::Constant { value } => raw::Init::Constant { value: shortest(value) },
    }
}

fn table_optimizer(optimizer: TableOptimizer) -> raw::TableOptimizer {
    match optimizer {
        TableOptimizer::Sgd { lr, momentum, l2 } => {
            let [lr, momentum, l2] = [lr, momentum, l2].map(shortest);
            raw::TableOptimizer::Sgd { lr, momentum, l2 }
        }
        TableOptimizer::Adagrad { lr, epsilon, initial_accumulator, l2 } => {
            let [lr, epsilon, initial_accumulator, l2] = [lr, epsilon, initial_accumulator, l2].map(shortest);
            raw::TableOptimizer::Adagrad { lr, epsilon, initial_accumulator, l2 }
        }
        TableOptimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 } => {
            let [lr, epsilon, initial_accumulator, l2] = [lr, epsilon, initial_accumulator, l2].map(shortest);
            raw::TableOptimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 }
        }
        TableOptimizer::Adam { lr, beta1, beta2, epsilon, l2 } => {
            let [lr, beta1, beta2, epsilon, l2] = [lr, beta1, beta2, epsilon, l2].map(shortest);
            raw::TableOptimizer::Adam { lr, beta1, beta2, epsilon, l2 }
        }
        TableOptimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay } => {
            let [lr, beta1, beta2, epsilon, weight_decay] = [lr, beta1, beta2, epsilon, weight_decay].map(shortest);
            raw::TableOptimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay }
        }
        TableOptimizer::Ftrl { lr, beta, l1, l2 } => {
            let [lr, beta, l1, l2] = [lr, beta, l1, l2].map(shortest);
            raw::TableOptimizer::Ftrl { lr, beta, l1, l2 }
        }
    }
}

fn non_finite(non_finite: NonFinite) -> raw::NonFinite {
    match non_finite {
        NonFinite::Refuse => raw::NonFinite::Refuse,
        NonFinite::Skip => raw::NonFinite::Skip,
    }
}

fn element(element: Element) -> raw::Element {
    match element {
        Element::F32 => raw::Element::F32,
        Element::F16 => raw::Element::F16,
        Element::Bf16 => raw::Element::Bf16,
    }
}

pub(super) fn schedule(schedule: Schedule) -> raw::Schedule {
    match schedule {
        Schedule::Constant => raw::Schedule::Constant,
        Schedule::Linear { warmup, decay, floor } => raw::Schedule::Linear { warmup, decay, floor: shortest(floor) },
        Schedule::Cosine { warmup, decay, floor } => raw::Schedule::Cosine { warmup, decay, floor: shortest(floor) },
        Schedule::Step { warmup, every, factor } => raw::Schedule::Step { warmup, every, factor: shortest(factor) },
    }
}

fn admission(admission: Admission) -> raw::Admission {
    match admission {
        Admission::Always => raw::Admission::Always,
        Admission::Count { sightings, counter: Counter::Exact } => {
            let (error, failure) = raw::SKETCH;
            raw::Admission::Count { sightings, counter: raw::Counter::Exact, error, failure }
        }
        Admission::Count { sightings, counter: Counter::CountMin { error, failure } } => {
            let (error, failure) = (shortest(error), shortest(failure));
            raw::Admission::Count { sightings, counter: raw::Counter::CountMin, error, failure }
        }
        Admission::Probability { share } => raw::Admission::Probability { share: shortest(share) },
    }
}

fn evict(order: Order) -> raw::Evict {
    match order {
        Order::Lru => raw::Evict::Lru,
        Order::Lfu { half_life } => raw::Evict::Lfu { half_life },
    }
}

/// Steps and seconds, 0 for none.
fn ttl(ttl: Option<Ttl>) -> [u32; 2] {
    match ttl {
        None => [0, 0],
        Some(Ttl::Steps(steps)) => [steps, 0],
        Some(Ttl::Seconds(seconds)) => [0, seconds],
    }
}

fn victims(victims: Victims) -> raw::Victims {
    match victims {
        Victims::Cold => raw::Victims::Cold,
        Victims::Drop => raw::Victims::Drop,
    }
}
