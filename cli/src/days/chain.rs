//! Which days are done. Each starts from the model of the day before, so a day is done only if all before it are.

use super::history::{DayHistory, DayRecord};

/// What a day must have started from to be done.
#[derive(Clone, Debug, PartialEq)]
enum DayStart {
    /// This model, or none.
    From(Option<String>),
    /// Any: the model is deleted, or the range of days starts here.
    Any,
}

/// How many of the days are done: from the first on, each from the model of the one before, up to one whose model is there. `was_so`
/// says whether a day's model was trained as the job says, from that start.
pub(super) fn done_count(
    days: &[String],
    history: &DayHistory,
    was_so: impl Fn(&str, &DayRecord, &str) -> bool,
) -> usize {
    let (mut start, mut last) = (DayStart::Any, 0);
    for (number, day) in days.iter().enumerate() {
        let follows = |record: &&DayRecord| match &start {
            DayStart::From(from) => record.from == *from,
            DayStart::Any => true,
        };
        // A day without samples may only have been early.
        let Some(record) = history.get(day).filter(follows).filter(|record| record.samples > 0) else { break };
        start = match &record.model {
            Some(model) if was_so(day, record, model) => {
                last = number + 1;
                DayStart::From(Some(model.clone()))
            }
            Some(_) => break,
            None => DayStart::Any,
        };
    }
    last
}

#[cfg(test)]
mod tests {
    use zagros_job::{Job, Overrides};
    use zagros_zip::ZipEq;

    use super::*;

    fn record(from: Option<&str>, model: Option<&str>, samples: u64) -> DayRecord {
        let (from, model) = (from.map(str::to_owned), model.map(str::to_owned));
        DayRecord { from, before: None, samples, steps: 1, rows: 1, health: None, data: None, run: "r".into(), model }
    }

    fn days_done(records: &[DayRecord], was_so: impl Fn(&str) -> bool) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[output]\nfolder = {:?}\n", folder.path());
        let job = Job::parse(&text, "job.toml".as_ref(), &Overrides::none()).unwrap();
        let mut history = DayHistory::load(&job).unwrap();
        let days: Vec<String> = (1..=5).map(|day| format!("2026-11-{day:02}")).collect();
        records
            .iter()
            .zip_eq(&days[..records.len()])
            .for_each(|(record, day)| history.record_day(day, record.clone()).unwrap());
        done_count(&days, &history, |_, _, model| was_so(model))
    }

    #[test]
    fn days_are_done_up_to_the_first_that_is_not() {
        let chain = [record(None, Some("a"), 9), record(Some("a"), Some("b"), 9), record(Some("b"), Some("c"), 9)];
        assert_eq!(days_done(&chain, |_| true), 3);
        assert_eq!(days_done(&chain, |model| model != "b"), 1, "a later day was trained from the old one");
        assert_eq!(days_done(&chain, |model| model != "a"), 0);
    }

    #[test]
    fn a_day_from_another_model_or_without_samples_is_not_done() {
        let broken = [record(None, Some("a"), 9), record(Some("a"), Some("b"), 9), record(None, Some("c"), 9)];
        assert_eq!(days_done(&broken, |_| true), 2);
        let empty = [record(None, Some("a"), 9), record(Some("a"), Some("b"), 0)];
        assert_eq!(days_done(&empty, |_| true), 1);
    }

    #[test]
    fn deleted_models_are_done_if_a_later_one_is_there() {
        let kept = [record(None, None, 9), record(Some("a"), None, 9), record(Some("b"), Some("c"), 9)];
        assert_eq!(days_done(&kept, |_| true), 3);
        assert_eq!(days_done(&kept[..2], |_| true), 0);
    }
}
