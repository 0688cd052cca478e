//! Memory for the weights or the gradients of a layer, used again for others: a step allocates nothing that is as large as a layer.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zagros_network::LINE;

/// Their memory goes back where it came from.
#[derive(Debug)]
pub struct LayerValues {
    /// Perhaps longer than the layer.
    all: Vec<f32>,
    start: usize,
    length: usize,
    spare: SpareMemory,
}

/// No layer uses this memory at the moment.
#[derive(Clone, Debug, Default)]
pub(super) struct SpareMemory(Arc<Mutex<Vec<Vec<f32>>>>);

/// What is kept. A step uses two layers' weights and two layers' gradients at once.
const KEPT: usize = 4;

impl SpareMemory {
    /// Memory for the values `first .. first + length` of all weights, which holds anything. They lie in their cache lines as they
    /// would among all weights: a library may sum a product in another order where its factors lie otherwise.
    pub(crate) fn take(&self, first: usize, length: usize) -> LayerValues {
        let mut spare = self.lock();
        let needed = length + 2 * LINE;
        let fits = spare.iter().enumerate().filter(|(_, memory)| memory.len() >= needed);
        let best = fits.min_by_key(|(_, memory)| memory.len()).map(|(place, _)| place);
        let all = match best {
            Some(place) => spare.swap_remove(place),
            None => {
                // Memory that is too short for this layer is not kept beside memory that is long enough for all.
                spare.clear();
                drop(spare);
                vec![0.0; needed]
            }
        };
        let start = all.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE) + first % LINE;
        LayerValues { all, start, length, spare: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<f32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LayerValues {
    /// Lends the memory to a call on parts of the values. The call gets the bounds of the parts in the memory.
    ///
    /// # Errors
    /// Those of the call, which keeps the memory then.
    pub fn lend_to<E>(
        mut self,
        bounds: &[usize],
        call: impl FnOnce(Vec<f32>, &[usize]) -> Result<Vec<f32>, E>,
    ) -> Result<Self, E> {
        let places: Vec<usize> = bounds.iter().map(|bound| self.start + bound).collect();
        self.all = call(std::mem::take(&mut self.all), &places)?;
        Ok(self)
    }
}

impl Deref for LayerValues {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.all[self.start..][..self.length]
    }
}

impl DerefMut for LayerValues {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.all[self.start..][..self.length]
    }
}

impl Drop for LayerValues {
    fn drop(&mut self) {
        let mut spare = self.spare.lock();
        if spare.len() < KEPT && !self.all.is_empty() {
            spare.push(std::mem::take(&mut self.all));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_by_layers_that_fit() {
        let spare = SpareMemory::default();
        let mut first = spare.take(5, 10);
        first.fill(1.5);
        let place = first.as_ptr();
        // Five values after the start of a line of 64 bytes.
        assert_eq!(place.addr() % 64, 20);
        assert_eq!(first.len(), 10);
        drop(first);
        let second = spare.take(5, 7);
        assert_eq!((second.as_ptr(), second.len()), (place, 7));
        let bounds = |values: Vec<f32>, bounds: &[usize]| {
            assert_eq!((values[bounds[0]..].as_ptr(), bounds[1] - bounds[0]), (place, 3));
            Ok::<_, ()>(values)
        };
        let second = second.lend_to(&[0, 3], bounds).unwrap();
        assert_eq!(second.as_ptr(), place);
        second.lend_to(&[0], |_, _| Err(())).unwrap_err();
        assert!(spare.lock().is_empty(), "memory that a call has kept is gone");
        let second = spare.take(5, 10);
        // A longer layer needs more, and the shorter memory is not kept beside it.
        drop(second);
        drop(spare.take(0, 11));
        assert_eq!(spare.lock().len(), 1);
    }
}
