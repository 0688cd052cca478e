//! Whole runs against closed forms, the described clusters of `examples/clusters/` against published figures (docs/scale.md), and
//! properties that hold for every run.

use proptest::prelude::*;
use zagros_planner::{
    Calibration, ClusterFile, LostProcess, PlanStage, ProcessLoss, Scenario, SimReport, StageTimes, WhatIf, simulate,
    simulate_failures, simulate_with,
};

/// Workers and servers on machines of their own, with no chance in it.
const CLUSTER: &str = "[[group]]\nname = 'compute'\ncount = 4\ncores = 32\nmemory = '64GiB'\nnetwork_gbit = 100\nworkers = 2\n\
                       [[group]]\nname = 'rows'\ncount = 3\ncores = 32\nmemory = '64GiB'\nnetwork_gbit = 100\nservers = 1\n\
                       [workload]\nparameters = 1e9\ndim = 16\nhidden = [512, 256]\nbatch_size = 1024\n\
                       [simulation]\nsteps = 60\nstep_variation = 0\n";

const PERSIA: &str = include_str!("../../../examples/clusters/persia-100t.toml");
const TODAY: &str = include_str!("../../../examples/clusters/today-100t.toml");

/// Lian et al. 2022, read from the figure "model scalability": millions of samples a second by parameters.
const HYBRID: [(&str, f64); 5] =
    [("6.25e12", 1.79), ("12.5e12", 1.86), ("25e12", 1.88), ("50e12", 1.82), ("1e14", 1.91)];
/// With 100 · 10¹² parameters.
const SYNC: f64 = 0.72;
const ASYNC: f64 = 2.15;

fn scenario(text: &str) -> Scenario {
    ClusterFile::from_toml(text).unwrap().build_scenario(&Calibration::default()).unwrap()
}

fn run(text: &str) -> SimReport {
    simulate(&scenario(text)).unwrap()
}

/// The run with this one value.
fn varied(base: &Scenario, text: &str) -> SimReport {
    simulate(&WhatIf::parse(text).unwrap().varied_scenarios(base).next().unwrap().1).unwrap()
}

#[track_caller]
fn near(found: f64, expected: f64, part: f64) {
    assert!((found / expected - 1.0).abs() <= part, "{found} instead of {expected}");
}

#[test]
fn one_worker_without_staleness_takes_the_sum_of_its_stages() {
    let alone = "[[group]]\nname = 'here'\ncores = 16\nmemory = '8GiB'\nworkers = 1\n\
                 [workload]\nparameters = 1e6\nhidden = [256]\nbatch_size = 512\nstaleness = 0\n\
                 [simulation]\nsteps = 50\nstep_variation = 0\n";
    let scenario = scenario(alone);
    let group = &scenario.machines.groups[0];
    let stages = StageTimes::between_groups(&scenario.work, &scenario.calibration, (group, group), &scenario.machines);
    let sum = stages.of_stage(PlanStage::Lookup) + stages.dense_thread + stages.of_stage(PlanStage::Push);
    let report = simulate(&scenario).unwrap();
    near(report.samples_per_second, 1.0 / sum, 1e-9);
    assert_eq!((report.servers, report.staleness_histogram.len()), (0, 1));
    // With staleness, lookups and pushes run beside the step.
    let stale = run(&alone.replace("staleness = 0", "staleness = 4"));
    near(stale.samples_per_second, 1.0 / stages.dense_thread, 1e-9);
}

#[test]
fn a_thin_network_passes_exactly_its_bytes() {
    let machine = "cores = 32\nmemory = '64GiB'\nnetwork_gbit =";
    let thin = CLUSTER.replace(&format!("count = 3\n{machine} 100"), &format!("{machine} 0.5"));
    let report = run(&thin);
    let work = scenario(&thin).work;
    near(report.samples_per_second, 0.5e9 / 8.0 / work.bytes_up.max(work.bytes_down), 0.01);
    assert_eq!(report.bottleneck, "network into rows");
    assert!(report.staleness_mean > 3.0, "{report:?}");
}

