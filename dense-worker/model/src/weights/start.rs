//! Which layers of a network read its inputs: they mean something else once a feature is added, removed or moved.

use std::collections::HashMap;

use safetensors::SafeTensors;
use zagros_network::ReadInputs;
use zagros_zip::ZipEq;

use crate::{DenseModel, ModelResult, TensorForm};

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
    pub fn keeps_meaning(&self, tensor: &str, same: SameInputs) -> bool {
        same.keep_meaning(tensor, self.read.as_ref())
    }

    /// Takes those weights of another network that mean the same here: of equal name and shape, and not of a layer that reads other
    /// inputs. Returns the names of the layers that keep their first weights.
    pub fn start_from(&mut self, bytes: &[u8], same: SameInputs) -> ModelResult<Vec<String>> {
        let read = self.read.as_ref();
        let (stored, forms) = (SafeTensors::deserialize(bytes)?, self.compute.tensor_forms()?);
        let fitting =
            |form: &TensorForm| form.find_values(&stored).ok().filter(|_| same.keep_meaning(&form.name, read));
        let saved: Vec<Option<&[u8]>> = forms.iter().map(fitting).collect();
        self.compute.take_tensors(&saved)?;
        self.restart_average();
        let layer = |name: &str| name.rsplit_once('.').map_or(name, |(layer, _)| layer).to_owned();
        let others = forms.iter().zip_eq(&saved).filter(|(_, saved)| saved.is_none());
        let mut layers: Vec<String> = others.map(|(form, _)| layer(&form.name)).collect();
        layers.dedup();
        Ok(layers)
    }
}
