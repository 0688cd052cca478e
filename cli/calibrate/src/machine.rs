//! The memory of this machine.

use std::thread;
use std::time::Instant;

/// Far more than any cache holds.
const BYTES: usize = 64 << 20;
const COPIES: usize = 4;
const TRIES: usize = 3;

/// Bytes that `threads` copy each second together: the fastest of several tries.
pub(crate) fn copy_rate(threads: usize) -> f64 {
    let mut buffers: Vec<_> = (0..threads).map(|_| (vec![1_u8; BYTES], vec![2_u8; BYTES])).collect();
    let mut best: f64 = 0.0;
    for _ in 0..TRIES {
        let started = Instant::now();
        thread::scope(|scope| {
            for (from, to) in &mut buffers {
                scope.spawn(|| {
                    for _ in 0..COPIES {
                        to.copy_from_slice(std::hint::black_box(from));
                        std::hint::black_box(&mut *to);
                    }
                });
            }
        });
        best = best.max((threads * COPIES * BYTES) as f64 / started.elapsed().as_secs_f64());
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_rate() {
        assert!(copy_rate(1) > 1e6);
    }
}