#[test]
fn a_slow_machine_slows_a_group_to_its_own_speed_and_asynchronous_workers_by_its_part() {
    let machine = "cores = 32\nmemory = '64GiB'\nnetwork_gbit = 100\nworkers =";
    let one_less = CLUSTER.replace(&format!("count = 4\n{machine} 2"), &format!("count = 7\n{machine} 1"));
    let with_slow = format!("[[group]]\nname = 'slow'\n{machine} 1\ncore_speed = 0.5\n{one_less}");
    let all_fast = with_slow.replace("core_speed = 0.5", "core_speed = 1.0");
    let rate = |text: &str, mode: &str| {
        let text = text.replace("batch_size", &format!("mode = '{mode}'\nbatch_size"));
        run(&text.replace("steps = 60", "steps = 200\nall_reduce_hop_us = 1")).samples_per_second
    };
    // A fast all-reduce: it is no slower with a slow worker.
    near(rate(&with_slow, "hybrid") / rate(&all_fast, "hybrid"), 0.5, 0.05);
    near(rate(&with_slow, "async") / rate(&all_fast, "async"), 7.5 / 8.0, 0.03);
}

#[test]
fn sync_waits_for_each_rank_and_hybrid_for_none() {
    let rate =
        |mode: &str| run(&CLUSTER.replace("batch_size", &format!("mode = '{mode}'\nbatch_size"))).samples_per_second;
    let [sync, hybrid, asynchronous] = ["sync", "hybrid", "async"].map(rate);
    assert!(sync < 0.7 * hybrid && hybrid <= asynchronous * 1.01, "{sync} {hybrid} {asynchronous}");
}

