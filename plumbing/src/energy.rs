//! Energy of this machine's processors, by the counters that Linux shows under `/sys/class/powercap` (RAPL).
//!
//! Each processor package has a folder with three files: `name` (`package-0`), `energy_uj`, a counter in microjoules, and
//! `max_energy_range_uj`, its largest value. The counter starts again at 0 after that value, which takes some minutes under load.
//! Other folders, such as `core` and `dram`, are parts of a package or count the whole board.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FOLDER: &str = "/sys/class/powercap";
/// Well below the time in which a counter of 2^32 µJ starts again at 300 W: 14 s.
const OFTEN: Duration = Duration::from_secs(5);

/// Adds up what the packages of the machine use. Every program on the machine counts.
#[derive(Debug)]
pub struct EnergyMeter {
    packages: Vec<PackageCounter>,
    microjoules: u64,
    read_at: Instant,
    is_readable: bool,
}

#[derive(Debug)]
struct PackageCounter {
    file: PathBuf,
    /// The counter's largest value, µJ.
    most: u64,
    /// When it was read last, µJ.
    last: u64,
}

impl EnergyMeter {
    /// The counters of this machine. `None` where there are none, as in most virtual machines, or where this user may not
    /// read them.
    pub fn of_this_machine() -> Option<Self> {
        Self::open(Path::new(FOLDER))
    }

    /// The counters in a folder. `None` if none is readable.
    pub fn open(folder: &Path) -> Option<Self> {
        let domains = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let packages: Vec<_> = domains.filter_map(|domain| PackageCounter::open(&domain)).collect();
        (!packages.is_empty()).then(|| Self { packages, microjoules: 0, read_at: Instant::now(), is_readable: true })
    }

    /// Reads the counters if that was some seconds ago. Call it often while energy is measured, so that no counter starts again
    /// twice between two readings.
    pub fn read_if_due(&mut self) {
        if self.read_at.elapsed() >= OFTEN {
            self.read();
        }
    }

    /// Joules since the meter was made. `None` if a counter has become unreadable.
    pub fn joules_used(&mut self) -> Option<f64> {
        self.read();
        self.is_readable.then(|| self.microjoules as f64 / 1e6)
    }

    fn read(&mut self) {
        self.read_at = Instant::now();
        for package in &mut self.packages {
            match package.used() {
                Some(microjoules) => self.microjoules += microjoules,
                None => self.is_readable = false,
            }
        }
    }
}

impl PackageCounter {
    fn open(domain: &Path) -> Option<Self> {
        let is_package = fs::read_to_string(domain.join("name")).ok()?.starts_with("package");
        let file = domain.join("energy_uj");
        let (most, last) = (number(&domain.join("max_energy_range_uj"))?, number(&file)?);
        is_package.then_some(Self { file, most, last })
    }

    /// µJ since the last call.
    fn used(&mut self) -> Option<u64> {
        let now = number(&self.file)?;
        let last = std::mem::replace(&mut self.last, now);
        // A smaller value has started again.
        Some(now.checked_sub(last).unwrap_or_else(|| self.most.saturating_sub(last) + now))
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as Linux shows it: two packages, and a part of the first.
    fn powercap() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let domains = [("0", "package-0", "1000"), ("1", "package-1", "9000"), ("0:0", "core", "7")];
        for (domain, name, used) in domains {
            let domain = folder.path().join(format!("intel-rapl:{domain}"));
            fs::create_dir(&domain).unwrap();
            fs::write(domain.join("name"), format!("{name}\n")).unwrap();
            fs::write(domain.join("energy_uj"), format!("{used}\n")).unwrap();
            fs::write(domain.join("max_energy_range_uj"), "10000\n").unwrap();
        }
        folder
    }

    #[test]
    fn packages_add_up_their_parts_do_not_and_a_counter_may_start_again() {
        let folder = powercap();
        let set = |domain: &str, microjoules: u64| {
            let file = folder.path().join(format!("intel-rapl:{domain}/energy_uj"));
            fs::write(file, format!("{microjoules}\n")).unwrap();
        };
        let mut meter = EnergyMeter::open(folder.path()).unwrap();
        assert_eq!(meter.joules_used(), Some(0.0));
        set("0", 4000);
        set("0:0", 5000);
        assert_eq!(meter.joules_used(), Some(0.003));
        // 1000 to its end, and 500 after it.
        set("1", 500);
        assert_eq!(meter.joules_used(), Some(0.0045));
        // It was read a moment ago.
        set("0", 9000);
        meter.read_if_due();
        assert_eq!(meter.microjoules, 4500);
    }

    #[test]
    fn energy_that_cannot_be_read_is_absent() {
        let folder = powercap();
        assert!(EnergyMeter::open(&folder.path().join("absent")).is_none());
        let mut meter = EnergyMeter::open(folder.path()).unwrap();
        fs::remove_file(folder.path().join("intel-rapl:1/energy_uj")).unwrap();
        assert_eq!(meter.joules_used(), None);
        assert!(EnergyMeter::open(folder.path()).is_some(), "the other package is left");
        fs::remove_dir_all(folder.path().join("intel-rapl:0")).unwrap();
        assert!(EnergyMeter::open(folder.path()).is_none(), "a part is no package");
    }
}
