//! Names of columns: those that a job uses, what separates them in a header, and whether the first objects of a file of JSON lines have them.

use std::collections::{BTreeSet, HashSet};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Map, Value};
use zagros_job::{Job, nearest_name};

use crate::IngestError;
use crate::read::text::{FileText, ReadReach};

/// Names of the columns that a job uses, each once.
pub(crate) fn used_columns(job: &Job) -> Vec<String> {
    let categories = job.features.category_features();
    let (features, predict) = (&job.features, job.eval.predict.as_ref());
    let learned = features.learned_columns().filter(|_| predict.is_none()).map(String::as_str);
    let group = job.eval.group_by.as_deref().filter(|_| predict.is_none());
    let numeric = features.number_features().map(|feature| feature.column.as_str());
    let categorical = categories.iter().flat_map(|feature| features.source_columns(feature));
    let keys = job.eval.noted_columns().iter().map(String::as_str);
    let mut seen = HashSet::new();
    let time = job.data.time_column().filter(|_| predict.is_none());
    let all = learned.chain(numeric).chain(categorical).chain(group).chain(keys).chain(time);
    all.filter(|column| seen.insert(*column)).map(str::to_owned).collect()
}

/// The separators that files usually have, without `delimiter`.
pub(crate) fn usual_separators(delimiter: u8) -> impl Iterator<Item = u8> {
    b",\t;|: ".iter().copied().filter(move |separator| *separator != delimiter)
}

/// The name that a column was probably meant to have.
pub(crate) fn most_similar(names: &[String], column: &str) -> Option<String> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    nearest_name(column, &names).map(str::to_owned)
}

/// How much of a file is read: a few hundred objects. A key that is rarer may be anywhere.
const FIRST_BYTES: u64 = 256 << 10;

const LISTED: usize = 60;

/// Why a file of JSON that is not written line by line is refused.
pub(crate) const ONE_ARRAY: &str = "it is one JSON array; write an object on each line (`jq -c '.[]' FILE`)";

/// Refuses a file whose first objects have none of the keys of a column. There is no header that could say which keys exist.
pub(super) fn check_objects(job: &Job, path: &Path, cancel: &Arc<AtomicBool>) -> Result<(), IngestError> {
    let text = FileText::open(path, ReadReach::Start, cancel)?;
    let names = object_keys(path, text)?;
    // Rows that are predicted need no label. Lines that are no objects are malformed rows, and reported as such.
    if names.is_empty() {
        return Ok(());
    }
    match used_columns(job).into_iter().find(|column| !names.contains(column)) {
        None => Ok(()),
        Some(column) => {
            let found: Vec<String> = names.into_iter().collect();
            let similar = most_similar(&found, &column);
            let found = found.into_iter().take(LISTED).collect();
            Err(IngestError::MissingColumn { path: path.into(), column, similar, found })
        }
    }
}

/// The keys of the first objects, those of objects inside as paths.
fn object_keys(path: &Path, text: FileText) -> Result<BTreeSet<String>, IngestError> {
    let (mut start, mut names) = (BufReader::new(text.take(FIRST_BYTES)), BTreeSet::new());
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = start.read_until(b'\n', &mut line);
        if read.map_err(|error| start.get_ref().get_ref().explain(error))? == 0 {
            return Ok(names);
        }
        match serde_json::from_slice(&line) {
            Ok(Value::Object(object)) => visit_values("", &object, &mut |name: String, _: &Value| {
                names.insert(name);
            }),
            _ if names.is_empty() && line.trim_ascii() == b"[" || line.trim_ascii_start().starts_with(b"[{") => {
                return Err(IngestError::bad_file(path, ONE_ARRAY));
            }
            _ => {}
        }
    }
}

/// Gives each value of an object to `take`, with the path of its keys: those of objects inside, and then these.
pub(crate) fn visit_values(path: &str, object: &Map<String, Value>, take: &mut dyn FnMut(String, &Value)) {
    for (key, value) in object {
        let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if let Value::Object(inside) = value {
            visit_values(&name, inside, take);
        }
        take(name, value);
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::{ColumnarFormat, Format};

    use crate::{find_files, fixture};

    fn check(text: &str) -> Result<(), String> {
        let (_folder, path) = fixture::file(text);
        let mut job = fixture::delimited(|_| ());
        job.data.format = Format::Jsonl(ColumnarFormat::default());
        find_files(&job, &[path]).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn a_column_that_no_object_has_is_named_with_the_nearest() {
        check("{\"click\":1,\"age\":2}\n{\"city\":1,\"tags\":null}\n").unwrap();
        let error = check("{\"click\":1,\"age\":2,\"user\":{\"city\":1}}\n{\"Tags\":[]}\n").unwrap_err();
        assert!(error.contains("no column \"city\"") && error.contains("Tags, age, click, user, user.city"), "{error}");
        let error = check("{\"click\":1,\"age\":2,\"city\":1}\n{\"Tags\":[]}\n").unwrap_err();
        assert!(error.contains("no column \"tags\", did you mean \"Tags\"?"), "{error}");
    }

    #[test]
    fn a_file_that_is_one_array_is_refused_with_the_way_out() {
        for text in ["[{\"click\":1},\n{\"click\":0}]", "[\n{\"click\":1}\n]\n"] {
            assert!(check(text).unwrap_err().contains("it is one JSON array"), "{text}");
        }
        // Each line is then a malformed row.
        check("1,2,x,y\n").unwrap();
    }
}
