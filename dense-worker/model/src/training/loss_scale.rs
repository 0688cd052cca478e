//! The factor of the loss of a step whose products are in f16, which would round small gradients to zero.

const FIRST: f32 = 65_536.0;
const LEAST: f32 = 1.0;
const MOST: f32 = 16_777_216.0;
/// After so many steps in a row without overflow, the factor doubles.
const HELD: u32 = 2000;

/// The factor of the loss before backward (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). It adapts to the largest
/// one without overflow. It is a power of two, so dividing gradients by it rounds nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossScale {
    pub(crate) value: f32,
    /// Steps since it last changed.
    held: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { value: FIRST, held: 0 }
    }
}

impl LossScale {
    pub(crate) fn note_finite(&mut self) {
        self.held += 1;
        if self.held == HELD {
            *self = Self { value: (self.value * 2.0).min(MOST), held: 0 };
        }
    }

    /// Notes that they were not. Returns whether the scale may be the cause. The scale is smaller from now on.
    pub(crate) fn note_overflow(&mut self) -> bool {
        let falls = self.value > LEAST;
        *self = Self { value: (self.value / 2.0).max(LEAST), held: 0 };
        falls
    }

    /// Both numbers, for [`Self::read`].
    pub(crate) fn write(self) -> String {
        format!("{} {}", self.value, self.held)
    }

    /// `None` for other text.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (value, held) = text.split_once(' ')?;
        let (value, held) = (value.parse::<f32>().ok()?, held.parse().ok()?);
        (LEAST..=MOST).contains(&value).then_some(Self { value, held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_falls_with_each_overflow_and_rises_after_many_steps_without() {
        let mut scale = LossScale::default();
        assert!(scale.note_overflow() && scale.note_overflow());
        assert_eq!(scale.value, FIRST / 4.0);
        (0..HELD - 1).for_each(|_| scale.note_finite());
        assert_eq!(LossScale::read(&scale.write()), Some(scale));
        assert_eq!(scale.value, FIRST / 4.0);
        scale.note_finite();
        assert_eq!(scale.value, FIRST / 2.0);
    }

    #[test]
    fn the_scale_keeps_its_bounds_and_says_when_it_cannot_be_the_cause() {
        let mut scale = LossScale::default();
        assert_eq!((0..40).filter(|_| scale.note_overflow()).count(), 16);
        assert_eq!(scale.value, LEAST);
        (0..40 * HELD).for_each(|_| scale.note_finite());
        assert_eq!(scale.value, MOST);
        assert_eq!(["0 1", "2", "NaN 1"].map(LossScale::read), [None; 3]);
    }
}
