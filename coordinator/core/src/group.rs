//! Which processes make up the dense workers that train together.

/// The group of a run. A worker that is replaced makes another one.
#[derive(Debug, Default)]
pub(crate) struct Group {
    generation: u64,
    /// By rank.
    epochs: Vec<u32>,
}

impl Group {
    /// The generation of the group of workers with these epochs, by rank: a new one unless they are those of the last.
    pub(crate) fn generation_of(&mut self, epochs: Vec<u32>) -> u64 {
        if self.generation == 0 || self.epochs != epochs {
            self.generation += 1;
            self.epochs = epochs;
        }
        self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_one_set_of_processes() {
        let mut group = Group::default();
        assert_eq!([group.generation_of(vec![1, 1]), group.generation_of(vec![1, 1])], [1, 1]);
        assert_eq!([group.generation_of(vec![1, 2]), group.generation_of(vec![1, 2])], [2, 2]);
    }
}
