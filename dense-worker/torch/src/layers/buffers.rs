//! The state of a network besides its weights: the buffers of a module, such as the running statistics of a batch norm.
//!
//! Forward changes the buffers before it is known whether its step is made. Forward therefore works on copies. Once the
//! step is made, the buffers take the values of the copies. Between steps the buffers belong to the weights.

use tch::kind::Element;
use tch::{Kind, Tensor};
use zagros_model::{ModelError, NetworkBuffers};
use zagros_zip::ZipEq;

use crate::error::{TorchError, TorchResult};
use crate::to_vec;

#[derive(Debug, Default)]
pub(crate) struct ModuleBuffers {
    names: Vec<String>,
    live: Vec<Tensor>,
    /// The values after the last forward, until its step is made or skipped.
    next: Option<Vec<Tensor>>,
}

impl ModuleBuffers {
    pub(crate) fn new(named: Vec<(String, Tensor)>) -> Self {
        let (names, live) = named.into_iter().unzip();
        Self { names, live, next: None }
    }

    fn named(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip_eq(&self.live)
    }

    pub(crate) fn named_copies(&self) -> impl Iterator<Item = TorchResult<(&str, Tensor)>> {
        self.named().map(|(name, live)| Ok((name, copy_of(live)?)))
    }

    pub(crate) fn all_copies(&self) -> TorchResult<Vec<Tensor>> {
        self.named_copies().map(|copy| Ok(copy?.1)).collect()
    }

    /// Keeps the values that forward left in training. They count once the step is made.
    ///
    /// # Errors
    /// When a buffer has another shape than before.
    pub(crate) fn keep_left(&mut self, left: Vec<Tensor>) -> TorchResult {
        for ((name, live), left) in self.named().zip_eq(&left) {
            if live.size() != left.size() {
                let (was, is) = (live.size(), left.size());
                let reason = format!("its buffer {name} was of shape {was:?} and became {is:?}");
                return Err(TorchError::script_failed(reason));
            }
        }
        self.next = Some(left);
        Ok(())
    }
}

impl NetworkBuffers for ModuleBuffers {
    fn value_count(&self) -> usize {
        self.live.iter().map(Tensor::numel).sum()
    }

    fn commit_step(&mut self) -> Result<(), ModelError> {
        let Some(next) = self.next.take() else { return Ok(()) };
        let mut pairs = self.live.iter_mut().zip_eq(next);
        Ok(pairs.try_for_each(|(live, next)| live.f_copy_(&next)).map_err(TorchError::from)?)
    }

    fn drop_step(&mut self) {
        self.next = None;
    }

