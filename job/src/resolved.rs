//! What a validated job gives back: its resolved file, the fingerprint that all roles compare, its data files.

mod tables;

use std::path::{Path, PathBuf};

use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::raw;
use crate::spec::{
    Categorical, Collective, Data, DenseOptimizer, Device, EarlyStop, Features, Format, Job, Metric, Mode, Model,
    NonFinite, Numeric, PoolAt, Pooling, Precision, Standardise, Structure, Table, TestPart, ValidationPart, Values,
    Wire,
};

impl Job {
    /// The resolved job as a job file: every key written, paths absolute. Loads to an equal job.
    ///
    /// # Panics
    /// When a number was put in that no job file can hold, such as a seed above `i64::MAX`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let file = toml::to_string_pretty(&raw_job(self)).expect("a job made from TOML can be written as TOML");
        format!("# Resolved job: every default written out. `zagros train` takes it as it is.\n{file}")
    }

    /// A number that two roles share exactly when they work on the same run: features, tables, model, optimisers,
    /// training, and the cluster's size, wire form and collective. Paths, addresses, time limits and thread counts may differ
    /// from machine to machine and are skipped, as is whether a standardisation is already fitted.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut features = self.features.clone();
        for feature in features.numeric.iter_mut().filter(|feature| feature.standardise != Standardise::No) {
            feature.standardise = Standardise::Fit;
        }
        let mut model = self.model.clone();
        if let Model::TorchScript { file, .. } = &mut model {
            file.clear();
        }
        let agreed = json!({
            "format": self.data.format,
            "features": features,
            "tables": self.tables,
            "model": model,
            "optimizer": self.dense_optimizer,
            "train": crate::Train { threads: 0, device: Device::Cpu, ..self.train.clone() },
            "eval": self.eval,
            "cluster": [self.cluster.servers, self.cluster.workers, self.cluster.buckets],
            "wire": self.cluster.wire,
            "collective": self.cluster.collective,
        });
        xxh3_64(agreed.to_string().as_bytes())
    }

    /// All files that the run reads: training, then validation, then test.
    #[must_use]
    pub fn data_files(&self) -> Vec<&Path> {
        let test: &[PathBuf] = match &self.data.test {
            TestPart::Files(files) => files,
            TestPart::Fraction(_) | TestPart::None => &[],
        };
        let validation: &[PathBuf] = match &self.data.validation {
            ValidationPart::Files(files) => files,
            ValidationPart::Share(_) | ValidationPart::None => &[],
        };
        self.data.train.iter().chain(validation).chain(test).map(PathBuf::as_path).collect()
    }
}

fn raw_job(job: &Job) -> raw::Job {
    let embedding = tables::common(&job.tables);
    raw::Job {
        name: Some(job.name.clone()),
        data: data(&job.data),
        features: features(&job.features, &job.tables),
        tables: tables::own(job, &embedding),
        embedding,
        model: model(&job.model),
        optimizer: dense_optimizer(job.dense_optimizer),
        train: train(&job.train),
        eval: raw::Eval { group_by: job.eval.group_by.clone(), group_samples: job.eval.group_samples },
        checkpoint: raw::Checkpoint {
            every_seconds: job.checkpoint.every.map_or(0.0, |every| every.as_secs_f64()),
            every_steps: job.checkpoint.every_steps,
            folder: job.checkpoint.folder.clone(),
            keep: u32::try_from(job.checkpoint.keep).unwrap_or(u32::MAX),
        },
        cluster: cluster(&job.cluster),
        output: raw::Output {
            folder: text(&job.output.folder),
            save_model: job.output.save_model,
            model_folder: job.output.model_folder.clone(),
            tensorboard: job.output.tensorboard,
            keep_best: job.train.early_stop.is_some().then_some(job.output.keep_best),
        },
    }
}

