//! Counts and labels of categories, by fold, and the numbers that they make.
//!
//! The number of a category for the training rows of fold f is measured over the rows of all other folds, so that no row's own label is
//! in its input. The number for all other rows is measured over all training rows. With n rows of the category, whose labels add up to s,
//! it is (s + a·m) / (n + a), where m is the mean label of all training rows (Micci-Barreca 2001, with the weight n / (n + a)). A row counts by its
//! sample weight.
//!
//! m is the same for all folds. A mean over the other folds would be one number for each fold, by which a network could tell the folds apart, and
//! so learn the mean label of each.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use zagros_job::{CategoryEncoding, EncodeBy, EncodingTable};
use zagros_zip::ZipEq;

use crate::category::{AsItIs, fold_of};
use crate::sketch::MomentSums;

/// Most different categories that are counted for an encoding: about 100 MB with five folds. Of more, the less frequent half is forgotten, so
/// that a rare category may count from its latest rows alone.
const MOST_COUNTED: usize = 1 << 20;

/// What became of the categories of an encoding that has more than `max_size`.
#[derive(Clone, Debug, PartialEq)]
pub struct RareCategories {
    pub feature: String,
    /// Categories in the training rows; about so many if they are more than are counted.
    pub categories: u64,
    /// Those that have numbers of their own.
    pub listed: u64,
    /// Share of the training rows, by weight, that have one of the others.
    pub share: f64,
}

/// Number of rows, by weight, and the sum of their labels.
#[derive(Clone, Copy, Debug, Default)]
struct LabelSums {
    rows: f64,
    labels: f64,
}

impl LabelSums {
    fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.labels += other.labels;
    }

    /// The mean label, where a mean `prior` counts as so many rows.
    fn mean(self, prior: f64, rows: f64) -> f64 {
        let all = self.rows + rows;
        if all > 0.0 { (self.labels + prior * rows) / all } else { prior }
    }
}

#[derive(Clone, Debug)]
pub(super) struct EncodingCounts {
    name: String,
    encoding: CategoryEncoding,
    /// Folds that are counted: at least 1.
    folds: usize,
    starts: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    sums: Vec<LabelSums>,
    /// Of all categories, those that were forgotten included.
    all: Vec<LabelSums>,
    forgotten: u64,
    most: usize,
}

impl EncodingCounts {
    pub(super) fn new(name: &str, encoding: &CategoryEncoding) -> Self {
        let (folds, encoding) = (encoding.own_folds().max(1), encoding.clone());
        let (starts, sums, all) = (HashMap::default(), Vec::new(), vec![LabelSums::default(); folds]);
        Self { name: name.to_owned(), encoding, folds, starts, sums, all, forgotten: 0, most: MOST_COUNTED }
    }

    /// A training row with a category. A row without a label has NaN, and says nothing of the labels' mean.
    #[inline]
    pub(super) fn add(&mut self, id: u64, place: u64, label: f32, weight: f32) {
        let by_target = self.encoding.by == EncodeBy::Target;
        if by_target && label.is_nan() {
            return;
        }
        let fold = if by_target { fold_of(place, self.folds) } else { 0 };
        let (rows, labels) = (f64::from(weight), if by_target { f64::from(weight) * f64::from(label) } else { 0.0 });
        let start = self.category_start(id);
        self.sums[start + fold].add(LabelSums { rows, labels });
        self.all[fold].add(LabelSums { rows, labels });
    }

    fn category_start(&mut self, id: u64) -> usize {
        let (end, folds) = (self.sums.len(), self.folds);
        let start = *self.starts.entry(id).or_insert(end as u32) as usize;
        if start == end {
            self.sums.resize(end + folds, LabelSums::default());
        }
        start
    }

    /// Adds the rows of a later block.
    pub(super) fn merge(&mut self, other: &Self) {
        for (id, from) in &other.starts {
            let start = self.category_start(*id);
            for fold in 0..self.folds {
                self.sums[start + fold].add(other.sums[*from as usize + fold]);
            }
        }
        self.all.iter_mut().zip_eq(&other.all).for_each(|(all, from)| all.add(*from));
        if self.starts.len() > self.most {
            self.forget();
        }
    }

    /// Keeps the more frequent half of the categories that are counted.
    fn forget(&mut self) {
        let old_sums = std::mem::take(&mut self.sums);
        let kept = self.by_frequency(&old_sums, self.most / 2);
        self.forgotten += (self.starts.len() - kept.len()) as u64;
        let old = std::mem::take(&mut self.starts);
        for id in kept {
            let (start, from) = (self.category_start(id), old[&id] as usize);
            self.sums[start..start + self.folds].copy_from_slice(&old_sums[from..from + self.folds]);
        }
    }

    /// The ids of the most frequent categories. Of equally frequent ones, the least.
    fn by_frequency(&self, sums: &[LabelSums], most: usize) -> Vec<u64> {
        let rows = |start: &u32| self.fold_sums(sums, *start).iter().map(|sums| sums.rows).sum::<f64>();
        let mut ids: Vec<(f64, u64)> = self.starts.iter().map(|(id, start)| (rows(start), *id)).collect();
        ids.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        ids.into_iter().take(most).map(|(_, id)| id).collect()
    }

