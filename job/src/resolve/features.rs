//! `[features]`: shorthands, columns that exist, no column twice.

use std::collections::HashSet;

use super::Resolver;
use crate::document::Path;
use crate::raw::{self, CategoricalTable, LabelTable, NumericTable};
use crate::spec::{Categorical, Features, Label, Numeric, PoolAt, Pooling, Standardise, Values};
use crate::suggest;

/// Features whose tables are not known yet.
pub(super) struct Columns {
    pub(super) label: Label,
    pub(super) numeric: Vec<Numeric>,
    pub(super) categorical: Vec<CategoricalTable>,
}

/// Adds the categorical features once they have tables.
pub(super) fn assemble(columns: Columns, categorical: Vec<Categorical>) -> Features {
    Features { label: columns.label, numeric: columns.numeric, categorical }
}

impl Resolver<'_> {
    /// `known`: names of all columns, when they are known before a file is opened.
    pub(super) fn features(&mut self, format: raw::Format, raw: raw::Features, known: Option<&[String]>) -> Columns {
        let criteo = format == raw::Format::Criteo;
        let label = self.label(raw.label, criteo);
        let numeric = numeric(raw.numeric, criteo);
        let categorical = categorical(raw.categorical, criteo);
        self.column_exists(&Path::from("features.label"), &label.column, known);
        self.columns("numeric", numeric.iter().map(|feature| feature.column.as_str()), &label.column, known);
        self.columns("categorical", categorical.iter().map(|feature| feature.column.as_str()), &label.column, known);
        if categorical.is_empty() {
            let help = "list at least one column under `categorical`";
            self.problem("features.categorical", "no categorical feature: there is nothing to embed", "none", help);
        }
        Columns { label, numeric: numeric.into_iter().map(validated).collect(), categorical }
    }

    fn label(&mut self, raw: Option<raw::Label>, criteo: bool) -> Label {
        let table = match raw {
            Some(raw::Label::Table(table)) => table,
            Some(raw::Label::Column(column)) => LabelTable::binary(column),
            None if criteo => LabelTable::binary("label".to_owned()),
            None => {
                let help = r#"name the column to learn: label = "clicked""#;
                self.problem("features", "missing key `features.label`", "needed here", help);
                LabelTable::binary(String::new())
            }
        };
        if criteo && table.column != "label" {
            let message = format!("the label of Criteo's layout is \"label\", not \"{}\"", table.column);
            self.problem("features.label", message, "another column", "remove the key");
        }
        self.distinct_classes(&table);
        Label { column: table.column, positive: table.positive, negative: table.negative }
    }

    fn distinct_classes(&mut self, table: &LabelTable) {
        for (index, text) in table.negative.iter().enumerate() {
            if table.positive.contains(text) {
                let path = Path::from("features.label.negative").index(index);
                let message = format!("label text \"{text}\" is both positive and negative");
                self.problem(path, message, "also in `positive`", "list each text once");
            }
        }
    }

    fn columns<'a>(
        &mut self,
        key: &str,
        columns: impl Iterator<Item = &'a str>,
        label: &str,
        known: Option<&[String]>,
    ) {
        let mut seen = HashSet::new();
        for (index, column) in columns.enumerate() {
            let path = Path::from("features").key(key).index(index);
            if !seen.insert(column) {
                let message = format!("column \"{column}\" is a {key} feature twice");
                self.problem(path, message, "second time", "remove one of the two");
            } else if column == label {
                let message = format!("the label \"{label}\" is also a {key} feature");
                self.problem(
                    path,
                    message,
                    "this is what is learned",
                    "remove it: a model that sees it learns nothing",
                );
            } else {
                self.column_exists(&path, column, known);
            }
        }
    }

    pub(super) fn column_exists(&mut self, path: &Path, column: &str, known: Option<&[String]>) {
        if let Some(known) = known.filter(|known| !known.iter().any(|name| name == column)) {
            let names: Vec<&str> = known.iter().map(String::as_str).collect();
            let help = suggest::name(column, &names, "the columns are");
            self.problem(path.clone(), format!("no column is named \"{column}\""), "no such column", help);
        }
    }
}

fn numeric(raw: Option<Vec<raw::Numeric>>, criteo: bool) -> Vec<NumericTable> {
    let plain = |column, log| NumericTable { column, log, standardise: raw::Standardise::default(), missing: 0.0 };
    let full = |feature| match feature {
        raw::Numeric::Column(column) => plain(column, false),
        raw::Numeric::Table(table) => table,
    };
    match raw {
        Some(features) => features.into_iter().map(full).collect(),
        None if criteo => (1..=13).map(|index| plain(format!("I{index}"), true)).collect(),
        None => Vec::new(),
    }
}

fn categorical(raw: Option<Vec<raw::Categorical>>, criteo: bool) -> Vec<CategoricalTable> {
    let full = |feature| match feature {
        raw::Categorical::Column(column) => CategoricalTable::single(column),
        raw::Categorical::Table(table) => table,
    };
    match raw {
        Some(features) => features.into_iter().map(full).collect(),
        None if criteo => (1..=26).map(|index| CategoricalTable::single(format!("C{index}"))).collect(),
        None => Vec::new(),
    }
}

fn validated(raw: NumericTable) -> Numeric {
    let standardise = match raw.standardise {
        raw::Standardise::Switch(false) => Standardise::No,
        raw::Standardise::Switch(true) => Standardise::Fit,
        raw::Standardise::Given { mean, deviation } => Standardise::Given { mean, deviation },
    };
    Numeric { column: raw.column, log: raw.log, standardise, missing: raw.missing as f32 }
}

