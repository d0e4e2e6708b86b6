//! Sums of so many elements that a chain of float32 additions loses digits, compared with float64.

use shardax::prelude::*;

use super::common::quick::{one_of, setup};
use super::floats;

/// The error that a sum may have, relative to the sum of the magnitudes.
const BOUND: f64 = 1e-6;

const ELEMENTS: usize = 1 << 24;

type Producer = fn(&Array) -> Array;

const PRODUCERS: [(&str, Producer); 5] = [
    ("x", |x| x.clone()),
    ("square", |x| x.square()),
    ("exp", |x| x.exp()),
    ("where", |x| where_(x.greater(0.25), x, 0)),
    ("cast", |x| x.astype(DType::F64).astype(DType::F32)),
];

/// The producers of case `i`: the first `count` in a complete run; otherwise one of them, in turn, because each takes a second.
fn producers(i: usize, count: usize) -> impl Iterator<Item = (&'static str, Producer)> {
    let every = one_of(count);
    PRODUCERS
        .into_iter()
        .take(count)
        .enumerate()
        .filter(move |(j, _)| (i + j).is_multiple_of(every))
        .map(|(_, producer)| producer)
}

/// Uniform numbers between 0 and 1. Unless all are requested, the largest dimensions are halved until 2²⁰ elements remain, because a
/// chain of additions is off by 2e-5 there too.
fn uniform(shape: &[usize]) -> Array {
    let mut shape = shape.to_vec();
    while one_of(2) == 2 && shape.iter().product::<usize>() > 1 << 20 {
        let largest = shape.iter_mut().max().expect("dimensions");
        *largest = largest.div_ceil(2);
    }
    random::uniform(random::key(3), shape)
}

/// The largest relative error of the sums of positive numbers over `axes`, with the float64 sums of the same program.
#[track_caller]
fn check_sums(name: &str, x: &Array, axes: &[i32], producer: Producer) {
    let axes = axes.to_vec();
    let sums = jit(move |x: Array| {
        let values = producer(&x);
        (values.sum(&axes[..]), values.astype(DType::F64).sum(&axes[..]))
    });
    let (sums, expected) = sums.call(x).expect("sums");
    check(name, &sums, &expected);
}

#[track_caller]
fn check(name: &str, sums: &Array, expected: &Array) {
    for (sum, expected) in floats(sums).into_iter().zip(floats(expected)) {
        let error = (sum - expected).abs() / expected.abs();
        assert!(error <= BOUND, "{name}: {sum}, expected {expected}: off by {error:.1e}");
    }
}

#[test]
fn sum_all_elements_of_many_shapes() {
    setup();
    let shapes: [&[usize]; 8] = [
        &[ELEMENTS],
        &[ELEMENTS + 1],
        &[4099, 4093],
        &[256, 256, 256],
        &[64, 64, 64, 64],
        &[16, 16, 32, 32, 64],
        &[7, 7, 7, 7, 7, 7, 7, 7, 3],
        &[2; 24],
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        let x = uniform(shape);
        let axes: Vec<i32> = (0..shape.len() as i32).collect();
        for (name, producer) in producers(i, 5) {
            check_sums(&format!("{name} of {shape:?}"), &x, &axes, producer);
        }
    }
}

#[test]
fn sum_some_axes() {
    setup();
    let cases: [(&[usize], &[i32]); 10] = [
        (&[65536, 256], &[0]),
        (&[65536, 256], &[1]),
        (&[16, 1 << 20], &[0]),
        (&[16, 1 << 20], &[1]),
        (&[1 << 20, 16], &[0]),
        (&[1009, 16651], &[1]),
        (&[3, 5_592_407], &[1]),
        (&[64, 3, 224, 224], &[0, 2, 3]),
        (&[49, 7, 7, 49, 7, 7], &[1, 3, 5]),
        (&[1, ELEMENTS, 1], &[1]),
    ];
    for (i, (shape, axes)) in cases.into_iter().enumerate() {
        let x = uniform(shape);
        for (name, producer) in producers(i, 5) {
            check_sums(&format!("{name} of {shape:?} over {axes:?}"), &x, axes, producer);
        }
    }
}