    fn has_diverged(&self) -> Result<bool, ModelError> {
        let Some(next) = &self.next else { return Ok(false) };
        for (live, next) in self.live.iter().zip_eq(next) {
            let (before, after) = (values::<f64>(live)?, values::<f64>(next)?);
            if before.into_iter().zip_eq(after).any(|(before, after)| before.is_finite() && !after.is_finite()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn changes(&self) -> Result<Vec<f32>, ModelError> {
        let Some(next) = &self.next else { return Ok(vec![0.0; self.value_count()]) };
        let mut all = Vec::with_capacity(self.value_count());
        for ((name, live), next) in self.named().zip_eq(next) {
            let changes = changes(live, next)?;
            if let Some(change) = changes.iter().find(|change| !change.is_finite()) {
                let reason = format!("its buffer {name} changes by {change}, which cannot be summed over workers");
                return Err(ModelError::ScriptFailed { reason });
            }
            all.extend(changes);
        }
        Ok(all)
    }

    fn replace_changes(&mut self, changes: &[f32]) -> Result<(), ModelError> {
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

/// Whether tensors of this kind are kept, and added to, without loss.
pub(crate) fn is_number(kind: Kind) -> bool {
    is_real(kind) || matches!(kind, Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int | Kind::Int64 | Kind::Bool)
}

fn is_real(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16)
}

fn copy_of(tensor: &Tensor) -> TorchResult<Tensor> {
    let mut copy = tensor.f_zeros_like()?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

/// A value that did not change may be infinite, as in a mask.
fn changes(before: &Tensor, after: &Tensor) -> TorchResult<Vec<f32>> {
    if !is_real(before.f_kind()?) {
        let change = |(before, after): (i64, i64)| after.wrapping_sub(before) as f32;
        return Ok(values(before)?.into_iter().zip_eq(values(after)?).map(change).collect());
    }
    let change = |(before, after): (f64, f64)| {
        let same = before == after || (before.is_nan() && after.is_nan());
        if same { 0.0 } else { (after - before) as f32 }
    };
    Ok(values(before)?.into_iter().zip_eq(values(after)?).map(change).collect())
}

/// The value after the changes. A count stays a whole number, although each of several workers adds its share.
fn changed(before: &Tensor, changes: &[f32]) -> TorchResult<Tensor> {
    let kind = before.f_kind()?;
    let tensor = if is_real(kind) {
        let add = |(value, change): (f64, &f32)| if *change == 0.0 { value } else { value + f64::from(*change) };
        Tensor::f_from_slice(&values(before)?.into_iter().zip_eq(changes).map(add).collect::<Vec<f64>>())?
    } else {
        let add = |(value, change): (i64, &f32)| value.wrapping_add(change.round() as i64);
        Tensor::f_from_slice(&values(before)?.into_iter().zip_eq(changes).map(add).collect::<Vec<i64>>())?
    };
    Ok(tensor.f_reshape(before.size())?.f_to_device(before.device())?.f_to_kind(kind)?)
}

fn values<T: Element + Clone + Default>(tensor: &Tensor) -> TorchResult<Vec<T>> {
    to_vec(&tensor.f_to_kind(T::KIND)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zagros_fakes::jobs::assert_refused;

    const INFINITY: f32 = f32::INFINITY;

    fn buffers(values: &[f32]) -> ModuleBuffers {
        ModuleBuffers::new(vec![("norm.highest".to_owned(), Tensor::from_slice(values))])
    }

    fn kept_buffers(before: &[f32], after: &[f32]) -> ModuleBuffers {
        let mut buffers = buffers(before);
        buffers.keep_left(vec![Tensor::from_slice(after)]).unwrap();
        buffers
    }

    #[test]
    fn a_value_that_stops_being_a_number_is_found_and_one_that_never_was_is_not() {
        assert!(kept_buffers(&[1.0, 2.0], &[1.0, f32::NAN]).has_diverged().unwrap());
        let masks = [0.0, -INFINITY, f32::NAN];
        assert!(!kept_buffers(&masks, &masks).has_diverged().unwrap());
        assert_eq!(kept_buffers(&masks, &masks).changes().unwrap(), [0.0; 3]);
        // The highest value so far; there was none before.
        assert!(!kept_buffers(&[-INFINITY], &[3.0]).has_diverged().unwrap());
    }

    #[test]
    fn a_buffer_with_an_infinite_change_or_another_shape_is_named() {
        let refused = kept_buffers(&[-INFINITY], &[3.0]).changes();
        assert_refused(refused, &["norm.highest changes by inf, which cannot be summed"]);
        let refused = buffers(&[1.0]).keep_left(vec![Tensor::from_slice(&[1.0_f32, 2.0])]);
        assert_refused(refused, &["norm.highest was of shape [1] and became [2]"]);
    }

    #[test]
    fn shares_of_a_count_add_up_to_a_whole_number() {
        let mut buffers = ModuleBuffers::new(vec![("count".to_owned(), Tensor::from_slice(&[7_i64, i64::MAX]))]);
        buffers.replace_changes(&[0.666_666_7 + 0.333_333_3, 0.0]).unwrap();
        buffers.commit_step().unwrap();
        assert_eq!(Vec::<i64>::try_from(&buffers.live[0]).unwrap(), [8, i64::MAX]);
    }

    #[test]
    fn complex_numbers_are_not_kept() {
        assert!(is_number(Kind::Bool) && is_number(Kind::Half) && !is_number(Kind::ComplexFloat));
    }
}
