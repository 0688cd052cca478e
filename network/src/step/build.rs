//! Makes a step of a network: memory for what its blocks give, and who writes which slopes.

use zagros_zip::ZipEq;

use super::cross::CrossStep;
use super::factors::{FactorFieldsStep, FirstValuesStep, LinearTermStep, SecondOrderStep};
use super::fusion::FusionStep;
use super::join::{JoinStep, JoinedColumns, NumbersStep, SumStep};
use super::layers::{StepBuilder, StepForm};
use super::mixture::MixtureStep;
use super::pairs::InteractionsStep;
use super::stack::MlpStep;
use super::{BlockStep, BlockValues, NUMBERS, ReadValue, SlopeUse, Step, VECTORS};
use crate::StepResult;
use crate::matrix::{AlignedValues, Matrix};
use crate::wiring::{Block, Columns, Network, NetworkInputs, Value};

/// Who reads which value, from the last block to the first.
struct SlopeUses {
    wanted: Vec<bool>,
    written: Vec<bool>,
    /// Of the vectors: their first values, and the others.
    vectors_written: [bool; 2],
    clears_vectors: bool,
}

impl SlopeUses {
    fn new(blocks: &[&Block], inputs: &NetworkInputs) -> Self {
        let mut wanted = vec![true; blocks.len()];
        (wanted[NUMBERS], wanted[VECTORS]) = (false, inputs.dims.iter().sum::<usize>() > 0);
        for (index, block) in blocks.iter().enumerate() {
            if let Block::Join(parts) = block {
                wanted[index] = parts.iter().any(|part| match part {
                    Columns::All(value) => wanted[value.block],
                    Columns::WithoutFirst(_) => inputs.dims.iter().any(|dim| *dim > 1),
                });
            }
        }
        let parts: Vec<[bool; 2]> = blocks.iter().map(|block| vector_parts(block)).collect();
        let clears_vectors = parts.contains(&[true; 2]) && parts.iter().any(|[first, others]| first != others);
        Self { wanted, written: vec![false; blocks.len()], vectors_written: [clears_vectors; 2], clears_vectors }
    }

    fn read(&mut self, value: Value) -> ReadValue {
        let written = std::mem::replace(&mut self.written[value.block], true);
        ReadValue { value, slopes: SlopeUse::of_reader(self.wanted[value.block], written) }
    }

    fn read_vectors(&mut self, parts: [bool; 2]) -> SlopeUse {
        if parts == [false; 2] {
            return SlopeUse::Unread;
        }
        let mut is_written = false;
        for (written, _) in self.vectors_written.iter_mut().zip_eq(parts).filter(|(_, is_read)| *is_read) {
            is_written |= std::mem::replace(written, true);
        }
        SlopeUse::of_reader(self.wanted[VECTORS], is_written)
    }
}

/// Whether a block reads the first values of all vectors, and whether it reads the others.
fn vector_parts(block: &Block) -> [bool; 2] {
    match block {
        Block::Join(parts) => {
            let all = parts.iter().any(|part| matches!(part, Columns::All(value) if value.block == VECTORS));
            [all, all || parts.iter().any(|part| matches!(part, Columns::WithoutFirst(_)))]
        }
        Block::Interactions { .. } => [true, true],
        Block::FirstValues => [true, false],
        Block::FactorFields { .. } => [false, true],
        _ => [false, false],
    }
}

/// The values that a block reads besides the vectors.
fn read_values(block: &Block) -> Vec<Value> {
    block.read_values().into_iter().filter(|value| value.block != VECTORS).collect()
}

/// Whether a value of this width has rows that start at cache lines.
fn is_aligned(block: &Block) -> bool {
    matches!(block, Block::Join(_) | Block::Interactions { .. } | Block::Cross { .. } | Block::FactorFields { .. })
}

