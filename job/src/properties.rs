//! Nothing panics, a document without problems deserialises, and the resolved form loads to an equal job.

use std::path::Path;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::Union;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use crate::document::TomlNode;
use crate::error::SourceText;
use crate::file::JobFile;
use crate::shape::{self, TAG, TableField, TaggedVariant, TextForm, ValueShape};
use crate::{Job, JobErrors, Overrides, check};

const EXAMPLE: &str = include_str!("../../examples/adult.toml");

fn parse(text: &str) -> Result<Job, JobErrors> {
    Job::parse(text, Path::new("/jobs/job.toml"), &Overrides::none())
}

/// Any value of a shape: within its limits, with some of the optional keys.
fn any_of(shape: &ValueShape) -> BoxedStrategy<Json> {
    match shape {
        ValueShape::Boolean => any::<bool>().prop_map(Json::from).boxed(),
        ValueShape::Integer { min, max } => (*min as i64..=*max as i64).prop_map(Json::from).boxed(),
        ValueShape::Number(bounds) => {
            let low = bounds.min.unwrap_or_else(|| bounds.above.map_or(-1e6, |above| above + 1e-9));
            let high = bounds.max.unwrap_or_else(|| bounds.below.map_or(1e6, |below| below - 1e-9));
            (low..=high).prop_map(Json::from).boxed()
        }
        ValueShape::Text { form: TextForm::Size, .. } => Just(json!("2 GiB")).boxed(),
        ValueShape::Text { form: TextForm::Digits(count), .. } => Just(Json::from("0".repeat(*count))).boxed(),
        ValueShape::Text { .. } => "[ -~é]{1,9}".prop_map(Json::from).boxed(),
        ValueShape::Words(choices) => select(choices.clone()).prop_map(|choice| Json::from(choice.word)).boxed(),
        ValueShape::List { item, min, max } => {
            vec(any_of(item), *min as usize..=(*max).min(3) as usize).prop_map(Json::from).boxed()
        }
        ValueShape::Table(fields) => any_fields(fields).prop_map(Json::Object).boxed(),
        ValueShape::Named(item) => {
            btree_map("[a-z]{1,4}", any_of(item), 0..3).prop_map(|map| map.into_iter().collect()).boxed()
        }
        ValueShape::Tagged { variants, default } => {
            Union::new(variants.iter().map(|variant| any_variant(variant, default.as_deref()))).boxed()
        }
        ValueShape::Either(shapes) => Union::new(shapes.iter().map(any_of)).boxed(),
        ValueShape::Anything => Just(Json::Null).boxed(),
    }
}

fn any_fields(fields: &[TableField]) -> BoxedStrategy<Map<String, Json>> {
    let start = Just(Map::new()).boxed();
    fields.iter().fold(start, |keys, field| {
        let (name, required) = (field.name.clone(), field.required);
        (keys, any_of(&field.shape), any::<bool>())
            .prop_map(move |(mut keys, value, given)| {
                if required || given {
                    keys.insert(name.clone(), value);
                }
                keys
            })
            .boxed()
    })
}

/// The tag may be omitted if it is the default.
fn any_variant(variant: &TaggedVariant, default: Option<&str>) -> BoxedStrategy<Json> {
    let (kind, optional) = (variant.kind.clone(), default == Some(&variant.kind));
    let tagged = move |(mut keys, leave_out): (Map<String, Json>, bool)| {
        if !(optional && leave_out) {
            keys.insert(TAG.to_owned(), Json::from(kind.as_str()));
        }
        Json::Object(keys)
    };
    (any_fields(&variant.fields), any::<bool>()).prop_map(tagged).boxed()
}

/// Shape of a key such as `["features", "numeric"]`. For a list or named tables, the shape of an item.
fn shape_of(path: &[&str]) -> ValueShape {
    let child = |shape: ValueShape, key: &&str| match shape {
        ValueShape::Table(fields) => fields.into_iter().find(|field| field.name == **key).map(|field| field.shape),
        _ => None,
    };
    let found = path.iter().try_fold(shape::job_shape(), child);
    match found.unwrap_or_else(|| panic!("no key {path:?}")) {
        ValueShape::List { item, .. } | ValueShape::Named(item) => *item,
        shape => shape,
    }
}

