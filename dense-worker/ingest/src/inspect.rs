//! A summary of the columns of a job's training files, and a check of every row of all its files.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use zagros_job::Job;
use zagros_zip::ZipEq;

use crate::column_sums::ColumnSums;
use crate::parse::bad::{BadBudget, LISTED};
use crate::parse::sink::NullSink;
use crate::pipeline::PipelineConfig;
use crate::{BadRow, DataPart, IngestError, find_files};

#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSummaries {
    /// Rows read, of all parts of a hash split.
    pub rows: u64,
    /// Share of positive rows, 0..1; NaN without rows.
    pub positive_rate: f64,
    pub bad_rows: u64,
    pub first_bad: Vec<BadRow>,
    pub numeric: Vec<NumericColumn>,
    pub categorical: Vec<CategoryColumn>,
}

/// A numeric column, before its transforms.
#[derive(Clone, Debug, PartialEq)]
pub struct NumericColumn {
    pub column: String,
    /// Rows without a value; of vectors, the missing numbers over the length of a vector.
    pub missing: u64,
    /// Smallest value; infinite when there is none.
    pub min: f64,
    pub mean: f64,
    pub deviation: f64,
    /// Largest value; infinite when there is none.
    pub max: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CategoryColumn {
    pub column: String,
    pub missing: u64,
    /// Distinct values, without the missing one.
    pub distinct: u64,
    /// Whether `distinct` is exact; otherwise its standard error is 1.6 %.
    pub is_exact: bool,
    /// Mean number of values per row, for a multi-valued column.
    pub values_per_row: Option<f64>,
}

/// Reads the first `limit` rows of the training files (all rows without a limit), in bounded memory. Malformed rows are
/// counted and skipped, whatever their number.
pub fn inspect_columns(job: &Job, limit: Option<u64>) -> Result<ColumnSummaries, IngestError> {
    let files = find_files(job, &job.data.train)?;
    let mut job = job.clone();
    job.features = job.features.with_plain_categories();
    if limit.is_some() {
        // Only one thread reads exactly the first rows.
        job.data.threads = 1;
    }
    let job = Arc::new(job);
    let mut total = ColumnSums::new(&job, false, limit);
    let (mut bad, empty) = (BadBudget::without_limit(LISTED), total.clone());
    PipelineConfig::whole_files(&job, DataPart::All, &files).read_all(&empty, &mut bad, |parsed| {
        let is_wanted = total.rows < limit.unwrap_or(u64::MAX);
        if is_wanted {
            total.merge(&parsed.sink);
        }
        Ok(is_wanted)
    })?;
    let rows = total.rows;
    let numeric = job.features.numeric.iter().zip_eq(&total.numeric).map(|(feature, sums)| NumericColumn {
        column: feature.name().into(),
        missing: sums.missing / feature.value_count() as u64,
        min: sums.min,
        mean: sums.moments.mean(),
        deviation: sums.moments.deviation(),
        max: sums.max,
    });
    let categorical = job.features.categorical.iter().zip_eq(&mut total.categorical).map(|(feature, sums)| {
        let (distinct, is_exact) = sums.distinct.estimate();
        let is_bag = feature.values.separator().is_some();
        CategoryColumn {
            column: feature.name.clone(),
            missing: rows - sums.present,
            distinct,
            is_exact,
            values_per_row: is_bag.then(|| sums.values as f64 / rows as f64),
        }
    });
    Ok(ColumnSummaries {
        rows,
        positive_rate: total.positives as f64 / rows as f64,
        bad_rows: bad.count,
        first_bad: bad.first_rows()?,
        numeric: numeric.collect(),
        categorical: categorical.collect(),
    })
}

impl fmt::Display for ColumnSummaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |missing: u64| 100.0 * missing as f64 / self.rows.max(1) as f64;
        writeln!(f, "{} rows, {:.2} % positive, {} malformed", self.rows, 100.0 * self.positive_rate, self.bad_rows)?;
        for row in &self.first_bad {
            writeln!(f, "  {row}")?;
        }
        if !self.numeric.is_empty() {
            let title = ["min", "mean", "deviation", "max"];
            writeln!(
                f,
                "\n{:<20} {:>9} {:>12} {:>12} {:>12} {:>12}",
                "numeric", "missing %", title[0], title[1], title[2], title[3]
            )?;
        }
        for column in &self.numeric {
            let NumericColumn { column, missing, min, mean, deviation, max } = column;
            writeln!(
                f,
                "{column:<20} {:>9.2} {min:>12.4} {mean:>12.4} {deviation:>12.4} {max:>12.4}",
                share(*missing)
            )?;
        }
        if !self.categorical.is_empty() {
            writeln!(f, "\n{:<20} {:>9} {:>12} {:>12}", "categorical", "missing %", "distinct", "values/row")?;
        }
        for column in &self.categorical {
            let distinct = format!("{}{}", if column.is_exact { "" } else { "~" }, column.distinct);
            let values = column.values_per_row.map_or_else(|| "1".into(), |values| format!("{values:.2}"));
            writeln!(f, "{:<20} {:>9.2} {distinct:>12} {values:>12}", column.column, share(column.missing))?;
        }
        if self.categorical.iter().any(|column| !column.is_exact) {
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

    fn inspected(text: &str, limit: Option<u64>) -> ColumnSummaries {
        let (_folder, path) = fixture::file(text);
        let mut job = fixture::delimited(|_| ());
        job.data.train = vec![path];
        inspect_columns(&job, limit).unwrap()
    }

    const TEXT: &str = "click,age,city,tags\n1,2,Basel,a|b\n0,?,Bern,a\n0,6,?,?\nbad\n0,4,Basel,b|c|d\n";

    #[test]
    fn columns_are_summed_up() {
        let found = inspected(TEXT, None);
        assert_eq!((found.rows, found.positive_rate, found.bad_rows), (4, 0.25, 1));
        assert_eq!((found.first_bad[0].line, found.first_bad[0].column), (5, 2));
        let NumericColumn { missing, min, mean, max, .. } = found.numeric[0];
        assert_eq!((missing, min, mean, max), (1, 2.0, 4.0, 6.0));
        let category = |column: &str, distinct, values_per_row| {
            let column = column.to_owned();
            CategoryColumn { column, missing: 1, distinct, is_exact: true, values_per_row }
        };
        assert_eq!(found.categorical, [category("city", 2, None), category("tags", 4, Some(1.5))]);
        let text = found.to_string();
        for line in [
            "4 rows, 25.00 % positive, 1 malformed\n",
            "age                      25.00       2.0000       4.0000",
            "tags                     25.00            4         1.50",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
    }

    #[test]
    fn a_limit_stops_exactly_there() {
        let found = inspected(TEXT, Some(2));
        assert_eq!((found.rows, found.positive_rate), (2, 0.5));
        assert_eq!(found.categorical[0].distinct, 2);
    }

    #[test]
    fn blocks_and_threads_add_up() {
        let rows: String = (0..200_000).map(|n| format!("{},{n},c{},t{n}\n", n % 2, n % 1_000)).collect();
        let found = inspected(&format!("click,age,city,tags\n{rows}"), None);
        assert_eq!((found.rows, found.positive_rate), (200_000, 0.5));
        assert_eq!((found.numeric[0].min, found.numeric[0].max), (0.0, 199_999.0));
        assert!((found.numeric[0].mean - 99_999.5).abs() < 1e-6);
        assert_eq!((found.categorical[0].distinct, found.categorical[0].is_exact), (1_000, true));
        let tags = &found.categorical[1];
        assert!(!tags.is_exact && (tags.distinct as f64 / 200_000.0 - 1.0).abs() < 0.08, "{}", tags.distinct);
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
