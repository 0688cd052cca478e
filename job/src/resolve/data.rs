//! `[data]` and `[train]`'s threads: paths, separators, and the keys of each format.

use std::collections::HashSet;
use std::path::{Path as FilePath, PathBuf};

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::{DataFile, DataLayout, DataPaths};
use crate::settings::{
    ColumnarFormat, DataOrder, DataSettings, DecimalMark, DelimitedFormat, Features, Format, STDIN, Values, word,
};

pub(super) fn criteo_columns() -> Vec<String> {
    let numeric = (1..=13).map(|index| format!("I{index}"));
    let categorical = (1..=26).map(|index| format!("C{index}"));
    std::iter::once("label".to_owned()).chain(numeric).chain(categorical).collect()
}

/// Names of the columns, if they are known before a file is opened.
pub(super) fn known_columns(file: &DataFile) -> Option<Vec<String>> {
    match file.format {
        DataLayout::Criteo => Some(criteo_columns()),
        DataLayout::Parquet | DataLayout::Arrow | DataLayout::Jsonl => None,
        DataLayout::Delimited => file.columns.clone().filter(|columns| !columns.is_empty()),
    }
}

/// Default rows of a shuffle window: many batches, read within a fraction of a second.
const SHUFFLE_ROWS: usize = 32_768;
/// The most memory of a default window.
const SHUFFLE_BYTES: usize = 32 << 20;
const VALUES: usize = 64;

fn shuffle_rows(features: &Features) -> usize {
    let ids = features.categorical.iter().map(|feature| match feature.values {
        Values::One => 1,
        Values::Many { weights: None, .. } => VALUES,
        // A weight has half the bytes of an id.
        Values::Many { weights: Some(_), .. } => VALUES * 3 / 2,
        Values::Sequence { sequence, .. } => sequence.length,
    });
    let row = 8 * ids.sum::<usize>() + 4 * features.numeric_inputs() + 4;
    SHUFFLE_ROWS.min(SHUFFLE_BYTES / row).max(1)
}