fn data(data: &Data) -> raw::Data {
    let (test, test_fraction) = match &data.test {
        TestPart::Files(files) => (Some(paths(files)), None),
        TestPart::Fraction(fraction) => (None, Some(*fraction)),
        TestPart::None => (None, None),
    };
    let (validation, validation_share) = match &data.validation {
        ValidationPart::Files(files) => (Some(paths(files)), None),
        ValidationPart::Share(share) => (None, Some(*share)),
        ValidationPart::None => (None, None),
    };
    let delimited = match &data.format {
        Format::Criteo => None,
        Format::Delimited(delimited) => Some(delimited),
    };
    raw::Data {
        format: if delimited.is_some() { raw::Format::Delimited } else { raw::Format::Criteo },
        train: paths(&data.train),
        test,
        test_fraction,
        validation,
        validation_share,
        delimiter: delimited.map(|layout| char::from(layout.delimiter).to_string()),
        header: delimited.map(|layout| layout.header),
        columns: delimited.map(|layout| layout.columns.clone()),
        comment: delimited.and_then(|layout| layout.comment.clone()),
        trim: delimited.map(|layout| layout.trim),
        missing: delimited.map(|layout| layout.missing.clone()),
        max_bad_rows: data.max_bad_rows,
        max_line_bytes: data.max_line_bytes,
        threads: data.threads,
        shuffle_rows: Some(data.shuffle_rows),
    }
}

fn features(features: &Features, tables: &[Table]) -> raw::Features {
    let label = raw::LabelTable {
        column: features.label.column.clone(),
        positive: features.label.positive.clone(),
        negative: features.label.negative.clone(),
    };
    let categorical = |feature: &Categorical| categorical(feature, &tables[feature.table].name);
    raw::Features {
        label: Some(raw::Label::Table(label)),
        numeric: Some(features.numeric.iter().map(numeric).collect()),
        categorical: Some(features.categorical.iter().map(categorical).collect()),
    }
}

fn numeric(feature: &Numeric) -> raw::Numeric {
    raw::Numeric::Table(raw::NumericTable {
        column: feature.column.clone(),
        log: feature.log,
        standardise: match feature.standardise {
            Standardise::No => raw::Standardise::Switch(false),
            Standardise::Fit => raw::Standardise::Switch(true),
            Standardise::Given { mean, deviation } => raw::Standardise::Given { mean, deviation },
        },
        missing: shortest(feature.missing),
    })
}

fn categorical(feature: &Categorical, table: &str) -> raw::Categorical {
    let (separator, pooling, pool_at) = match &feature.values {
        Values::One if table == feature.column => return raw::Categorical::Column(feature.column.clone()),
        Values::One => (None, None, None),
        Values::Many { separator, pooling, pool_at } => (Some(separator.clone()), Some(*pooling), Some(*pool_at)),
    };
    raw::Categorical::Table(raw::CategoricalTable {
        column: feature.column.clone(),
        table: (table != feature.column).then(|| table.to_owned()),
        dim: None,
        separator,
        pooling: pooling.map(|pooling| match pooling {
            Pooling::Sum => raw::Pooling::Sum,
            Pooling::Mean => raw::Pooling::Mean,
            Pooling::SqrtN => raw::Pooling::Sqrtn,
        }),
        pool_at: pool_at.map(|pool_at| match pool_at {
            PoolAt::Auto => raw::PoolAt::Auto,
            PoolAt::Server => raw::PoolAt::Server,
            PoolAt::Worker => raw::PoolAt::Worker,
        }),
    })
}

fn model(model: &Model) -> raw::Model {
    match model.clone() {
        Model::Dlrm { bottom, top, dropout } => raw::Model::Dlrm { bottom, top, dropout },
        Model::Ffnn { hidden, dropout } => raw::Model::Ffnn { hidden: raw::Hidden::Widths(hidden), dropout },
        Model::Dcnv2 { cross_layers, rank, structure, hidden, dropout } => {
            let structure = match structure {
                Structure::Stacked => raw::Structure::Stacked,
                Structure::Parallel => raw::Structure::Parallel,
            };
            raw::Model::Dcnv2 { cross_layers, rank, structure, hidden, dropout }
        }
        Model::DeepFm { hidden, dropout } => raw::Model::DeepFm { hidden, dropout },
        Model::WideDeep { hidden, dropout } => raw::Model::WideDeep { hidden, dropout },
        Model::TorchScript { file, sha256 } => raw::Model::TorchScript { file: text(&file), sha256, trust: true },
    }
}