fn any_feature(kind: &str, column: &'static str) -> impl Strategy<Value = Json> {
    let ValueShape::Either(forms) = shape_of(&["features", kind]) else { panic!("{kind} has one form") };
    let table = forms.into_iter().find(|form| matches!(form, ValueShape::Table(_)));
    any_of(&table.unwrap_or(ValueShape::Anything))
        .prop_map(move |feature| replace_keys(feature, json!({ "column": column })))
}

fn replace_keys(mut table: Json, keys: Json) -> Json {
    if let (Json::Object(table), Json::Object(keys)) = (&mut table, keys) {
        table.extend(keys);
        table.retain(|_, value| !value.is_null());
    }
    table
}

/// An encoding excludes all keys but its own: one of counts fits every label and order.
fn any_encoded(encode: &Json, column: &str) -> Json {
    let numbers =
        json!({ "mean": 0.5, "deviation": 2.0, "rare": "00000000", "ids": "0123456789abcdef", "values": "3f800000" });
    let given = json!({
        "by": "count", "with": encode.get("with").map(|_| ["user"]), "smoothing": null, "folds": null,
        "fitted": encode.get("fitted").map(|_| numbers),
    });
    json!({ "column": column, "encode": replace_keys(encode.clone(), given) })
}

/// At most one way to scale, limits that leave something, and lists of as many numbers as the vector has.
fn any_numeric(column: &'static str) -> impl Strategy<Value = Json> {
    any_feature("numeric", column).prop_map(move |feature| {
        if let Some(encode) = feature.get("encode") {
            return any_encoded(encode, column);
        }
        let clip = feature.get("clip").map(|_| json!([-3, 4.5]));
        let is_vector = feature.get("width").is_some();
        let (width, separator) = if is_vector { (json!(2), json!(" ")) } else { (json!(null), json!(null)) };
        let either = |number: f64, list: [f64; 2]| if is_vector { json!(list) } else { json!(number) };
        let standardise = match &feature["standardise"] {
            Json::Object(_) => json!({ "mean": either(0.5, [0.5, -1.0]), "deviation": either(2.0, [2.0, 0.25]) }),
            given => given.clone(),
        };
        let min_max = match (&standardise, &feature["min_max"]) {
            (Json::Null | Json::Bool(false), Json::Object(_)) => json!({ "min": -0.5, "max": either(7.0, [7.0, 8.5]) }),
            (Json::Null | Json::Bool(false), given) => given.clone(),
            _ => json!(null),
        };
        let scaled = json!({ "clip": clip, "standardise": standardise, "min_max": min_max });
        replace_keys(replace_keys(feature, scaled), json!({ "width": width, "separator": separator }))
    })
}

fn any_source(feature: Json) -> Json {
    let (one, text) = (feature.get("separator").is_none(), feature.get("date").is_none());
    let edges = json!({ "quantiles": 4, "edges": [-1, 0.5] });
    let buckets = feature.get("buckets").map(|buckets| match buckets {
        Json::Array(_) => json!([-7, 0, 2.5]),
        Json::Object(_) => edges.clone(),
        given => given.clone(),
    });
    let buckets = buckets.filter(|_| one && text);
    let date = feature.get("date").filter(|_| one).cloned();
    let default = feature.get("default").filter(|_| one).cloned();
    let plain = buckets.is_none() && date.is_none();
    let hash_size = feature.get("hash_size").filter(|_| plain).cloned();
    let vocabulary = feature.get("vocabulary").filter(|_| plain && hash_size.is_none()).cloned();
    let vocabulary = vocabulary
        .map(|given| replace_keys(given, json!({ "ids": "0123456789abcdeffedcba9876543210", "max_size": 2 })));
    let keys = json!({
        "cross": null, "name": null, "buckets": buckets, "date": date, "default": default, "hash_size": hash_size,
        "vocabulary": vocabulary,
    });
    replace_keys(feature, keys)
}

