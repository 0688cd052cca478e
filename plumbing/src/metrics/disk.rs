//! Free space and size of a folder's file system, read when metrics are collected.

use std::io;
use std::path::{Path, PathBuf};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use super::{Gauge, Opts, Registry, register};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that this process may still write.
    pub free: u64,
    /// Bytes of the whole file system.
    pub size: u64,
}

impl DiskSpace {
    /// Space of the file system that holds `path`. If `path` does not exist yet, the nearest existing folder above it
    /// counts.
    pub fn measure(path: &Path) -> io::Result<Self> {
        let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
        let reported = rustix::fs::statvfs(existing)?;
        Ok(Self { free: reported.f_bavail * reported.f_frsize, size: reported.f_blocks * reported.f_frsize })
    }
}

/// Registers two gauges with the space at `path`. Their names are the name in `options` with `_free_bytes` and
/// `_size_bytes` appended. The help in `options` says what is stored there.
pub fn watch_disk(registry: &Registry, options: &Opts, path: &Path) {
    register(registry, DiskMetrics::new(options, path));
}

#[derive(Clone)]
struct DiskMetrics {
    path: PathBuf,
    free: Gauge,
    size: Gauge,
}

impl DiskMetrics {
    fn new(options: &Opts, path: &Path) -> prometheus::Result<Self> {
        let gauge = |unit: &str, what: &str| {
            let mut options = options.clone();
            options.name = format!("{}_{unit}", options.name);
            options.help = format!("{what} of the file system that holds {}.", options.help);
            Gauge::with_opts(options)
        };
        let (free, size) = (gauge("free_bytes", "Free bytes")?, gauge("size_bytes", "Bytes")?);
        Ok(Self { path: path.to_owned(), free, size })
    }
}

impl Collector for DiskMetrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.free.desc(), self.size.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // No figure is better than an old one: an alert can detect a missing figure, but not a wrong one.
        let Ok(space) = DiskSpace::measure(&self.path) else { return Vec::new() };
        self.free.set(space.free as f64);
        self.size.set(space.size as f64);
        [self.free.collect(), self.size.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::render_text;

    #[test]
    fn a_folder_that_does_not_exist_has_the_space_of_the_folder_above() {
        let folder = tempfile::tempdir().unwrap();
        let (above, below) =
            (DiskSpace::measure(folder.path()).unwrap(), DiskSpace::measure(&folder.path().join("a/b")).unwrap());
        assert_eq!(above.size, below.size);
        assert!(above.size > 0 && above.free <= above.size, "{above:?}");
    }

    #[test]
    fn space_is_reported_in_bytes_under_the_given_name() {
        let (registry, folder) = (Registry::new(), tempfile::tempdir().unwrap());
        watch_disk(&registry, &Opts::new("zagros_test_disk", "a test").const_label("server", "3"), folder.path());
        let reported = render_text(&registry);
        let size = DiskSpace::measure(folder.path()).unwrap().size as f64;
        assert!(reported.contains(&format!("zagros_test_disk_size_bytes{{server=\"3\"}} {size}")), "{reported}");
        assert!(
            reported.contains("# HELP zagros_test_disk_free_bytes Free bytes of the file system that holds a test."),
            "{reported}"
        );
    }
}
