//! The speed of a machine that was not calibrated: that of one on which `zagros calibrate` was run, with its name.

use crate::calibration::{
    Calibration, DenseRates, DiskRates, IdCosts, ParseRates, ProductRate, RowCost, StepCosts, ThreadSpeedup, WireCosts,
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
                products: vec![rate(16.0, 18.9), rate(64.0, 51.6), rate(256.0, 75.1), rate(1024.0, 96.2)],
                value_ns: 2.54,
                weight_ns: 4.06,
                pair_ns: 1.26,
                autograd: 1.0,
                bf16: 1.63,
                threads: vec![ThreadSpeedup { threads: 2.0, speedup: 1.9 }],
            },
            rows: vec![
                RowCost {
                    dim: 16.0,
                    lookup: 104.0,
                    push: 275.0,
                    client_lookup: 44.5,
                    client_push: 49.2,
                    server_lookup: 111.0,
                    server_push: 465.0,
                },
                RowCost {
                    dim: 64.0,
                    lookup: 211.0,
                    push: 711.0,
                    client_lookup: 163.0,
                    client_push: 102.0,
                    server_lookup: 237.0,
                    server_push: 1380.0,
                },
            ],
            ids: IdCosts { dedup: 5.86, move_id: 15.9, move_value: 3.42 },
            step: StepCosts { sample: 1660.0, step: 2.73e6 },
            wire: WireCosts { bytes_per_second: 1.63e9, cpu_ns_per_byte: 0.301, round_trip_us: 372.0, client_step: 351000.0, server_step: 453000.0 },
            parse: ParseRates { criteo: 1.45e8, delimited: 9.75e7, json_lines: 2.06e7, parquet: 8.70e7 },
            disk: DiskRates { write_bytes_per_second: 1.08e9, read_bytes_per_second: 4.86e8, flush_ms: 0.4 },
        }
    }
}
