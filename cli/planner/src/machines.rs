//! The machines that a job is planned for: groups of equal ones, as a TOML file describes them.

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer};
use zagros_job::threads::{Machine, ThreadPlan};

use crate::error::{PlannerError, check_ranges};

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machines {
    /// At least one.
    #[serde(default, rename = "group")]
    pub groups: Vec<MachineGroup>,
    /// Of the prices, such as `EUR`.
    #[serde(default = "euro")]
    pub currency: String,
}

fn euro() -> String {
    "EUR".to_owned()
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineGroup {
    pub name: String,
    pub count: f64,
    pub cores: f64,
    /// Bytes of memory of each.
    #[serde(deserialize_with = "memory_bytes")]
    pub memory: f64,
    /// Of its network, each way.
    pub network_gbit: f64,
    /// From a small request to its answer beside what loopback takes.
    pub round_trip_us: f64,
    /// Of a machine.
    pub price_per_hour: f64,
    /// Dense workers on each.
    pub workers: f64,
    /// Embedding servers on each; none anywhere if they are in the one worker's process.
    pub servers: f64,
    /// Speed of a core, times that of the calibrated one.
    pub core_speed: f64,
    #[serde(skip)]
    pub threads: ThreadPlan,
    pub gpu: Option<Gpu>,
}

impl Default for MachineGroup {
    fn default() -> Self {
        Self {
            name: String::new(),
            count: 1.0,
            cores: 0.0,
            memory: 0.0,
            network_gbit: 10.0,
            round_trip_us: 100.0,
            price_per_hour: 0.0,
            workers: 0.0,
            servers: 0.0,
            core_speed: 1.0,
            threads: ThreadPlan { torch: 1, parse: 1, server: 1 },
            gpu: None,
        }
    }
}

fn memory_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let text = String::deserialize(from)?;
    let refused = |_| {
        let why = "is not a size: write a number and a unit, such as \"256GiB\"";
        serde::de::Error::custom(format!("memory = {text}, which {why}"))
    };
    text.parse::<ByteSize>().map(|size| size.as_u64() as f64).map_err(refused)
}

/// A device that makes the dense step of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// 10¹² additions and multiplications a second, at most, in the job's precision.
    pub tflops: f64,
    /// The share of them that a step reaches. Default: 0.3.
    #[serde(default = "efficiency")]
    pub efficiency: f64,
    /// 10⁹ bytes a second between memory and device. Default: 12.
    #[serde(default = "bus")]
    pub bus_gbytes: f64,
}

fn efficiency() -> f64 {
    0.3
}

fn bus() -> f64 {
    12.0
}

impl Machines {
    /// From the text of a machines file.
    pub fn from_toml(text: &str) -> Result<Self, PlannerError> {
        let form = |error: toml::de::Error| PlannerError::form("the machines file cannot be read", &error.to_string());
        let mut machines: Self = toml::from_str(text).map_err(form)?;
        if machines.groups.is_empty() {
            return Err(PlannerError::Value("the machines file has no [[group]]".to_owned()));
        }
        machines.groups.iter_mut().try_for_each(MachineGroup::finish)?;
        match (machines.worker_count(), machines.server_count()) {
            (0.0, _) => Err(PlannerError::NoRole { role: "worker" }),
            (workers, 0.0) if workers > 1.0 => Err(PlannerError::NoRole { role: "server" }),
            _ => Ok(machines),
        }
    }

    pub fn worker_count(&self) -> f64 {
        self.groups.iter().map(|group| group.count * group.workers).sum()
    }

    pub fn server_count(&self) -> f64 {
        self.groups.iter().map(|group| group.count * group.servers).sum()
    }

    /// Disks with rows: one in each machine that has servers, or that has all roles in one process.
    pub fn disk_count(&self) -> f64 {
        let with_rows = self.groups.iter().filter(|group| group.servers > 0.0 || self.is_embedded());
        with_rows.map(|group| group.count).sum()
    }

    /// Of all machines, for an hour.
    pub fn hourly_price(&self) -> f64 {
        self.groups.iter().map(|group| group.count * group.price_per_hour).sum()
    }

    pub fn is_embedded(&self) -> bool {
        self.server_count() == 0.0
    }

    /// The same with `workers` dense workers: more machines in the groups that have workers, or, on a single machine, more workers on it.
    pub fn with_workers(&self, workers: f64) -> Self {
        self.scale_role(workers, self.worker_count(), |group| &mut group.workers)
    }

    /// The same for servers, on whole machines.
    pub(crate) fn with_servers(&self, servers: f64) -> Self {
        let mut machines = self.scale_role(servers, self.server_count(), |group| &mut group.servers);
        let with_servers = machines.groups.iter_mut().filter(|group| group.servers > 0.0);
        with_servers.for_each(|group| group.count = group.count.round().max(1.0));
        machines
    }

    fn scale_role(&self, wanted: f64, present: f64, role: fn(&mut MachineGroup) -> &mut f64) -> Self {
        let mut machines = self.clone();
        let is_single = matches!(self.groups.as_slice(), [group] if group.count == 1.0);
        for group in &mut machines.groups {
            if *role(group) == 0.0 {
                continue;
            }
            if is_single {
                *role(group) = wanted;
                group.plan_threads();
            } else {
                group.count *= wanted / present.max(1.0);
            }
        }
        machines
    }
}

