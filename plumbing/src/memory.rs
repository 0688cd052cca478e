//! The memory limit of this process, and its origin.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// The folder of control groups, version 1 and 2.
const GROUPS: &str = "/sys/fs/cgroup";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    Machine,
    /// A control group, as for containers and services.
    ControlGroup,
    /// The limit of `ulimit -v`.
    AddressSpace,
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "this machine has",
            Self::ControlGroup => "this process's control group (of its container or service) allows",
            Self::AddressSpace => "`ulimit -v` allows",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    pub bytes: u64,
    pub bound: MemoryBound,
}

impl MemoryLimit {
    /// The limit of this process. `None` if the kernel does not report it.
    pub fn of_this_process() -> Option<Self> {
        let machine =
            crate::process::MachineInfo::of_this_machine().memory_bytes.map(|bytes| (bytes, MemoryBound::Machine));
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = of_groups(Path::new(GROUPS), &own).map(|bytes| (bytes, MemoryBound::ControlGroup));
        let space = getrlimit(Resource::As).current.map(|bytes| (bytes, MemoryBound::AddressSpace));
        let tightest = [machine, group, space].into_iter().flatten().min_by_key(|(bytes, _)| *bytes);
        tightest.map(|(bytes, bound)| Self { bytes, bound })
    }
}

/// The lowest limit of a process's control groups and their parents. `own` is the content of the process's
/// `/proc/self/cgroup`.
fn of_groups(root: &Path, own: &str) -> Option<u64> {
    let limits = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        match controllers {
            "" => of_group(root, path, "memory.max"),
            first if first.split(',').any(|name| name == "memory") => {
                of_group(&root.join("memory"), path, "memory.limit_in_bytes")
            }
            _ => None,
        }
    });
    limits.min()
}

/// The lowest limit of a group and its parents. A container may not see its own group. Then the visible root counts.
fn of_group(root: &Path, path: &str, file: &str) -> Option<u64> {
    let own: PathBuf = root.join(path);
    let folders = own.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(|folder| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_group_counts_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(of_groups(root, "0::/a/b\n"), None);
        write(root, "a/b/memory.max", "max\n");
        assert_eq!(of_groups(root, "0::/a/b\n"), None);
        write(root, "a/memory.max", "1000\n");
        assert_eq!(of_groups(root, "0::/a/b\n"), Some(1000));
        write(root, "a/b/memory.max", "900\n");
        assert_eq!(of_groups(root, "0::/a/b\n"), Some(900));
        write(root, "memory/c/memory.limit_in_bytes", "700\n");
        let first = "5:cpu,cpuacct:/c\n4:memory:/c\n";
        assert_eq!(of_groups(root, first), Some(700));
        // A container sees its own group as the root, whatever its name outside.
        write(root, "memory.max", "500\n");
        assert_eq!(of_groups(root, "0::/docker/0123\n"), Some(500));
        assert_eq!(of_groups(root, "nonsense"), None);
    }

    #[test]
    fn this_process_has_a_limit_where_the_kernel_tells() {
        let limit = MemoryLimit::of_this_process();
        let machine = crate::process::MachineInfo::of_this_machine().memory_bytes;
        assert!(limit.map(|limit| limit.bytes) <= machine.or(limit.map(|limit| limit.bytes)));
    }
}
