//! Each pair of formats, rows of zeros and of extremes, whole files and chains.

use std::fs::File;
use std::path::Path;

use proptest::prelude::*;
use zagros_zip::ZipEq;

use super::*;
use crate::snapshot::testing::{damage, find_row, followed, header, rows_of, write_following, write_test_file};
use crate::snapshot::{
    FileChain, RewriteError, SavedFile, TableTime, WrittenFile, decode_part, rewrite_rows, slot_parts, verify_file,
};

/// A table `user` of an element, with Adagrad's state or another one of so many words.
fn table(element: WeightType, dim: usize, state: usize) -> TableHeader {
    let width = element.words(dim) + state;
    let layout = if state == 0 { NO_STATE } else { "adagrad" };
    let [name, element, state] = ["user", element.name(), layout].map(str::to_owned);
    TableHeader { name, dim, element, width, state, ..TableHeader::default() }
}

fn conversion_to(saved: &TableHeader, element: WeightType) -> RowConversion {
    RowConversion::new(saved, element, StateConversion::Keep)
}

/// Rows with ids from 0 on, whose state is their id, and access metadata.
fn rows(element: WeightType, weights: &[Vec<f32>], state: usize) -> RowBatch {
    let slot = |(id, weights): (usize, &Vec<f32>)| {
        let mut words = vec![0; element.words(weights.len())];
        element.encode(weights, &mut words);
        words.extend(vec![id as u32; state]);
        words
    };
    let ids: Vec<u64> = (0..weights.len() as u64).collect();
    let access = ids.iter().map(|id| *id as u32 + 9).collect();
    RowBatch { ids, slots: weights.iter().enumerate().flat_map(slot).collect(), access }
}

fn weights_of(table: &TableHeader, rows: &RowBatch) -> Vec<Vec<f32>> {
    let (part, mut values) = (slot_parts(table).swap_remove(0), Vec::new());
    let mut weights = |slot: &[u32]| {
        decode_part(&part, slot, &mut values);
        values.clone()
    };
    rows.slots.chunks(table.width).map(&mut weights).collect()
}

/// Half of the distance of a weight's neighbours in a format, in a row with this largest weight.
fn half_a_step(element: WeightType, weight: f32, largest: f32) -> f32 {
    let of_bits = |bits: i32, smallest: f32| (weight.abs() * 2.0_f32.powi(-bits)).max(smallest / 2.0);
    match element {
        WeightType::F32 => 0.0,
        WeightType::F16 => of_bits(11, 2.0_f32.powi(-24)),
        WeightType::Bf16 => of_bits(8, f32::MIN_POSITIVE),
        // The scale has 17 significant bits.
        WeightType::Int8 => largest / 254.0 * (1.0 + 2.0_f32.powi(-15)),
    }
}

proptest! {
    /// Each of the sixteen pairs.
    #[test]
    fn weights_become_the_nearest_ones_and_state_keeps_every_bit(
        dim in 1_usize..20,
        state in 0_usize..3,
        values in prop::collection::vec(prop_oneof![-1.0_f32..1.0, -1e-3_f32..1e-3, Just(0.0), -900.0_f32..900.0], 0..100),
    ) {
        let given: Vec<Vec<f32>> = values.chunks_exact(dim).map(<[f32]>::to_vec).collect();
        for from in WeightType::ALL {
            let saved = table(from, dim, state);
            let original = rows(from, &given, state);
            let exact = weights_of(&saved, &original);
            for element in WeightType::ALL {
                let conversion = conversion_to(&saved, element);
                let converted = conversion.convert_rows(original.clone()).unwrap();
                let header = conversion.converted_header();
                prop_assert_eq!((&converted.ids, &converted.access), (&original.ids, &original.access));
                prop_assert_eq!((header.width, &*header.element), (element.words(dim) + state, element.name()));
                prop_assert_eq!(conversion.changes_rows(), from != element);
                for (row, weights) in weights_of(header, &converted).iter().enumerate() {
                    let largest = exact[row].iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
                    for (found, weight) in weights.iter().zip_eq(&exact[row]) {
                        let error = (found - weight).abs();
                        let most = if from == element { 0.0 } else { half_a_step(element, *weight, largest) };
                        prop_assert!(error <= most, "{} → {}: {weight} became {found}", from.name(), element.name());
                    }
                    let slot = &converted.slots[row * header.width..][..header.width];
                    prop_assert_eq!(&slot[element.words(dim)..], &vec![row as u32; state]);
                }
                // What an equal row becomes is equal, and what is converted back loses nothing more.
                prop_assert_eq!(&conversion.convert_rows(original.clone()).unwrap(), &converted);
                let back = conversion_to(conversion.converted_header(), WeightType::F32).convert_rows(converted.clone()).unwrap();
                let again = conversion_to(&table(WeightType::F32, dim, state), element).convert_rows(back).unwrap();
                let bits = |rows: &RowBatch| weights_of(header, rows).concat().iter().map(|w| w.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&again), bits(&converted));
            }
        }
    }
}

