//! Which rows of a file are wanted: those of a part, by a hash of the row, by its time, or by both.
//!
//! ```text
//! time:  … ───────────── validation_from ─────────── test_from ──────────► now
//!          by the hash            validation                 test
//! ```
//!
//! A row without a time is an old row. A malformed row, whose part is not known, belongs to the training part.

use zagros_job::{Job, NewestRows, TimeBound};

use super::values::MissingTexts;
use crate::DataPart;
use crate::category::date::clock_seconds;
use crate::hash::HashSplit;
use crate::parse::bad::{FieldFault, quoted_text};
use crate::parse::number::parse_number;

#[derive(Clone, Debug)]
pub(crate) struct HoldOut {
    split: HashSplit,
    times: Option<TimeSplit>,
    wanted: DataPart,
}

#[derive(Clone, Debug)]
struct TimeSplit {
    column: String,
    missing: MissingTexts,
    test: Option<SplitBound>,
    validation: Option<SplitBound>,
}

#[derive(Clone, Debug)]
enum SplitBound {
    Number(f64),
    /// A date or time, in seconds since 1970.
    Time(i64),
    Text(Vec<u8>),
}

impl HoldOut {
    /// `None` if every row is wanted: only shares and times divide a file.
    pub(crate) fn from_job(job: &Job, wanted: DataPart) -> Option<Self> {
        let (test, validation) = (job.data.test.row_share(), job.data.validation.row_share());
        let times = TimeSplit::from_job(job);
        let divides = wanted != DataPart::All && (test + validation > 0.0 || times.is_some());
        divides.then(|| Self { split: HashSplit::new(test, validation), times, wanted })
    }

    pub(crate) fn divides_by_time(&self) -> bool {
        self.times.is_some()
    }

    /// Whether a row is wanted. `time` is its time, and `by_hash` its part by the hash. A fault is that of a row of the training
    /// part.
    #[inline]
    pub(crate) fn wants_row(
        &self,
        time: &[u8],
        by_hash: impl FnOnce(HashSplit) -> DataPart,
    ) -> Result<bool, Box<FieldFault>> {
        let by_time = match &self.times {
            Some(times) => times.row_part(time),
            None => Ok(DataPart::Train),
        };
        match by_time {
            Ok(DataPart::Train) => Ok(by_hash(self.split) == self.wanted),
            Ok(part) => Ok(part == self.wanted),
            Err(fault) => self.wants_unplaced(fault),
        }
    }

    /// What a row is whose time cannot be read.
    #[cold]
    pub(crate) fn wants_unplaced(&self, fault: Box<FieldFault>) -> Result<bool, Box<FieldFault>> {
        if self.wanted == DataPart::Train { Err(fault) } else { Ok(false) }
    }
}

impl TimeSplit {
    fn from_job(job: &Job) -> Option<Self> {
        let column = job.data.time_column()?.to_owned();
        let missing = MissingTexts::new(&job.data.format);
        let bound = |newest: &NewestRows| SplitBound::new(&newest.from);
        let [test, validation] = [&job.data.test, &job.data.validation].map(|part| part.newest_rows().map(bound));
        Some(Self { column, missing, test, validation })
    }

    fn row_part(&self, time: &[u8]) -> Result<DataPart, Box<FieldFault>> {
        if self.missing.is_missing(time) {
            return Ok(DataPart::Train);
        }
        for (bound, part) in [(&self.test, DataPart::Test), (&self.validation, DataPart::Validation)] {
            if let Some(bound) = bound
                && bound.is_reached(time).ok_or_else(|| self.other_form(bound, time))?
            {
                return Ok(part);
            }
        }
        Ok(DataPart::Train)
    }

    #[cold]
    fn other_form(&self, bound: &SplitBound, time: &[u8]) -> Box<FieldFault> {
        let form = match bound {
            SplitBound::Number(_) => "a number",
            SplitBound::Time(_) => "a time, such as \"2026-11-23 13:45:00\",",
            SplitBound::Text(_) => "a text that is no date",
        };
        let expected = format!("{form} in column \"{}\" (data.time_column), as its bound is one", self.column);
        FieldFault::new(0, expected, quoted_text(time))
    }
}

impl SplitBound {
    fn new(bound: &TimeBound) -> Self {
        match bound {
            TimeBound::Number(number) => Self::Number(*number),
            TimeBound::Text(text) => {
                clock_seconds(text.as_bytes()).map_or_else(|| Self::Text(text.as_bytes().to_vec()), Self::Time)
            }
        }
    }