/// The compiler partitions these sums, or each device adds its part.
#[test]
fn sum_on_eight_devices() -> Result<()> {
    setup();
    let mesh = make_mesh([("a", 2), ("b", 4)])?;
    for mesh in [mesh.clone(), mesh.auto()] {
        for (i, shape) in [&[ELEMENTS][..], &[64, 64, 64, 64], &[16, 16, 32, 32, 64]].into_iter().enumerate() {
            for spec in [P![("a", "b")], P!["a"]] {
                let x = device_put(&uniform(shape), NamedSharding::new(&mesh, spec))?;
                let axes: Vec<i32> = (0..shape.len() as i32).collect();
                for (name, producer) in producers(i, 3) {
                    check_sums(&format!("{name} of {}", x.type_name()), &x, &axes, producer);
                }
            }
        }
    }
    let x = uniform(&[8, 1 << 20, 4]);
    let sum = pmap(|x: Array| (x.square().sum(..), x.square().astype(DType::F64).sum(..)));
    let (sums, expected) = sum.call(&x)?;
    check("pmap", &sums, &expected);
    Ok(())
}

#[test]
fn statistics_of_many_elements() -> Result<()> {
    setup();
    let x = uniform(&[16, 16, 32, 32, 64]);
    let statistics = jit(|x: Array| {
        fn sums_of(x: &Array) -> Vec<Array> {
            vec![x.mean(..), x.var(..), x.std(..), x.square().sum(..).sqrt(), x.logsumexp(..)]
        }
        (sums_of(&x), sums_of(&x.astype(DType::F64)))
    });
    let (results, expected) = statistics.call(&x)?;
    for (result, expected) in results.iter().zip(&expected) {
        check("a statistic", result, expected);
    }
    Ok(())
}

/// XLA adds the products of two vectors as one chain: 2 % too little for these.
#[test]
fn products_of_long_vectors() -> Result<()> {
    setup();
    let x = uniform(&[ELEMENTS]);
    let (n, y) = (x.size(), random::uniform(random::key(4), x.shape()));
    let products = jit(move |x: Array, y: Array| {
        fn dots_of(x: &Array, y: &Array, n: usize) -> Vec<Array> {
            let quarter = y.get(0..n as i32 / 4);
            vec![
                x.dot(y),
                einsum("bi,bi->b", &[&x.reshape([4, -1]), &y.reshape([4, -1])]),
                einsum("kbi,ib->bk", &[&x.reshape([2, 4, -1]), &y.get(0..n as i32 / 2).reshape([-1, 4])]),
                x.reshape([4, -1]).matmul(&quarter),
                quarter.matmul(&x.reshape([-1, 4])),
                x.reshape([1, -1]).matmul(&y.reshape([-1, 1])),
            ]
        }
        (dots_of(&x, &y, n), dots_of(&x.astype(DType::F64), &y.astype(DType::F64), n))
    });
    let (results, expected) = products.call((&x, &y))?;
    for (result, expected) in results.iter().zip(&expected) {
        assert_eq!(result.shape(), expected.shape());
        check("a product", result, expected);
    }
    Ok(())
}

/// Half precision is widened, and the result rounded once; complex numbers have two sums.
#[test]
fn sum_other_dtypes() -> Result<()> {
    setup();
    let x = uniform(&[64, 64, 64, 64]);
    for (dtype, epsilon) in [(DType::Bf16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)] {
        let x = (&x / 1024).astype(dtype);
        let (sum, expected) = jit(|x: Array| (x.sum(..), x.astype(DType::F64).sum(..))).call(&x)?;
        let (sum, expected) = (floats(&sum)[0], floats(&expected)[0]);
        assert!((sum - expected).abs() <= epsilon * expected, "{dtype}: {sum}, expected {expected}");
    }
    let parts = jit(|x: Array| {
        let sum = shardax::lax::complex(&x, &x.square()).sum(..);
        (stack(&[sum.real(), sum.imag()], 0), stack(&[x.sum(..), x.square().sum(..)], 0))
    });
    let (sum, expected) = parts.call(&x)?;
    check("complex64", &sum, &expected);
    Ok(())
}

/// A scatter adds the updates of an element in float32, and rounds once: 1,000 ones are not 256.
#[test]
fn scatter_half_precision() -> Result<()> {
    setup();
    for dtype in [DType::Bf16, DType::F16] {
        let ones = ones([1000]).astype(dtype);
        let ids = zeros_dtype([1000], DType::I32);
        let sums = jit(move |ones: Array| segment_sum(&ones, &ids, 2)).call(&ones)?;
        assert_eq!(floats(&sums), [1000.0, 0.0], "{dtype}");
        let table = zeros([4, 3]).astype(dtype);
        fn rows(table: Array) -> Array {
            table.take(zeros_dtype([1000], DType::I32), 0).astype(DType::F32).sum(..)
        }
        let gradient = grad(rows).call(table)?;
        assert_eq!(floats(&gradient)[..4], [1000.0, 1000.0, 1000.0, 0.0], "{dtype}");
    }
    Ok(())
}