#[test]
fn a_row_of_zeros_stays_one_in_each_format() {
    for from in WeightType::ALL {
        for element in WeightType::ALL {
            let saved = table(from, 5, 1);
            let conversion = conversion_to(&saved, element);
            let converted = conversion.convert_rows(rows(from, &[vec![0.0; 5]], 1)).unwrap();
            assert_eq!(converted.slots, vec![0; element.words(5) + 1], "{} → {}", from.name(), element.name());
        }
    }
}

#[test]
fn the_nearest_number_is_taken_and_ties_go_to_even() {
    let saved = table(WeightType::F32, 4, 0);
    let given = |weights: [f32; 4]| rows(WeightType::F32, &[weights.to_vec()], 0);
    let nearest = |element: WeightType, weights: [f32; 4]| {
        let conversion = conversion_to(&saved, element);
        weights_of(conversion.converted_header(), &conversion.convert_rows(given(weights)).unwrap()).swap_remove(0)
    };
    assert_eq!(nearest(WeightType::Int8, [127.0, 0.49, 0.51, -1.5]), [127.0, 0.0, 1.0, -2.0]);
    assert_eq!(nearest(WeightType::Int8, [127.0, 2.5, 3.5, -126.6]), [127.0, 2.0, 4.0, -127.0]);
    // bfloat16 has 8 significant bits, f16 has 11.
    assert_eq!(nearest(WeightType::Bf16, [256.9, 257.0, 257.1, 259.0]), [256.0, 256.0, 258.0, 260.0]);
    assert_eq!(nearest(WeightType::F16, [2048.9, 2049.0, 2049.1, 2051.0]), [2048.0, 2048.0, 2050.0, 2052.0]);
}

#[test]
fn extremes_that_fit_are_kept_and_others_name_table_row_and_weight() {
    let saved = table(WeightType::F32, 2, 1);
    let given = |weight: f32| rows(WeightType::F32, &[vec![0.5, 0.25], vec![1.0, weight]], 1);
    let largest = |element: WeightType, weight: f32| {
        let conversion = conversion_to(&saved, element);
        conversion.convert_rows(given(weight)).map(|rows| weights_of(conversion.converted_header(), &rows)[1][1])
    };
    assert_eq!(largest(WeightType::F16, -65519.0), Ok(-65504.0));
    assert_eq!(largest(WeightType::Bf16, 3.389e38), Ok(3.389_531_4e38));
    assert!(largest(WeightType::Int8, f32::MAX).is_ok_and(|weight| weight > 0.9999 * f32::MAX));
    assert_eq!(largest(WeightType::F16, 1e-9), Ok(0.0));
    let refused = largest(WeightType::F16, 65520.0).unwrap_err();
    assert_eq!((refused.id, refused.weight, refused.element), (1, 65520.0, WeightType::F16));
    let message = "row 0x0000000000000001 of table `user` has the weight 65520, which f16 cannot hold; take another element, or \
         remove the row (zagros forget MODEL --table user --id 0x1)";
    assert_eq!(refused.to_string(), message);
    assert!(largest(WeightType::Bf16, f32::MAX).is_err());
    for element in [WeightType::F16, WeightType::Bf16, WeightType::Int8] {
        for weight in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let refused = largest(element, weight).unwrap_err();
            assert_eq!((refused.id, refused.weight.to_bits()), (1, weight.to_bits()), "{}", element.name());
        }
    }
    // A row that is not converted is what it was, also one that is no number.
    let same = given(f32::NAN);
    assert_eq!(conversion_to(&saved, WeightType::F32).convert_rows(same.clone()), Ok(same));
}

#[test]
fn rows_without_state_have_weights_alone() {
    for element in WeightType::ALL {
        let saved = table(WeightType::F32, 3, 3);
        let given = rows(WeightType::F32, &[vec![1.0, 2.0, 4.0], vec![0.5, 1.0, -1.0]], 3);
        let conversion = RowConversion::new(&saved, element, StateConversion::LeaveOut);
        let alone = conversion.convert_rows(given.clone()).unwrap();
        let header = conversion.converted_header();
        assert_eq!((header.width, &*header.state), (element.words(3), "sgd"));
        let kept = conversion_to(&saved, element);
        let with_state = weights_of(kept.converted_header(), &kept.convert_rows(given).unwrap());
        assert_eq!(weights_of(header, &alone), with_state, "{}", element.name());
    }
}

/// Converts the table `user` alone.
fn users_to(element: WeightType) -> Vec<RowConversion> {
    vec![conversion_to(&header(64).tables[0], element)]
}

fn copy(chain: &FileChain, path: &Path) -> Result<WrittenFile, RewriteError> {
    rewrite_rows(chain, &users_to(WeightType::Int8), None, File::create(path).unwrap())
}

