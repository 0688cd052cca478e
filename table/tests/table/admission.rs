//! Admission: which ids get a row, next to existing rows.

use zagros_table::{
    AdmissionPolicy, EvictionPolicy, FrequencyCounter, Initializer, LookupMode, LookupReport, Optimizer, PushReport,
    RequestDeadline, TableConfig, TableResources, TableSet, Ttl,
};

use crate::support::{lookup_before, push_before};

const COUNTERS: [FrequencyCounter; 2] =
    [FrequencyCounter::Exact, FrequencyCounter::CountMin { error: 1e-4, failure: 0.01 }];
const SHARE: AdmissionPolicy = AdmissionPolicy::Probability { share: 0.5 };

fn twice(counter: FrequencyCounter) -> AdmissionPolicy {
    AdmissionPolicy::Count { threshold: 2, counter }
}

/// One table with two ones per row. SGD subtracts the gradient.
fn set(admission: AdmissionPolicy, eviction: EvictionPolicy) -> TableSet {
    let optimizer = Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 };
    let init = Initializer::Constant { value: 1.0 };
    let config = TableConfig { dim: 2, init, optimizer, admission, eviction, stripes: 4, ..TableConfig::default() };
    TableSet::new(1, &[config], TableResources::default()).unwrap()
}

fn lookup(set: &TableSet, ids: &[u64], access: LookupMode) -> (Vec<f32>, LookupReport) {
    let (out, report) = lookup_before(set, ids, access, RequestDeadline::NONE).unwrap();
    // Both values of a row are always equal here.
    assert!(out.chunks(2).all(|row| row[0] == row[1]), "{out:?}");
    (out.chunks(2).map(|row| row[0]).collect(), report)
}

fn sight_twice(set: &TableSet, ids: &[u64]) {
    (0..2).for_each(|_| drop(lookup(set, ids, LookupMode::Train)));
}

fn push(set: &TableSet, ids: &[u64], gradient: f32) -> PushReport {
    push_before(set, ids, gradient, RequestDeadline::NONE).unwrap()
}

#[test]
fn an_id_gets_its_row_at_the_threshold_lookup() {
    for counter in COUNTERS {
        let set = set(twice(counter), EvictionPolicy::default());
        let refused = LookupReport { refused: 3, ..LookupReport::default() };
        assert_eq!(lookup(&set, &[1, 2, 3], LookupMode::Train), (vec![0.0; 3], refused));
        // Reading does not count as a use, and neither does a gradient.
        let missing = LookupReport { missing: 1, ..LookupReport::default() };
        assert_eq!(lookup(&set, &[2], LookupMode::Read), (vec![0.0], missing));
        assert_eq!(push(&set, &[2], 1.0), PushReport { refused: 1, ..PushReport::default() });
        assert_eq!(lookup(&set, &[1, 2, 4], LookupMode::Train).0, [1.0, 1.0, 0.0]);
        let table = set.table(0).unwrap();
        assert_eq!((table.row_count(), table.event_counts().admitted, table.event_counts().refused), (2, 2, 5));
    }
}

#[test]
fn the_gradient_of_an_id_without_a_row_changes_no_other_row() {
    for counter in COUNTERS {
        let set = set(twice(counter), EvictionPolicy::default());
        sight_twice(&set, &[1, 3, 5]);
        let report = push(&set, &[1, 2, 3, 4, 5, 5], 0.25);
        assert_eq!(report, PushReport { updated: 3, repeated: 1, refused: 2, ..PushReport::default() });
        assert_eq!(lookup(&set, &[1, 2, 3, 4, 5], LookupMode::Read).0, [0.75, 0.0, 0.75, 0.0, 0.5]);
    }
}

#[test]
fn admitted_ids_of_a_share_get_rows_at_once_and_other_ids_never() {
    let (first, second) = (set(SHARE, EvictionPolicy::default()), set(SHARE, EvictionPolicy::default()));
    let ids: Vec<u64> = (0..200).collect();
    let (rows, report) = lookup(&first, &ids, LookupMode::Train);
    assert!((60..140).contains(&report.created) && report.created + report.refused == 200, "{report:?}");
    assert_eq!(lookup(&first, &ids, LookupMode::Train).0, rows);
    let pushed = push(&second, &ids, 1.0);
    assert_eq!((pushed.created, pushed.refused), (report.created, report.refused));
    // Admitted rows moved from one to zero. Ids without a row return zeros.
    assert_eq!(lookup(&second, &ids, LookupMode::Read).0, vec![0.0; 200]);
    assert_eq!(second.table(0).unwrap().row_count() as u64, report.created);
}

#[test]
fn a_removed_row_has_to_be_admitted_again() {
    let ttl = Some(Ttl::Steps(10));
    let set = set(twice(FrequencyCounter::Exact), EvictionPolicy { ttl, ..EvictionPolicy::default() });
    sight_twice(&set, &[1, 2]);
    push(&set, &[1, 2], 0.5);
    set.advance_clock(8, 0);
    assert_eq!(lookup(&set, &[2], LookupMode::Train).0, [0.5]);
    set.advance_clock(15, 0);
    assert_eq!(lookup(&set, &[1, 2], LookupMode::Read).0, [0.0, 0.5]);
    assert_eq!(push(&set, &[1], 1.0), PushReport { refused: 1, ..PushReport::default() });
    assert_eq!(lookup(&set, &[1, 2], LookupMode::Train).0, [0.0, 0.5]);
    assert_eq!(lookup(&set, &[1, 2], LookupMode::Train).0, [1.0, 0.5]);
    assert_eq!(set.table(0).unwrap().event_counts().expired, 1);
}

#[test]
fn frequency_counts_that_do_not_fit_are_refused() {
    let sketch = set(twice(COUNTERS[1]), EvictionPolicy::default());
    let table = sketch.table(0).unwrap();
    assert!(table.counter_layout().unwrap().ends_with("x 5 in 4 stripes"));
    let said = |error: zagros_table::TableError| error.to_string();
    assert!(said(table.merge_sketch(0, &[1, 2, 3]).unwrap_err()).contains("words of a sketch"));
    assert!(said(table.merge_sketch(4, &[]).unwrap_err()).contains("stripes: expected 4 values, found 5"));
    assert!(said(table.insert_frequency_counts(&[1, 2], &[1]).unwrap_err()).contains("frequency counts"));
    let always = set(AdmissionPolicy::Always, EvictionPolicy::default());
    let table = always.table(0).unwrap();
    assert_eq!(table.counter_layout(), None);
    assert!(table.insert_frequency_counts(&[1], &[1]).is_ok() && table.merge_sketch(0, &[7]).is_ok());
    assert_eq!(lookup(&always, &[1], LookupMode::Train).0, [1.0]);
}