/// Pooling only with a separator, no sequence and no dim; the table is shared, another feature's, or the feature's own.
fn any_categorical(column: &'static str) -> impl Strategy<Value = Json> {
    (any_feature("categorical", column), select(vec![json!(null), json!("user"), json!("shared")])).prop_map(
        |(feature, table)| {
            let feature = any_source(feature);
            let list_key = |key| feature.get("separator").and(feature.get(key)).cloned();
            let weights = list_key("weights").map(|_| "age");
            let pooling = list_key("pooling");
            let keys = json!({ "table": table, "dim": null, "pooling": pooling, "weights": weights, "sequence": null });
            replace_keys(feature, keys)
        },
    )
}

/// A network of sequences reads the tags as one, whose target is the user.
fn with_sequence(model: &Json, item: Json, tag: Json, sequence: Json) -> (Json, Json) {
    if model["kind"] != "din" && model["kind"] != "bst" {
        return (item, tag);
    }
    let keys = json!({
        "table": "user", "separator": "|", "sequence": sequence, "pooling": null, "weights": null,
        "buckets": null, "date": null, "default": null, "hash_size": null, "vocabulary": null,
    });
    (replace_keys(item, json!({ "table": null })), replace_keys(tag, keys))
}

/// The rank must be below the width of the input, and gates read features. A module must be trusted. Mode `async` has
/// no Dice.
fn any_model(model: Json, train: &Json) -> Json {
    // A size excludes most other keys, and a network of its own may have no hidden layer.
    let model = replace_keys(model, json!({ "size": null, "size_embeddings": null, "mup_base_width": null }));
    if model["kind"] == "torchscript" {
        return replace_keys(model, json!({ "sha256": "0".repeat(64), "trust": true }));
    }
    let gate =
        model.get("gate").map(|gate| replace_keys(gate.clone(), json!({ "first": ["x", "user"], "second": null })));
    let activation = model.get("activation").filter(|_| train["mode"] != "async").cloned();
    let keys = json!({ "rank": null, "attention": null, "heads": null, "gate": gate, "activation": activation });
    replace_keys(model, keys)
}

/// Weights are resident, for many keys do not fit streamed ones. Mode `sync` allows no device, and mode `async` neither an average nor new rows in every epoch.
fn any_train(train: Json) -> Json {
    let device = if train["mode"] == "sync" { json!("cpu") } else { train["device"].clone() };
    // The label is a click.
    let of_clicks = |stop: &Json| replace_keys(stop.clone(), json!({ "metric": "logloss" }));
    let early_stop = train.get("early_stop").map(of_clicks);
    let penalties = train.get("feature_l2").map(|_| json!({ "user": 0.25 }));
    let own = json!({ "staleness": null, "device": device, "early_stop": early_stop, "feature_l2": penalties, "weights": null, "memory": "4096 PiB" });
    let train = replace_keys(train, own);
    let alone = if train["mode"] == "async" { json!({ "ema": null, "reset_embeddings": null }) } else { json!({}) };
    replace_keys(train, alone)
}

/// Rows in the order of their uses expire by steps.
fn any_rows(rows: Json) -> Json {
    let eviction = rows.get("eviction").map(|eviction| {
        let ttl = eviction.get("ttl").map(|_| json!({ "steps": 9 }));
        replace_keys(eviction.clone(), json!({ "ttl": ttl }))
    });
    replace_keys(rows, json!({ "eviction": eviction }))
}

