//! Products of a vector and a matrix of many rows by the CPU kernel.

use shardax::numpy;

use super::common::child;
use super::*;

const ROWS: usize = 1100;

/// Whole numbers, whose sums are exact in any order.
fn integers_of_shape(shape: &[usize], dtype: DType) -> Array {
    let size: usize = shape.iter().product();
    (arange(0..size as i32) * 7 % 11).astype(dtype).reshape(shape)
}

fn text_and_numbers(f: fn(Array, Array) -> Array, v: &Array, x: &Array) -> Result<(String, Vec<f64>)> {
    let program = jit(f);
    Ok((program.lower((v, x))?.as_text().to_string(), floats(&program.call((v, x))?)))
}

/// The product of a vector and a matrix of int8 in groups, whose scales are the first element of each group.
fn dot_of_groups(v: Array, x: Array) -> Array {
    let scales = x.get((.., .., 0)).expand_dims(-1);
    let matrix = (x.astype(DType::I8).astype(DType::F32) * scales).reshape([16, 1280]);
    numpy::einsum("i,ijk->jk", &[&v, &matrix.t().reshape([1280, 2, 8])])
}

/// Run in a process of its own, where the CPU kernel computes them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    for dtype in [DType::F32, DType::F64] {
        let (v, x) = (integers_of_shape(&[ROWS], dtype), integers_of_shape(&[ROWS, 24], dtype));
        let [factors, elements] = [&v, &x].map(floats);
        let expected: Vec<f64> =
            (0..24).map(|column| (0..ROWS).map(|row| factors[row] * elements[row * 24 + column]).sum()).collect();
        let forms: [fn(Array, Array) -> Array; 6] = [
            |v, x| v.matmul(x),
            |v, x| x.t().matmul(v),
            |v, x| x.t().matmul(v.expand_dims(1)),
            |v, x| numpy::einsum("i,ijk->jk", &[&v, &x.reshape([ROWS, 4, 6])]),
            |v, x| numpy::einsum("ijk,ij->k", &[&x.reshape([11, 100, 24]), &v.reshape([11, 100])]),
            // The gradient of a linear model.
            |v, x| {
                let loss = |w: Array| (x.matmul(w) * &v).sum(..);
                grad(loss).call(zeros_like(&x.get(0))).unwrap_or_else(|error| panic!("{error}"))
            },
        ];
        for (i, form) in forms.into_iter().enumerate() {
            let (text, numbers) = text_and_numbers(form, &v, &x)?;
            assert_eq!(text.matches("\"shardax_tall_matrix\"").count(), 1, "{i} of {dtype}: {text}");
            assert_eq!(numbers, expected, "{i} of {dtype}");
        }
    }
    // Batches, rows that are not first, one column and few rows are not the kernel's, nor matrices of fewer bits.
    let others: [(fn(Array, Array) -> Array, &[usize], &[usize]); 6] = [
        (|v, x| numpy::einsum("bi,bij->bj", &[&v, &x]), &[2, ROWS], &[2, ROWS, 24]),
        (|v, x| x.matmul(v), &[ROWS], &[24, ROWS]),
        (|v, x| v.matmul(x), &[20_000], &[20_000, 1]),
        (|v, x| v.matmul(x), &[700], &[700, 32]),
        (|v, x| x.astype(DType::Bf16).astype(DType::F32).t().matmul(v), &[ROWS], &[ROWS, 24]),
        (dot_of_groups, &[1280], &[16, 40, 32]),
    ];
    for (form, v, x) in others {
        let (text, _) = text_and_numbers(form, &integers_of_shape(v, DType::F32), &integers_of_shape(x, DType::F32))?;
        assert!(!text.contains("shardax_tall_matrix"), "{text}");
    }
    // Over devices, and vmap.
    let (v, x) = (integers_of_shape(&[ROWS], DType::F32), integers_of_shape(&[3, ROWS, 24], DType::F32));
    let mapped = jit(|v: Array, x: Array| vmap(|v: Array, x: Array| v.matmul(x)).in_axes((None, 0)).call((v, x)));
    let expected: Vec<f64> = (0..3).flat_map(|i| floats(&v.matmul(x.get(i)))).collect();
    assert_eq!(floats(&mapped.call((&v, &x))?), expected);
    let split = device_put(x.get(0), &NamedSharding::new(&make_mesh([("x", 4)])?.auto(), P!["x"]))?;
    assert_eq!(floats(&jit(|v: Array, x: Array| v.matmul(x)).call((&v, &split))?), expected[..24]);
    Ok(())
}

#[test]
fn tall_matrices_by_cpu_kernels() {
    let mut command = child::command("tall_matrices::in_a_process_with_cpu_kernels");
    child::run(command.env("SHARDAX_CPU_KERNELS", "all"));
}
