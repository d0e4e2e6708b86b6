//! Products that the library computes for the engine: each element is the sum that it should be.

use super::common::child;
use super::*;

const VARIABLE: &str = "SHARDAX_CPU_PRODUCTS";

/// Of whole numbers, whose sums are exact in any order.
fn whole(shape: &[usize], seed: i64) -> Array {
    random::randint(&random::key(seed), shape, -9, 9).astype(DType::F64)
}

fn text_and_numbers(spec: &str, a: &Array, b: &Array) -> (String, Vec<f64>) {
    let spec = spec.to_owned();
    let f = jit(move |a: Array, b: Array| einsum(&spec, &[&a, &b]));
    (f.lower((a, b)).unwrap().as_text().to_string(), floats(&f.call((a, b)).unwrap()))
}

/// Run in a process of its own, where the library computes them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_the_library() {
    common::setup();
    let cases: [(&str, &[usize], &[usize]); 9] = [
        ("ij,jk->ik", &[130, 100], &[100, 90]),
        ("ji,jk->ik", &[100, 130], &[100, 90]),
        ("ij,kj->ik", &[130, 100], &[90, 100]),
        ("ji,kj->ki", &[100, 130], &[90, 100]),
        ("bij,bjk->bik", &[3, 60, 80], &[3, 80, 90]),
        ("ibj,kjb->bik", &[60, 3, 80], &[90, 80, 3]),
        ("abij,jabk->iabk", &[2, 3, 70, 30], &[30, 2, 3, 90]),
        ("ijk,jkl->il", &[128, 10, 10], &[10, 10, 90]),
        ("ijk,kjl->il", &[128, 10, 10], &[10, 10, 90]),
    ];
    for (spec, a, b) in cases {
        let (a, b) = (whole(a, 1), whole(b, 2));
        let (text, found) = text_and_numbers(spec, &a, &b);
        assert!(text.contains("shardax_dot"), "{spec}:\n{text}");
        let [a, b] = [a, b].map(|x| x.astype(DType::F32));
        assert_eq!(found, text_and_numbers(spec, &a, &b).1, "{spec}");
    }
    // Of f32, those whose right operand would be read against its order.
    let (a, b) = (whole(&[64, 300], 1), whole(&[400, 300], 2));
    let [small_a, small_b] = [&a, &b].map(|x| x.astype(DType::F32));
    let (text, found) = text_and_numbers("ij,kj->ik", &small_a, &small_b);
    assert!(text.contains("shardax_dot"), "{text}");
    assert_eq!(found, text_and_numbers("ij,kj->ik", &a, &b).1);
    assert!(!text_and_numbers("ij,jk->ik", &small_a, &small_b.t()).0.contains("shardax_dot"));
    // Small ones stay with the engine, and so do those that other programs are to run.
    assert!(!text_and_numbers("ij,jk->ik", &whole(&[9, 9], 1), &whole(&[9, 9], 2)).0.contains("shardax_dot"));
    let square = whole(&[128, 128], 3);
    let exported = shardax::export::export(|x: Array| x.matmul(&x), &square).unwrap();
    assert!(!exported.mlir_module("cpu").unwrap().contains("shardax_dot"));
    // What is not finite, and the same numbers each time.
    let odd = square.at((3, 5)).set(f64::NAN).at((7, 0)).set(f64::INFINITY);
    let found = floats(&jit(|x: Array, y: Array| x.matmul(y)).call((&odd, &square.abs() + 1.0)).unwrap());
    assert!((0..128).all(|i| found[3 * 128 + i].is_nan() && found[7 * 128 + i] == f64::INFINITY));
    assert_eq!(found.iter().filter(|x| !x.is_finite()).count(), 256);
    let noise = random::normal(random::key(4), [300, 300]).astype(DType::F64) / 3.0;
    let again = || floats(&jit(|x: Array| x.matmul(&x)).call(&noise).unwrap());
    assert_eq!(again(), again());
    // Of a compiled program that is loaded.
    let lowered = jit(|x: Array| x.matmul(&x)).lower(&square).unwrap();
    let bytes = lowered.compile().unwrap().serialize().unwrap();
    let loaded = Compiled::load(&lowered, &bytes).unwrap();
    assert_eq!(floats(&loaded.call(&square).unwrap()), floats(&square.matmul(&square)));
    // Gradients, batches and devices.
    let loss = |x: Array, y: Array| x.matmul(&y).sum(..);
    let dx = floats(&jit(grad(loss)).call((&square, &square)).unwrap());
    let rows = floats(&square.sum(1));
    assert!(dx.iter().enumerate().all(|(i, d)| *d == rows[i % 128]));
    let stacked = whole(&[8, 128, 128], 5);
    let each = floats(&pmap(|x: Array| x.matmul(&x)).call(&stacked).unwrap());
    assert_eq!(each, text_and_numbers("bij,bjk->bik", &stacked, &stacked).1);
    let mesh = make_mesh([("x", 8)]).unwrap();
    let split = device_put(&whole(&[256, 128], 6), &NamedSharding::new(&mesh, P!["x"])).unwrap();
    let sharded = jit(|x: Array, y: Array| x.matmul(y)).call((&split, &square)).unwrap();
    assert_eq!(floats(&sharded), text_and_numbers("ij,jk->ik", &whole(&[256, 128], 6), &square).1);
}

#[test]
fn the_library_computes_what_the_engine_does() {
    let mut command = child::command("products::in_a_process_with_the_library");
    child::run(command.env(VARIABLE, "library"));
}
