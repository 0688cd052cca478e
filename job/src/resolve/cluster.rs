//! `[cluster]`: addresses, buckets, memory, and the number of workers.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{AdmissionPolicy, ClusterSettings, CollectiveKind, Mode, Table};

impl JobResolver<'_> {
    pub(super) fn resolve_cluster(&mut self, cluster: ClusterSettings) -> ClusterSettings {
        if cluster.buckets < cluster.servers {
            let message = format!("{} servers cannot share {} buckets", cluster.servers, cluster.buckets);
            self.problem("cluster.buckets", message, "fewer than servers", "have at least one bucket per server");
        }
        self.address(&KeyPath::from("cluster.coordinator"), &cluster.coordinator);
        self.address(&KeyPath::from("cluster.admin"), &cluster.admin);
        self.address(&KeyPath::from("cluster.worker_address"), &cluster.worker_address);
        self.server_addresses(&cluster);
        let threads = cluster.server_threads;
        let server_threads = if threads == 0 { self.context.threads.server } else { threads };
        ClusterSettings { server_threads, ..cluster }
    }

    /// The number of workers is between its bounds, which have no effect in mode `sync`.
    pub(super) fn worker_bounds_fit(&mut self, cluster: &ClusterSettings, mode: Mode) {
        let workers = cluster.workers;
        let loss_help = "only modes \"hybrid\" and \"async\" continue without a lost worker; remove the key";
        let join_help = "only in modes \"hybrid\" and \"async\" do workers join a run that trains; remove the key";
        let bounds = [
            ("cluster.min_workers", cluster.min_workers, Ordering::Less, "more than there are", "less", loss_help),
            ("cluster.max_workers", cluster.max_workers, Ordering::Greater, "fewer than there are", "more", join_help),
        ];
        for (key, bound, side, label, advice, sync_help) in bounds {
            let Some(bound) = bound.filter(|bound| *bound != workers) else { continue };
            if bound.cmp(&workers) != side {
                let message = format!("`{key}` is {bound}, but the job has {workers} dense workers");
                self.problem(key, message, label, format!("set it to `cluster.workers` or {advice}"));
            } else if mode == Mode::Sync {
                self.problem(key, format!("`{key}` has no effect in this mode"), "not in mode sync", sync_help);
            }
        }
    }

    pub(super) fn sync_fits(&mut self, workers: u32, mode: Mode, tables: &[Table]) {
        let counts = |table: &&Table| matches!(table.admission, AdmissionPolicy::Count { .. });
        let Some(table) = tables.iter().find(counts).filter(|_| workers > 1 && mode == Mode::Sync) else { return };
        let name = &table.name;
        let message = format!("mode \"sync\" with {workers} dense workers cannot admit ids of \"{name}\" by count");
        let help = "the workers look ids up in no fixed order, so two runs would differ: train with one \
                    worker, in another mode, or with admission = { kind = \"always\" }";
        self.problem("train.mode", message, "its runs are bit-equal", help);
    }

    pub(super) fn collective_fits(&mut self, cluster: &ClusterSettings, mode: Mode) {
        if cluster.workers > 1 && cluster.collective == CollectiveKind::Nccl && mode == Mode::Sync {
            let message = format!("mode \"sync\" with {} dense workers cannot sum over NCCL", cluster.workers);
            let help = "NCCL adds in no fixed order, so two runs would differ: use collective = \
                        \"gloo\", or train in another mode";
            self.problem("cluster.collective", message, "its runs are bit-equal", help);
        }
    }

    fn server_addresses(&mut self, cluster: &ClusterSettings) {
        let key = KeyPath::from("cluster.server_addresses");
        let ports: Vec<Option<u16>> = (cluster.server_addresses.iter().enumerate())
            .map(|(index, address)| self.address(&key.index(index), address))
            .collect();
        let own_host = cluster.server_addresses.first().is_some_and(|address| listens_everywhere(address));
        let one_for_all = matches!(ports.as_slice(), [Some(0) | None]) || (own_host && ports.len() == 1);
        if !one_for_all && ports.len() != cluster.servers as usize {
            let message = format!("{} addresses for {} servers", ports.len(), cluster.servers);
            let help = "list one address per server; or a single one with port 0, or 0.0.0.0:PORT if each \
                        has its own host";
            self.problem(key.clone(), message, "as many as `servers`", help);
        }
        let mut seen = HashSet::new();
        for (index, address) in cluster.server_addresses.iter().enumerate() {
            if ports[index] != Some(0) && !seen.insert(address) {
                let message = format!("two servers cannot both listen on {address}");
                self.problem(key.index(index), message, "second time", "give each its own port");
            }
        }
    }

    /// Checks `host:port`. Returns the port.
    fn address(&mut self, path: &KeyPath, address: &str) -> Option<u16> {
        let port = port(address);
        if port.is_none() {
            let message = format!("`{path}` is not an address: \"{address}\"");
            let help = "write host:port, for example 127.0.0.1:7700 or [::1]:7700";
            self.problem(path.clone(), message, "not host:port", help);
        }
        port
    }
}

