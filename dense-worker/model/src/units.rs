//! The processor's units for numbers of 16 bits.

use zagros_job::{Device, Job, Precision};

/// Whether this processor multiplies such numbers faster than f32.
#[must_use]
pub fn has_units(precision: Precision) -> bool {
    #[cfg(target_arch = "x86_64")]
    let (bf16, f16) =
        (std::arch::is_x86_feature_detected!("avx512bf16"), std::arch::is_x86_feature_detected!("avx512fp16"));
    #[cfg(target_arch = "aarch64")]
    let (bf16, f16) =
        (std::arch::is_aarch64_feature_detected!("bf16"), std::arch::is_aarch64_feature_detected!("fp16"));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let (bf16, f16) = (false, false);
    match precision {
        Precision::Bf16 => bf16,
        Precision::F16 => f16,
        Precision::F32 => true,
    }
}

/// The job's precision, if this processor multiplies it no faster than f32.
#[must_use]
pub fn without_units(job: &Job) -> Option<&'static str> {
    match job.train.precision {
        _ if job.train.device == Device::Cuda => None,
        Precision::Bf16 if !has_units(Precision::Bf16) => Some("bf16"),
        Precision::F16 if !has_units(Precision::F16) => Some("f16"),
        Precision::F32 | Precision::Bf16 | Precision::F16 => None,
    }
}
