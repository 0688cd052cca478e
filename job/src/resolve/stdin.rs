//! Standard input as training data, `data.train = "-"`: what reads data more than once, or in several processes, is refused.

use super::JobResolver;
use crate::file::{DataFile, DataLayout, DataPaths};
use crate::settings::{Features, STDIN};

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
