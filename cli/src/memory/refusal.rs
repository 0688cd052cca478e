//! What a need of memory says to a user: why a job is refused or may not fit, what to change, and how many rows there is room for.

use indicatif::{HumanBytes, HumanCount};
use zagros_job::ModelSize;
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::Failure;

use super::{MemoryNeed, WeightHolding};

/// The share of the available memory that this process can use, at most. The system needs the rest.
const USABLE: f64 = 0.9;

impl MemoryNeed {
    /// Names the budget, by how much it is short, and the key of the largest part.
    pub(crate) fn check(&self, limit: Option<MemoryLimit>) -> Result<(), Failure> {
        self.check_layers()?;
        let Some(limit) = limit.filter(|limit| self.at_least() > limit.bytes) else { return Ok(()) };
        let what = format!(
            "this job needs {} of memory before its first row ({}), and {} {}: {} too little",
            HumanBytes(self.at_least()),
            self.parts(),
            limit.bound,
            HumanBytes(limit.bytes),
            HumanBytes(self.at_least() - limit.bytes)
        );
        Err(Failure::usage(what, self.help(limit)))
    }

    /// Refuses streamed weights of which two layers are more than `train.memory`.
    fn check_layers(&self) -> Result<(), Failure> {
        let WeightHolding::Streamed { layers, most: Some(most), .. } = self.holding else { return Ok(()) };
        if layers <= most {
            return Ok(());
        }
        let what = format!(
            "a worker with streamed weights holds two layers and their gradients, {} for this network, and train.memory is {}: {} too \
             little",
            HumanBytes(layers),
            HumanBytes(most),
            HumanBytes(layers - most)
        );
        let help = "raise train.memory, or make the widest layers in [model] narrower, or lower train.threads: each thread has gradients";
        Err(Failure::usage(what, help))
    }

    fn parts(&self) -> String {
        let (dense, at_servers) = match self.holding {
            WeightHolding::Resident { .. } => ("for the dense network", "for it at the embedding servers"),
            WeightHolding::Streamed { .. } => {
                ("for two layers and the values of all", "for the dense network at the embedding servers")
            }
        };
        let parts = [
            (self.dense, dense),
            (self.saving, "for a copy of it while it is saved"),
            (self.dense_rows, at_servers),
            (self.batches, "for batches in flight"),
            (self.sketches, "for sketches of the admission filter"),
            (self.programs, "for the programs"),
        ];
        let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
        parts.map(|(bytes, what)| format!("{} {what}", HumanBytes(*bytes))).collect::<Vec<_>>().join(", ")
    }

    fn help(&self, limit: MemoryLimit) -> String {
        let of_dense = self.dense.saturating_add(self.saving).saturating_add(self.dense_rows);
        if self.sketches > of_dense.max(self.batches) {
            return "raise `error` in embedding.admission, or give it more memory".to_owned();
        }
        if of_dense <= self.batches {
            return "lower train.batch_size or train.staleness, or give it more memory".to_owned();
        }
        let per_weight = (of_dense / self.weights.max(1)).max(1);
        let fitting = ModelSize(limit.bytes.saturating_sub(self.at_least() - of_dense) / per_weight);
        let smaller = format!(
            "make the layers in [model] narrower, or choose a model.size of up to {fitting}, or give it more memory"
        );
        match self.holding {
            WeightHolding::Resident { streamed: Some(bytes) } if bytes <= limit.bytes => {
                format!("set train.weights = \"streamed\", with which it needs {}; or {smaller}", HumanBytes(bytes))
            }
            WeightHolding::Resident { streamed: Some(bytes) } if bytes < self.at_least() => format!(
                "{smaller}; with train.weights = \"streamed\" it needs {}, which is {} too little as well",
                HumanBytes(bytes),
                HumanBytes(bytes - limit.bytes)
            ),
            WeightHolding::Streamed { activations, .. } if activations > self.dense_rows => {
                format!("lower train.batch_size, which the values of all layers are kept for; or {smaller}")
            }
            WeightHolding::Streamed { .. } => {
                format!("set cluster.memory and cluster.cold_folder, so that servers keep tiles on disk; or {smaller}")
            }
            WeightHolding::Resident { .. } => smaller,
        }
    }

    pub(crate) fn warning(&self, limit: Option<MemoryLimit>) -> Option<String> {
        let limit = limit?;
        let (rows, usable) = (self.rows?, (limit.bytes as f64 * USABLE) as u64);
        let all = self.at_least().saturating_add(rows);
        (all > usable).then(|| {
            format!(
                "rows may fill {} (cluster.memory, over all servers), the rest needs {}, and {} {}: lower cluster.memory, so \
                 that more rows go to disk, or the kernel may kill the process",
                HumanBytes(rows),
                HumanBytes(self.at_least()),
                limit.bound,
                HumanBytes(limit.bytes)
            )
        })
    }

