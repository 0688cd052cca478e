//! The machines of a run, with their cores and links, and where each role is on them.
//!
//! Every machine with workers is there. Of the machines that have servers alone, each group has one: the one whose servers own the most
//! buckets. Its servers get their part of every request at the same time as all others, so no other machine of the group answers later.

use zagros_protocol::{BucketMap, Generation};

use crate::processor::SharedCores;
use crate::scenario::Scenario;
use crate::{MachineGroup, PlanStage, StageTimes};

/// Buckets of a run, more for many servers: each has at least [`LEAST_BUCKETS`].
const BUCKETS: u32 = 1024;
const LEAST_BUCKETS: u32 = 16;

#[derive(Debug)]
pub(crate) struct SimMachine<T> {
    pub(crate) group: usize,
    pub(crate) processor: SharedCores<T>,
    pub(crate) up: NetworkLink,
    pub(crate) down: NetworkLink,
}

/// The servers of a group, of which one machine stands for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerTier {
    pub(crate) machine: usize,
    /// Its part of every request.
    pub(crate) share: f64,
    /// The part of every request that the whole group has.
    pub(crate) group_share: f64,
    /// Threads that work on one request.
    pub(crate) threads: f64,
    /// Seconds of CPU of all servers for the lookup and the push of a sample.
    pub(crate) lookup: f64,
    pub(crate) push: f64,
    /// The same for streamed weights, as a worker's part of them.
    pub(crate) stream: f64,
}

/// Seconds of a worker for each sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerTimes {
    /// On a parser thread.
    pub(crate) read: f64,
    pub(crate) lookup: f64,
    pub(crate) push: f64,
    /// CPU of the pulls and pushes of streamed weights.
    pub(crate) stream: f64,
    /// The dense step where no other thread is in its way, and nothing that it needs is late.
    pub(crate) step: f64,
    pub(crate) step_threads: f64,
    /// The part of `step` that is forward, backward and update.
    pub(crate) dense: f64,
    /// CPU of the training loop beside the step.
    pub(crate) training_loop: f64,
    pub(crate) parsers: usize,
    /// Seconds from a worker to a server and back.
    pub(crate) round_trip: f64,
}

#[derive(Debug)]
pub(crate) struct SimCluster<T> {
    pub(crate) machines: Vec<SimMachine<T>>,
    pub(crate) worker_machines: Vec<usize>,
    /// By group of machines; `None` where it has no workers.
    pub(crate) times: Vec<Option<WorkerTimes>>,
    /// Empty where the rows are in the worker's process.
    pub(crate) tiers: Vec<ServerTier>,
    /// Seconds from one worker to the next in an all-reduce.
    pub(crate) hop: f64,
    /// Bytes a second of the slowest link of a worker.
    pub(crate) ring_rate: f64,
}

impl<T> SimCluster<T> {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let groups = &scenario.machines.groups;
        let mut cluster = Self {
            machines: Vec::new(),
            worker_machines: Vec::new(),
            times: groups.iter().map(|group| worker_times(scenario, group)).collect(),
            tiers: Vec::new(),
            hop: 0.0,
            ring_rate: f64::INFINITY,
        };
        let mut first_machines = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            first_machines.push(cluster.machines.len());
            let machines = if group.workers > 0.0 { group.count.ceil() as usize } else { 1 };
            for _ in 0..machines {
                let threads = scenario.settings.background_threads;
                cluster.machines.push(SimMachine {
                    group: index,
                    processor: SharedCores::new(cores(group), threads),
                    up: NetworkLink::new(link(scenario, group)),
                    down: NetworkLink::new(link(scenario, group)),
                });
            }
            let workers = (group.count * group.workers).round() as usize;
            let on_each = (group.workers as usize).max(1);
            cluster.worker_machines.extend((0..workers).map(|worker| first_machines[index] + worker / on_each));
        }
        cluster.place_servers(scenario, &first_machines);
        cluster.join_workers(scenario);
        cluster
    }

    pub(crate) fn worker_times(&self, worker: usize) -> WorkerTimes {
        let group = self.machines[self.worker_machines[worker]].group;
        self.times[group].expect("a group with workers has their times")
    }

    /// Gives each group of servers its part of the buckets.
    fn place_servers(&mut self, scenario: &Scenario, first_machines: &[usize]) {
        let servers = scenario.server_count() as u32;
        if servers == 0 {
            return;
        }
        let map = BucketMap::split_evenly(Generation(1), BUCKETS.max(servers * LEAST_BUCKETS), servers);
        let mut owned = vec![0.0; servers as usize];
        (0..map.bucket_count())
            .filter_map(|bucket| map.bucket_owner(bucket))
            .for_each(|owner| owned[owner.0 as usize] += 1.0);
        let worker = worker_group(scenario);
        let mut server = 0;
        for (index, group) in scenario.machines.groups.iter().enumerate().filter(|(_, group)| group.servers > 0.0) {
            let on_each = group.servers as usize;
            let of_group = &owned[server..server + on_each * group.count.round() as usize];
            server += of_group.len();
            let part = |servers: &[f64]| servers.iter().sum::<f64>() / f64::from(map.bucket_count());
            let stages =
                StageTimes::between_groups(&scenario.work, &scenario.calibration, (worker, group), &scenario.machines);
            self.tiers.push(ServerTier {
                machine: first_machines[index],
                share: of_group.chunks(on_each).map(part).fold(0.0, f64::max),
                group_share: part(of_group),
                threads: (group.threads.server as f64).clamp(1.0, group.cores),
                lookup: stages.of_stage(PlanStage::ServerLookup),
                push: stages.of_stage(PlanStage::ServerApply),
                stream: stages.of_stage(PlanStage::ServerStream),
            });
        }
    }

    fn join_workers(&mut self, scenario: &Scenario) {
        let groups = scenario.machines.groups.iter().filter(|group| group.workers > 0.0);
        let trip = scenario.calibration.wire.round_trip_us * 1e-6;
        let longest = groups.clone().map(MachineGroup::round_trip).fold(0.0, f64::max);
        self.hop = scenario.settings.all_reduce_hop_us.map_or((longest + trip) / 2.0, |hop| hop * 1e-6);
        self.ring_rate = groups.map(|group| link(scenario, group)).fold(f64::INFINITY, f64::min);
    }
}

