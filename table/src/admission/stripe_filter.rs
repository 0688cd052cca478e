//! The admission filter of one stripe, with copy-on-first-write for a snapshot: the first change copies all counts.

use std::ops::{Deref, DerefMut};

use super::super::row_batch::FrequencyCounts;
use super::filter::AdmissionFilter;
use super::policy::AdmissionPolicy;

/// The filter of a stripe. The stripe's lock protects it.
#[derive(Debug)]
pub(crate) struct StripeFilter {
    inner: AdmissionFilter,
    capture: FilterCapture,
}

#[derive(Debug)]
enum FilterCapture {
    /// There is no snapshot, or the snapshot has read the counts.
    None,
    /// The counts have not changed since the instant of the snapshot.
    Unchanged,
    /// The counts at the instant of the snapshot.
    Kept(FrequencyCounts),
}

/// Reads the counts as they are now.
impl Deref for StripeFilter {
    type Target = AdmissionFilter;

    fn deref(&self) -> &AdmissionFilter {
        &self.inner
    }
}

/// For a change of the counts. A snapshot that wants them as they were gets a copy first.
impl DerefMut for StripeFilter {
    #[inline]
    fn deref_mut(&mut self) -> &mut AdmissionFilter {
        if matches!(self.capture, FilterCapture::Unchanged) {
            let mut kept = FrequencyCounts::default();
            self.inner.save(&mut kept);
            self.capture = FilterCapture::Kept(kept);
        }
        &mut self.inner
    }
}

impl StripeFilter {
    pub(crate) fn new(admission: AdmissionPolicy, stripes: usize, seed: u64, table: u32) -> Self {
        Self { inner: AdmissionFilter::new(admission, stripes, seed, table), capture: FilterCapture::None }
    }

    /// Starts the capture: the next change copies the counts first.
    pub(crate) fn begin_capture(&mut self) {
        self.capture = FilterCapture::Unchanged;
    }

    /// Appends the counts of the snapshot's instant. Returns false if there is no snapshot or it has read them before.
    pub(crate) fn read_captured(&mut self, into: &mut FrequencyCounts) -> bool {
        match std::mem::replace(&mut self.capture, FilterCapture::None) {
            FilterCapture::None => return false,
            FilterCapture::Unchanged => self.inner.save(into),
            FilterCapture::Kept(kept) => into.append(kept),
        }
        true
    }

    pub(crate) fn end_capture(&mut self) {
        self.capture = FilterCapture::None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrequencyCounter;
    use crate::key::key_of;

    #[test]
    fn a_snapshot_reads_the_counts_of_its_instant_once() {
        let counters = [FrequencyCounter::Exact, FrequencyCounter::CountMin { error: 0.1, failure: 0.1 }];
        for counter in counters {
            let mut filter = StripeFilter::new(AdmissionPolicy::Count { threshold: 9, counter }, 1, 1, 1);
            (0..5).for_each(|id| assert!(!filter.observe(key_of(id))));
            let read = |filter: &mut StripeFilter| {
                let mut counts = FrequencyCounts::default();
                filter.read_captured(&mut counts).then_some(counts)
            };
            assert_eq!(read(&mut filter), None);
            filter.begin_capture();
            let unchanged = read(&mut filter).unwrap();
            assert_eq!(read(&mut filter), None);
            filter.begin_capture();
            (3..50).for_each(|id| assert!(!filter.observe(key_of(id))));
            assert_eq!(read(&mut filter).unwrap(), unchanged);
            filter.begin_capture();
            assert_ne!(read(&mut filter).unwrap(), unchanged);
            filter.begin_capture();
            filter.end_capture();
            assert_eq!(read(&mut filter), None);
        }
    }
}
