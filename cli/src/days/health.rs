//! The state of a day's data: its features beside those of the day before, what the tables knew of its ids, and what of this is
//! worth a warning, in words.

use std::collections::BTreeMap;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};
use zagros_ingest::profile::{DataProfile, FeatureProfile};
use zagros_plumbing::metrics::Registry;
use zagros_scoring::TableLookups;

/// The counter of what happened to the ids of requests, by table.
const IDS: &str = "zagros_embedding_table_ids_total";
/// A stability index from which on two distributions differ much (Siddiqi 2006).
const MUCH_DRIFT: f64 = 0.25;
/// Fewer rows say little.
const ENOUGH_ROWS: u64 = 1_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DayHealth {
    pub(crate) profile: DataProfile,
    /// The tables, in the order of their names.
    pub(crate) tables: Vec<TableHealth>,
    /// Its features beside those of an earlier day than the one before; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reference: Option<ReferenceDrift>,
    pub(crate) warnings: Vec<String>,
}

impl DayHealth {
    /// The state of a day's features, beside that of the day before.
    pub(crate) fn new(
        profile: DataProfile,
        reference: Option<ReferenceDrift>,
        previous: Option<(&String, &Self)>,
    ) -> Self {
        let mut warnings = previous.map_or_else(Vec::new, |(day, before)| warnings(&profile, day, &before.profile));
        warnings.extend(reference.iter().flat_map(|reference| reference.warnings(&profile)));
        Self { profile, tables: Vec::new(), reference, warnings }
    }

    /// Adds what the tables knew. Returns what of it is worth a warning.
    pub(crate) fn add_tables(&mut self, tables: Vec<TableHealth>, previous: Option<(&String, &Self)>) -> Vec<String> {
        let found = previous.map_or_else(Vec::new, |(day, before)| table_warnings(&tables, day, &before.tables));
        self.tables = tables;
        self.warnings.extend(found.iter().cloned());
        found
    }
}

/// How far the features of a day are from those of a reference day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReferenceDrift {
    pub(crate) day: String,
    /// Population stability index by feature.
    pub(crate) drift: BTreeMap<String, f64>,
}

impl ReferenceDrift {
    /// Of a profile that was made beside that of the reference day.
    pub(crate) fn new(day: &str, profile: &DataProfile) -> Self {
        let drift = profile.features.iter().filter_map(|feature| Some((feature.column.clone(), feature.drift?)));
        Self { day: day.to_owned(), drift: drift.collect() }
    }

    /// Features that have drifted since then, and not much since the day before.
    fn warnings(&self, profile: &DataProfile) -> Vec<String> {
        if profile.rows < ENOUGH_ROWS {
            return Vec::new();
        }
        let slow = |feature: &&FeatureProfile| feature.drift.is_some_and(|drift| drift < MUCH_DRIFT);
        let features = profile.features.iter().filter(slow);
        let warning = |feature: &FeatureProfile| {
            let (name, drift) = (&feature.column, *self.drift.get(&feature.column)?);
            let text = || {
                format!(
                    "{name}: its values are distributed otherwise than on {} (PSI {drift:.2}), little by little each day",
                    self.day
                )
            };
            (drift >= MUCH_DRIFT).then(text)
        };
        features.filter_map(warning).collect()
    }
}

/// What a table knew of a day's ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TableHealth {
    pub(crate) table: String,
    /// Share of the ids of the rows that have no row in the model of the days before; an id counts as often as rows have it. `None` on
    /// a first day.
    pub(crate) new_ids: Option<f64>,
    /// Rows created while the day was trained.
    pub(crate) created: u64,
    /// Share of the ids without a row that got one; the others were refused by the admission filter. `None` if no id was without.
    pub(crate) admitted: Option<f64>,
}