    fn fold_sums<'a>(&self, sums: &'a [LabelSums], start: u32) -> &'a [LabelSums] {
        &sums[start as usize..start as usize + self.folds]
    }

    pub(super) fn clear(&mut self) {
        self.starts.clear();
        self.sums.clear();
        self.all.fill(LabelSums::default());
        self.forgotten = 0;
    }

    /// The numbers, and what became of rare categories if there are some.
    pub(super) fn fit_table(&self) -> (EncodingTable, Option<RareCategories>) {
        let mut ids = self.by_frequency(&self.sums, self.encoding.max_size as usize);
        ids.sort_unstable();
        let rare = self.category_numbers(&vec![LabelSums::default(); self.folds]);
        let (mut values, mut spread) = (Vec::new(), MomentSums::NONE);
        let mut others = self.all.clone();
        for id in &ids {
            let sums = self.fold_sums(&self.sums, self.starts[id]);
            let numbers = self.category_numbers(sums);
            add_numbers(&mut spread, &numbers, sums);
            others.iter_mut().zip_eq(sums).for_each(|(others, sums)| others.rows -= sums.rows);
            values.extend(numbers);
        }
        add_numbers(&mut spread, &rare, &others);
        let categories = self.starts.len() as u64 + self.forgotten;
        let listed = ids.len() as u64;
        let share = total_sums(&others).rows / total_sums(&self.all).rows.max(f64::MIN_POSITIVE);
        let note = RareCategories { feature: self.name.clone(), categories, listed, share: share.max(0.0) };
        let (mean, deviation) = (spread.mean(), spread.deviation());
        // Of numbers that are all equal, rounding leaves a little.
        let deviation = if deviation > 1e-6 * mean.abs().max(1e-6) { deviation } else { 1.0 };
        (EncodingTable { mean, deviation, rare, ids, values }, (categories > listed).then_some(note))
    }

    /// The numbers of a category: for the training rows of each fold, and for all other rows.
    fn category_numbers(&self, sums: &[LabelSums]) -> Vec<f32> {
        let number = |left_out: Option<usize>| {
            sum_without(sums, left_out).mean(total_sums(&self.all).mean(0.0, 0.0), self.encoding.prior_rows()) as f32
        };
        match self.encoding.by {
            EncodeBy::Count => vec![total_sums(sums).rows.ln_1p() as f32],
            EncodeBy::Target => (0..self.folds).map(Some).chain([None]).map(number).collect(),
        }
    }
}

/// The sum of all folds but one. It is added up anew: a difference would keep rounding errors of the fold.
fn sum_without(sums: &[LabelSums], left_out: Option<usize>) -> LabelSums {
    let mut total = LabelSums::default();
    sums.iter().enumerate().filter(|(fold, _)| Some(*fold) != left_out).for_each(|(_, sums)| total.add(*sums));
    total
}

fn total_sums(sums: &[LabelSums]) -> LabelSums {
    sum_without(sums, None)
}

