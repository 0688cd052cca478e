//! Described clusters of `examples/clusters/` against published figures (docs/scale.md).

use zagros_cost::Calibration;
use zagros_sim::{ClusterFile, Scenario, WhatIf, simulate};

const PERSIA: &str = include_str!("../../../examples/clusters/persia-100t.toml");
const TODAY: &str = include_str!("../../../examples/clusters/today-100t.toml");

/// Lian et al. 2022, read from the figure "model scalability": millions of samples a second by 10¹² parameters.
const HYBRID: [(f64, f64); 5] = [(6.25, 1.79), (12.5, 1.86), (25.0, 1.88), (50.0, 1.82), (100.0, 1.91)];
/// With 100 · 10¹² parameters.
const SYNC: f64 = 0.72;
const ASYNC: f64 = 2.15;

fn scenario(text: &str) -> Scenario {
    ClusterFile::from_toml(text).unwrap().build_scenario(&Calibration::default()).unwrap()
}

fn rate(scenario: &Scenario) -> f64 {
    simulate(scenario).unwrap().samples_per_second / 1e6
}

fn assert_within(part: f64, simulated: f64, published: f64) {
    let ratio = simulated / published;
    assert!((1.0 - part..=1.0 + part).contains(&ratio), "{simulated} for {published}: {ratio}");
}

#[test]
fn persias_capacity_test_is_simulated_within_a_fifth() {
    let persia = scenario(PERSIA);
    assert_eq!((persia.worker_count(), persia.server_count()), (64, 30));
    let sweep = WhatIf::parse("parameters=6.25e12,12.5e12,25e12,50e12,1e14").unwrap();
    let rates: Vec<f64> = sweep.varied_scenarios(&persia).map(|(_, scenario)| rate(&scenario)).collect();
    assert_eq!(rates.len(), HYBRID.len());
    for (number, (_, published)) in HYBRID.iter().enumerate() {
        assert_within(0.2, rates[number], *published);
    }
    // Flat: a row is as far away in a large table as in a small one.
    let (least, most) =
        rates.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    assert_within(0.03, most, least);
    let hybrid = rates[4];
    let sync = rate(&WhatIf::parse("staleness=0").unwrap().varied_scenarios(&persia).next().unwrap().1);
    assert_within(0.2, hybrid / sync, HYBRID[4].1 / SYNC);
    assert_within(0.2, hybrid / sync, 2.6);
    let asynchronous = rate(&scenario(&PERSIA.replace("mode = \"hybrid\"", "mode = \"async\"")));
    assert_within(0.2, asynchronous, ASYNC);
    assert_within(0.1, asynchronous / hybrid, ASYNC / HYBRID[4].1);
}

#[test]
fn rows_of_a_hundred_trillion_weights_fit_only_as_far_as_they_are_there() {
    // PERSIA makes rows when their ids first come; the whole table with Adagrad would need 820 TB.
    assert!(scenario(PERSIA).too_little_memory().is_some_and(|(group, _)| group == "servers"));
    assert_eq!(scenario(TODAY).too_little_memory(), None);
}
