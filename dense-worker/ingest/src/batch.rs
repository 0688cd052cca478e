//! What a training step eats: columns of one batch.

/// Samples in columns. Feature order is the job's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Samples.
    pub size: usize,
    /// 0 or 1 each, `[size]`.
    pub labels: Vec<f32>,
    /// Transformed values, row-major `[size, numeric features]`.
    pub numeric: Vec<f32>,
    /// One per categorical feature.
    pub categorical: Vec<Ids>,
    /// Splits whose last sample is in this batch: complete once its gradients are acknowledged.
    pub completes: Vec<u64>,
    /// Bytes of input that this batch consumed, for progress.
    pub bytes: u64,
}

/// The ids of one categorical feature in a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// Hashed values, sample after sample.
    pub ids: Vec<u64>,
    /// `None`: exactly one id a sample. Otherwise sample `i` has `ids[offsets[i]..offsets[i + 1]]`, `[size + 1]`.
    pub offsets: Option<Vec<u32>>,
}
