//! The machines that a job is planned for: groups of equal ones, as a TOML file describes them.

use bytesize::ByteSize;
use serde::Deserialize;
use zagros_job::threads::{Machine, ThreadPlan};

use crate::error::{PlannerError, check_ranges};

#[derive(Clone, Debug, PartialEq)]
pub struct Machines {
    /// At least one.
    pub groups: Vec<MachineGroup>,
    /// Of the prices, such as `EUR`.
    pub currency: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MachineGroup {
    pub name: String,
    pub count: f64,
    pub cores: f64,
    /// Bytes of memory of each.
    pub memory: f64,
    /// Bytes a second of its network, each way.
    pub bytes_per_second: f64,
    /// Seconds from a small request to its answer beside what loopback takes.
    pub round_trip: f64,
    /// Of a machine, for an hour.
    pub price: f64,
    pub workers: f64,
    /// Embedding servers on each; none anywhere if they are in the one worker's process.
    pub servers: f64,
    /// Speed of a core, times that of the calibrated one.
    pub core_speed: f64,
    pub threads: ThreadPlan,
    pub gpu: Option<Gpu>,
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachinesFile {
    #[serde(default)]
    group: Vec<GroupFile>,
    #[serde(default)]
    currency: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupFile {
    name: String,
    #[serde(default = "one")]
    count: u32,
    cores: u32,
    memory: String,
    #[serde(default = "network")]
    network_gbit: f64,
    #[serde(default = "round_trip")]
    round_trip_us: f64,
    #[serde(default)]
    price_per_hour: f64,
    #[serde(default)]
    workers: u32,
    #[serde(default)]
    servers: u32,
    #[serde(default = "speed")]
    core_speed: f64,
    #[serde(default)]
    gpu: Option<Gpu>,
}

fn one() -> u32 {
    1
}

fn network() -> f64 {
    10.0
}

fn round_trip() -> f64 {
    100.0
}

fn speed() -> f64 {
    1.0
}

impl Machines {
    /// From the text of a machines file.
    pub fn from_toml(text: &str) -> Result<Self, PlannerError> {
        let form = |error: toml::de::Error| PlannerError::form("the machines file cannot be read", &error.to_string());
        let file: MachinesFile = toml::from_str(text).map_err(form)?;
        let groups: Vec<MachineGroup> =
            file.group.into_iter().map(MachineGroup::from_file).collect::<Result<_, _>>()?;
        if groups.is_empty() {
            return Err(PlannerError::NoGroup);
        }
        let machines = Self { groups, currency: file.currency.unwrap_or_else(|| "EUR".to_owned()) };
        match (machines.worker_count(), machines.server_count()) {
            (0.0, _) => Err(PlannerError::NoRole { role: "worker" }),
            (workers, 0.0) if workers > 1.0 => Err(PlannerError::NoRole { role: "server" }),
            _ => Ok(machines),
        }
    }

    #[must_use]
    pub fn worker_count(&self) -> f64 {
        self.groups.iter().map(|group| group.count * group.workers).sum()
    }

    #[must_use]
    pub fn server_count(&self) -> f64 {
        self.groups.iter().map(|group| group.count * group.servers).sum()
    }

    /// Disks with rows: one in each machine that has servers, or that has all roles in one process.
    #[must_use]
    pub fn disk_count(&self) -> f64 {
        let with_rows = self.groups.iter().filter(|group| group.servers > 0.0 || self.is_embedded());
        with_rows.map(|group| group.count).sum()
    }

    /// Of all machines, for an hour.
    #[must_use]
    pub fn hourly_price(&self) -> f64 {
        self.groups.iter().map(|group| group.count * group.price).sum()
    }

    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.server_count() == 0.0
    }

    /// The same with `workers` dense workers: more machines in the groups that have workers, or, on a single machine, more workers on it.
    #[must_use]
    pub fn with_workers(&self, workers: f64) -> Self {
        let mut machines = self.clone();
        let factor = workers / self.worker_count().max(1.0);
        let is_single = matches!(self.groups.as_slice(), [group] if group.count == 1.0);
        for group in machines.groups.iter_mut().filter(|group| group.workers > 0.0) {
            if is_single {
                group.workers = workers;
                let machine =
                    Machine { cores: group.cores as usize, workers: workers as usize, servers: group.servers as usize };
                group.threads = machine.plan_threads();
            } else {
                group.count *= factor;
            }
        }
        machines
    }
}

impl MachineGroup {
    fn from_file(file: GroupFile) -> Result<Self, PlannerError> {
        let place = format!("group `{}`", file.name);
        let Ok(memory) = file.memory.parse::<ByteSize>() else {
            let why = "is not a size: write a number and a unit, such as \"256GiB\"";
            return Err(PlannerError::value(place, "memory", file.memory, why));
        };
        const ABOVE: &str = "is not above 0";
        let (above, from_zero) = (f64::MIN_POSITIVE..=f64::MAX, 0.0..=f64::MAX);
        let [tflops, efficiency, bus] = file.gpu.map_or([1.0; 3], |gpu| [gpu.tflops, gpu.efficiency, gpu.bus_gbytes]);
        check_ranges(
            &place,
            &[
                ("count", f64::from(file.count), above.clone(), ABOVE),
                ("cores", f64::from(file.cores), above.clone(), ABOVE),
                ("network_gbit", file.network_gbit, above.clone(), ABOVE),
                ("core_speed", file.core_speed, above.clone(), ABOVE),
                ("gpu.tflops", tflops, above.clone(), ABOVE),
                ("gpu.efficiency", efficiency, above.clone(), ABOVE),
                ("gpu.bus_gbytes", bus, above, ABOVE),
                ("round_trip_us", file.round_trip_us, from_zero.clone(), "is below 0"),
                ("price_per_hour", file.price_per_hour, from_zero, "is below 0"),
            ],
        )?;
        let machine =
            Machine { cores: file.cores as usize, workers: file.workers as usize, servers: file.servers as usize };
        Ok(Self {
            count: f64::from(file.count),
            cores: f64::from(file.cores),
            memory: memory.as_u64() as f64,
            bytes_per_second: file.network_gbit * 1e9 / 8.0,
            round_trip: file.round_trip_us / 1e6,
            price: file.price_per_hour,
            workers: f64::from(file.workers),
            servers: f64::from(file.servers),
            core_speed: file.core_speed,
            threads: machine.plan_threads(),
            gpu: file.gpu,
            name: file.name,
        })
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
        assert_eq!((gpu.bytes_per_second, rows.bytes_per_second, rows.round_trip), (12.5e9, 1.25e9, 1e-4));
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
