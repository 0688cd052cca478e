//! Each operator against numbers worked out by hand.

use crate::{Element, ScalarType, Tensor, TensorDevice, no_grad, no_grad_guard};

fn matrix(rows: i64, values: &[f32]) -> Tensor {
    Tensor::from_slice(values).unwrap().reshape([rows, -1]).unwrap()
}

fn values<T: Element>(tensor: &Tensor) -> Vec<T> {
    tensor.to_vec().unwrap()
}

#[test]
fn arithmetic_is_that_of_each_value() {
    let (x, y) = (matrix(1, &[1.0, -2.0, 3.0]), matrix(1, &[4.0, 5.0, -6.0]));
    assert_eq!(values::<f32>(&x.add(&y).unwrap()), [5.0, 3.0, -3.0]);
    assert_eq!(values::<f32>(&x.sub(&y).unwrap()), [-3.0, -7.0, 9.0]);
    assert_eq!(values::<f32>(&x.mul(&y).unwrap()), [4.0, -10.0, -18.0]);
    assert_eq!(values::<f32>(&x.times(0.5).unwrap()), [0.5, -1.0, 1.5]);
    assert_eq!(values::<f32>(&x.relu().unwrap()), [1.0, 0.0, 3.0]);
    assert_eq!(values::<f32>(&x.square().unwrap()), [1.0, 4.0, 9.0]);
    assert_eq!(values::<f32>(&x.zeros_like().unwrap()), [0.0; 3]);
    assert!((x.sum().unwrap().value().unwrap() - 2.0).abs() < 1e-9);
}

#[test]
fn products_are_those_of_matrices() {
    let (x, w) = (matrix(2, &[1.0, 2.0, 3.0, 4.0]), matrix(2, &[5.0, 6.0, 7.0, 8.0]));
    assert_eq!(values::<f32>(&x.mm(&w).unwrap()), [19.0, 22.0, 43.0, 50.0]);
    assert_eq!(values::<f32>(&x.linear(&w, None).unwrap()), [17.0, 23.0, 39.0, 53.0]);
    let bias = Tensor::from_slice(&[1.0_f32, -1.0]).unwrap();
    assert_eq!(values::<f32>(&x.linear(&w, Some(&bias)).unwrap()), [18.0, 22.0, 40.0, 52.0]);
    let mut out = w.zeros_like().unwrap();
    let place = out.data_ptr();
    x.mm_out(&mut out, &w).unwrap();
    assert_eq!((values::<f32>(&out), out.data_ptr()), (vec![19.0, 22.0, 43.0, 50.0], place));
    out.addmm_(&x, &w).unwrap();
    assert_eq!(values::<f32>(&out), [38.0, 44.0, 86.0, 100.0]);
    let batch = |of: &Tensor| of.unsqueeze(0).unwrap();
    let product = batch(&x).bmm(&batch(&w).transpose(1, 2).unwrap()).unwrap();
    assert_eq!((product.size(), values::<f32>(&product)), (vec![1, 2, 2], vec![17.0, 23.0, 39.0, 53.0]));
}

