//! The page of all days, `<output.folder>/<name>.days.html`: the measures of each day, and the state of its data. One file that opens
//! offline, made from the history.

use indicatif::HumanCount;
use zagros_dense_worker::Evaluation;
use zagros_ingest::profile::FeatureProfile;
use zagros_plumbing::chart::html::NOTHING;
use zagros_plumbing::chart::{Chart, ChartSeries};
use zagros_shell::{CommandReport, ReportTable};
use zagros_zip::number_from;

use super::health::{DayHealth, TableHealth, percent};
use super::history::{DayHistory, DayRecord};
use crate::measures::decimal;

pub(super) type NamedDay<'a> = (&'a String, &'a DayRecord);

pub(crate) fn page(name: &str, history: &DayHistory) -> String {
    let days: Vec<NamedDay<'_>> = history.days().collect();
    let newest = days.iter().rev().find_map(|(day, record)| Some((*day, record.health.as_ref()?)));
    let mut page = CommandReport::default();
    if let Some((first, last)) = days.first().zip(days.last()) {
        page.add_lead(&format!("{} days from {} to {}", HumanCount(days.len() as u64), first.0, last.0));
    }
    let figures = charts(&days);
    page.add_title("Each day, scored before it was learned").add_figures(figures.iter().map(Chart::render_figure));
    page.add_title("Warnings");
    for (day, record) in days.iter().rev() {
        let warnings = record.health.iter().flat_map(|health| &health.warnings);
        warnings.for_each(|warning| _ = page.add_note(&format!("{day}: {warning}")));
    }
    page.add_title("Days").add_table(measure_table(&days));
    if let Some((day, health)) = newest {
        let previous = history.health_before(day).map(|(_, health)| health);
        page.add_title(&format!("Features on {day}, and their drift from the day before (PSI) on the last days"));
        page.add_table(features(health, previous, &days));
        page.add_title(&format!("Tables on {day}")).add_table(tables(&health.tables));
    }
    page.render_page(&format!("{name}: days"))
}

fn charts(days: &[NamedDay<'_>]) -> [Chart; 4] {
    let series = |name: &'static str, value: &dyn Fn(&DayRecord) -> Option<f64>| {
        let numbered = number_from(1_u32, days.iter().copied());
        let points = numbered.filter_map(|(number, (_, record))| Some((f64::from(number), value(record)?)));
        vec![ChartSeries { name, colour: 0, dots: true, points: points.collect() }]
    };
    let measure = |of: fn(&Evaluation) -> Option<f64>| move |record: &DayRecord| record.before.as_ref().and_then(of);
    let worst = |record: &DayRecord| {
        let drifts =
            record.health.iter().flat_map(|health| &health.profile.features).filter_map(|feature| feature.drift);
        drifts.reduce(f64::max)
    };
    let chart = |title, subtitle, series| Chart { title, subtitle, across: "day", series, ..Chart::default() };
    [
        chart("AUC", "of the model of the days before", series("AUC", &measure(|of| of.auc))),
        chart("Logloss", "nats", series("logloss", &measure(|of| of.logloss))),
        chart(
            "Calibration",
            "predicted clicks divided by real ones",
            series("calibration", &measure(|of| of.calibration)),
        ),
        chart("Largest drift", "PSI of the feature that differs most from the day before", series("PSI", &worst)),
    ]
}

fn share(value: Option<f64>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), percent)
}

pub(super) fn measure_table(days: &[NamedDay<'_>]) -> ReportTable {
    let row = |(day, record): &NamedDay<'_>| {
        let measure = |of: fn(&Evaluation) -> Option<f64>| decimal(record.before.as_ref().and_then(of), 4);
        let rate = share(record.health.as_ref().map(|health| health.profile.positive_rate));
        vec![
            (*day).clone(),
            measure(|of| of.auc),
            measure(|of| of.logloss),
            measure(|of| of.calibration),
            rate,
            HumanCount(record.samples).to_string(),
            HumanCount(record.rows).to_string(),
        ]
    };
    let head = ["day", "AUC", "logloss", "calibration", "positive", "trained on", "rows in tables"];
    ReportTable { shows_end: true, ..ReportTable::new(&head, days.iter().map(row).collect()) }
}

