//! How the categories of a column are written, by its first rows.
//!
//! A category is its text, so the same value is another category where it is written otherwise: `7` and `7.0`, `true` and `True`.
//! A model knows how its training files write them, and rows that write them otherwise are refused rather than scored as unseen.

use std::collections::{BTreeMap, BTreeSet};

use zagros_job::{ColumnReading, Job, PredictRows, Values, WrittenForm};

use crate::category::date::is_iso_date;
use crate::parse::values::MissingTexts;
use crate::source::is_stdin;
use crate::{BatchStream, DataPart, FileInfo, IngestError};

const ROWS: usize = 1_000;

/// Ways to write one value, of which a column has one.
const ALTERNATIVES: [&[WrittenForm]; 3] = [
    &[WrittenForm::Whole, WrittenForm::PointZero],
    &[WrittenForm::ZeroOne, WrittenForm::Lower, WrittenForm::Capital, WrittenForm::Upper],
    &[WrittenForm::Date, WrittenForm::DateBlankTime, WrittenForm::DateTTime],
];

/// How the first rows of the first file write the columns whose texts are categories. Nothing is known of rows that come by standard
/// input, which can be read once.
pub fn detect_writings(job: &Job, files: &[FileInfo]) -> Result<BTreeMap<String, BTreeSet<WrittenForm>>, IngestError> {
    let columns = text_columns(job);
    let Some(first) = files.first().filter(|first| !columns.is_empty() && !is_stdin(&first.path)) else {
        return Ok(BTreeMap::new());
    };
    let mut texts = job.clone();
    texts.eval.predict = Some(PredictRows { keys: columns.clone(), keep_bad: false });
    texts.features.numeric.clear();
    texts.features.categorical.clear();
    (texts.train.batch_size, texts.data.threads, texts.data.max_bad_rows) = (ROWS, 1, u64::MAX);
    let mut found: BTreeMap<String, BTreeSet<WrittenForm>> = BTreeMap::new();
    let missing = MissingTexts::new(&job.data.format);
    for batch in BatchStream::open_files(&texts, DataPart::All, std::slice::from_ref(first))?.take(1) {
        let input = batch?.input.unwrap_or_default();
        let rows: Vec<_> = input.iter().collect();
        for (at, column) in columns.iter().enumerate() {
            let present = rows.iter().map(|row| row.key(at)).filter(|text| !missing.is_missing(text));
            found.insert(column.clone(), writings_of_texts(present));
        }
    }
    Ok(found)
}

pub fn check_writings(
    job: &Job,
    files: &[FileInfo],
    known: &BTreeMap<String, BTreeSet<WrittenForm>>,
) -> Result<(), IngestError> {
    if known.is_empty() {
        return Ok(());
    }
    for file in files {
        for (column, found) in detect_writings(job, std::slice::from_ref(file))? {
            let Some((expected, found)) = known.get(&column).and_then(|known| conflict(known, &found)) else {
                continue;
            };
            let reason = format!(
                "column \"{column}\" holds {found}, and the model was trained on {expected}: equal values would be other \
                 categories; write this column as the training files do"
            );
            return Err(IngestError::bad_file(&file.path, reason));
        }
    }
    Ok(())
}

/// The columns that give categories by their texts, each once. Lists have no text of their own.
fn text_columns(job: &Job) -> Vec<String> {
    let categories = job.features.category_features();
    let features = categories.iter().filter(|feature| feature.values == Values::One);
    let parts = features.flat_map(|feature| job.features.column_parts(feature));
    let columns = parts.filter(|part| *part.reading == ColumnReading::Text).map(|part| part.column.to_owned());
    columns.collect::<BTreeSet<_>>().into_iter().collect()
}

fn writings_of_texts<'a>(texts: impl Iterator<Item = &'a [u8]>) -> BTreeSet<WrittenForm> {
    let (mut found, mut is_zero_one) = (BTreeSet::new(), true);
    for text in texts {
        is_zero_one &= text == b"0" || text == b"1";
        found.insert(detect_writing(text));
    }
    if is_zero_one && !found.is_empty() {
        found.insert(WrittenForm::ZeroOne);
    }
    found
}

fn detect_writing(text: &[u8]) -> WrittenForm {
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = text.strip_prefix(b"-").unwrap_or(text);
    let point = memchr::memchr(b'.', number);
    match (text, point) {
        (b"true" | b"false", _) => WrittenForm::Lower,
        (b"True" | b"False", _) => WrittenForm::Capital,
        (b"TRUE" | b"FALSE", _) => WrittenForm::Upper,
        (_, None) if digits(number) => WrittenForm::Whole,
        (_, Some(at)) if digits(&number[..at]) && digits(&number[at + 1..]) => {
            let fraction = &number[at + 1..];
            match fraction.last() {
                _ if fraction.iter().all(|digit| *digit == b'0') => WrittenForm::PointZero,
                Some(b'0') => WrittenForm::Padded,
                _ => WrittenForm::Fraction,
            }
        }
        _ => date_writing(text),
    }
}

fn date_writing(text: &[u8]) -> WrittenForm {
    match text.split_at_checked(10) {
        Some((date, [])) if is_iso_date(date) => WrittenForm::Date,
        Some((date, [b' ', ..])) if is_iso_date(date) => WrittenForm::DateBlankTime,
        Some((date, [b'T', ..])) if is_iso_date(date) => WrittenForm::DateTTime,
        _ => WrittenForm::Other,
    }
}