impl JobResolver<'_> {
    pub(super) fn resolve_data(&mut self, file: &DataFile, features: &Features) -> DataSettings {
        self.times_fit(file);
        self.commas_fit(file, features);
        DataSettings {
            format: self.format(file),
            train: self.data_paths("data.train", &file.train),
            test: self.test_part(file),
            validation: self.validation_part(file),
            max_bad_rows: file.max_bad_rows,
            max_bad_share: file.max_bad_share,
            max_line_bytes: file.max_line_bytes,
            threads: if file.threads == 0 { self.context.threads.parse } else { file.threads },
            shuffle_rows: self.window(file, features),
            order: file.order,
            drop_last: file.drop_last,
            written: Default::default(),
        }
    }

    fn window(&mut self, file: &DataFile, features: &Features) -> usize {
        match (file.order, file.shuffle_rows) {
            (DataOrder::Shuffled, rows) => rows.unwrap_or_else(|| shuffle_rows(features)),
            (DataOrder::Time, None | Some(0)) => 0,
            (DataOrder::Time, Some(_)) => {
                let message = "`data.shuffle_rows` changes the order that `data.order = \"time\"` keeps";
                self.problem("data.shuffle_rows", message, "not 0", "remove one of the two keys");
                0
            }
        }
    }

    pub(super) fn data_paths(&mut self, key: &str, paths: &DataPaths) -> Vec<PathBuf> {
        let whole = KeyPath::from(key);
        if paths.as_slice().is_empty() {
            self.problem(whole.clone(), format!("`{key}` names no file"), "empty list", "name at least one file");
        }
        let is_one = matches!(paths, DataPaths::One(_));
        let path_of = |index| if is_one { whole.clone() } else { whole.index(index) };
        paths.as_slice().iter().enumerate().map(|(index, path)| self.data_path(&path_of(index), path)).collect()
    }

    /// Absolute, so that the resolved job names the same files wherever it is read. The URL of an object stays as it
    /// is.
    fn data_path(&mut self, key: &KeyPath, path: &str) -> PathBuf {
        match path.split_once("://") {
            None if path == STDIN => PathBuf::from(path),
            Some(("s3" | "gs" | "az" | "http" | "https", rest)) if !rest.is_empty() && !rest.starts_with('/') => {
                PathBuf::from(path)
            }
            Some(("file", rest)) if rest.starts_with('/') => PathBuf::from(rest),
            Some((scheme, _)) => {
                let help = "give a path, or s3://bucket/key, gs://bucket/key, az://container/key, https://host/path";
                let is_store = ["s3", "gs", "az", "http", "https"].contains(&scheme);
                let label = if is_store { "no bucket" } else { "neither a path nor a store" };
                self.problem(key.clone(), format!("`{key}` names no file"), label, help);
                PathBuf::from(path)
            }
            None => self.absolute_path(key, path),
        }
    }

    pub(super) fn absolute_path(&mut self, key: &KeyPath, path: &str) -> PathBuf {
        if path.is_empty() {
            self.problem(key.clone(), format!("`{key}` is an empty path"), "empty", "name a file");
        }
        let in_file = self.context.document.place(key).source.file;
        let base = self.context.file.parent().filter(|_| in_file).unwrap_or(FilePath::new(""));
        let joined = base.join(path);
        std::path::absolute(&joined).unwrap_or(joined)
    }

    fn format(&mut self, file: &DataFile) -> Format {
        let columnar = || ColumnarFormat { missing: file.missing.clone().unwrap_or_default() };
        let (format, help) = match file.format {
            DataLayout::Delimited => return Format::Delimited(self.delimited(file)),
            DataLayout::Criteo => {
                (Format::Criteo, "Criteo's layout is fixed; remove the key, or use format = \"delimited\"")
            }
            DataLayout::Parquet => {
                (Format::Parquet(columnar()), "a Parquet file says itself what its columns are; remove the key")
            }
            DataLayout::Arrow => {
                (Format::Arrow(columnar()), "an Arrow file says itself what its columns are; remove the key")
            }
            DataLayout::Jsonl => (Format::Jsonl(columnar()), "the keys of an object are its columns; remove the key"),
        };
        let name = word(&file.format);
        let keys = ["delimiter", "header", "columns", "comment", "trim", "quoted_breaks", "decimal", "missing"];
        let keys = if format == Format::Criteo { &keys[..] } else { &keys[..7] };
        let message = |key: &str| format!("`data.{key}` has no meaning with format \"{name}\"");
        self.refuse_keys(&KeyPath::from("data"), keys, message, "only for \"delimited\"", help);
        format
    }

    /// A comma cannot separate numbers and be inside them.
    fn commas_fit(&mut self, file: &DataFile, features: &Features) {
        let vectors = features.numeric.iter().map(|feature| (&feature.column, feature.separator.as_deref()));
        let bags = features.categorical.iter().filter(|feature| feature.values.weight_column().is_some());
        let bags = bags.map(|feature| (&feature.name, feature.values.separator()));
        let has_comma = |separator: Option<&str>| separator.is_some_and(|text| text.contains(','));
        let divided = vectors.chain(bags).find(|(_, separator)| has_comma(*separator));
        if let (Some((name, _)), Some(DecimalMark::Comma)) = (divided, file.decimal) {
            let message = format!(
                "the numbers of \"{name}\" are separated by the comma that `data.decimal` has before a fraction"
            );
            let help = "remove the key, or write the numbers with another separator";
            self.problem("data.decimal", message, "also a separator", help);
        }
    }

    fn delimited(&mut self, file: &DataFile) -> DelimitedFormat {
        let header = file.header.unwrap_or(true);
        let columns = file.columns.clone().unwrap_or_default();
        if columns.is_empty() && !header {
            let help = "list `columns` in order, or set `header = true` if files start with a line of names";
            self.problem("data.header", "without a header the columns have no names", "no names", help);
        }
        self.distinct_columns(&columns);
        if file.comment.as_deref() == Some("") {
            let help = "remove the key if there are no comments";
            self.problem("data.comment", "`data.comment` is empty: every line would be skipped", "empty", help);
        }
        DelimitedFormat {
            delimiter: self.delimiter(file.delimiter.as_deref().unwrap_or(",")),
            header,
            columns,
            comment: file.comment.clone(),
            trim: file.trim.unwrap_or(false),
            quoted_breaks: file.quoted_breaks.unwrap_or(false),
            decimal: file.decimal.unwrap_or_default(),
            missing: file.missing.clone().unwrap_or_default(),
        }
    }

    fn distinct_columns(&mut self, columns: &[String]) {
        let mut seen = HashSet::new();
        for (index, column) in columns.iter().enumerate() {
            let path = KeyPath::from("data.columns").index(index);
            if column.is_empty() {
                self.problem(path, "a column has an empty name", "empty", "name every column, also unused ones");
            } else if !seen.insert(column) {
                let message = format!("column \"{column}\" is listed twice");
                self.problem(path, message, "second time", "give each column its own name");
            }
        }
    }

    fn delimiter(&mut self, text: &str) -> u8 {
        match text.as_bytes() {
            [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r' | b'"' | 0) => *byte,
            _ => {
                let message = "`data.delimiter` must be one ASCII character, no quote and no line end";
                self.problem("data.delimiter", message, "cannot separate", r#"for example "," or "\t""#);
                b','
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, DELIMITED, assert_problems_with, job, problems};

    const FEATURES: &str = "[features]\nlabel = 'y'\ncategorical = ['a']\n";

    fn delimited(base: &str, features: &str) -> DelimitedFormat {
        let format = job(base, features).data.format;
        if let Format::Delimited(format) = format { format } else { panic!("{format:?}") }
    }

    #[test]
    fn a_decimal_comma_is_no_separator_of_numbers() {
        let base = DELIMITED.replace("columns", "decimal = ','\ncolumns");
        let vector = |separator: &str| {
            format!("{FEATURES}numeric = [{{ column = 'n', width = 2, separator = '{separator}' }}]\n")
        };
        assert_eq!(delimited(&base, &vector(" ")).decimal, DecimalMark::Comma);
        let found = "the numbers of \"n\" are separated by the comma that `data.decimal` has before a fraction";
        assert_eq!(problems(&base, &vector(",")), [found]);
    }

    #[test]
    fn the_delimiter_is_one_byte_that_can_separate() {
        let with_delimiter =
            |delimiter: &str| DELIMITED.replace("columns", &format!("delimiter = {delimiter}\ncolumns"));
        for (text, byte) in [(r#""\t""#, b'\t'), ("';'", b';'), ("' '", b' ')] {
            assert_eq!(delimited(&with_delimiter(text), FEATURES).delimiter, byte);
        }
        for text in ["''", "'ab'", "'é'", r#""\n""#, "'\"'"] {
            assert_eq!(problems(&with_delimiter(text), FEATURES).len(), 1, "{text}");
        }
    }

    #[test]
    fn columns_come_from_the_header_when_not_listed() {
        let layout = delimited(&DELIMITED.replace("columns = ['y', 'a', 'b', 'c', 'n']\n", ""), FEATURES);
        assert!(layout.header && layout.columns.is_empty());
    }

    #[test]
    fn the_default_shuffle_window_has_bounded_memory() {
        for (keys, rows) in [
            ("", 32_768),
            ("shuffle_rows = 0\n", 0),
            ("shuffle_rows = 5\n", 5),
            ("order = 'time'\n", 0),
            ("order = 'time'\nshuffle_rows = 0\n", 0),
        ] {
            assert_eq!(job(CRITEO, keys).data.shuffle_rows, rows, "{keys}");
        }
        let tagged = |columns: &[String]| {
            let base = DELIMITED.replace("'y'", &format!("'y', {}", columns.join(", ")));
            let tags: Vec<_> =
                columns.iter().map(|column| format!("{{ column = {column}, separator = '|' }}")).collect();
            job(&base, &format!("[features]\nlabel = 'y'\ncategorical = [{}]\n", tags.join(", "))).data.shuffle_rows
        };
        let columns: Vec<String> = (0..10).map(|index| format!("'t{index}'")).collect();
        assert_eq!([tagged(&columns[..1]), tagged(&columns)], [32_768, (32 << 20) / (10 * 64 * 8 + 4)]);
    }

    #[test]
    fn orders_paths_and_names_that_mean_nothing_are_refused() {
        let replaced = |keys: &str| {
            let (old, new) = keys.split_once(" by").unwrap();
            CRITEO.replace(old, new)
        };
        let rows = r#"
            a.txt by          => `data.train` is an empty path
            'a.txt' by ['b', ''] => `data.train[1]` is an empty path
            train by order = 'time'; shuffle_rows = 5; train => …changes the order
        "#;
        assert_problems_with("", replaced, rows);
        assert_eq!(problems(&DELIMITED.replace("'n'", "''"), FEATURES), ["a column has an empty name"]);
    }
}
