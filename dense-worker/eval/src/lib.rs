//! Measures of a click model: AUC, logloss, calibration. Pure.
