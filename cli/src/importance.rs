//! The importance of features as a table.

use indicatif::HumanCount;
use owo_colors::OwoColorize;
use zagros_dense_worker::Importance;
use zagros_eval::importance::Spread;
use zagros_shell::out;

/// Prints it.
pub(crate) fn print(importance: &Importance) {
    table(importance).into_iter().for_each(|line| out!("{line}"));
}

fn table(importance: &Importance) -> Vec<String> {
    let Importance { repeats, block_rows, features } = importance;
    let times = if *repeats == 1 { "once".to_owned() } else { format!("{repeats} times") };
    let rows = HumanCount(*block_rows as u64);
    let title = format!("\nimportance: each feature's values exchanged {times} between the rows of blocks of {rows}");
    let head = line(["feature", "AUC falls by", "±", "logloss rises by", "±"].map(str::to_owned)).dimmed().to_string();
    let of = |spread: Option<Spread>| match spread {
        None => ["undefined".to_owned(), "-".to_owned()],
        Some(Spread { mean, deviation }) => {
            [format!("{mean:.5}"), deviation.map_or_else(|| "-".to_owned(), |deviation| format!("{deviation:.5}"))]
        }
    };
    let rows = features.iter().map(|feature| {
        let ([auc, auc_spread], [logloss, spread]) = (of(feature.auc_loss), of(feature.logloss_rise));
        line([feature.feature.clone(), auc, auc_spread, logloss, spread])
    });
    [title, head].into_iter().chain(rows).collect()
}

fn line([feature, auc, auc_spread, logloss, spread]: [String; 5]) -> String {
    format!("  {feature:<24}{auc:>14}{auc_spread:>10}{logloss:>18}{spread:>10}")
}

#[cfg(test)]
mod tests {
    use zagros_eval::importance::FeatureImportance;

    use super::*;

    #[test]
    fn a_feature_is_a_line() {
        let auc_loss = Some(Spread { mean: 0.125, deviation: Some(0.001) });
        let logloss_rise = Some(Spread { mean: -0.5, deviation: None });
        let features = vec![
            FeatureImportance { feature: "user".to_owned(), auc_loss, logloss_rise },
            FeatureImportance { feature: "tag".to_owned(), auc_loss: None, logloss_rise: None },
        ];
        let lines = table(&Importance { repeats: 5, block_rows: 65_536, features });
        assert!(lines[0].contains("5 times") && lines[0].contains("65,536"), "{lines:?}");
        assert_eq!(lines[2], line(["user", "0.12500", "0.00100", "-0.50000", "-"].map(str::to_owned)));
        assert!(lines[3].contains("tag") && lines[3].contains("undefined"), "{lines:?}");
    }
}