#[test]
fn in_mode_sync_the_ranks_push_one_after_another() {
    let far = CLUSTER.replace("network_gbit = 100", "network_gbit = 100\nround_trip_us = 20000");
    let step = |key: &str| {
        let text = far.replace("batch_size", &format!("{key}\nbatch_size"));
        let report = run(&text.replace("steps = 60", "steps = 60\nall_reduce_hop_us = 1"));
        report.batch_size as f64 * report.workers as f64 / report.samples_per_second
    };
    // Each of the seven ranks after the first adds a round trip and the work of its push; a barrier takes nothing here.
    let turns = (step("mode = 'sync'") - step("staleness = 0")) / 7.0;
    assert!((0.020..0.030).contains(&turns), "{turns}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let varied = CLUSTER.replace("step_variation = 0", "step_variation = 0.2\nstraggler_share = 0.2");
    let (first, second) = (run(&varied), run(&varied));
    assert_eq!(first, second);
    assert_ne!(first, run(&varied.replace("steps = 60", "steps = 60\nseed = 2")));
}

#[test]
fn other_programs_take_their_part_of_the_cores() {
    let here = |threads: u32| {
        run(&format!(
            "[[group]]\nname = 'here'\ncores = 1\nmemory = '8GiB'\nworkers = 1\nservers = 1\n\
             [workload]\nparameters = 1e6\nhidden = [256]\nbatch_size = 512\n\
             [simulation]\nsteps = 50\nstep_variation = 0\nbackground_threads = {threads}\n"
        ))
        .samples_per_second
    };
    // One core that is full either way: two threads of ours against none or two others.
    let ratio = here(2) / here(0);
    assert!((0.33..0.67).contains(&ratio), "{ratio}");
}

#[test]
fn a_thousand_workers_and_a_hundred_servers_are_one_run() {
    let large = "[[group]]\nname = 'w'\ncount = 125\ncores = 96\nmemory = '64GiB'\nnetwork_gbit = 100\nworkers = 8\n\
                 [[group]]\nname = 's'\ncount = 100\ncores = 64\nmemory = '1TiB'\nnetwork_gbit = 100\nservers = 1\n\
                 [workload]\nparameters = 1e12\nhidden = [256]\nbatch_size = 1024\n[simulation]\nsteps = 20\n";
    let report = run(large);
    assert_eq!((report.workers, report.servers, report.samples), (1000, 100, 20 * 1024 * 1000));
    assert_eq!(report.samples_trained, report.samples);
    assert!(report.samples_per_second > 0.0 && report.events > 1000);
}

#[test]
fn a_failure_costs_the_time_until_another_process_trains() {
    let text = format!("{CLUSTER}worker_restart_seconds = 20\nserver_restart_seconds = 15\nlease_seconds = 4\n");
    let report = simulate_failures(&scenario(&text)).unwrap();
    let [worker, server] = report.roles[..] else { panic!("{report:?}") };
    assert_eq!((worker.role, worker.machines, server.role, server.machines), ("worker", 4.0, "server", 3.0));
    // The others wait for the new process, and little longer.
    assert!((20.0..23.0).contains(&worker.lost_seconds), "{worker:?}");
    assert!((13.0..16.0).contains(&server.lost_seconds), "{server:?}");
    assert!(worker.trained_again > 0 && server.trained_again == 0, "{report:?}");
    let lost = (worker.lost_seconds * 4.0 + server.lost_seconds * 3.0) / 3600.0 / 10_000.0;
    near(report.lost_share, lost, 1e-9);
    let alone = text.replace("batch_size", "mode = 'async'\nbatch_size");
    assert!(simulate_failures(&scenario(&alone)).unwrap_err().to_string().contains("in mode async"));
}

#[test]
fn what_is_varied_is_one_value() {
    let base = scenario(CLUSTER);
    let sweep = WhatIf::parse("servers=1,6").unwrap();
    let runs: Vec<(f64, usize)> =
        sweep.varied_scenarios(&base).map(|(value, scenario)| (value, scenario.server_count())).collect();
    assert_eq!(runs, [(1.0, 1), (6.0, 6)]);
    let refused = |text: &str| WhatIf::parse(text).unwrap_err().to_string();
    assert_eq!(refused("stalenes=1"), "`stalenes` cannot be varied: did you mean `staleness`?");
    assert!(refused("zzz=1").contains("the keys are workers, servers"));
    assert!(refused("staleness=0.5").contains("--what-if staleness=0.5"));
    assert!(refused("staleness").contains("such as staleness=0,1,4"));
    let one = |key: &str| varied(&base, key);
    assert!(one("network_gbit=0.2").samples_per_second < one("network_gbit=100").samples_per_second);
    assert!(one("round_trip_us=100000").samples_per_second < one("round_trip_us=10").samples_per_second);
    assert!(one("parameters=1e13").too_little_memory.is_some() && one("parameters=1e9").too_little_memory.is_none());
    assert_eq!(one("workers=4").workers, 4);
    assert_eq!(one("batch_size=100").batch_size, 100);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Invariant DP-4.
    #[test]
    fn no_lookup_is_staler_than_the_bound_and_every_sample_is_trained_once(
        staleness in 0_usize..6, workers in 1_u32..6, mode in 0_usize..3, variation in 0.0..0.5_f64, gbit in 0.05..10.0_f64, seed: u32,
    ) {
        let mode = ["hybrid", "sync", "async"][mode];
        let text = format!(
            "[[group]]\nname = 'w'\ncount = {workers}\ncores = 4\nmemory = '8GiB'\nnetwork_gbit = {gbit}\nworkers = 1\n\
             [[group]]\nname = 's'\ncores = 4\nmemory = '8GiB'\nservers = 1\n\
             [workload]\nparameters = 1e9\nhidden = [64]\nbatch_size = 128\nstaleness = {staleness}\nmode = '{mode}'\n\
             [simulation]\nsteps = 30\nstep_variation = {variation}\nseed = {seed}\n"
        );
        let report = run(&text);
        let bound = if mode == "sync" { 0 } else { staleness };
        prop_assert!(report.staleness_histogram.len() <= bound + 1, "{:?}", report.staleness_histogram);
        prop_assert_eq!(report.samples_trained, report.samples);
    }

    /// Whichever processes are lost, and whenever: each split is complete once, or the run would stand still. The report counts
    /// what is trained on twice.
    #[test]
    fn every_sample_is_trained_once_beside_those_that_are_counted(
        faults in prop::collection::vec((0.0..120.0_f64, any::<bool>(), 0_usize..8), 1..5), seed: u32,
    ) {
        let text = format!("{CLUSTER}seed = {seed}\nworker_restart_seconds = 6\nserver_restart_seconds = 9\nlease_seconds = 4\n").replace("steps = 60", "steps = 200");
        let kind = |is_worker, index| if is_worker { LostProcess::Worker(index) } else { LostProcess::Server(index) };
        let quiet = simulate(&scenario(&text)).unwrap();
        let fault_time = |time: f64| time / 100.0 * quiet.seconds;
        let faults: Vec<ProcessLoss> = faults.into_iter().map(|(time, is_worker, index)| ProcessLoss { at: fault_time(time), kind: kind(is_worker, index) }).collect();
        let report = simulate_with(&scenario(&text), &faults).unwrap();
        prop_assert_eq!(report.samples_trained, report.samples + report.trained_again);
        prop_assert!(report.seconds >= quiet.seconds * 0.999);
        prop_assert!(report.losses > 0 || faults.iter().all(|fault| fault.at > 0.9 * quiet.seconds), "{faults:?}");
    }
}

/// Resident weights take the all-reduce; streamed ones take the links of workers and servers, and are hidden if the step is longer.
#[test]
fn streamed_weights_hide_behind_a_long_step_and_bound_a_short_one() {
    let large = CLUSTER.replace("hidden = [512, 256]", "hidden = [2048, 2048, 2048]").replace("1024\n", "16384\n");
    let streamed = |text: &str| text.replace("hidden", "weights = 'streamed'\nhidden");
    let (resident, hidden) = (run(&large), run(&streamed(&large)));
    near(hidden.samples_per_second, resident.samples_per_second, 0.1);
    // A batch of 64 samples moves as many bytes for a 256th of the arithmetic, over a network that is slow.
    let small =
        streamed(&large.replace("16384\n", "64\n").replace("network_gbit = 100\nworkers", "network_gbit = 2\nworkers"));
    let report = run(&small);
    let traffic = scenario(&small).work.traffic;
    // Two of eight workers share a machine's link of 2 Gbit/s.
    let (own, others) = (1.0 / 8.0, 6.0 / 8.0);
    let seconds = 2.0 * (own * traffic.pulled + others * traffic.step_bytes()) / 0.25e9;
    let step = report.samples_per_second / (8.0 * 64.0);
    assert!(1.0 / step >= seconds, "{} seconds a step, and {seconds} on the link", 1.0 / step);
    near(1.0 / step, seconds, 0.35);
}

#[test]
fn persias_capacity_test_is_simulated_within_a_fifth() {
    let persia = scenario(PERSIA);
    assert_eq!((persia.worker_count(), persia.server_count()), (64, 30));
    let rates = HYBRID.map(|(parameters, published)| {
        let rate = varied(&persia, &format!("parameters={parameters}")).samples_per_second / 1e6;
        near(rate, published, 0.2);
        rate
    });
    // Flat: a row is as far away in a large table as in a small one.
    near(rates.into_iter().fold(0.0, f64::max), rates.into_iter().fold(f64::INFINITY, f64::min), 0.03);
    let hybrid = rates[4];
    let sync = varied(&persia, "staleness=0").samples_per_second / 1e6;
    near(hybrid / sync, HYBRID[4].1 / SYNC, 0.2);
    near(hybrid / sync, 2.6, 0.2);
    let asynchronous = run(&PERSIA.replace("mode = \"hybrid\"", "mode = \"async\"")).samples_per_second / 1e6;
    near(asynchronous, ASYNC, 0.2);
    near(asynchronous / hybrid, ASYNC / HYBRID[4].1, 0.1);
}

#[test]
fn rows_of_a_hundred_trillion_weights_fit_only_as_far_as_they_are_there() {
    // PERSIA makes rows when their ids first come; the whole table with Adagrad would need 820 TB.
    assert!(scenario(PERSIA).too_little_memory().is_some_and(|(group, _)| group == "servers"));
    assert_eq!(scenario(TODAY).too_little_memory(), None);
}