fn chain(paths: &[&Path]) -> FileChain {
    let files: Vec<SavedFile> = paths.iter().map(SavedFile::on_disk).collect();
    FileChain::group_files(&files, |_| None).unwrap().swap_remove(0)
}

/// Rows of table `user` of the test header: dim 2, in slots of 4 words.
fn users(ids: std::ops::Range<u64>, weight: f32) -> RowBatch {
    let slot = |id: u64| [weight.to_bits(), 0, id as u32, 7];
    RowBatch { ids: ids.clone().collect(), slots: ids.flat_map(slot).collect(), access: Vec::new() }
}

#[test]
fn a_copy_has_the_table_converted_and_all_else_as_it_was() {
    let (folder, path) = write_test_file(&header(64), |writer| {
        writer.write_clock(TableTime { steps: 5, seconds: 6 })?;
        writer.write_rows(0, &users(0..100, 12.7))?;
        writer.write_rows(1, &rows_of(0..50, 3, true))?;
        writer.write_counts(1, &[7, 200], &[1, 2])?;
        writer.write_sketch(1, 0, &[9, 9])
    });
    let target = folder.path().join("copy.zrows");
    let copied = copy(&chain(&[&path]), &target).unwrap();
    let (before, after) = (SavedFile::on_disk(&path), SavedFile::on_disk(&target));
    let checked = verify_file(&after, |_| ()).unwrap();
    assert_eq!((checked.sha256, checked.rows, checked.bytes), (copied.sha256, 150, copied.bytes));
    assert_eq!([&before, &after].map(|file| users_to(WeightType::Int8).is_applied(file).unwrap()), [false, true]);
    assert_eq!(checked.clock, TableTime { steps: 5, seconds: 6 });
    for id in 0..50 {
        let item =
            |file: &SavedFile| find_row(file.open().unwrap(), "item", id).unwrap().map(|row| (row.slot, row.access));
        assert_eq!(item(&after), item(&before));
        let user = find_row(after.open().unwrap(), "user", id).unwrap().unwrap().slot;
        // The scale is a little above .1, so the second code is 0 and the first one 127.
        assert_eq!(user[1..], [127, id as u32, 7]);
    }
    let kinds = |file: &SavedFile| {
        let (mut reader, mut found) = (file.open().unwrap(), Vec::new());
        while let Some(block) = reader.next_block(|head| head.kind != crate::snapshot::BlockKind::Rows).unwrap() {
            found.push(block);
        }
        found
    };
    assert_eq!((kinds(&after), kinds(&after).len()), (kinds(&before), 3));
}

#[test]
fn a_file_and_its_delta_become_one_file_of_the_rows_that_are_left() {
    let folder = tempfile::tempdir().unwrap();
    let [base, delta] = ["a.zrows", "b.zrows"].map(|name| folder.path().join(name));
    let written = write_following(&base, None, |writer| {
        writer.write_clock(TableTime { steps: 1, seconds: 0 })?;
        writer.write_rows(0, &users(0..10, 1.0))
    });
    write_following(&delta, Some(followed(&base, &written)), |writer| {
        writer.write_clock(TableTime { steps: 2, seconds: 0 })?;
        writer.write_rows(0, &users(3..4, 2.0))?;
        writer.write_removed_ids(0, &[5])
    });
    let target = folder.path().join("copy.zrows");
    let copied = copy(&chain(&[&base, &delta]), &target).unwrap();
    let alone = chain(&[&target]);
    assert_eq!((copied.rows, verify_file(&alone.files()[0], |_| ()).unwrap().clock.steps), (9, 2));
    let weight = |id: u64| {
        let slot = alone.find_row("user", id).unwrap()?.0.slot;
        Some((f32::from_bits(slot[0]) * 127.0).round())
    };
    assert_eq!([2, 3, 4, 5].map(weight), [Some(1.0), Some(2.0), Some(1.0), None]);
    assert_eq!(alone.files()[0].open().unwrap().header().follows, None);
}

#[test]
fn a_damaged_file_a_row_that_does_not_fit_and_a_full_disk_are_errors() {
    let (folder, path) = write_test_file(&header(64), |writer| writer.write_rows(0, &users(0..20, f32::NAN)));
    let target = folder.path().join("copy.zrows");
    let refused = copy(&chain(&[&path]), &target).unwrap_err();
    assert!(refused.to_string().contains("of table `user` has the weight NaN, which int8 cannot hold"), "{refused}");
    let full = rewrite_rows(&chain(&[&path]), &users_to(WeightType::F32), None, &mut [0_u8; 99][..]);
    assert!(matches!(full, Err(RewriteError::Write(_))), "{full:?}");
    damage(&path);
    assert!(matches!(copy(&chain(&[&path]), &target), Err(RewriteError::Read(SnapshotError::Corrupt { .. }))));
}
