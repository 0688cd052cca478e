//! The parts of the rows that are not trained on: files, shares of the rows, or the newest rows; and standard input as training data,
//! `data.train = "-"`: what reads data more than once, or in several processes, is refused.

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::{DataFile, DataLayout, DataPaths};
use crate::settings::{Features, HeldOutRows, NewestRows, STDIN, TimeBound};

impl JobResolver<'_> {
    pub(super) fn test_part(&mut self, file: &DataFile) -> HeldOutRows {
        self.exclude(["data.test", "data.test_fraction", "data.test_from"]);
        let newest = newest(file, file.test_from.as_ref());
        self.held_out_rows("data.test", file.test.as_ref(), file.test_fraction, newest)
    }

    pub(super) fn validation_part(&mut self, file: &DataFile) -> HeldOutRows {
        self.exclude(["data.validation", "data.validation_share", "data.validation_from"]);
        if file.validation_share.unwrap_or(0.0) + file.test_fraction.unwrap_or(0.0) >= 1.0 {
            let message = "`data.validation_share` and `data.test_fraction` leave no row to train on";
            self.problem("data.validation_share", message, "together 1 or more", "make them smaller");
        }
        let newest = newest(file, file.validation_from.as_ref());
        self.held_out_rows("data.validation", file.validation.as_ref(), file.validation_share, newest)
    }

    fn held_out_rows(
        &mut self,
        key: &str,
        files: Option<&DataPaths>,
        share: Option<f64>,
        newest: Option<NewestRows>,
    ) -> HeldOutRows {
        match (files, share, newest) {
            (Some(files), ..) => HeldOutRows::Files(self.data_paths(key, files)),
            (_, Some(share), _) => HeldOutRows::Share(share),
            (.., Some(newest)) => HeldOutRows::Newest(newest),
            (None, None, None) => HeldOutRows::None,
        }
    }

    fn exclude(&mut self, keys: [&str; 3]) {
        let mut given = keys.into_iter().filter(|key| self.is_given(key)).collect::<Vec<_>>().into_iter();
        let Some(first) = given.next() else { return };
        for other in given {
            let message = format!("`{first}` and `{other}` exclude each other");
            self.problem(other, message, format!("`{first}` is given too"), "keep one of them");
        }
    }

    pub(super) fn times_fit(&mut self, file: &DataFile) {
        let bounds = [("data.test_from", &file.test_from), ("data.validation_from", &file.validation_from)];
        match (&file.time_column, bounds.iter().find(|(_, bound)| bound.is_some())) {
            (None, Some((key, _))) => {
                let help = "name the column of times: data.time_column = \"timestamp\"";
                self.problem(*key, format!("`{key}` needs `data.time_column`"), "a bound of which column?", help);
            }
            (Some(_), None) => {
                let help = "add `test_from` or `validation_from`, or remove the key";
                let message = "`data.time_column` divides nothing without a bound";
                self.problem("data.time_column", message, "no bound", help);
            }
            (Some(column), Some(_)) => self.column_exists(&KeyPath::from("data.time_column"), column),
            (None, None) => {}
        }
        if let (Some(test), Some(validation)) = (&file.test_from, &file.validation_from) {
            let help = match validation.is_before(test) {
                Some(true) => return,
                Some(false) => "validation rows lie between the two bounds; make `validation_from` earlier",
                None => "write both as numbers or both as texts",
            };
            let message = "`data.validation_from` is not before `data.test_from`";
            self.problem("data.validation_from", message, "not earlier", help);
        }
        for (key, bound) in bounds {
            if let Some(TimeBound::Text(text)) = bound
                && text.is_empty()
            {
                self.problem(key, format!("`{key}` is empty"), "empty", "give a time, such as \"2026-11-23\"");
            }
        }
    }
}

/// `None` also where the column is not named, which is a problem of its own.
fn newest(file: &DataFile, from: Option<&TimeBound>) -> Option<NewestRows> {
    Some(NewestRows { column: file.time_column.clone()?, from: from?.clone() })
}

