//! Training files in an order that training must not keep.

use super::*;

/// All rows with one label, then all with the other.
fn sorted_rows(count: u64) -> String {
    let text = rows(count);
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let (positive, negative): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with('1'));
    [vec![header], negative, positive].concat().join("\n") + "\n"
}

async fn auc(sets: &[&str]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let sets = [&["train.batch_size=200", "train.epochs=1", "data.test_fraction=0.1"], sets].concat();
    let (summary, _, _) = train(job_over(sorted_rows(20_000), folder.path(), &sets)).await;
    summary.unwrap().evaluation.unwrap().auc.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_sorted_by_label_trains_like_a_shuffled_one() {
    let (shuffled, windows, as_in_file) =
        (auc(&[]).await, auc(&["data.shuffle_rows=2000"]).await, auc(&["data.shuffle_rows=0"]).await);
    eprintln!(
        "test AUC: {shuffled:.4} by default, {windows:.4} with a window of a tenth, {as_in_file:.4} in file order"
    );
    assert!(shuffled > 0.9 && windows > shuffled - 0.05, "AUC {shuffled}, in windows of a tenth of the file {windows}");
    assert!(as_in_file < shuffled - 0.1, "the file order is kept no more: AUC {as_in_file}");
}