impl Step {
    /// `None` for networks with a block that only autograd computes.
    pub fn new(network: &Network, form: StepForm<'_>) -> StepResult<Option<Self>> {
        let Network { blocks, inputs, output, .. } = network;
        let (blocks, widths): (Vec<&Block>, Vec<usize>) =
            blocks.iter().map(|wired| (&wired.block, wired.width)).unzip();
        if blocks.iter().any(|block| block.autograd_key().is_some()) {
            return Ok(None);
        }
        let mut uses = SlopeUses::new(&blocks, inputs);
        let reads: Vec<(Vec<ReadValue>, SlopeUse)> = {
            let of_block = |block: &&Block| {
                let vectors = uses.read_vectors(vector_parts(block));
                (read_values(block).into_iter().map(|value| uses.read(value)).collect(), vectors)
            };
            let mut reads: Vec<_> = blocks.iter().rev().map(of_block).collect();
            reads.reverse();
            reads
        };
        let mut builder = StepBuilder::new(form, inputs);
        let (mut steps, mut values) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(blocks.len()));
        for (index, (block, (reads, vectors))) in blocks.iter().copied().zip_eq(reads).enumerate() {
            let is_dense = !is_aligned(block) || index == output.block;
            let matrix = |columns| {
                if is_dense { Matrix::dense(form.rows, columns) } else { Matrix::aligned(form.rows, columns) }
            };
            let unread = unread_columns(&blocks, inputs, index);
            let has_values = index != VECTORS;
            values.push(BlockValues {
                output: if has_values { matrix(widths[index]) } else { Matrix::default() },
                slopes: if has_values && uses.wanted[index] {
                    matrix(widths[index] - unread)
                } else {
                    Matrix::default()
                },
            });
            steps.push(builder.block_step(block, (reads, vectors), unread, widths[index])?);
        }
        let scratch = [AlignedValues::default(), AlignedValues::default()];
        Ok(Some(Self { values, blocks: steps, output: output.block, clears_vectors: uses.clears_vectors, scratch }))
    }
}

/// The first columns of a join whose slopes are of no use: numbers, where one MLP alone reads it.
fn unread_columns(blocks: &[&Block], inputs: &NetworkInputs, index: usize) -> usize {
    let Block::Join(parts) = blocks[index] else { return 0 };
    let reads_it = |block: &&&Block| read_values(block).iter().any(|value| value.block == index);
    let readers: Vec<&&Block> = blocks.iter().filter(reads_it).collect();
    let starts_with_numbers = matches!(parts.first(), Some(Columns::All(value)) if value.block == NUMBERS);
    match readers[..] {
        [Block::Mlp(_)] if starts_with_numbers => inputs.numbers,
        _ => 0,
    }
}

impl StepBuilder<'_> {
    fn block_step(
        &mut self,
        block: &Block,
        (reads, vectors): (Vec<ReadValue>, SlopeUse),
        unread: usize,
        width: usize,
    ) -> StepResult<Option<Box<dyn BlockStep>>> {
        let dims = &self.inputs.dims;
        let first = reads.first().copied();
        Ok(Some(match (block, first) {
            (Block::Numbers, _) => Box::new(NumbersStep),
            (Block::Vectors, _) => return Ok(None),
            (Block::Join(parts), _) => {
                let mut reads = reads.into_iter();
                let part = |part: &Columns| match part {
                    Columns::All(value) if value.block == VECTORS => Some(JoinedColumns::Vectors { slopes: vectors }),
                    Columns::All(_) => reads.next().map(JoinedColumns::Value),
                    Columns::WithoutFirst(_) => Some(JoinedColumns::WithoutFirst { slopes: vectors }),
                };
                Box::new(JoinStep { parts: parts.iter().filter_map(part).collect(), dims: dims.clone(), unread })
            }
            (Block::Sum(_), _) => Box::new(SumStep { reads }),
            (Block::FirstValues, _) => Box::new(FirstValuesStep { dims: dims.clone(), slopes: vectors }),
            (Block::FactorFields { dim, .. }, numbers) => {
                let layer = numbers.map(|_| self.next_layer());
                let (numbers, features) = (self.inputs.numbers, self.inputs.dims.len());
                Box::new(FactorFieldsStep { layer, numbers, features, dim: *dim, slopes: vectors })
            }
            (Block::Interactions { vectors: count, dim, .. }, dense) => {
                Box::new(InteractionsStep::new(dense, (*count, *dim), vectors))
            }
            (Block::Mlp(mlp), Some(input)) => {
                let inputs = input.value.columns();
                Box::new(MlpStep::new(mlp, (input, inputs), self)?)
            }
            (Block::Cross { layers, rank, .. }, Some(input)) => {
                Box::new(CrossStep::new(input, (*layers, *rank), width, self)?)
            }
            (Block::SecondOrder { factors, .. }, Some(fields)) => Box::new(SecondOrderStep::new(fields, *factors)),
            (Block::LinearTerm(_), Some(input)) => Box::new(LinearTermStep { input, layer: self.next_layer() }),
            (Block::Mixture { experts, .. }, _) => {
                let (experts, input) = reads.split_at(experts.len());
                Box::new(MixtureStep::new(input[0], experts.to_vec(), width, self)?)
            }
            (Block::Fusion { heads, .. }, Some(first)) => {
                Box::new(FusionStep::new([first, reads[1]], *heads, width, self)?)
            }
            (_, _) => return Ok(None),
        }))
    }
}
