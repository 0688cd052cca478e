//! What a network remembers besides its weights: the buffers of a module, such as the running statistics of a batch norm.
//!
//! A forward pass in training changes them, before anyone knows whether the step is made. So they are put back after the
//! pass, and become what it made of them once the step is made: between steps they belong to the weights.

use std::iter::zip;

use tch::{Device, Kind, Tensor};

use super::{ModelError, int};

#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// In the module itself.
    live: Vec<Tensor>,
    /// What the last pass made of them, until its step is made or left out.
    next: Option<Vec<Tensor>>,
}

impl Buffers {
    pub(super) fn of(live: Vec<Tensor>) -> Self {
        Self { live, next: None }
    }

    /// To be taken before a pass.
    pub(super) fn copy(&self) -> Result<Vec<Tensor>, ModelError> {
        self.live.iter().map(copy_of).collect()
    }

    /// After a pass, which succeeded or not.
    pub(super) fn put_back(&mut self, before: &[Tensor], succeeded: bool) -> Result<(), ModelError> {
        self.next = if succeeded { Some(self.copy()?) } else { None };
        put(&mut self.live, before)
    }

    /// The step of the last pass is made.
    pub(super) fn made(&mut self) -> Result<(), ModelError> {
        self.next.take().map_or(Ok(()), |next| put(&mut self.live, &next))
    }

    /// The step of the last pass is not made.
    pub(super) fn left_out(&mut self) {
        self.next = None;
    }

    /// How many values there are.
    pub(super) fn values(&self) -> usize {
        self.live.iter().map(Tensor::numel).sum()
    }

    /// By how much the last pass changed each value: zeros where there was none.
    pub(super) fn changes(&self) -> Result<Vec<f32>, ModelError> {
        let Some(next) = &self.next else { return Ok(vec![0.0; self.values()]) };
        let (before, after) = (doubles(&self.live)?, doubles(next)?);
        // What did not change may well be infinite, a mask for instance.
        let change = |(before, after)| if before == after { 0.0 } else { (after - before) as f32 };
        Ok(zip(before, after).map(change).collect())
    }

    /// Makes these the changes of the last pass, or of one that this worker made no pass for.
    pub(super) fn replace_changes(&mut self, changes: &[f32]) -> Result<(), ModelError> {
        let (mut rest, mut next) = (changes, Vec::with_capacity(self.live.len()));
        for live in &self.live {
            let (mine, others) = rest.split_at(live.numel().min(rest.len()));
            next.push(changed(live, mine)?);
            rest = others;
        }
        self.next = Some(next);
        Ok(())
    }
}

fn copy_of(tensor: &Tensor) -> Result<Tensor, ModelError> {
    let mut copy = tensor.f_zeros_like()?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

fn put(live: &mut [Tensor], values: &[Tensor]) -> Result<(), ModelError> {
    zip(live, values).try_for_each(|(live, values)| Ok(live.f_copy_(values)?))
}

/// A count stays a whole number: each of several workers adds its share of one.
fn changed(live: &Tensor, changes: &[f32]) -> Result<Tensor, ModelError> {
    let (kind, shape) = (live.f_kind()?, live.size());
    let before = doubles(std::slice::from_ref(live))?;
    let whole = !matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16);
    let value = |(before, change): (f64, &f32)| {
        let after = before + f64::from(*change);
        if whole { after.round() } else { after }
    };
    let after: Vec<f64> = zip(before, changes).map(value).collect();
    Ok(Tensor::f_from_slice(&after)?.f_reshape(shape)?.f_to_device(live.device())?.f_to_kind(kind)?)
}

/// Of all, one after another. Every kind of number but whole ones beyond 2⁵³ is one exactly.
fn doubles(tensors: &[Tensor]) -> Result<Vec<f64>, ModelError> {
    let mut all = Vec::new();
    for tensor in tensors {
        let start = all.len();
        all.resize(start + tensor.numel(), 0.0);
        let tensor = tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?.f_contiguous()?;
        tensor.f_reshape([int(all.len() - start)])?.f_copy_data(&mut all[start..], tensor.numel())?;
    }
    Ok(all)
}