impl MachineGroup {
    /// Checks what a file says, and plans the threads.
    fn finish(&mut self) -> Result<(), PlannerError> {
        const ABOVE: &str = "is not above 0";
        let (above, from_zero) = (f64::MIN_POSITIVE..=f64::MAX, 0.0..=f64::MAX);
        let [tflops, efficiency, bus] = self.gpu.map_or([1.0; 3], |gpu| [gpu.tflops, gpu.efficiency, gpu.bus_gbytes]);
        check_ranges(
            &format!("group `{}`", self.name),
            &[
                ("count", self.count, above.clone(), ABOVE),
                ("cores", self.cores, above.clone(), ABOVE),
                ("memory", self.memory, above.clone(), ABOVE),
                ("network_gbit", self.network_gbit, above.clone(), ABOVE),
                ("core_speed", self.core_speed, above.clone(), ABOVE),
                ("gpu.tflops", tflops, above.clone(), ABOVE),
                ("gpu.efficiency", efficiency, above.clone(), ABOVE),
                ("gpu.bus_gbytes", bus, above, ABOVE),
                ("round_trip_us", self.round_trip_us, from_zero.clone(), "is below 0"),
                ("price_per_hour", self.price_per_hour, from_zero.clone(), "is below 0"),
                ("workers", self.workers, from_zero.clone(), "is below 0"),
                ("servers", self.servers, from_zero, "is below 0"),
            ],
        )?;
        self.plan_threads();
        Ok(())
    }

    fn plan_threads(&mut self) {
        let [cores, workers, servers] = [self.cores, self.workers, self.servers].map(|count| count as usize);
        self.threads = Machine { cores, workers, servers }.plan_threads();
    }

    /// Of its network, each way.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.network_gbit * 1e9 / 8.0
    }

    /// Seconds.
    pub(crate) fn round_trip(&self) -> f64 {
        self.round_trip_us * 1e-6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "currency = 'USD'\n[[group]]\nname = 'gpu'\ncount = 8\ncores = 64\nmemory = '256GiB'\nnetwork_gbit = 100\n\
                       price_per_hour = 3.5\nworkers = 8\ngpu = { tflops = 15.7 }\n\
                       [[group]]\nname = 'rows'\ncount = 3\ncores = 32\nmemory = '1TB'\nservers = 1\nprice_per_hour = 1\n";

    #[test]
    fn groups_have_roles_prices_and_defaults() {
        let machines = Machines::from_toml(TWO).unwrap();
        assert_eq!((machines.worker_count(), machines.server_count(), machines.hourly_price()), (64.0, 3.0, 31.0));
        assert_eq!(machines.disk_count(), 3.0);
        let [gpu, rows] = machines.groups.as_slice() else { panic!("{machines:?}") };
        assert_eq!((gpu.memory, rows.memory), (256.0 * f64::from(1 << 30), 1e12));
        assert_eq!((gpu.bytes_per_second(), rows.bytes_per_second(), rows.round_trip_us), (12.5e9, 1.25e9, 100.0));
        assert_eq!(gpu.gpu.unwrap().efficiency, 0.3);
        assert_eq!((gpu.threads.torch, rows.threads.server), (5, 4));
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        let refused = |text: &str| Machines::from_toml(text).unwrap_err().to_string();
        assert!(refused("").contains("no [[group]]"));
        let no_servers = TWO.replace("servers = 1\n", "");
        assert_eq!(refused(&no_servers), "no group of machines has servers: give one `servers = 1`");
        assert!(refused(&TWO.replace("workers = 8\n", "")).contains("has workers"));
        let cores = refused(&TWO.replace("cores = 32", "cores = 0"));
        assert_eq!(cores, "group `rows` has cores = 0, which is not above 0");
        assert!(refused(&TWO.replace("1TB", "much")).contains("memory = much"));
        assert!(refused(&TWO.replace("price_per_hour = 1", "price_per_hour = -1")).contains("is below 0"));
        let unknown = refused(&TWO.replace("cores = 32", "core = 32"));
        assert!(unknown.contains("unknown field `core`") && unknown.contains("`cores`"), "{unknown}");
    }

    #[test]
    fn more_workers_are_more_machines_or_more_on_the_only_one() {
        let many = Machines::from_toml(TWO).unwrap().with_workers(128.0);
        assert_eq!((many.worker_count(), many.server_count(), many.groups[0].count), (128.0, 3.0, 16.0));
        let one = "[[group]]\nname = 'here'\ncores = 16\nmemory = '64GB'\nworkers = 1\nservers = 1";
        let two = Machines::from_toml(one).unwrap().with_workers(2.0);
        assert_eq!((two.groups[0].count, two.groups[0].workers), (1.0, 2.0));
        assert_eq!(two.groups[0].threads.torch, Machine { cores: 16, workers: 2, servers: 1 }.plan_threads().torch);
    }
}