#[test]
fn scatter_many_updates_to_few_elements() -> Result<()> {
    setup();
    let x = uniform(&[ELEMENTS]);
    let ids = arange(0..x.size() as i32) % 3;
    let sums = jit(|x: Array, ids: Array| (segment_sum(&x, &ids, 3), segment_sum(x.astype(DType::F64), &ids, 3)));
    let (sums, expected) = sums.call((&x, &ids))?;
    check("segment_sum", &sums, &expected);
    Ok(())
}

#[test]
fn sum_infinities_and_nan() -> Result<()> {
    setup();
    let x = uniform(&[1009, 1021]);
    let sum = jit(|x: Array| (x.sum(..), x.sum(0).get(7), x.sum(1).get(5)));
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let (all, column, row) = sum.call(x.at((5, 7)).set(value))?;
        for result in [all, column, row] {
            let result = result.item::<f32>()?;
            assert!(result == value || result.is_nan() && value.is_nan(), "{result}, expected {value}");
        }
    }
    Ok(())
}

/// YNNPACK's sums are one chain of additions, and end the process for 15 dimensions or more.
#[test]
fn no_sum_is_left_to_ynnpack() -> Result<()> {
    setup();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let text = jit(|x: Array| x.sum(..)).lower(ones([4096, 1024]).astype(dtype))?.compile()?.as_text()?;
        assert!(!text.contains("ynn_fusion"), "{text}");
    }
    Ok(())
}

/// YNNPACK adds one of 16 products (JAX 0.12 returns 8,192).
#[test]
fn sum_of_a_product_with_a_constant_matrix() -> Result<()> {
    setup();
    let sum = jit(|x: Array| x.matmul(ones([16, 8])).sum(..));
    assert_eq!(sum.call(ones([1024, 16]))?.item::<f32>()?, 131_072.0);
    let maximum = jit(|x: Array| x.matmul(ones([16, 8])).max(..));
    assert_eq!(maximum.call(ones([1024, 16]))?.item::<f32>()?, 16.0);
    Ok(())
}

/// Half precision is added without a copy of the operand in float32.
#[test]
fn sum_of_half_precision_needs_little_memory() -> Result<()> {
    setup();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let compiled = jit(|x: Array| x.sum(..)).lower(ones([4096, 1024]).astype(dtype))?.compile()?;
        let memory = compiled.memory_analysis()?;
        assert!(memory.temporaries <= 4096 * 1024 * 4 / 4, "{memory:?}");
    }
    Ok(())
}

/// 2 GiB: `cargo test -p shardax --test numbers mean_of_ones -- --ignored`.
#[test]
#[ignore = "needs 3 GiB of memory"]
fn mean_of_ones_of_two_gigabytes() -> Result<()> {
    setup();
    let mean = jit(|| ones([1 << 29]).mean(..));
    assert_eq!(mean.call(())?.item::<f32>()?, 1.0);
    assert_eq!(ones([1 << 29]).mean(..).item::<f32>()?, 1.0);
    Ok(())
}

/// Sums of a transpose read the operand in the order of its elements, if the kept axes keep their order.
#[test]
fn sums_of_transposes_are_sums_along_the_other_axis() -> Result<()> {
    setup();
    let x = uniform(&[512, 3, 128]);
    for axes in [vec![0], vec![2], vec![1, 2], vec![0, 1]] {
        let original: Vec<i32> = axes.iter().map(|axis| 2 - axis).collect();
        let transposed = jit({
            let axes = axes.clone();
            move |x: Array| (x.transpose([2, 1, 0]) * 2).sum(&axes[..])
        });
        let straight = jit(move |x: Array| (x * 2).sum(&original[..]));
        let (sums, expected) = (transposed.call(&x)?, straight.call(&x)?);
        let expected = if axes.len() == 1 { expected.t() } else { expected };
        let difference = (sums - &expected).abs() / expected.abs();
        assert!(difference.max(..).to_f64()? <= BOUND, "axes {axes:?}");
    }
    Ok(())
}