/// The tables of a day: `scored` is counted while the day was scored by the model before, `trained` by the embedding servers of this
/// process while it was learned.
pub(crate) fn table_health(
    names: impl Iterator<Item = String>,
    scored: Option<&[TableLookups]>,
    trained: &Registry,
) -> Vec<TableHealth> {
    let families = trained.gather();
    let count = |table: &str, event: &str| -> u64 {
        let labels = [("table", table), ("what", event)];
        let counters = families.iter().filter(|family| family.name() == IDS).flat_map(|family| family.get_metric());
        let wanted = counters.filter(|metric| {
            let is_there = |(name, value): &(&str, &str)| {
                metric.get_label().iter().any(|label| label.name() == *name && label.value() == *value)
            };
            labels.iter().all(is_there)
        });
        wanted.map(|metric| metric.get_counter().get_value() as u64).sum()
    };
    let share = |part: u64, all: u64| (all > 0).then(|| part as f64 / all as f64);
    let new_share = |lookups: &TableLookups| share(lookups.missing, lookups.ids);
    let admitted = |created: u64, refused: u64| share(created, created + refused);
    let health = |table: String| TableHealth {
        new_ids: scored.and_then(|scored| new_share(scored.iter().find(|lookups| lookups.table == table)?)),
        created: count(&table, "created"),
        admitted: admitted(count(&table, "created"), count(&table, "refused")),
        table,
    };
    names.map(health).collect()
}

/// What of a day's features is worth a warning, beside those of an earlier day.
fn warnings(profile: &DataProfile, day: &str, before: &DataProfile) -> Vec<String> {
    if profile.rows.min(before.rows) < ENOUGH_ROWS {
        return Vec::new();
    }
    let mut found = Vec::new();
    let (rate, rate_before) = (profile.positive_rate, before.positive_rate);
    if rate.max(rate_before) > 2.0 * rate.min(rate_before) {
        found.push(format!("{} of the rows are positive, {} on {day}", percent(rate), percent(rate_before)));
    }
    let comparable = profile.rows.max(before.rows) < profile.rows.min(before.rows) * 5 / 4;
    for feature in &profile.features {
        let Some(earlier) = before.features.iter().find(|earlier| earlier.column == feature.column) else {
            found.push(format!("{}: it was not a feature on {day}", feature.column));
            continue;
        };
        found.extend(of_feature(feature, day, earlier, comparable));
    }
    found
}

fn of_feature(feature: &FeatureProfile, day: &str, earlier: &FeatureProfile, comparable: bool) -> Vec<String> {
    let mut found = Vec::new();
    let name = &feature.column;
    if (feature.missing - earlier.missing).abs() > 0.1 {
        let (now, then) = (percent(feature.missing), percent(earlier.missing));
        found.push(format!("{name}: {now} of the rows have no value, {then} on {day}"));
    }
    if let (Some(now), Some(then)) = (feature.distinct, earlier.distinct) {
        let is_other = comparable && now.max(then) >= 10 && now.max(then) > 2 * now.min(then);
        if is_other || (now <= 1 && then > 1) {
            let values = if now == 1 { "value" } else { "values" };
            found.push(format!("{name}: {} distinct {values}, {} on {day}", HumanCount(now), HumanCount(then)));
        }
    }
    if let Some(drift) = feature.drift.filter(|drift| *drift >= MUCH_DRIFT) {
        found.push(format!("{name}: its values are distributed otherwise than on {day} (PSI {drift:.2})"));
    }
    found
}