fn dense_optimizer(optimizer: DenseOptimizer) -> raw::DenseOptimizer {
    match optimizer {
        DenseOptimizer::Adam { lr, weight_decay } => raw::DenseOptimizer::Adam { lr, weight_decay },
        DenseOptimizer::AdamW { lr, weight_decay } => raw::DenseOptimizer::AdamW { lr, weight_decay },
        DenseOptimizer::Adagrad { lr, epsilon, initial_accumulator, weight_decay } => {
            raw::DenseOptimizer::Adagrad { lr, epsilon, initial_accumulator, weight_decay }
        }
        DenseOptimizer::Sgd { lr, momentum, weight_decay } => raw::DenseOptimizer::Sgd { lr, momentum, weight_decay },
    }
}

fn train(train: &crate::Train) -> raw::Train {
    raw::Train {
        batch_size: train.batch_size,
        epochs: train.epochs,
        mode: match train.mode {
            Mode::Hybrid => raw::Mode::Hybrid,
            Mode::Sync => raw::Mode::Sync,
            Mode::Async => raw::Mode::Async,
        },
        staleness: Some(train.staleness),
        staleness_total: train.staleness_total,
        seed: train.seed,
        threads: train.threads,
        precision: match train.precision {
            Precision::F32 => raw::Precision::F32,
            Precision::Bf16 => raw::Precision::Bf16,
            Precision::F16 => raw::Precision::F16,
        },
        device: match train.device {
            Device::Cpu => raw::Device::Cpu,
            Device::Cuda => raw::Device::Cuda,
        },
        max_steps: train.max_steps,
        evaluate_every: train.evaluate_every,
        early_stop: train.early_stop.map(early_stop),
        schedule: tables::schedule(train.updates.schedule),
        clip_value: train.updates.clip_value.unwrap_or(0.0),
        clip_norm: train.updates.clip_norm.unwrap_or(0.0),
        non_finite: match train.updates.non_finite {
            NonFinite::Refuse => raw::NonFiniteStep::Refuse,
            NonFinite::Skip => raw::NonFiniteStep::Skip,
        },
    }
}

fn early_stop(early_stop: EarlyStop) -> raw::EarlyStop {
    let metric = match early_stop.metric {
        Metric::Auc => raw::Metric::Auc,
        Metric::Logloss => raw::Metric::Logloss,
        Metric::Gauc => raw::Metric::Gauc,
    };
    raw::EarlyStop { metric, patience: early_stop.patience, min_delta: early_stop.min_delta }
}

fn cluster(cluster: &crate::Cluster) -> raw::Cluster {
    raw::Cluster {
        servers: cluster.servers,
        workers: cluster.workers,
        min_workers: cluster.min_workers,
        buckets: cluster.buckets,
        coordinator: cluster.coordinator.clone(),
        server_addresses: cluster.server_addresses.clone(),
        worker_address: cluster.worker_address.clone(),
        collective: match cluster.collective {
            Collective::Gloo => raw::Collective::Gloo,
            Collective::Nccl => raw::Collective::Nccl,
        },
        admin: cluster.admin.clone(),
        timeout_seconds: cluster.timeout.as_secs_f64(),
        lease_seconds: cluster.lease.as_secs_f64(),
        wire: match cluster.wire {
            Wire::F32 => raw::Wire::F32,
            Wire::F16 => raw::Wire::F16,
            Wire::Bf16 => raw::Wire::Bf16,
        },
        server_threads: cluster.server_threads,
        memory: cluster.memory.map(size),
        cold_folder: cluster.cold_folder.as_deref().map(text),
    }
}

/// In the largest unit that a whole number of gives the size.
fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, bits)| bytes.trailing_zeros() >= *bits);
    unit.map_or_else(|| format!("{bytes} B"), |(name, bits)| format!("{} {name}", bytes >> bits))
}