impl JobResolver<'_> {
    pub(super) fn stdin_fits(&mut self, data: &DataFile, epochs: u32, workers: u32, features: &Features) {
        let names_it = |paths: &DataPaths| paths.as_slice().iter().any(|path| path == STDIN);
        let scored = [("data.test", &data.test), ("data.validation", &data.validation)];
        for (key, _) in scored.into_iter().filter(|(_, paths)| paths.as_ref().is_some_and(names_it)) {
            let message = format!("`{key}` cannot be standard input");
            self.problem(key, message, "may be scored more than once", "name a file");
        }
        if !names_it(&data.train) {
            return;
        }
        let once = "standard input is read once, by one worker";
        let refused = [
            ("data.train", data.train.as_slice().len() > 1, "name files, or `-` alone"),
            (
                "data.format",
                matches!(data.format, DataLayout::Parquet | DataLayout::Arrow),
                "write the data to a file: its footer is at its end",
            ),
            ("data.test_fraction", data.test_fraction.is_some(), "hold rows out in a file: data.test"),
            ("data.validation_share", data.validation_share.is_some(), "hold rows out in a file: data.validation"),
            ("train.epochs", epochs > 1, "train one epoch, or write the data to a file"),
            ("cluster.workers", workers > 1, "use one worker, or write the data to files"),
            (
                "features",
                !features.unmeasured_statistics().is_empty(),
                "measuring values reads the data before training: give them, such as standardise = { mean = 1.5, deviation = 0.5 } \
                 or the edges of buckets, remove `vocabulary`, or write the data to a file",
            ),
        ];
        for (key, _, help) in refused.into_iter().filter(|(_, is_given, _)| *is_given) {
            self.problem(key, format!("`{key}` does not fit `data.train = \"-\"`: {once}"), "does not fit", help);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, assert_problems, job};

    #[test]
    fn the_newest_rows_are_parts_by_bounds_of_one_column() {
        let data = job(CRITEO, "time_column = 'I1'\nvalidation_from = 5\ntest_from = 7.5\n").data;
        let newest = |from| NewestRows { column: "I1".into(), from };
        assert_eq!(data.test, HeldOutRows::Newest(newest(TimeBound::Number(7.5))));
        assert_eq!(data.validation, HeldOutRows::Newest(newest(TimeBound::Number(5.0))));
        assert_eq!((data.time_column(), job(CRITEO, "").data.time_column()), (Some("I1"), None));
        let shared = job(CRITEO, "time_column = 'I1'\ntest_from = '2026-11-23'\nvalidation_share = 0.1\n").data;
        assert_eq!(shared.validation, HeldOutRows::Share(0.1));
        assert_eq!(shared.test, HeldOutRows::Newest(newest(TimeBound::Text("2026-11-23".into()))));
    }

    #[test]
    fn bounds_that_divide_nothing_are_refused() {
        let rows = r#"
            test_from = 5                         => `data.test_from` needs `data.time_column`
            time_column = 'I1'                    => `data.time_column` divides nothing without a bound
            time_column = 'I99'; test_from = 5    => …I99
            time_column = 'I1'; test_from = ''    => `data.test_from` is empty
            time_column = 'I1'; validation_from = 5; test_from = 5     => `data.validation_from` is not before `data.test_from`
            time_column = 'I1'; validation_from = 'b'; test_from = 'a' => `data.validation_from` is not before `data.test_from`
            time_column = 'I1'; validation_from = 5; test_from = 'a'   => `data.validation_from` is not before `data.test_from`
            time_column = 'I1'; test = 't'; test_fraction = 0.5; test_from = 5 => `data.test` and `data.test_fraction` exclude each other & `data.test` and `data.test_from` exclude each other
        "#;
        assert_problems(CRITEO, rows);
    }
}

#[cfg(test)]
mod stdin_tests {
    use std::path::PathBuf;

    use crate::fixture::{CRITEO, assert_problems, assert_problems_with, job};

    #[test]
    fn what_reads_standard_input_again_is_refused() {
        let stdin = &CRITEO.replace("a.txt", "-");
        let made = job(stdin, "test = 'b.txt'\n");
        assert_eq!(made.data.train, [PathBuf::from("-")]);
        assert!(made.data.reads_stdin() && job(stdin, "").data.reads_stdin());
        let rows = r#"
            test_fraction = 0.2      => …does not fit `data.train = "-"`
            validation_share = 0.1   => …does not fit `data.train = "-"`
            [train]; epochs = 2      => …does not fit `data.train = "-"`
            [cluster]; workers = 2   => …does not fit `data.train = "-"`
        "#;
        assert_problems(stdin, rows);
        let rows = r#"
            format = 'jsonl'; train = '-'; [features]; label = 'y'; categorical = ['a', 'b']; numeric = [{ column = 'n', min_max = true }] => …`features` does not fit
            format = 'jsonl'; train = '-'; [features]; label = 'y'; categorical = ['a', { column = 'b', vocabulary = {} }] => …`features` does not fit
            format = 'criteo'; train = ['a', '-']       => …`data.train` does not fit
            format = 'criteo'; train = 'a'; test = '-'  => …`data.test` cannot be standard input
        "#;
        assert_problems_with("", |data| format!("[data]\n{data}"), rows);
    }
}
