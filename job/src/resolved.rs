//! Values of a validated job: its resolved file, the fingerprint that all roles compare, and its data files.

use std::path::{Path, PathBuf};

use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::file::JobFile;
use crate::settings::{Device, Job, Model, TrainSettings};

impl Job {
    /// Every key written, paths absolute. Panics when a number does not fit into a job file, such as a seed above
    /// `i64::MAX`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let file =
            toml::to_string_pretty(&JobFile::from_job(self)).expect("a job made from TOML can be written as TOML");
        format!("# Resolved job, with every default. `zagros train` accepts this file.\n{file}")
    }

    /// Equal for two roles only if they work on the same run. Paths, addresses, time limits and thread counts may
    /// differ between machines and do not count, and neither does whether statistics are already measured.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut features = self.features.clone();
        features.forget_measured();
        let mut model = self.model.clone();
        if let Model::TorchScript { file, .. } = &mut model {
            file.clear();
        }
        // A worker that may get company forms a group from the start.
        let cluster = &self.cluster;
        let counts = [Some(cluster.servers), Some(cluster.workers), Some(cluster.buckets)].into_iter();
        let most = Some(cluster.most_workers()).filter(|most| *most > cluster.workers);
        let agreed = json!({
            "format": self.data.format,
            "features": features,
            "tables": self.tables,
            "model": model,
            "parametrization": self.parametrization,
            "optimizer": self.dense_optimizer,
            "train": TrainSettings { threads: 0, device: Device::Cpu, ..self.train.clone() },
            "eval": self.eval,
            "cluster": counts.chain([most]).flatten().collect::<Vec<u32>>(),
            "wire": self.cluster.wire,
            "collective": self.cluster.collective,
        });
        xxh3_64(agreed.to_string().as_bytes())
    }

    /// All files that the run reads: training, validation, test.
    #[must_use]
    pub fn data_files(&self) -> Vec<&Path> {
        let held_out = self.data.validation.files().iter().chain(self.data.test.files());
        self.data.train.iter().chain(held_out).map(PathBuf::as_path).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ColumnMoments, Overrides, Scaling};

    const FILE: &str = "[data]\nformat = 'criteo'\ntrain = ['a', '/b/c']\ntest = 'd'\n[features]\n\
        numeric = ['I1', { column = 'I2', standardise = true }]\n";

    fn job(sets: &[&str]) -> Job {
        Job::parse(FILE, Path::new("/jobs/ads.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    #[test]
    fn roles_of_one_run_have_one_fingerprint() {
        let same = "train.threads=7 train.device=cuda data.threads=9 cluster.server_threads=3 data.train=elsewhere \
            cluster.coordinator=far:1 cluster.admin='0.0.0.0:9' cluster.worker_address='0.0.0.0:9' cluster.timeout_seconds=5 \
            cluster.min_workers=1 output.folder=other cluster.memory=2GiB cluster.cold_folder=other cluster.durability=machine \
            cluster.log_folder=other cluster.insecure=true name=other";
        for set in same.split(' ') {
            assert_eq!(job(&[set]).fingerprint(), job(&[]).fingerprint(), "{set}");
        }
        let mut fitted = job(&[]);
        let moments = ColumnMoments { mean: vec![1.0], deviation: vec![2.0] };
        fitted.features.numeric[1].standardise = Scaling::Given(moments);
        assert_eq!(fitted.fingerprint(), job(&[]).fingerprint());
    }

    #[test]
    fn roles_of_different_runs_do_not() {
        let different = "train.seed=2 train.batch_size=7 train.mode=sync train.mode=async train.precision=bf16 embedding.dim=8 \
            embedding.optimizer.lr=0.5 embedding.init.bound=0.5 embedding.non_finite=skip embedding.element=bf16 \
            embedding.schedule={kind='linear',decay=5} embedding.admission={kind='count'} embedding.eviction.order={kind='lfu'} \
            embedding.eviction.ttl={steps=7} embedding.eviction.ttl={seconds=7} embedding.eviction.target=drop features.categorical=['C1'] \
            features.numeric=['I1','I2'] model.top=[1] model={kind='ffnn',hidden='persia'} model={kind='dcnv2'} \
            model={kind='dcnv2',rank=7} optimizer.lr=0.5 optimizer.kind=adagrad train.schedule={kind='linear',decay=5} \
            train.clip_norm=5 train.non_finite=skip cluster.servers=2 cluster.workers=2 cluster.max_workers=2 \
            cluster.buckets=512 cluster.wire=bf16 cluster.collective=nccl";
        let mut seen = std::collections::HashSet::from([job(&[]).fingerprint()]);
        for set in different.split(' ') {
            assert!(seen.insert(job(&[set]).fingerprint()), "{set}");
        }
        assert!(seen.insert(job(&["embedding.eviction={target='drop',small_norm=0.5}"]).fingerprint()));
    }

    #[test]
    fn paths_start_where_they_were_written() {
        let paths =
            |sets: &[&str]| job(sets).data_files().iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths(&[]), ["/jobs/a", "/b/c", "/jobs/d"]);
        let here = std::env::current_dir().unwrap();
        assert_eq!(paths(&["data.train=x/y"]), [here.join("x/y").display().to_string(), "/jobs/d".to_owned()]);
    }

    #[test]
    fn the_resolved_form_is_as_short_as_it_can_be() {
        let job = job(&["tables.C3.dim=16", "tables.C2.optimizer={kind='sgd'}", "embedding.init={kind='normal'}"]);
        let written: JobFile = toml::from_str(&job.to_toml()).unwrap();
        assert_eq!(written.tables.keys().collect::<Vec<_>>(), ["C2"]);
        assert!(!job.to_toml().contains("tables.C2.init"));
        assert!(!job.to_toml().contains("\nbound") && job.to_toml().contains("deviation = 0.01\n"));
    }
}