/// Whether the host of `host:port` stands for all addresses of a machine.
fn listens_everywhere(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, _)| matches!(host, "0.0.0.0" | "[::]"))
}

/// Port of `host:port`. An IPv6 host has brackets.
fn port(address: &str) -> Option<u16> {
    let (host, port) = address.rsplit_once(':')?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good = match bracketed {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')),
    };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (good && digits).then(|| port.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, assert_problems_with, job};

    fn workers(more: &str) -> String {
        format!("[cluster]\nworkers = 2\n{more}\n")
    }

    #[test]
    fn several_workers_have_what_their_mode_allows() {
        let elastic = job(CRITEO, &workers("min_workers = 1\nmax_workers = 4")).cluster;
        assert_eq!((elastic.least_workers(), elastic.workers, elastic.most_workers()), (1, 2, 4));
        let fixed = job(CRITEO, &workers("worker_address = '10.0.0.7:0'")).cluster;
        assert_eq!((fixed.least_workers(), fixed.most_workers(), fixed.collective), (2, 2, CollectiveKind::Gloo));
        assert_eq!(fixed.worker_address, "10.0.0.7:0");
        assert_eq!(job(CRITEO, &workers("collective = 'nccl'")).cluster.collective, CollectiveKind::Nccl);
        let rows = r#"
            min_workers = 3 => `cluster.min_workers` is 3, but the job has 2 dense workers
            max_workers = 1 => `cluster.max_workers` is 1, but the job has 2 dense workers
            min_workers = 1; [train]; mode = 'sync'; staleness = 0 => `cluster.min_workers` has no effect in this mode
            max_workers = 3; [train]; mode = 'sync'; staleness = 0 => `cluster.max_workers` has no effect in this mode
            min_workers = 2; max_workers = 2; [train]; mode = 'sync'; staleness = 0 => fine
            max_workers = 3; [train]; mode = 'async' => fine
            collective = 'mpi' => …cluster.collective
            collective = 'nccl'; [train]; mode = 'sync' => mode "sync" with 2 dense workers cannot sum over NCCL
            [train]; mode = 'sync'; [embedding.admission]; kind = 'count' => mode "sync" with 2 dense workers cannot admit ids of "C1" by count
        "#;
        assert_problems_with(CRITEO, workers, rows);
    }

    /// In containers, each server listens on the same port of its own host.
    #[test]
    fn one_port_suffices_for_servers_with_their_own_hosts() {
        let rows = r#"
            servers = 3; server_addresses = ['0.0.0.0:7701'] => fine
            servers = 3; server_addresses = ['[::]:7701'] => fine
            servers = 3; server_addresses = ['10.0.0.7:7701'] => 1 addresses for 3 servers
            worker_address = 'here' => `cluster.worker_address` is not an address: "here"
            memory = 'much'         => `cluster.memory` is out of range, expected a number of bytes from 64 KiB with a unit…
            memory = '-2GiB'        => `cluster.memory` is out of range, expected a number of bytes from 64 KiB with a unit…
            memory = '2 GiB each'   => `cluster.memory` is out of range, expected a number of bytes from 64 KiB with a unit…
            memory = '3KiB'         => `cluster.memory` is out of range, expected a number of bytes from 64 KiB with a unit…
            collective = 'nccl'; [train]; mode = 'sync' => fine
            [train]; mode = 'sync'; [embedding.admission]; kind = 'count' => fine
        "#;
        assert_problems_with(CRITEO, |keys| format!("[cluster]\n{keys}"), rows);
    }

    #[test]
    fn memory_is_a_number_with_a_unit() {
        assert_eq!(job(CRITEO, "").cluster.memory, None);
        for (text, bytes) in [("2GiB", 2 << 30), ("1.5 MiB", 3 << 19), ("500 MB", 500_000_000), ("65536", 65536)] {
            assert_eq!(job(CRITEO, &format!("[cluster]\nmemory = '{text}'\n")).cluster.memory, Some(bytes), "{text}");
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (address, expected) in [("127.0.0.1:7700", 7700), ("localhost:0", 0), ("[::1]:80", 80), ("ps-0.ps:1", 1)] {
            assert_eq!(port(address), Some(expected), "{address}");
        }
        for address in ["", ":1", "host", "host:", "host:x", "host:+1", "host:65536", "::1:80", "[x]:1", "http://h:1"] {
            assert_eq!(port(address), None, "{address}");
        }
    }
}