impl Resolver<'_> {
    /// How many values a cell holds.
    pub(super) fn values(&mut self, path: &Path, raw: &CategoricalTable) -> Values {
        let Some(separator) = raw.separator.clone() else {
            self.one_value(path, "pooling", raw.pooling.is_some());
            self.one_value(path, "pool_at", raw.pool_at.is_some());
            return Values::One;
        };
        if separator.is_empty() {
            let help = "name the text between two values, or remove the key for one value a cell";
            self.problem(path.key("separator"), "the separator is empty", "empty", help);
        }
        let pooling = raw.pooling.map_or(Pooling::Sum, pooled);
        Values::Many { separator, pooling, pool_at: raw.pool_at.map_or(PoolAt::Auto, pool_at) }
    }

    /// Refuses a key that only speaks of several values.
    fn one_value(&mut self, path: &Path, key: &str, given: bool) {
        if given {
            let help = format!("give a `separator`, or remove `{key}`");
            let message = match key {
                "pooling" => "pooling of a single value has no meaning",
                _ => "a single value is pooled nowhere",
            };
            self.problem(path.key(key), message, "one value a cell", help);
        }
    }
}

fn pooled(raw: raw::Pooling) -> Pooling {
    match raw {
        raw::Pooling::Sum => Pooling::Sum,
        raw::Pooling::Mean => Pooling::Mean,
        raw::Pooling::Sqrtn => Pooling::SqrtN,
    }
}

fn pool_at(raw: raw::PoolAt) -> PoolAt {
    match raw {
        raw::PoolAt::Auto => PoolAt::Auto,
        raw::PoolAt::Server => PoolAt::Server,
        raw::PoolAt::Worker => PoolAt::Worker,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, DELIMITED, job, problems};

    #[test]
    fn a_bare_name_is_short_for_a_table() {
        let short = job(DELIMITED, "[features]\nlabel = 'y'\nnumeric = ['n']\ncategorical = ['a']\n");
        let long = job(
            DELIMITED,
            "[features.label]\ncolumn = 'y'\npositive = ['1']\nnegative = ['0']\n[[features.numeric]]\ncolumn = 'n'\n\
            log = false\nstandardise = false\nmissing = 0\n[[features.categorical]]\ncolumn = 'a'\ntable = 'a'\n",
        );
        assert_eq!(short, long);
    }

    #[test]
    fn criteos_features_can_be_replaced_one_kind_at_a_time() {
        let job = job(CRITEO, "[features]\nnumeric = ['I3']\n");
        assert_eq!((job.features.numeric.len(), job.features.categorical.len()), (1, 26));
        assert!(!job.features.numeric[0].log);
    }

    #[test]
    fn transforms_are_kept() {
        let features = "numeric = [{ column = 'n', standardise = { mean = -1, deviation = 0.5 }, missing = 2 }]";
        let job = job(DELIMITED, &format!("[features]\nlabel = 'y'\ncategorical = ['a']\n{features}\n"));
        let given = Standardise::Given { mean: -1.0, deviation: 0.5 };
        let expected = Numeric { column: "n".into(), log: false, standardise: given, missing: 2.0 };
        assert_eq!(job.features.numeric, [expected]);
    }

    #[test]
    fn a_column_may_be_a_number_and_a_category() {
        let job = job(DELIMITED, "[features]\nlabel = 'y'\nnumeric = ['n']\ncategorical = ['n', 'a']\n");
        assert_eq!(job.features.numeric[0].column, job.features.categorical[0].column);
    }

    #[test]
    fn pooling_is_a_sum_unless_said() {
        let text = "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', separator = '|' }, \
            { column = 'b', separator = '::', pooling = 'mean' }, 'c']\n";
        let pool_at = PoolAt::Auto;
        let many = |separator: &str, pooling| Values::Many { separator: separator.to_owned(), pooling, pool_at };
        let expected = [many("|", Pooling::Sum), many("::", Pooling::Mean), Values::One];
        let job = job(DELIMITED, text);
        assert_eq!(
            job.features.categorical.iter().map(|feature| &feature.values).collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>()
        );
    }

    #[test]
    fn where_values_are_pooled_is_free_unless_said() {
        let feature = |rest: &str| format!("[features]\nlabel = 'y'\ncategorical = [{{ column = 'a'{rest} }}]\n");
        for (given, expected) in [("auto", PoolAt::Auto), ("server", PoolAt::Server), ("worker", PoolAt::Worker)] {
            let job = job(DELIMITED, &feature(&format!(", separator = '|', pooling = 'sqrtn', pool_at = '{given}'")));
            let values = Values::Many { separator: "|".to_owned(), pooling: Pooling::SqrtN, pool_at: expected };
            assert_eq!(job.features.categorical[0].values, values);
        }
        let found = problems(DELIMITED, &feature(", pool_at = 'server'"));
        assert_eq!(found, ["a single value is pooled nowhere"]);
    }

    #[test]
    fn an_empty_separator_splits_nothing() {
        let text = "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', separator = '' }]\n";
        assert_eq!(problems(DELIMITED, text), ["the separator is empty"]);
    }

    #[test]
    fn a_criteo_column_that_does_not_exist_is_refused() {
        let found = problems(CRITEO, "[features]\ncategorical = ['C27', 'C1', 'C1']\n");
        assert_eq!(found, ["no column is named \"C27\"", "column \"C1\" is a categorical feature twice"]);
    }
}