fn features(health: &DayHealth, before: Option<&DayHealth>, days: &[NamedDay<'_>]) -> ReportTable {
    let last = &days[days.len().saturating_sub(7)..];
    let last: Vec<(&String, &DayHealth)> =
        last.iter().filter_map(|(day, record)| Some((*day, record.health.as_ref()?))).collect();
    let row = |feature: &FeatureProfile| {
        let mut all = before.into_iter().flat_map(|before| &before.profile.features);
        let earlier = all.find(|earlier| earlier.column == feature.column);
        let count = |feature: Option<&FeatureProfile>| {
            let distinct = feature.and_then(|feature| feature.distinct);
            distinct.map_or_else(|| NOTHING.to_owned(), |count| HumanCount(count).to_string())
        };
        let drift_on = |(_, health): &(&String, &DayHealth)| {
            let found = health.profile.features.iter().find(|other| other.column == feature.column);
            decimal(found.and_then(|found| found.drift), 3)
        };
        let since = health.reference.as_ref().and_then(|reference| reference.drift.get(&feature.column).copied());
        let coverage = [percent(1.0 - feature.missing), share(earlier.map(|earlier| 1.0 - earlier.missing))];
        let counts = [count(Some(feature)), count(earlier)];
        let drifts = last.iter().map(drift_on).chain([decimal(since, 3)]);
        [feature.column.clone()].into_iter().chain(coverage).chain(counts).chain(drifts).collect()
    };
    let since = health.reference.as_ref().map_or_else(String::new, |reference| format!("since {}", reference.day));
    let days = last.iter().map(|(day, _)| day.as_str());
    let head = ["feature", "coverage", "the day before", "distinct values", "the day before"];
    let head: Vec<&str> = head.into_iter().chain(days).chain([since.as_str()]).collect();
    ReportTable::new(&head, health.profile.features.iter().map(row).collect())
}

fn tables(tables: &[TableHealth]) -> ReportTable {
    let row = |table: &TableHealth| {
        let created = HumanCount(table.created).to_string();
        vec![table.table.clone(), share(table.new_ids), created, share(table.admitted)]
    };
    ReportTable::new(&["table", "new ids", "rows created", "admitted"], tables.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use zagros_ingest::profile::{ColumnBins, DataProfile, ValueDistribution};

    use super::*;
    use crate::days::history::tests::job;

    fn record(drift: Option<f64>, auc: Option<f64>) -> DayRecord {
        let distribution = ValueDistribution { bins: ColumnBins::Below(vec![]), shares: vec![0.25, 0.75] };
        let column = "<price>".to_owned();
        let features = vec![FeatureProfile { column, missing: 0.25, distinct: None, drift, distribution }];
        let profile = DataProfile { rows: 10, whole: true, positive_rate: 0.5, bad_rows: 0, features };
        let tables = vec![TableHealth { table: "user".to_owned(), new_ids: Some(0.125), created: 7, admitted: None }];
        let warnings = drift.map(|_| "<price>: drifts".to_owned()).into_iter().collect();
        let earlier = auc.map(|auc| Evaluation { auc: Some(auc), ..Evaluation::default() });
        let (health, run) = (Some(DayHealth { profile, tables, reference: None, warnings }), "runs/a".into());
        DayRecord { from: None, before: earlier, samples: 10, steps: 1, rows: 3, health, data: None, run, model: None }
    }

    #[test]
    fn days_have_their_measures_and_the_state_of_their_data() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = DayHistory::load(&job(folder.path())).unwrap();
        history.record_day("2026-11-01", record(None, None)).unwrap();
        history.record_day("2026-11-02", record(Some(0.5), Some(0.625))).unwrap();
        history.record_day("2026-11-03", record(Some(0.0), Some(0.75))).unwrap();
        let page = page("ads", &history);
        assert!(page.contains("3 days from 2026-11-01 to 2026-11-03"), "{page}");
        assert!(page.contains("2026-11-02: &lt;price&gt;: drifts") && !page.contains("<price>"), "{page}");
        assert_eq!(page.matches("<figure>").count(), 2, "AUC and drift; nothing else was measured");
        assert!(page.contains("<td>75.0 %</td><td>75.0 %</td><td>0.500</td><td>0.000</td>"), "{page}");
        assert!(page.contains("<td>user</td><td>12.5 %</td><td>7</td>"), "{page}");
        assert!(page.contains("<th>2026-11-02</th>"), "{page}");
    }
}