#[test]
fn views_show_the_same_memory() {
    let all = matrix(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(values::<f32>(&all.narrow(1, 1, 2).unwrap()), [2.0, 3.0, 5.0, 6.0]);
    assert_eq!(values::<f32>(&all.select(1, 2).unwrap()), [3.0, 6.0]);
    assert_eq!(values::<f32>(&all.sum_of(1, false).unwrap()), [6.0, 15.0]);
    assert_eq!((all.sum_of(0, true).unwrap().size(), all.sum_of(0, false).unwrap().size()), (vec![1, 3], vec![3]));
    let index = Tensor::from_slice(&[2_i64, 0]).unwrap();
    assert_eq!(values::<f32>(&all.index_select(1, &index).unwrap()), [3.0, 1.0, 6.0, 4.0]);
    let flat = all.unsqueeze(1).unwrap().flatten(0, 2).unwrap();
    assert_eq!((flat.size(), all.unsqueeze(0).unwrap().squeeze(0).unwrap().size()), (vec![6], vec![2, 3]));
    assert_eq!(values::<f32>(&Tensor::cat(&[&all, &all], 0).unwrap()).len(), 12);
    let mut view = all.view([6]).unwrap().narrow(0, 4, 2).unwrap();
    view.zero_().unwrap();
    view.shallow_clone().add_(&Tensor::from_slice(&[7.0_f32, 8.0]).unwrap()).unwrap();
    assert_eq!(values::<f32>(&all), [1.0, 2.0, 3.0, 4.0, 7.0, 8.0]);
}

#[test]
fn values_are_converted_and_copied() {
    let exact = Tensor::from_slice(&[1.0_f32, 1.001, -3.5]).unwrap();
    let rounded = exact.to_kind(ScalarType::BFloat16).unwrap();
    assert_eq!((rounded.kind(), rounded.to_bytes().unwrap().len()), (ScalarType::BFloat16, 6));
    let mut back = exact.zeros_like().unwrap();
    back.copy_(&rounded).unwrap();
    assert_eq!(values::<f32>(&back), [1.0, 1.0, -3.5]);
    assert_eq!(values::<i64>(&exact.to_kind(ScalarType::Int64).unwrap()), [1, 1, -3]);
    assert_eq!(exact.to_device(TensorDevice::Cpu).unwrap().data_ptr(), exact.data_ptr());
}

#[test]
fn backward_gives_gradients_where_they_were_asked_for() {
    let mut weight = matrix(1, &[2.0, -1.0]);
    let x = matrix(1, &[3.0, 5.0]);
    weight.require_grad().unwrap();
    assert!(weight.requires_grad() && !x.requires_grad() && !weight.detach().unwrap().requires_grad());
    let loss = x.linear(&weight, None).unwrap().sum().unwrap();
    loss.backward().unwrap();
    assert_eq!(values::<f32>(&weight.grad().unwrap()), [3.0, 5.0]);
    assert!(!x.grad().unwrap().defined());
    // Given other memory, the handles that there are see it.
    let (held, other) = (weight.shallow_clone(), matrix(1, &[7.0, 8.0]));
    weight.set_data(&other).unwrap();
    assert_eq!((values::<f32>(&held), held.data_ptr()), (vec![7.0, 8.0], other.data_ptr()));
}

#[test]
fn nothing_is_recorded_while_the_guard_lives() {
    let mut weight = matrix(1, &[2.0, -1.0]);
    weight.require_grad().unwrap();
    let recorded = || weight.sum().unwrap().requires_grad();
    assert!(recorded() && !no_grad(recorded) && recorded());
    let outer = no_grad_guard();
    assert!(!no_grad(recorded) && !recorded(), "an inner guard gives back what was before it");
    drop(outer);
    assert!(recorded());
}

#[test]
fn cross_entropy_is_the_mean_in_nats() {
    let logits = Tensor::from_slice(&[0.0_f32, 0.0, 2.0]).unwrap();
    let labels = Tensor::from_slice(&[1.0_f32, 0.0, 1.0]).unwrap();
    let expected = (2.0 * 2.0_f64.ln() + (1.0 + (-2.0_f64).exp()).ln()) / 3.0;
    let found = logits.cross_entropy_with_logits(&labels).unwrap().value().unwrap();
    assert!((found - expected).abs() < 1e-6, "{found} {expected}");
}

#[test]
fn what_libtorch_refuses_it_says() {
    let refused = matrix(1, &[1.0, 2.0]).mm(&matrix(1, &[1.0, 2.0])).unwrap_err().to_string();
    assert!(refused.contains("mat1 and mat2 shapes cannot be multiplied (1x2 and 1x2)"), "{refused}");
    assert!(matrix(1, &[1.0]).backward().unwrap_err().to_string().contains("does not require grad"));
}