/// Two ways to write one value, of which the model knows the first and the rows have the second.
fn conflict(known: &BTreeSet<WrittenForm>, found: &BTreeSet<WrittenForm>) -> Option<(WrittenForm, WrittenForm)> {
    let only = |one: &BTreeSet<WrittenForm>, other: &BTreeSet<WrittenForm>, among: &[WrittenForm]| {
        among.iter().copied().find(|way| one.contains(way) && !other.contains(way))
    };
    for among in ALTERNATIVES {
        let has_common = among.iter().any(|way| known.contains(way) && found.contains(way));
        if let (Some(expected), Some(other), false) = (only(known, found, among), only(found, known, among), has_common)
        {
            return Some((expected, other));
        }
    }
    // A number of decimals is written in full, or as short as it can be.
    if known.contains(&WrittenForm::Fraction)
        && found.contains(&WrittenForm::Padded)
        && !known.contains(&WrittenForm::Padded)
    {
        return Some((WrittenForm::Fraction, WrittenForm::Padded));
    }
    // Values of different kinds are never the same.
    let kinds = |set: &BTreeSet<WrittenForm>| set.iter().map(|way| way.kind()).collect::<BTreeSet<_>>();
    let (of_known, of_found) = (kinds(known), kinds(found));
    let has_texts = known.contains(&WrittenForm::Other) || found.contains(&WrittenForm::Other);
    let differ = !has_texts && of_known.is_disjoint(&of_found);
    if differ { known.first().copied().zip(found.first().copied()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{find_files, fixture};

    fn set(texts: &[&str]) -> BTreeSet<WrittenForm> {
        writings_of_texts(texts.iter().map(|text| text.as_bytes()))
    }

    #[test]
    fn texts_say_how_they_are_written() {
        use WrittenForm::*;
        for (text, way) in [
            ("7", Whole),
            ("-12", Whole),
            ("7.0", PointZero),
            ("0.25", Fraction),
            ("12.50", Padded),
            ("true", Lower),
            ("False", Capital),
            ("2026-11-23", Date),
            ("2026-11-23 18:45:00", DateBlankTime),
            ("2026-11-23T18:45", DateTTime),
            ("7a", Other),
            ("1.2.3", Other),
            (".5", Other),
            ("-", Other),
            ("2026-11-2x", Other),
        ] {
            assert_eq!(detect_writing(text.as_bytes()), way, "{text}");
        }
        assert_eq!(set(&["0", "1"]), BTreeSet::from([Whole, ZeroOne]));
        assert_eq!(set(&["0", "2"]), BTreeSet::from([Whole]));
        assert_eq!(set(&[]), BTreeSet::new());
    }

    #[test]
    fn a_value_that_is_written_otherwise_is_a_conflict() {
        use WrittenForm::*;
        for (known, found, expected) in [
            (&["7", "8"][..], &["7.0", "9.0"][..], Some((Whole, PointZero))),
            (&["7.0", "8.5"], &["7", "8.5"], Some((PointZero, Whole))),
            (&["1", "0"], &["true"], Some((ZeroOne, Lower))),
            (&["True", "False"], &["true"], Some((Capital, Lower))),
            (&["2026-11-23"], &["2026-11-24 00:00:00"], Some((Date, DateBlankTime))),
            (&["12.5", "0.25"], &["12.50", "0.25"], Some((Fraction, Padded))),
            (&["2026-11-23"], &["20780"], Some((Date, Whole))),
            // Nothing says that one of them would be written otherwise.
            (&["7", "8"], &["7", "9"], None),
            (&["7", "8.0"], &["7.0"], None),
            (&["0.25"], &["1", "0.5"], None),
            (&["7", "x"], &["7"], None),
            (&["x"], &["7"], None),
            (&["12.50", "0.25"], &["0.25"], None),
            (&["3", "4"], &["0", "1"], None),
            (&[], &["1"], None),
            (&["1"], &[], None),
        ] {
            assert_eq!(conflict(&set(known), &set(found)), expected, "{known:?} {found:?}");
        }
    }

    #[test]
    fn the_columns_of_categories_are_looked_at_and_a_conflict_names_the_file() {
        let job = fixture::delimited(|_| ());
        let files_of = |text: &str| {
            let (folder, path) = fixture::file(text);
            let files = find_files(&job, &[path]).unwrap();
            (folder, files)
        };
        let (_folder, train) = files_of("click,age,city,tags\n1,2,7,x\n0,many,?,x\n1,3,,x\n");
        let known = detect_writings(&job, &train).unwrap();
        assert_eq!(known, BTreeMap::from([("city".to_owned(), BTreeSet::from([WrittenForm::Whole]))]));
        let (_folder, other) = files_of("click,age,city,tags\n1,2,7.0,x\n");
        let error = check_writings(&job, &other, &known).unwrap_err().to_string();
        for part in ["data.txt", "column \"city\"", "7.0", "such as 7"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        check_writings(&job, &train, &known).unwrap();
        check_writings(&job, &other, &BTreeMap::new()).unwrap();
    }
}
