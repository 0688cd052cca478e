//! Which layers of a network read its inputs: they mean something else once a feature is added, removed or moved.

use std::collections::HashMap;

use zagros_network::ReadInputs;

use crate::{DenseModel, ModelResult, StepCompute};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SameInputs {
    /// The numeric columns and their order.
    pub numeric: bool,
    /// The categorical columns, their order and dims.
    pub categorical: bool,
}

impl SameInputs {
    /// Whether a tensor means the same if no more is equal. `read` says what each tensor of a network reads.
    fn keep_meaning(self, tensor: &str, read: Option<&HashMap<String, ReadInputs>>) -> bool {
        // Of a user's module each may read all.
        let all = ReadInputs { numbers: true, vectors: true };
        let read = read.map_or(all, |read| read.get(tensor).copied().unwrap_or_default());
        (self.numeric || !read.numbers) && (self.categorical || !read.vectors)
    }
}

impl DenseModel {
    /// Whether a tensor means the same if no more than `same` is equal.
    #[must_use]
    pub fn keeps_meaning(&self, tensor: &str, same: SameInputs) -> bool {
        same.keep_meaning(tensor, self.read.as_ref())
    }

    /// Takes those weights of another network that mean the same here: of equal name and shape, and not of a layer that reads other
    /// inputs. Returns the names of the layers that keep their first weights.
    ///
    /// # Errors
    /// When the bytes are damaged, or libtorch fails.
    pub fn start_from(&mut self, bytes: &[u8], same: SameInputs) -> ModelResult<Vec<String>> {
        let read = self.read.as_ref();
        let wanted = |name: &str| same.keep_meaning(name, read);
        let others = match &mut self.compute {
            StepCompute::Threads(_, held) => held.decode_fitting(bytes, wanted)?,
            StepCompute::Autograd(network) => network.decode_fitting(bytes, &wanted)?,
        };
        self.restart_average();
        let layer = |name: &String| name.rsplit_once('.').map_or(name.as_str(), |(layer, _)| layer).to_owned();
        let mut layers: Vec<String> = others.iter().map(layer).collect();
        layers.dedup();
        Ok(layers)
    }
}