fn paths(paths: &[PathBuf]) -> raw::Paths {
    raw::Paths::Many(paths.iter().map(|path| text(path)).collect())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The f64 that prints as shortly as the f32 does and rounds back to it: 0.01, not 0.009999999776.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Overrides;

    const FILE: &str = "[data]\nformat = 'criteo'\ntrain = ['a', '/b/c']\ntest = 'd'\n[features]\n\
        numeric = ['I1', { column = 'I2', standardise = true }]\n";

    fn job(sets: &[&str]) -> Job {
        Job::parse(FILE, Path::new("/jobs/ads.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    #[test]
    fn roles_of_one_run_have_one_fingerprint() {
        let same = [
            "train.threads=7",
            "train.device=cuda",
            "data.threads=9",
            "cluster.server_threads=3",
            "data.train=elsewhere",
            "cluster.coordinator=far:1",
            "cluster.admin='0.0.0.0:9'",
            "cluster.worker_address='0.0.0.0:9'",
            "cluster.timeout_seconds=5",
            "cluster.min_workers=1",
            "output.folder=other",
            "cluster.memory=2GiB",
            "cluster.cold_folder=other",
            "name=other",
        ];
        for set in same {
            assert_eq!(job(&[set]).fingerprint(), job(&[]).fingerprint(), "{set}");
        }
        let mut fitted = job(&[]);
        fitted.features.numeric[1].standardise = Standardise::Given { mean: 1.0, deviation: 2.0 };
        assert_eq!(fitted.fingerprint(), job(&[]).fingerprint());
    }

    #[test]
    fn roles_of_different_runs_do_not() {
        let different = [
            "train.seed=2",
            "train.batch_size=7",
            "train.mode=sync",
            "train.mode=async",
            "train.staleness_total=2",
            "train.precision=bf16",
            "embedding.dim=8",
            "embedding.optimizer.lr=0.5",
            "embedding.init.bound=0.5",
            "embedding.non_finite=skip",
            "embedding.element=bf16",
            "embedding.schedule={kind='linear', decay=5}",
            "embedding.admission={kind='count'}",
            "embedding.evict={kind='lfu'}",
            "embedding.ttl_steps=7",
            "embedding.ttl_seconds=7",
            "embedding.victims=drop",
            "features.categorical=['C1']",
            "features.numeric=['I1', 'I2']",
            "model.top=[1]",
            "model={kind='ffnn', hidden='persia'}",
            "model={kind='dcnv2'}",
            "model={kind='dcnv2', rank=7}",
            "optimizer.lr=0.5",
            "optimizer.kind=adagrad",
            "train.schedule={kind='linear', decay=5}",
            "train.clip_norm=5",
            "train.non_finite=skip",
            "cluster.servers=2",
            "cluster.workers=2",
            "cluster.buckets=512",
            "cluster.wire=bf16",
            "cluster.collective=nccl",
        ];
        let mut seen = std::collections::HashSet::from([job(&[]).fingerprint()]);
        for set in different {
            assert!(seen.insert(job(&[set]).fingerprint()), "{set}");
        }
        assert!(seen.insert(job(&["embedding.victims=drop", "embedding.small_norm=0.5"]).fingerprint()));
    }

    #[test]
    fn paths_start_where_they_were_written() {
        let paths = |sets: &[&str]| job(sets).data_files().iter().map(|path| text(path)).collect::<Vec<_>>();
        assert_eq!(paths(&[]), ["/jobs/a", "/b/c", "/jobs/d"]);
        let here = std::env::current_dir().unwrap();
        assert_eq!(paths(&["data.train=x/y"]), [text(&here.join("x/y")), "/jobs/d".to_owned()]);
    }

    #[test]
    fn a_size_is_written_exactly() {
        for (bytes, written) in [(2 << 30, "2 GiB"), (3 << 19, "1536 KiB"), (500_000_001, "500000001 B")] {
            assert_eq!(size(bytes), written);
            assert_eq!(job(&[&format!("cluster.memory='{written}'")]).cluster.memory, Some(bytes));
        }
    }

    #[test]
    fn the_resolved_form_is_as_short_as_it_can_be() {
        let job = job(&["tables.C3.dim=16", "tables.C2.optimizer={kind='sgd'}", "embedding.init={kind='normal'}"]);
        let written: raw::Job = toml::from_str(&job.to_toml()).unwrap();
        assert_eq!(written.tables.keys().collect::<Vec<_>>(), ["C2"]);
        assert!(written.tables["C2"].dim.is_none() && written.tables["C2"].init.is_none());
        assert!(!job.to_toml().contains("\nbound") && job.to_toml().contains("deviation = 0.01\n"));
    }
}
