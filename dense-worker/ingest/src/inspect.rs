//! A summary of the columns of a job's training files, and a check of every row of all its files.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use zagros_job::{Features, Job};
use zagros_zip::ZipEq;

use crate::column_sums::ColumnSums;
use crate::parse::bad::{BadBudget, LISTED};
use crate::parse::sink::NullSink;
use crate::pipeline::PipelineConfig;
use crate::{BadRow, DataPart, IngestError, find_files};

#[derive(Clone, Debug)]
pub struct ColumnSummaries {
    /// Rows read, of all parts of a hash split.
    pub rows: u64,
    /// Share of positive rows, 0..1; NaN without rows.
    pub positive_rate: f64,
    pub bad_rows: u64,
    pub first_bad: Vec<BadRow>,
    features: Features,
    sums: ColumnSums,
}

/// Reads the first rows of the training files: whole blocks until there are `limit` rows (all rows without a limit), in bounded memory.
/// Malformed rows are counted and skipped, whatever their number.
pub fn inspect_columns(job: &Job, limit: Option<u64>) -> Result<ColumnSummaries, IngestError> {
    let files = find_files(job, &job.data.train)?;
    let mut job = job.clone();
    job.features = job.features.with_plain_categories();
    let job = Arc::new(job);
    let (mut sums, mut bad) = (ColumnSums::new(&job, false), BadBudget::without_limit(LISTED));
    sums.add_files(&job, &files, limit.unwrap_or(u64::MAX), &mut bad)?;
    Ok(ColumnSummaries {
        rows: sums.rows,
        positive_rate: sums.positives as f64 / sums.rows as f64,
        bad_rows: bad.count,
        first_bad: bad.first_rows()?,
        features: job.features.clone(),
        sums,
    })
}

impl fmt::Display for ColumnSummaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |missing: u64| 100.0 * missing as f64 / self.rows.max(1) as f64;
        writeln!(f, "{} rows, {:.2} % positive, {} malformed", self.rows, 100.0 * self.positive_rate, self.bad_rows)?;
        for row in &self.first_bad {
            writeln!(f, "  {row}")?;
        }
        let Self { features, sums, .. } = self;
        if !features.numeric.is_empty() {
            let title = ["min", "mean", "deviation", "max"];
            writeln!(
                f,
                "\n{:<20} {:>9} {:>12} {:>12} {:>12} {:>12}",
                "numeric", "missing %", title[0], title[1], title[2], title[3]
            )?;
        }
        for (feature, sums) in features.numeric.iter().zip_eq(&sums.numeric) {
            // Of vectors, the missing numbers over the length of a vector. The columns are summed up before their transforms.
            let missing = share(sums.missing / feature.value_count() as u64);
            let (min, mean, deviation, max) = (sums.min, sums.moments.mean(), sums.moments.deviation(), sums.max);
            let name = feature.name();
            writeln!(f, "{name:<20} {missing:>9.2} {min:>12.4} {mean:>12.4} {deviation:>12.4} {max:>12.4}")?;
        }
        if !features.categorical.is_empty() {
            writeln!(f, "\n{:<20} {:>9} {:>12} {:>12}", "categorical", "missing %", "distinct", "values/row")?;
        }
        let mut are_exact = true;
        for (feature, sums) in features.categorical.iter().zip_eq(&sums.categorical) {
            let (missing, (distinct, is_exact)) = (share(self.rows - sums.present), sums.distinct.estimate());
            let distinct = format!("{}{distinct}", if is_exact { "" } else { "~" });
            let values = match feature.values.separator() {
                Some(_) => format!("{:.2}", sums.values as f64 / self.rows as f64),
                None => "1".to_owned(),
            };
            writeln!(f, "{:<20} {missing:>9.2} {distinct:>12} {values:>12}", feature.name)?;
            are_exact &= is_exact;
        }
        if !are_exact {
            writeln!(f, "~ estimated, standard error 1.6 %")?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationReport {
    pub files: usize,
    pub good: u64,
    pub bad: u64,
    pub first_bad: Vec<BadRow>,
}

/// Reads all training, validation and test files and lists the first `shown` malformed rows (100 at most).
/// Malformed rows are no error here.
pub fn validate_rows(job: &Job, shown: usize) -> Result<ValidationReport, IngestError> {
    let paths: Vec<_> = job.data_files().into_iter().map(Path::to_owned).collect();
    let found = find_files(job, &paths)?;
    let (mut bad, mut good) = (BadBudget::without_limit(shown), 0);
    let config = PipelineConfig::whole_files(&Arc::new(job.clone()), DataPart::All, &found);
    config.read_all(&NullSink, &mut bad, |parsed| {
        good += parsed.outcome.rows;
        Ok(true)
    })?;
    Ok(ValidationReport { files: found.len(), good, bad: bad.count, first_bad: bad.first_rows()? })
}

impl fmt::Display for ValidationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, good, bad, first_bad } = self;
        let plural = if *files == 1 { "" } else { "s" };
        writeln!(f, "{good} good rows and {bad} malformed ones in {files} file{plural}")?;
        for row in first_bad {
            writeln!(f, "  {row}")?;
        }
        let more = bad - first_bad.len() as u64;
        if more > 0 {
            writeln!(f, "  and {more} more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::HeldOutRows;

    use super::*;
    use crate::fixture;

    fn inspected(text: &str) -> ColumnSummaries {
        let (_folder, path) = fixture::file(text);
        let mut job = fixture::delimited(|_| ());
        job.data.train = vec![path];
        inspect_columns(&job, None).unwrap()
    }

    const TEXT: &str = "click,age,city,tags\n1,2,Basel,a|b\n0,?,Bern,a\n0,6,?,?\nbad\n0,4,Basel,b|c|d\n";

    #[test]
    fn columns_are_summed_up() {
        let found = inspected(TEXT);
        assert_eq!((found.rows, found.positive_rate, found.bad_rows), (4, 0.25, 1));
        assert_eq!((found.first_bad[0].line, found.first_bad[0].column), (5, 2));
        let sums = &found.sums.numeric[0];
        assert_eq!((sums.missing, sums.min, sums.moments.mean(), sums.max), (1, 2.0, 4.0, 6.0));
        let text = found.to_string();
        for line in [
            "4 rows, 25.00 % positive, 1 malformed\n",
            "age                      25.00       2.0000       4.0000",
            "city                     25.00            2            1\n",
            "tags                     25.00            4         1.50\n",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
    }

    #[test]
    fn all_files_are_checked_to_their_end() {
        let (_first, train) = fixture::file("click,age,city,tags\n1,2,x,y\n1,two,x,y\n0,3,x,y\n");
        let (_second, test) = fixture::file("age,click,city,tags\n2,1,x,y\n2,maybe,x,y\n2,1,x\n");
        let mut job = fixture::delimited(|_| ());
        job.data.train = vec![train.clone()];
        job.data.test = HeldOutRows::Files(vec![test.clone()]);
        let found = validate_rows(&job, 2).unwrap();
        assert_eq!((found.files, found.good, found.bad), (2, 3, 3));
        let places: Vec<_> = found.first_bad.iter().map(|row| (row.path.clone(), row.line, row.column)).collect();
        assert_eq!(places, [(train, 3, 2), (test, 3, 2)]);
        let text = found.to_string();
        assert!(text.starts_with("3 good rows and 3 malformed ones in 2 files\n"), "{text}");
        assert!(text.ends_with("  and 1 more\n"), "{text}");
    }
}