    /// How many rows fit, in words.
    pub(crate) fn room_text(&self, limit: Option<MemoryLimit>) -> Option<String> {
        let limit = limit?;
        let left = ((limit.bytes as f64 * USABLE) as u64).saturating_sub(self.at_least());
        let (bytes, which) = match self.rows {
            Some(rows) => (rows.min(left), "in memory; more go to disk (cluster.memory)"),
            None => (left, "fit; with more, the kernel kills the process unless cluster.memory sends rows to disk"),
        };
        let (rows, bound, limit) = (HumanCount(bytes / self.row), limit.bound, HumanBytes(limit.bytes));
        Some(format!("about {rows} {which} ({bound} {limit})"))
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::threads::Machine;
    use zagros_plumbing::memory::MemoryBound;

    use super::*;
    use crate::memory::tests::{GIB, LARGE, job};

    fn need(sets: &[&str]) -> MemoryNeed {
        MemoryNeed::new(&job(sets), &Machine { cores: 4, workers: 1, servers: 0 })
    }

    fn limit(bytes: u64) -> Option<MemoryLimit> {
        Some(MemoryLimit { bytes, bound: MemoryBound::Machine })
    }

    /// The message of a refusal, without the lines that it is broken into.
    fn refused(need: &MemoryNeed, limit: Option<MemoryLimit>) -> String {
        let text = format!("{:?}", need.check(limit).unwrap_err());
        text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_cannot_fit_is_refused_with_the_key_that_takes_most() {
        let batches = need(&["train.batch_size=1000000", "train.staleness=15"]);
        assert_eq!(batches.batches, 16 * 1_000_000 * 26 * 16 * 8);
        assert!(batches.check(limit(64 * GIB)).is_ok() && batches.check(None).is_ok());
        let message = refused(&batches, limit(23 * GIB));
        assert!(message.contains("23.00 GiB") && message.contains("lower train.batch_size"), "{message}");
        let network = need(&["model={kind='wukong', bottom=[40000, 40000]}", "train.ema=0.9"]);
        let message = refused(&network, limit(23 * GIB));
        assert!(message.contains("narrower") && !message.contains("streamed"), "{message}");
        let named = network.at_least() - 23 * GIB;
        assert!(message.contains(&format!("{} too little", HumanBytes(named))), "{message}");
    }

    #[test]
    fn a_refusal_names_streamed_weights_where_they_fit() {
        let cold = ["cluster.memory=100MiB", "train.batch_size=256", "train.threads=1", LARGE];
        let resident = need(&cold);
        let streamed = need(&[cold.as_slice(), &["train.weights=streamed"]].concat());
        let middle = (resident.at_least() + streamed.at_least()) / 2;
        assert!(streamed.check(limit(middle)).is_ok());
        let message = refused(&resident, limit(middle));
        let needed =
            format!("set train.weights = \"streamed\", with which it needs {}", HumanBytes(streamed.at_least()));
        assert!(message.contains(&needed), "{message}");
    }

    #[test]
    fn a_network_that_fits_in_no_way_says_by_how_much_in_each() {
        let resident = need(&[LARGE, "train.threads=1"]);
        let streamed = need(&[LARGE, "train.threads=1", "train.weights=streamed"]);
        let large_batch = need(&[LARGE, "train.threads=1", "train.weights=streamed", "train.batch_size=30000"]);
        let lack = |need: &MemoryNeed| format!("{} too little", HumanBytes(need.at_least() - GIB));
        for (need, parts) in [
            (&resident, vec![lack(&resident), lack(&streamed) + " as well"]),
            // Most of it is at the servers, which have a disk.
            (&streamed, vec![lack(&streamed), "set cluster.memory and cluster.cold_folder".to_owned()]),
            (&large_batch, vec!["lower train.batch_size".to_owned()]),
        ] {
            let message = refused(need, limit(GIB));
            assert!(parts.iter().all(|part| message.contains(part)), "no {parts:?} in {message}");
        }
    }

    #[test]
    fn two_layers_beyond_the_memory_of_a_worker_are_refused() {
        let streamed = |memory: &str, more: &[&str]| {
            need(&[&[LARGE, "train.threads=1", "train.weights=streamed", memory], more].concat())
        };
        let by_autograd = |memory: &str| streamed(memory, &["mlp={activation='gelu'}"]);
        assert!(by_autograd("train.memory=1GiB").check(None).is_ok());
        // Two layers of 64 MiB with their gradients, and one gradient more.
        let message = refused(&by_autograd("train.memory=200MiB"), None);
        assert!(message.contains("train.memory is 200.00 MiB: 120.08 MiB too little"), "{message}");
        // Other layers are cut.
        assert!(streamed("train.memory=200MiB", &[]).check(None).is_ok());
    }

    /// 26 tables, each with 2 × 2.72 / error × ln(1 / failure) bytes per server.
    #[test]
    fn sketches_of_the_admission_filter_count() {
        let set = "embedding.admission={kind='count', counter={kind='count_min', error=1e-6}}";
        let need = need(&[set, "cluster.servers=2"]);
        let formula = 2.0 * 26.0 * 2.0 * 1.0_f64.exp() / 1e-6 * 5.0;
        assert!((need.sketches as f64 / formula - 1.0).abs() < 1e-3, "{} {formula}", need.sketches);
        assert!(need.check(limit(64 * GIB)).is_ok());
        assert!(refused(&need, limit(GIB)).contains("raise `error`"), "{}", refused(&need, limit(GIB)));
    }

    #[test]
    fn a_warning_names_rows_beyond_memory_and_the_room_is_shown() {
        let limited = need(&["cluster.memory=20GiB", "cluster.servers=2"]);
        assert_eq!(limited.rows, Some(40 * GIB));
        let message = limited.warning(limit(23 * GIB)).unwrap();
        assert!(message.contains("40.00 GiB") && message.contains("lower cluster.memory"), "{message}");
        assert_eq!(limited.warning(limit(64 * GIB)), None);
        let open = need(&[]);
        assert_eq!(open.warning(limit(GIB)), None);
        let room = open.room_text(limit(23 * GIB)).unwrap();
        assert!(room.contains("unless cluster.memory") && room.contains("this machine has 23.00 GiB"), "{room}");
    }
}