/// The cores that the roles of a machine can use: those of servers alone are bounded by the threads of the servers too.
fn cores(group: &MachineGroup) -> f64 {
    if group.workers > 0.0 {
        group.cores
    } else {
        (group.servers * group.threads.server as f64).clamp(1.0, group.cores)
    }
}

/// Bytes a second of a machine's network: its processor moves no more than over loopback.
fn link(scenario: &Scenario, group: &MachineGroup) -> f64 {
    group.bytes_per_second().min(scenario.calibration.wire.bytes_per_second * group.core_speed * group.cores)
}

fn worker_group(scenario: &Scenario) -> &MachineGroup {
    let groups = &scenario.machines.groups;
    groups.iter().find(|group| group.workers > 0.0).unwrap_or(&groups[0])
}

fn worker_times(scenario: &Scenario, group: &MachineGroup) -> Option<WorkerTimes> {
    if group.workers == 0.0 {
        return None;
    }
    let server = scenario.machines.groups.iter().find(|group| group.servers > 0.0).unwrap_or(group);
    let stages = StageTimes::between_groups(&scenario.work, &scenario.calibration, (group, server), &scenario.machines);
    let step = stages.dense_thread - stages.exposed_reduce - stages.exposed_stream;
    let cpu = stages.of_stage(PlanStage::Gather) + stages.of_stage(PlanStage::Dense);
    let trip = scenario.calibration.wire.round_trip_us * 1e-6;
    Some(WorkerTimes {
        read: stages.of_stage(PlanStage::Parse) + stages.of_stage(PlanStage::Dedup),
        lookup: stages.of_stage(PlanStage::Lookup),
        push: stages.of_stage(PlanStage::Push),
        stream: stages.of_stage(PlanStage::Stream),
        step,
        step_threads: cpu / step.max(f64::MIN_POSITIVE),
        dense: stages.dense_step,
        training_loop: stages.of_stage(PlanStage::Loop),
        parsers: group.threads.parse.max(1),
        round_trip: group.round_trip().max(server.round_trip()) + trip,
    })
}

/// One direction of a machine's network: messages leave one after another, in the order in which they come.
#[derive(Clone, Debug)]
pub(crate) struct NetworkLink {
    bytes_per_second: f64,
    free_at: f64,
    busy: f64,
}

impl NetworkLink {
    pub(crate) fn new(bytes_per_second: f64) -> Self {
        Self { bytes_per_second, free_at: 0.0, busy: 0.0 }
    }

    /// When a message that is given at `now` has passed.
    pub(crate) fn send(&mut self, now: f64, bytes: f64) -> f64 {
        let seconds = bytes / self.bytes_per_second;
        self.busy += seconds;
        self.free_at = self.free_at.max(now) + seconds;
        self.free_at
    }

    pub(crate) fn busy_seconds(&self) -> f64 {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use rand_pcg::Pcg64;
    use rand_pcg::rand_core::SeedableRng;

    use super::*;
    use crate::worker::draw_uniform;

    #[test]
    fn a_full_link_passes_exactly_its_bytes_a_second() {
        let mut link = NetworkLink::new(100.0);
        let ends: Vec<f64> = (0..4).map(|_| link.send(0.0, 50.0)).collect();
        assert_eq!(ends, [0.5, 1.0, 1.5, 2.0]);
        assert_eq!(link.send(5.0, 100.0), 6.0);
        assert_eq!(link.busy_seconds(), 3.0);
    }

    /// M/D/1: with Poisson arrivals at load ρ a message of D seconds waits ρ·D / 2(1 − ρ) on average (Pollaczek and Khinchine).
    #[test]
    fn messages_wait_as_long_as_in_an_m_d_1_queue() {
        let mut chance = Pcg64::seed_from_u64(7);
        for load in [0.3, 0.6, 0.8] {
            let (mut link, mut now, mut waited) = (NetworkLink::new(1.0), 0.0, 0.0);
            let messages = 400_000;
            for _ in 0..messages {
                now -= (1.0 - draw_uniform(&mut chance)).ln() / load;
                waited += link.send(now, 1.0) - now - 1.0;
            }
            let (seen, expected) = (waited / f64::from(messages), load / (2.0 * (1.0 - load)));
            assert!((seen / expected - 1.0).abs() < 0.05, "load {load}: {seen} instead of {expected}");
        }
    }
}
