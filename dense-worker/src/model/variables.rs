//! What a network learns and remembers, by name.

use zagros_tensor::{Tensor, TensorDevice, TorchError, no_grad};

/// The tensors of a network. Whoever adds one holds a handle of it, and so does this list.
#[derive(Debug)]
pub(super) struct Variables {
    device: TensorDevice,
    /// In the order in which they were added.
    all: Vec<Variable>,
}

#[derive(Debug)]
struct Variable {
    name: String,
    tensor: Tensor,
    learned: bool,
}

impl Variables {
    /// None yet; copies will be on this device.
    pub(super) fn new(device: TensorDevice) -> Self {
        Self { device, all: Vec::new() }
    }

    pub(super) fn device(&self) -> TensorDevice {
        self.device
    }

    /// Adds the tensor itself. Where another has its name, it gets one that ends with how many there are.
    pub(super) fn add(&mut self, name: &str, mut tensor: Tensor, learned: bool) -> Result<(), TorchError> {
        if learned && !tensor.requires_grad() {
            tensor.require_grad()?;
        }
        let is_taken = self.all.iter().any(|variable| variable.name == name);
        let name = if is_taken { format!("{name}__{}", self.all.len()) } else { name.to_owned() };
        self.all.push(Variable { name, tensor, learned });
        Ok(())
    }

    /// Adds a copy of these values, to be learned, and gives it.
    pub(super) fn add_copy(&mut self, name: &str, values: &Tensor) -> Result<Tensor, TorchError> {
        let mut copy = Tensor::zeros(values.size(), (values.kind(), self.device))?;
        no_grad(|| copy.copy_(values))?;
        self.add(name, copy.shallow_clone(), true)?;
        Ok(copy)
    }

    /// What is learned, in the order in which it was added.
    pub(super) fn learned(&self) -> Vec<Tensor> {
        self.all.iter().filter(|variable| variable.learned).map(|variable| variable.tensor.shallow_clone()).collect()
    }

    /// All of them, with their names.
    pub(super) fn named(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.all.iter().map(|variable| (variable.name.as_str(), &variable.tensor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        let mut variables = Variables::new(TensorDevice::Cpu);
        let one = Tensor::from_slice(&[1.0_f32]).unwrap();
        let copy = variables.add_copy("a_b", &one).unwrap();
        variables.add("a_b", one.shallow_clone(), false).unwrap();
        let names: Vec<&str> = variables.named().map(|(name, _)| name).collect();
        assert_eq!((names, variables.learned().len()), (vec!["a_b", "a_b__1"], 1));
        assert!(copy.requires_grad() && copy.data_ptr() != one.data_ptr() && !one.requires_grad());
    }
}
