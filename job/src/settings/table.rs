//! `[embedding]` and `[tables.<name>]`. A table takes each key from `[embedding]` unless it sets the key itself.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use zagros_table::{
    AdmissionPolicy, EvictionPolicy, Initializer, NonFinitePolicy, Optimizer, TableConfig, UpdateLimits, WeightType,
};

use super::{RateSchedule, shorten};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    pub name: String,
    pub settings: TableSettings,
}

impl Deref for Table {
    type Target = TableSettings;

    fn deref(&self) -> &TableSettings {
        &self.settings
    }
}

impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut TableSettings {
        &mut self.settings
    }
}

section! {
    /// Settings of all embedding tables, unless `[tables.<name>]` has others.
    #[derive(Copy)]
    #[schemars(rename = "Embedding")]
    pub struct TableSettings {
        /// Values per row.
        #[schemars(range(min = 1, max = 4096))]
        pub dim: usize = 16,
        /// First value of a row. It is a function of `train.seed`, table and id alone.
        pub init: Initializer = Initializer::Uniform { bound: 0.01 },
        /// How rows learn.
        pub optimizer: Optimizer = Optimizer::default(),
        /// Largest magnitude of a gradient's value; 0 for no limit. Larger values are clipped.
        #[schemars(range(min = 0.0, max = 1e30), extend("x-change" = "learning"))]
        pub clip_value: f32 = 0.0,
        /// Largest Euclidean norm of a row's gradient, after `clip_value`; 0 for no limit. A longer gradient is scaled down.
        #[schemars(range(min = 0.0, max = 1e30), extend("x-change" = "learning"))]
        pub clip_norm: f32 = 0.0,
        /// Largest magnitude of a weight after an update; 0 for 2⁴⁰ (1.1e12), which is the most. Larger weights are clipped.
        #[schemars(range(min = 0.0, max = 1e30))]
        pub weight_bound: f32 = 0.0,
        /// What happens to a gradient that is infinite or not a number. The same happens to an unclipped gradient beyond ±2⁴⁰
        /// (1.1e12), after which a row might not stay finite. `refuse` refuses the whole push; `skip` skips the row, and the other
        /// rows of the push are updated.
        pub non_finite: NonFinitePolicy = NonFinitePolicy::default(),
        /// How weights are stored. Arithmetic and the optimiser's state are f32 throughout.
        pub element: WeightType = WeightType::default(),
        /// Factor on the optimiser's learning rate by step. A step is a step of training, which all workers make together; a worker
        /// that joins late counts from the same step. In mode `async` each worker counts its own batches. Numbers of steps may be given in epochs:
        /// `decay = { epochs = 2 }`.
        #[schemars(extend("x-change" = "learning"))]
        pub schedule: RateSchedule = RateSchedule::default(),
        /// Which ids get a row. An id without a row is answered with zeros. Its gradients are counted and dropped.
        pub admission: AdmissionPolicy = AdmissionPolicy::default(),
        /// Which rows leave memory, and where they go. A table that gives it replaces all of its keys.
        pub eviction: EvictionPolicy = EvictionPolicy::default(),
    }
}

impl TableSettings {
    pub fn table_config(&self) -> TableConfig {
        TableConfig {
            dim: self.dim,
            init: self.init,
            optimizer: self.optimizer,
            limits: self.limits(),
            non_finite: self.non_finite,
            element: self.element,
            schedule: self.schedule.in_steps(),
            admission: self.admission,
            eviction: self.eviction,
            ..TableConfig::default()
        }
    }

    fn limits(&self) -> UpdateLimits {
        let or_none = |limit: f32| if limit > 0.0 { limit } else { f32::INFINITY };
        let [clip_value, clip_norm, weight_bound] = [self.clip_value, self.clip_norm, self.weight_bound].map(or_none);
        UpdateLimits { clip_value, clip_norm, weight_bound }
    }

    /// Whether a row changes by pushes alone, and is there from its first push on.
    pub fn changes_by_pushes_alone(&self, memory: Option<u64>) -> bool {
        let drops = !self.eviction.keeps_evicted_rows() && (memory.is_some() || self.eviction.small_norm > 0.0);
        self.admission == AdmissionPolicy::Always && self.eviction.ttl.is_none() && !drops
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TableOverrides(Map<String, Json>);

impl TableOverrides {
    /// The keys whose values differ between `own` and `common`.
    pub(crate) fn difference(common: &TableSettings, own: &TableSettings) -> Self {
        let mut keys = object(own);
        let common = object(common);
        keys.retain(|key, value| common.get(key) != Some(value));
        Self(keys)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The table's own keys, and the others from `common`.
    pub(crate) fn apply_to(&self, common: &TableSettings) -> serde_json::Result<TableSettings> {
        let mut keys = object(common);
        keys.extend(self.0.clone());
        serde_json::from_value(Json::Object(keys))
    }
}

fn object(settings: &TableSettings) -> Map<String, Json> {
    let mut keys = serde_json::to_value(settings).unwrap_or_default();
    shorten(&mut keys);
    if let Json::Object(keys) = keys { keys } else { Map::new() }
}

/// The keys of [`TableSettings`], each with the origin of its default.
impl JsonSchema for TableOverrides {
    fn schema_name() -> Cow<'static, str> {
        "Table".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = TableSettings::json_schema(generator);
        schema.insert("description".to_owned(), "One embedding table.".into());
        let keys = schema.get_mut("properties").and_then(Json::as_object_mut);
        for (key, property) in keys.into_iter().flatten() {
            let doc = property["description"].as_str().unwrap_or_default();
            property["description"] = format!("{doc} Default: `embedding.{key}`.").into();
        }
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_reach_the_table() {
        let settings = TableSettings::default();
        assert_eq!(settings.table_config().limits, UpdateLimits::default());
        let limited = TableSettings { clip_value: 1.0, clip_norm: 2.0, weight_bound: 3.0, ..settings };
        assert_eq!(limited.table_config().limits, UpdateLimits { clip_value: 1.0, clip_norm: 2.0, weight_bound: 3.0 });
    }
}