/// Adds the numbers of a category to those of the training rows.
fn add_numbers(spread: &mut MomentSums, numbers: &[f32], sums: &[LabelSums]) {
    for (fold, sums) in sums.iter().enumerate() {
        spread.add(f64::from(numbers[fold]), sums.rows.max(0.0));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoding(by: EncodeBy, max_size: u32) -> CategoryEncoding {
        CategoryEncoding { by, with: Vec::new(), smoothing: Some(2.0), folds: Some(3), max_size, fitted: None }
    }

    /// Category, place, label and weight of each training row.
    type Rows = [(u64, u64, f32, f32)];

    fn counted(by: EncodeBy, max_size: u32, rows: &Rows) -> EncodingCounts {
        let mut total = EncodingCounts::new("c", &encoding(by, max_size));
        for block in rows.chunks(7) {
            let mut counts = EncodingCounts::new("c", &encoding(by, max_size));
            block.iter().for_each(|(id, place, label, weight)| counts.add(*id, *place, *label, *weight));
            total.merge(&counts);
        }
        total
    }

    /// The number of a category over the rows that are not in a fold, as the formula has it.
    fn by_formula(rows: &Rows, id: u64, fold: Option<usize>) -> f64 {
        let (mut of_id, mut of_all) = ([0.0, 0.0], [0.0, 0.0]);
        for (other, place, label, weight) in rows.iter().filter(|row| row.2.is_finite()) {
            let counts = [f64::from(*weight), f64::from(*weight * *label)];
            let is_counted = *other == id && fold != Some(fold_of(*place, 3));
            (0..2).for_each(|index| of_all[index] += counts[index]);
            (0..2).for_each(|index| of_id[index] += if is_counted { counts[index] } else { 0.0 });
        }
        let prior = if of_all[0] > 0.0 { of_all[1] / of_all[0] } else { 0.0 };
        (of_id[1] + 2.0 * prior) / (of_id[0] + 2.0)
    }

    fn rows() -> impl Strategy<Value = Vec<(u64, u64, f32, f32)>> {
        let label = prop_oneof![Just(0.0_f32), Just(1.0), Just(1.0), Just(f32::NAN)];
        prop::collection::vec((0_u64..9, 0_u64..10_000, label, 0.0_f32..3.0), 1..60)
    }

    proptest! {
        #[test]
        fn a_mean_is_smoothed_weighted_and_out_of_fold(rows in rows()) {
            let (table, _) = counted(EncodeBy::Target, 100, &rows).fit_table();
            prop_assert!(table.fits_columns(4));
            for (index, id) in table.ids.iter().enumerate() {
                for fold in 0..4 {
                    let expected = by_formula(&rows, *id, (fold < 3).then_some(fold));
                    prop_assert!((f64::from(table.values[4 * index + fold]) - expected).abs() < 1e-5);
                }
            }
            let numbers = rows.iter().filter(|row| row.2.is_finite()).map(|(id, place, _, weight)| {
                let index = table.ids.iter().position(|known| known == id).unwrap();
                (f64::from(*weight), f64::from(table.values[4 * index + fold_of(*place, 3)]))
            });
            let all = numbers.clone().map(|(weight, _)| weight).sum::<f64>();
            let mean = numbers.map(|(weight, number)| weight * number).sum::<f64>() / all.max(f64::MIN_POSITIVE);
            prop_assert!((table.mean - mean).abs() < 1e-5);
        }

        /// What a training row is given says nothing of its own label, nor of any in its fold: which row has which label of the fold does not
        /// matter.
        #[test]
        fn the_labels_of_a_fold_leave_its_numbers_as_they_are(mut rows in rows(), fold in 0_usize..3) {
            rows.iter_mut().for_each(|row| row.3 = 1.0);
            let mut moved = rows.clone();
            let of_fold = |row: &(u64, u64, f32, f32)| fold_of(row.1, 3) == fold && row.2.is_finite();
            let mut labels: Vec<f32> = rows.iter().filter(|row| of_fold(row)).map(|row| row.2).collect();
            moved.iter_mut().filter(|row| of_fold(row)).for_each(|row| row.2 = labels.pop().unwrap());
            let [before, after] = [rows, moved].map(|rows| counted(EncodeBy::Target, 100, &rows).fit_table().0);
            let column = |table: &EncodingTable| {
                [&table.rare, &table.values].map(|values| values.iter().skip(fold).step_by(4).copied().collect::<Vec<_>>())
            };
            prop_assert_eq!((column(&before), &before.ids), (column(&after), &after.ids));
        }
    }

    #[test]
    fn a_count_is_by_weight_and_rare_categories_count_as_none() {
        let rows = [(5, 0, 1.0, 1.0), (7, 1, 0.0, 2.5), (5, 2, f32::NAN, 1.0), (6, 3, 0.0, 1.0), (9, 4, 1.0, 1.0)];
        let (table, rare) = counted(EncodeBy::Count, 2, &rows).fit_table();
        assert_eq!((table.ids, table.rare), (vec![5, 7], vec![0.0]));
        assert_eq!(table.values, [3.0_f64.ln() as f32, 3.5_f64.ln() as f32]);
        let mean = (2.0 * 3.0_f64.ln() + 2.5 * 3.5_f64.ln()) / 6.5;
        assert!((table.mean - mean).abs() < 1e-6, "{}", table.mean);
        let share = 2.0 / 6.5;
        assert_eq!(rare, Some(RareCategories { feature: "c".into(), categories: 4, listed: 2, share }));
        assert_eq!(counted(EncodeBy::Count, 4, &rows).fit_table().1, None);
    }

    #[test]
    fn a_category_that_never_changes_has_deviation_one() {
        let (table, _) = counted(EncodeBy::Count, 4, &[(5, 0, 1.0, 1.0), (5, 1, 0.0, 1.0)]).fit_table();
        assert_eq!(table.deviation, 1.0);
        let (none, _) = counted(EncodeBy::Target, 4, &[]).fit_table();
        assert_eq!((none.mean, none.deviation, none.rare), (0.0, 1.0, vec![0.0; 4]));
    }

    /// Memory is bounded, and a frequent category is counted in full.
    #[test]
    fn of_too_many_categories_the_rarest_are_forgotten() {
        let mut total = EncodingCounts::new("c", &encoding(EncodeBy::Target, 4));
        total.most = 40;
        for block in 0..50_u64 {
            let mut counts = total.clone();
            counts.clear();
            (0..30).for_each(|row| counts.add(1_000 + block * 30 + row, block * 40 + row, 0.0, 1.0));
            (0..10).for_each(|row| counts.add(row % 2, block * 40 + 30 + row, 1.0, 1.0));
            total.merge(&counts);
            assert!(total.starts.len() <= 40 && total.sums.len() == 3 * total.starts.len());
        }
        let (table, rare) = total.fit_table();
        assert_eq!(table.ids[..2], [0, 1]);
        assert_eq!(table.values[3], ((250.0 + 2.0 * 0.25) / 252.0) as f32);
        assert_eq!(rare.unwrap().categories, 1_502);
    }
}