/// Job files with random sections, except for keys that must fit together.
fn any_job() -> impl Strategy<Value = String> {
    let fixed_data = json!({
        "format": "delimited", "columns": ["y", "user", "item", "tag", "age"], "delimiter": ";", "decimal": null, "test_fraction": null,
        "train": ["a b.txt", "/é"], "test": "t", "validation": "v", "validation_share": null,
        "test_from": null, "validation_from": null, "time_column": null,
    });
    let fixed_cluster = json!({ "coordinator": null, "worker_address": null, "admin": null, "server_addresses": null, "servers": 3, "workers": null, "min_workers": null, "max_workers": null, "buckets": 7, "memory": "1.5 GiB" });
    let features = (any_numeric("age"), any_categorical("item"), any_categorical("tag"));
    let sections =
        ["data", "embedding", "model", "mlp", "optimizer", "train", "eval", "checkpoint", "cluster", "output"];
    let sections = sections.map(|name| any_of(&shape_of(&[name])));
    let sequence = (1..4096_u32).prop_flat_map(|length| {
        select(vec![json!({ "length": length }), json!({ "length": length, "keep": "first", "pad": "right" })])
    });
    (features, sequence, any_of(&shape_of(&["tables"])), sections).prop_map(move |((age, item, tag), sequence, table, sections)| {
        let [data, embedding, model, mlp, optimizer, train, eval, checkpoint, cluster, output] = sections;
        let (item, tag) = with_sequence(&model, item, tag, sequence);
        let is_async = train["mode"] == "async";
        // The order of the files has no shuffle window.
        let window = if data["order"] == "time" { json!(null) } else { data["shuffle_rows"].clone() };
        // Mode `async` allows no decoupled decay, and no running statistics. A module has its own layers.
        let decay = if is_async { json!({ "weight_decay": 0 }) } else { json!({}) };
        let takes_mlp = !is_async && ["torchscript", "shared_bottom", "mmoe", "ple"].iter().all(|kind| model["kind"] != *kind);
        // Without early stopping no state is kept.
        let kept = train.get("early_stop").and(output.get("keep_best")).cloned();
        let shared = item["table"] == "shared" || tag["table"] == "shared";
        let job = json!({
            "data": replace_keys(replace_keys(data, json!({ "shuffle_rows": window })), fixed_data.clone()),
            "features": { "label": "y", "numeric": [age], "categorical": ["user", item, tag, { "cross": ["item", "tag", "age"], "name": "x", "vocabulary": { "min_count": 3 } }] },
            "embedding": any_rows(embedding),
            "tables": if shared { json!({ "shared": any_rows(replace_keys(table, json!({ "dim": null }))) }) } else { json!({}) },
            "mlp": if takes_mlp { mlp } else { json!({}) },
            "model": any_model(model, &train),
            "optimizer": replace_keys(optimizer, decay),
            "train": any_train(train),
            "eval": replace_keys(eval, json!({ "group_by": "user", "slices": ["tag", "age"] })),
            "checkpoint": checkpoint,
            "cluster": replace_keys(cluster, fixed_cluster.clone()),
            "output": replace_keys(output, json!({ "keep_best": kept })),
        });
        toml::to_string(&job).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_the_checks_accept_deserialises(job in any_of(&shape::job_shape())) {
        let text = toml::to_string(&job).unwrap();
        let mut document = TomlNode::parse(&SourceText::job_file("job.toml", &text)).unwrap();
        let problems = check::check_shape(&mut document, &shape::job_shape());
        prop_assert!(problems.is_empty(), "{problems:?} in {text}");
        prop_assert!(JobFile::deserialize(document.to_json()).is_ok(), "{text}");
        // Whether the keys fit together is not tested here.
        let _ = parse(&text);
    }

    #[test]
    fn the_resolved_form_loads_to_an_equal_job(text in any_job()) {
        let job = parse(&text).unwrap();
        let resolved = job.to_toml();
        let again = Job::parse(&resolved, Path::new("/elsewhere/resolved.toml"), &Overrides::none()).unwrap();
        prop_assert_eq!(&again, &job, "{}", resolved);
        prop_assert_eq!(again.fingerprint(), job.fingerprint());
        prop_assert_eq!(again.to_toml(), resolved);
    }

    #[test]
    fn no_text_panics(text in r#"[a-z_.=\[\]{}"',0-9\n #é-]{0,80}"#) {
        let _ = parse(&text);
    }

    /// A real file with a part cut out or doubled. If it fails, the positions are inside of the file.
    #[test]
    fn no_damage_panics(from: Index, to: Index, double: bool) {
        let boundaries: Vec<usize> = EXAMPLE.char_indices().map(|(position, _)| position).collect();
        let (from, to) = (*from.get(&boundaries), *to.get(&boundaries));
        let (from, to) = (from.min(to), from.max(to));
        let (head, tail) = if double { (to, from) } else { (from, to) };
        let text = format!("{}{}", &EXAMPLE[..head], &EXAMPLE[tail..]);
        if let Err(errors) = parse(&text) {
            let lines = text.lines().count() + 1;
            for problem in errors.problems() {
                prop_assert!(problem.location().is_none_or(|(_, line, _)| line <= lines), "{errors:?}");
            }
        }
    }
}
