//! The speed of a machine that was not calibrated: that of one on which `zagros calibrate` was run, with its name.

use crate::calibration::{
    Calibration, ColdRates, DenseRates, DiskRates, IdCosts, ParseRates, ProductRate, RowCost, StepCosts, ThreadSpeedup,
    WireCosts,
};

impl Default for Calibration {
    fn default() -> Self {
        let rate = |width, gflops| ProductRate { width, gflops };
        Self {
            source: "not calibrated: run `zagros calibrate`; these figures are of two cores of an AMD Zen 4 server, 2026-11-26"
                .to_owned(),
            processor: "AMD EPYC".to_owned(),
            cores: 2,
            memory_bytes_per_second: 9e9,
            dense: DenseRates {
                products: vec![rate(16.0, 17.5), rate(64.0, 45.0), rate(256.0, 74.0), rate(1024.0, 94.2)],
                value_ns: 2.78,
                weight_ns: 4.5,
                pair_ns: 2.67,
                in_training: 1.26,
                autograd: 1.0,
                bf16: 1.62,
                threads: vec![ThreadSpeedup { threads: 2.0, speedup: 1.9 }],
            },
            rows: vec![
                RowCost {
                    dim: 16.0,
                    lookup: 105.0,
                    push: 260.0,
                    client_lookup: 48.0,
                    client_push: 45.8,
                    server_lookup: 124.0,
                    server_push: 511.0,
                },
                RowCost {
                    dim: 64.0,
                    lookup: 226.0,
                    push: 665.0,
                    client_lookup: 194.0,
                    client_push: 100.0,
                    server_lookup: 340.0,
                    server_push: 1430.0,
                },
            ],
            ids: IdCosts { dedup: 6.03, move_id: 83.0, move_value: 1.83 },
            step: StepCosts { sample: 113.0, step: 2.60e6 },
            wire: WireCosts { bytes_per_second: 2.46e9, cpu_ns_per_byte: 0.345, round_trip_us: 407.0, client_step: 325000.0, server_step: 295000.0 },
            parse: ParseRates { criteo: 1.20e8, delimited: 1.05e8, json_lines: 1.99e7, parquet: 7.92e7 },
            disk: DiskRates { write_bytes_per_second: 5.94e8, read_bytes_per_second: 6.91e8, flush_ms: 0.309 },
            cold: ColdRates::default(),
        }
    }
}

impl Default for ColdRates {
    fn default() -> Self {
        Self { row_ns: 3300.0, reads_per_second: 57_000.0 }
    }
}