/// A table that knows many fewer of a day's ids than on the day before.
fn table_warnings(tables: &[TableHealth], day: &str, before: &[TableHealth]) -> Vec<String> {
    let warning = |table: &TableHealth| {
        let (new, then) = (table.new_ids?, before.iter().find(|before| before.table == table.table)?.new_ids?);
        let text = || format!("table {}: {} of the ids are new, {} on {day}", table.table, percent(new), percent(then));
        (new > then + 0.2).then(text)
    };
    tables.iter().filter_map(warning).collect()
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use zagros_ingest::profile::{ColumnBins, ValueDistribution};
    use zagros_plumbing::metrics::{IntCounterVec, Opts, register};

    use super::*;

    fn feature(missing: f64, distinct: u64, drift: f64) -> FeatureProfile {
        let distribution = ValueDistribution { bins: ColumnBins::Values(vec![]), shares: vec![missing, 1.0 - missing] };
        let (column, distinct, drift) = ("city".to_owned(), Some(distinct), Some(drift));
        FeatureProfile { column, missing, distinct, drift, distribution }
    }

    fn profile(rows: u64, positive_rate: f64, feature: FeatureProfile) -> DataProfile {
        DataProfile { rows, whole: true, positive_rate, bad_rows: 0, features: vec![feature] }
    }

    #[test]
    fn what_changed_much_is_said_in_words() {
        let earlier = profile(10_000, 0.04, feature(0.02, 500, 0.0));
        let compare = |now: DataProfile| warnings(&now, "2026-11-01", &earlier);
        assert!(compare(profile(10_000, 0.05, feature(0.1, 400, 0.2))).is_empty());
        let found = compare(profile(10_000, 0.01, feature(0.5, 100, 0.4)));
        let expected = [
            "1.0 % of the rows are positive, 4.0 % on 2026-11-01",
            "city: 50.0 % of the rows have no value, 2.0 % on 2026-11-01",
            "city: 100 distinct values, 500 on 2026-11-01",
            "city: its values are distributed otherwise than on 2026-11-01 (PSI 0.40)",
        ];
        assert_eq!(found, expected);
        // Of half the rows, fewer values are expected; one value is not.
        assert!(compare(profile(5_000, 0.04, feature(0.02, 200, 0.0))).is_empty());
        assert_eq!(compare(profile(5_000, 0.04, feature(0.02, 1, 0.0))).len(), 1);
        assert!(compare(profile(999, 0.01, feature(0.5, 1, 0.4))).is_empty(), "too few rows");
        let other = DataProfile { features: vec![], ..earlier.clone() };
        assert_eq!(warnings(&earlier, "then", &other), ["city: it was not a feature on then"]);
    }

    #[test]
    fn a_slow_drift_is_said_beside_an_earlier_day() {
        let reference = ReferenceDrift::new("2026-11-01", &profile(10_000, 0.04, feature(0.02, 500, 0.4)));
        let slow = profile(10_000, 0.04, feature(0.02, 500, 0.1));
        assert_eq!(
            reference.warnings(&slow),
            ["city: its values are distributed otherwise than on 2026-11-01 (PSI 0.40), little by little each day"]
        );
        // What has changed since the day before is said of that day.
        assert!(reference.warnings(&profile(10_000, 0.04, feature(0.02, 500, 0.3))).is_empty());
        assert!(reference.warnings(&DataProfile { rows: 999, ..slow }).is_empty(), "too few rows");
    }

    #[test]
    fn tables_say_what_was_new_and_what_was_admitted() {
        let registry = Registry::new();
        let vec = IntCounterVec::new(Opts::new(IDS, "ids"), &["server", "table", "what"]);
        let vec = register(&registry, vec);
        for (server, what, count) in [("0", "created", 1), ("1", "created", 1), ("1", "refused", 6)] {
            vec.with_label_values(&[server, "user", what]).inc_by(count);
        }
        let names = || ["user".to_owned(), "item".to_owned()].into_iter();
        let scored = [TableLookups { table: "user".to_owned(), ids: 10, missing: 1 }];
        let found = table_health(names(), Some(&scored), &registry);
        let expected = TableHealth { table: "user".to_owned(), new_ids: Some(0.1), created: 2, admitted: Some(0.25) };
        assert_eq!(found[0], expected);
        assert_eq!((found[1].new_ids, found[1].created, found[1].admitted), (None, 0, None));
        let earlier = [TableHealth { new_ids: Some(0.05), ..expected.clone() }];
        assert!(table_warnings(&found, "then", &earlier).is_empty());
        let many = [TableHealth { new_ids: Some(0.5), ..expected }];
        assert_eq!(table_warnings(&many, "then", &earlier), ["table user: 50.0 % of the ids are new, 5.0 % on then"]);
        assert_eq!(table_health(names(), None, &registry)[0].new_ids, None);
    }
}