    /// `None` if the time is of another form than the bound: letters would then say nothing of what is newer. A number is compared with
    /// a time as the seconds since 1970.
    fn is_reached(&self, time: &[u8]) -> Option<bool> {
        match self {
            Self::Number(bound) => {
                let number = parse_number(time).or_else(|| clock_seconds(time).map(|seconds| seconds as f64));
                number.map(|time| time >= *bound)
            }
            Self::Time(bound) => clock_seconds(time).map(|time| time >= *bound),
            Self::Text(bound) => clock_seconds(time).is_none().then_some(time >= bound.as_slice()),
        }
    }
}

#[cfg(test)]
mod tests {
    use zagros_job::HeldOutRows;

    use super::*;
    use crate::fixture;

    /// The parts that a row with this time is in, of which there must be one.
    fn parts(job: &Job, time: &str) -> Vec<DataPart> {
        let wants = |part: &DataPart| {
            let hold_out = HoldOut::from_job(job, *part).unwrap();
            hold_out.wants_row(time.as_bytes(), |split| split.row_part(time.as_bytes(), 0)).unwrap_or(true)
        };
        [DataPart::Train, DataPart::Validation, DataPart::Test].into_iter().filter(wants).collect()
    }

    fn job(validation: TimeBound, test: TimeBound) -> Job {
        let newest = |from| NewestRows { column: "age".into(), from };
        let mut job = fixture::delimited(|_| ());
        (job.data.test, job.data.validation) =
            (HeldOutRows::Newest(newest(test)), HeldOutRows::Newest(newest(validation)));
        job
    }

    #[test]
    fn a_row_is_in_the_part_of_its_time_whatever_its_form() {
        use DataPart::{Test, Train, Validation};
        let texts =
            |validation: &str, test: &str| job(TimeBound::Text(validation.into()), TimeBound::Text(test.into()));
        let numbers = job(TimeBound::Number(5.0), TimeBound::Number(10.0));
        let days = texts("2026-11-22", "2026-11-23");
        let times = texts("2026-11-22T12:00:00", "2026-11-23 12:00");
        let seconds = job(TimeBound::Number(1_795_564_800.0), TimeBound::Number(1_795_608_000.0));
        for (job, times, part) in [
            (&numbers, &["4.9", "", "?", "soon"][..], Train),
            (&numbers, &["5", "9"], Validation),
            (&numbers, &["10", "200"], Test),
            (&days, &["2026-11-21 23:59:59"], Train),
            (&days, &["2026-11-22"], Validation),
            (&days, &["2026-11-23 00:00:01"], Test),
            (&times, &["2026-11-22 11:59:59"], Train),
            (&times, &["2026-11-22 12:00:00", "2026-11-22T12:00:00Z", "20261123"], Validation),
            (&times, &["2026112312", "1795614300"], Test),
            (&seconds, &["2026-11-25 00:00:00"], Validation),
            (&seconds, &["2026-11-25 12:00:00"], Test),
        ] {
            times.iter().for_each(|time| assert_eq!(parts(job, time), [part], "{time}"));
        }
        let fault = |job: &Job, time: &[u8]| {
            HoldOut::from_job(job, Train).unwrap().wants_row(time, |_| Train).unwrap_err().expected.clone()
        };
        assert!(fault(&times, b"23.11.2026").starts_with("a time, such as"));
        assert!(fault(&texts("22.11.2026", "23.11.2026"), b"2026-11-23").starts_with("a text that is no date"));
    }

    #[test]
    fn the_hash_divides_the_rows_before_the_bounds() {
        let mut job = job(TimeBound::Number(500.0), TimeBound::Number(900.0));
        job.data.validation = HeldOutRows::Share(0.25);
        let count = |part| (0..1000).filter(|time| parts(&job, &time.to_string()) == [part]).count();
        assert_eq!(count(DataPart::Test), 100);
        let validation = count(DataPart::Validation);
        assert!((180..270).contains(&validation), "{validation} of 900");
        assert_eq!(count(DataPart::Train), 900 - validation);
    }

    #[test]
    fn a_time_that_is_no_number_is_a_fault_of_the_training_part() {
        let job = job(TimeBound::Number(5.0), TimeBound::Number(10.0));
        let wants = |part| HoldOut::from_job(&job, part).unwrap().wants_row(b"soon", |_| DataPart::Train);
        let fault = wants(DataPart::Train).unwrap_err();
        assert!(fault.expected.contains("\"age\" (data.time_column)"), "{fault:?}");
        assert!(!wants(DataPart::Test).unwrap());
        assert!(HoldOut::from_job(&job, DataPart::All).is_none());
    }
}
