//! The parts of a slot: weights and named optimiser state, as numbers.

use std::ops::Range;

use zagros_table::WeightType;

use crate::snapshot::format::TableHeader;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPart {
    /// `weights`, or the optimiser's name of the state.
    pub name: &'static str,
    pub element: WeightType,
    /// Values per row.
    pub values: usize,
    pub words: Range<usize>,
}

/// The parts of a table's slots, weights first. The state of an unknown layout is one part, `state`.
#[must_use]
pub fn slot_parts(table: &TableHeader) -> Vec<SlotPart> {
    // The reader refuses a header with an unknown number format.
    let element = table.weight_type().unwrap_or_default();
    let weights =
        SlotPart { name: "weights", element, values: table.dim, words: 0..element.words(table.dim).min(table.width) };
    let mut start = weights.words.end;
    let mut parts = vec![weights];
    for (name, values) in state_parts(&table.state, table.dim, table.width - start) {
        parts.push(SlotPart { name, element: WeightType::F32, values, words: start..start + values });
        start += values;
    }
    parts
}

/// The values of one part of one slot. Narrow values are exact in f32.
pub fn decode_part(part: &SlotPart, slot: &[u32], into: &mut Vec<f32>) {
    into.resize(part.values, 0.0);
    part.element.decode(&slot[part.words.clone()], into);
}

/// The parts of the state in each layout of `zagros_table::optimizer`. Empty if the size does not match the layout.
fn state_parts(layout: &str, dim: usize, words: usize) -> Vec<(&'static str, usize)> {
    let known: &[(&'static str, usize)] = match layout {
        "sgd" => &[],
        "momentum" => &[("velocity", dim)],
        "adagrad" => &[("sum_of_squares", dim)],
        "adagrad-row" => &[("sum_of_squares", 1)],
        "adam" => &[("first_moment", dim), ("second_moment", dim), ("beta_powers", 2)],
        "ftrl" => &[("z", dim), ("n", dim)],
        "dense-sgd" => &[("updates", 2)],
        "dense-momentum" => &[("velocity", dim), ("updates", 2)],
        "dense-adagrad" => &[("squares", dim), ("updates", 2)],
        "dense-adam" => &[("first_moment", dim), ("second_moment", dim), ("updates", 2)],
        _ => &[("state", words)],
    };
    if known.iter().map(|part| part.1).sum::<usize>() == words { known.to_vec() } else { vec![("state", words)] }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use zagros_table::{Optimizer, TableConfig};

    use super::*;

    fn header(element: &str, dim: usize, width: usize, state: &str) -> TableHeader {
        let (element, state) = (element.to_owned(), state.to_owned());
        TableHeader { dim, element, width, state, ..TableHeader::default() }
    }

    fn numbers(table: &TableHeader, slot: &[u32]) -> Vec<(&'static str, Vec<f32>)> {
        let mut values = Vec::new();
        let mut number = |part: &SlotPart| {
            decode_part(part, slot, &mut values);
            (part.name, values.clone())
        };
        slot_parts(table).iter().map(&mut number).collect()
    }

    #[test]
    fn narrow_weights_are_unpacked_and_their_padding_is_not_shown() {
        let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
        let slot = [half(1.5) | half(-2.0) << 16, half(0.25) | 0xffff_0000, 4.0_f32.to_bits()];
        let expected = vec![("weights", vec![1.5, -2.0, 0.25]), ("sum_of_squares", vec![4.0])];
        assert_eq!(numbers(&header("f16", 3, 3, "adagrad-row"), &slot), expected);
        let brain = |value: f32| value.to_bits() >> 16;
        let slot = [brain(1.5) | brain(-2.0) << 16];
        assert_eq!(numbers(&header("bf16", 2, 1, "sgd"), &slot), [("weights", vec![1.5, -2.0])]);
        let slot = [0.5_f32.to_bits(), 0x7f02_ff81, 0xffff_ff04, 4.0_f32.to_bits()];
        let expected = vec![("weights", vec![-63.5, -0.5, 1.0, 63.5, 2.0]), ("sum_of_squares", vec![4.0])];
        assert_eq!(numbers(&header("int8", 5, 4, "adagrad-row"), &slot), expected);
    }

    #[test]
    fn every_layout_of_the_table_is_known() {
        let (lr, l2, epsilon) = (0.1, 0.0, 1e-8);
        let optimizers = [
            Optimizer::Sgd { lr, momentum: 0.0, l2 },
            Optimizer::Sgd { lr, momentum: 0.9, l2 },
            Optimizer::Adagrad { lr, epsilon, initial_accumulator: 0.0, l2 },
            Optimizer::RowAdagrad { lr, epsilon, initial_accumulator: 0.0, l2 },
            Optimizer::Adam { lr, beta1: 0.9, beta2: 0.99, epsilon, l2 },
            Optimizer::Ftrl { lr, beta: 1.0, l1: 0.0, l2 },
        ];
        for optimizer in optimizers {
            let width = TableConfig { dim: 5, optimizer, ..TableConfig::default() }.stride();
            let parts = slot_parts(&header("f32", 5, width, optimizer.state_layout()));
            assert!(parts.iter().all(|part| part.name != "state"), "{parts:?}");
            assert_eq!(parts.last().map(|part| part.words.end), Some(width));
        }
    }

    #[test]
    fn a_layout_of_a_later_release_is_one_part() {
        assert_eq!(numbers(&header("f32", 1, 3, "lion"), &[0; 3])[1], ("state", vec![0.0; 2]));
        assert_eq!(numbers(&header("f32", 1, 4, "adagrad"), &[0; 4])[1].0, "state");
    }
}
