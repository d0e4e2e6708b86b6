//! Products and sums that the CPU kernels compute for XLA equal the expected elements.

use super::common::child;
use super::common::quick::one_of;
use super::*;

const VARIABLE: &str = "SHARDAX_CPU_KERNELS";

/// Whole numbers from -9 to 9, whose sums are exact in any order.
fn whole<T: From<i8> + shardax::dtype::Element>(shape: &[usize], seed: u64) -> Array {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let values = (0..shape.iter().product()).map(|_: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        T::from(((random >> 40) % 19) as i8 - 9)
    });
    Array::from_vec(values.collect(), shape).unwrap()
}

fn text_and_numbers(spec: &str, a: &Array, b: &Array) -> (String, Vec<f64>) {
    let spec = spec.to_owned();
    let f = jit(move |a: Array, b: Array| einsum(&spec, &[&a, &b]));
    (f.lower((a, b)).unwrap().as_text().to_string(), floats(&f.call((a, b)).unwrap()))
}

/// A loop that multiplies a few rows by a transposed matrix transposes the matrix in a function, so that XLA does so
/// before the loop.
fn products_of_steps() {
    // The product depends on the sum, since others are computed for all steps at once.
    fn step(sum: &Array, x: &Array, w: &Array, has_transpose: bool) -> Array {
        let x = x + sum.at(s![.., ..200]).get().clip(-1, 1);
        sum + if has_transpose { x.matmul(w.t()) } else { einsum("ij,kj->ik", &[&x, w]) }
    }
    for (rows, is_before, has_transpose) in
        [(32, true, false), (100, false, false), (32, true, true), (100, false, true)]
    {
        let [xs, w] = [whole::<f32>(&[4, rows, 200], 1), whole::<f32>(&[300, 200], 2)];
        let f = jit(move |xs: Array, w: Array| -> Result<Array> {
            let start = zeros((xs.shape()[1], 300));
            Ok(scan(|sum: Array, x: Array| (step(&sum, &x, &w, has_transpose), ()), start, xs)?.0)
        });
        let text = f.lower((&xs, &w)).unwrap().as_text().to_string();
        assert!(text.contains("shardax_dot"), "{text}");
        assert_eq!(text.contains("stablehlo.transpose"), is_before || has_transpose, "{text}");
        assert_eq!(text.contains("callee = @keep_"), is_before, "{text}");
        let [wide_xs, wide_w] = [&xs, &w].map(|x| x.astype(DType::F64));
        let start = zeros((rows, 300)).astype(DType::F64);
        let exact = (0..4).fold(start, |sum, t| step(&sum, &wide_xs.get(t), &wide_w, has_transpose));
        assert_eq!(floats(&f.call((&xs, &w)).unwrap()), floats(&exact), "{rows} rows");
    }
}

fn row_products(a: &Array, b: &Array) -> Array {
    einsum("bik,bjk->bij", &[&a.astype(DType::F64), &b.astype(DType::F64)])
}

/// Products of complex numbers are products of their parts.
fn complex_products() {
    let parts = [([3, 100, 64], 1), ([3, 100, 64], 2), ([3, 70, 64], 3), ([3, 70, 64], 4)];
    let [a, b, c, d] = parts.map(|(shape, seed)| whole::<f32>(&shape, seed));
    let [x, y] = [lax::complex(&a, &b), lax::complex(&c, &d)];
    for dtype in [DType::Complex64, DType::Complex128] {
        let product = jit(|x: Array, y: Array| einsum("bik,bjk->bij", &[&x, &y.conj()]));
        let [x, y] = [&x, &y].map(|x| x.astype(dtype));
        let text = product.lower((&x, &y)).unwrap().as_text().to_string();
        assert_eq!(text.matches("shardax_dot").count(), 4, "{text}");
        let result = product.call((&x, &y)).unwrap();
        let real = row_products(&a, &c) + row_products(&b, &d);
        let imag = row_products(&b, &c) - row_products(&a, &d);
        assert_eq!(floats(&result.real()), floats(&real), "{dtype}");
        assert_eq!(floats(&result.imag()), floats(&imag), "{dtype}");
    }
}

/// Run in a process of its own, where the CPU kernels compute them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() {
    common::quick::setup();
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
    // The kernels' own tests have every layout and dtype.
    for (spec, a, b) in cases.into_iter().step_by(one_of(2)) {
        let (text, found) = text_and_numbers(spec, &whole::<f64>(a, 1), &whole::<f64>(b, 2));
        assert!(text.contains("shardax_dot"), "{spec}:\n{text}");
        assert_eq!(found, text_and_numbers(spec, &whole::<f32>(a, 1), &whole::<f32>(b, 2)).1, "{spec}");
    }
    // Of f32, with sums that are exact too.
    let (text, found) = text_and_numbers("ij,kj->ik", &whole::<f32>(&[64, 300], 1), &whole::<f32>(&[400, 300], 2));
    assert!(text.contains("shardax_dot"), "{text}");
    assert_eq!(found, text_and_numbers("ij,kj->ik", &whole::<f64>(&[64, 300], 1), &whole::<f64>(&[400, 300], 2)).1);
    // Of half precision where an operand is transposed: exact sums in f32 that are rounded once, of what is not finite
    // too.
    let mut odd = whole::<f32>(&[100, 130], 1).to_vec::<f32>().unwrap();
    (odd[7], odd[130 * 3 + 9], odd[130 * 9 + 11]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let [a, b] = [Array::from_vec(odd, &[100, 130]).unwrap(), whole::<f32>(&[100, 90], 2)];
    let sums = text_and_numbers("ji,jk->ik", &a, &b).1;
    for dtype in [DType::Bf16, DType::F16].into_iter().step_by(one_of(2)) {
        let [a, b] = [&a, &b].map(|x| x.astype(dtype));
        let (text, found) = text_and_numbers("ji,jk->ik", &a, &b);
        assert!(text.contains("shardax_dot"), "{text}");
        let want = floats(&Array::from_vec(sums.clone(), &[130, 90]).unwrap().astype(DType::F32).astype(dtype));
        fn is_same((x, y): (&f64, &f64)) -> bool {
            x == y || x.is_nan() && y.is_nan()
        }
        assert!(
            found.iter().zip(&want).all(is_same) && found.iter().filter(|x| x.is_infinite()).count() > 90,
            "{dtype}"
        );
        let (text, _) = text_and_numbers("ji,ik->jk", &a, &whole::<f32>(&[130, 90], 3).astype(dtype));
        let is_fast = dtype == DType::Bf16 && has_bf16_instructions();
        assert_eq!(text.contains("shardax_dot"), is_fast, "XLA is as fast otherwise:\n{text}");
    }
    low_precision();
    transposed_operands();
    elements_of_transposes();
    elementwise_functions();
    complex_products();
    products_of_steps();
    // Batches of small matrices, in each layout.
    let specs = ["bij,bjk->bik", "bji,bjk->bik", "bij,bkj->bik", "bji,bkj->bik"];
    for spec in specs.into_iter().skip(one_of(2) - 1).step_by(one_of(2)) {
        let [a, b] = [1, 2].map(|seed| whole::<f32>(&[90, 7, 7], seed));
        let (text, found) = text_and_numbers(spec, &a, &b);
        assert!(text.contains("shardax_dot"), "{spec}:\n{text}");
        // Computed here, because a program for each matrix would be compiled.
        let [left, right] = [&a, &b].map(floats);
        fn place(row: usize, column: usize, is_transposed: bool) -> usize {
            if is_transposed { column * 7 + row } else { row * 7 + column }
        }
        let [is_left, is_right] = [spec.starts_with("bji"), spec.contains("bkj")];
        let element = |n: usize| -> f64 {
            let (matrix, row, column) = (n / 49 * 49, n / 7 % 7, n % 7);
            let term = |j| left[matrix + place(row, j, is_left)] * right[matrix + place(j, column, is_right)];
            (0..7).map(term).sum()
        };
        let exact: Vec<f64> = (0..90 * 49).map(element).collect();
        assert_eq!(found, exact, "{spec}");
    }
    // XLA computes small products, and products in programs that other programs run.
    let (text, _) = text_and_numbers("ij,jk->ik", &whole::<f64>(&[9, 9], 1), &whole::<f64>(&[9, 9], 2));
    assert!(!text.contains("shardax_dot"), "{text}");
    let square = whole::<f64>(&[128, 128], 3);
    let exported = shardax::export::export(|x: Array| x.matmul(&x), &square).unwrap();
    assert!(!exported.mlir_module("cpu").unwrap().contains("shardax_dot"));
    // What is not finite, and the same numbers each time.
    let mut odd = square.to_vec::<f64>().unwrap();
    (odd[3 * 128 + 5], odd[7 * 128]) = (f64::NAN, f64::INFINITY);
    let (odd, ones) = (Array::from_vec(odd, &[128, 128]).unwrap(), Array::from_vec(vec![1.0; 128 * 128], &[128, 128]));
    let product = jit(|x: Array, y: Array| x.matmul(y));
    let result = floats(&product.call((&odd, ones.unwrap())).unwrap());
    assert!((0..128).all(|i| result[3 * 128 + i].is_nan() && result[7 * 128 + i] == f64::INFINITY));
    assert_eq!(result.iter().filter(|x| !x.is_finite()).count(), 256);
    let noise = (0..300 * 300).map(|i| (i as f64).sin() / 3.0).collect();
    let noise = Array::from_vec(noise, &[300, 300]).unwrap();
    let again = || floats(&product.call((&noise, &noise)).unwrap());
    assert_eq!(again(), again());
    // Of a compiled program that is loaded.
    let lowered = product.lower((&square, &square)).unwrap();
    let bytes = lowered.compile().unwrap().serialize().unwrap();
    let loaded = Compiled::load(&lowered, &bytes).unwrap();
    let squared = floats(&product.call((&square, &square)).unwrap());
    assert_eq!(floats(&loaded.call((&square, &square)).unwrap()), squared);
    few_rows();
    products_of_integers_in_groups();
    // Gradients, batches and devices.
    fn loss(x: Array, y: Array) -> Array {
        x.matmul(&y).sum(..)
    }
    let dx = floats(&jit(grad(loss)).call((&square, &square)).unwrap());
    let numbers = floats(&square);
    let rows: Vec<f64> = numbers.chunks(128).map(|row| row.iter().sum()).collect();
    assert!(dx.iter().enumerate().all(|(i, d)| *d == rows[i % 128]));
    let stacked = whole::<f64>(&[8, 128, 128], 5);
    let per_device = floats(&pmap(|x: Array| x.matmul(&x)).call(&stacked).unwrap());
    assert_eq!(per_device, text_and_numbers("bij,bjk->bik", &stacked, &stacked).1);
    let mesh = make_mesh([("x", 8)]).unwrap();
    let values = whole::<f64>(&[256, 128], 6);
    let split = device_put(&values, &NamedSharding::new(&mesh, P!["x"])).unwrap();
    let sharded = floats(&product.call((&split, &square)).unwrap());
    assert_eq!(sharded, floats(&product.call((&values, &square)).unwrap()));
}

fn has_bf16_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Transposed operands are read in place, if they are batches of matrices in memory.
fn transposed_operands() {
    let product = jit(|a: Array, b: Array| a.t().matmul(b.t()));
    for dtype in [DType::F32, DType::F64, DType::Bf16].into_iter().step_by(one_of(2)) {
        let [a, b] = [whole::<f32>(&[100, 130], 1), whole::<f32>(&[90, 100], 2)].map(|x| x.astype(dtype));
        let text = product.lower((&a, &b)).unwrap().as_text().to_string();
        let (text_of_einsum, expected) = text_and_numbers("ji,kj->ik", &a, &b);
        // The attributes of a call are the contracted dimensions of its operands.
        let [call, call_of_einsum] = [&text, &text_of_einsum].map(|text| {
            text.lines()
                .find(|line| line.contains("\"shardax_dot"))
                .and_then(|line| line.split("backend_config").nth(1))
        });
        assert!(call.is_some() && call == call_of_einsum, "{dtype}:\n{text}\n{text_of_einsum}");
        assert_eq!(floats(&product.call((&a, &b)).unwrap()), expected, "{dtype}");
    }
    // The first one is in memory, and the second one has its batch between rows and columns.
    let [a, b] = [whole::<f32>(&[3, 100, 130], 1), whole::<f32>(&[90, 3, 100], 2)];
    let batches = jit(|a: Array, b: Array| a.mt().matmul(b.transpose([1, 2, 0])));
    assert_eq!(floats(&batches.call((&a, &b)).unwrap()), text_and_numbers("bji,kbj->bik", &a, &b).1);
}

/// Operands that are computed from transposes are written in the order of the transposes' operands.
fn elements_of_transposes() {
    let x = whole::<f32>(&[300, 80], 1);
    let shifted = jit(|x: Array| {
        let y = x.t() * 2 + x.get((0, ..)).expand_dims(1);
        y.matmul(y.t())
    });
    let text = shifted.lower(&x).unwrap().as_text().to_string();
    assert!(text.contains("{lhs = 1 : i64, rhs = 1 : i64"), "{text}");
    let y = &x * 2 + x.get(0);
    assert_eq!(floats(&shifted.call(&x).unwrap()), exact("ki,kj->ij", &y, &y));
    let text = jit(|x: Array| shardax::numpy::cov(x.t())).lower(&x).unwrap().as_text().to_string();
    assert!(text.contains("{lhs = 1 : i64, rhs = 1 : i64"), "{text}");
    // A sum with an array in another order is written in its own order.
    let mixed = jit(|x: Array, z: Array| (x.t() + z).matmul(x));
    let z = whole::<f32>(&[80, 300], 2);
    let text = mixed.lower((&x, &z)).unwrap().as_text().to_string();
    assert!(text.contains("{lhs = 2 : i64, rhs = 1 : i64"), "{text}");
    assert_eq!(floats(&mixed.call((&x, &z)).unwrap()), exact("ik,kj->ij", &(x.t() + z), &x));
}

/// Functions that XLA calls the C library for.
fn elementwise_functions() {
    let x = arange(0..3000).astype(DType::F64) / 7.0 + 0.01;
    let functions: [(&str, fn(Array) -> Array, fn(f64) -> f64, &[DType]); 6] = [
        ("sin", |x| x.sin(), f64::sin, &[DType::F32, DType::F64, DType::Bf16, DType::F16]),
        ("cos", |x| x.cos(), f64::cos, &[DType::F32, DType::F64, DType::Bf16, DType::F16]),
        ("tan", shardax::numpy::tan, f64::tan, &[DType::F32, DType::Bf16]),
        ("log", |x| x.log(), f64::ln, &[DType::F64]),
        ("sinh", |x| x.sinh(), f64::sinh, &[DType::F64]),
        ("cosh", |x| x.cosh(), f64::cosh, &[DType::F64]),
    ];
    for (name, function, scalar_function, dtypes) in functions {
        for &dtype in dtypes.iter().step_by(one_of(4)) {
            let (x, function) = (x.astype(dtype), jit(function));
            let text = function.lower(&x).unwrap().as_text().to_string();
            assert!(text.contains(&format!("shardax_{name}")), "{text}");
            let want: Vec<f64> = floats(&x).into_iter().map(scalar_function).collect();
            let epsilon = match dtype {
                DType::F64 => 7e-16,
                DType::F32 => 1e-7,
                DType::F16 => 1e-3,
                _ => 8e-3,
            };
            let found = floats(&function.call(&x).unwrap());
            let is_near = |(x, y): (&f64, &f64)| (x - y).abs() <= epsilon * y.abs().max(1e-4);
            assert!(found.iter().zip(&want).all(is_near), "{name} of {dtype}");
            let text = function.lower(x.get(s![..100])).unwrap().as_text().to_string();
            assert!(!text.contains("shardax_"), "few elements are computed by XLA's loop:\n{text}");
        }
    }
    // Powers with an array of exponents.
    let x = arange(0..3000).astype(DType::F64) / 7.0 + 0.01;
    let power = jit(|x: Array| x.pow((&x / 200.0).sin() * 3));
    let text = power.lower(&x).unwrap().as_text().to_string();
    assert!(text.contains("shardax_pow"), "{text}");
    for (found, x) in floats(&power.call(&x).unwrap()).into_iter().zip(floats(&x)) {
        let want = x.powf((x / 200.0).sin() * 3.0);
        // The exponent is rounded, and its sine has an error of one unit.
        assert!((found - want).abs() < 4e-14 * want, "{x}: {found}, not {want}");
    }
    // The library has no error function. Its derivative is 2 / sqrt(pi) exp(-x²).
    let erf = jit(|x: Array| shardax::scipy::special::erf(x));
    let x = arange(-1500..1500).astype(DType::F64) / 250.0;
    let text = erf.lower(&x).unwrap().as_text().to_string();
    assert!(text.contains("shardax_erf"), "{text}");
    let y = floats(&erf.call(&x).unwrap());
    let slopes = floats(&jit(grad(|x: Array| shardax::scipy::special::erf(x).sum(..))).call(&x).unwrap());
    for i in 1..2999 {
        let between = (y[i + 1] - y[i - 1]) * 125.0;
        assert!((between - slopes[i]).abs() < 1e-5, "the slope {} at {i}, not {between}", slopes[i]);
    }
}

/// Products of int8 with sums in int32, and of bfloat16 with sums in float32: in each layout, in batches, of odd sizes.
fn low_precision() {
    let layouts: [(&str, &[usize], &[usize]); 7] = [
        ("ij,jk->ik", &[130, 100], &[100, 90]),
        ("ji,jk->ik", &[100, 130], &[100, 90]),
        ("ij,kj->ik", &[130, 100], &[90, 100]),
        ("ji,kj->ki", &[101, 131], &[91, 101]),
        ("ibj,kjb->bik", &[60, 3, 80], &[90, 80, 3]),
        ("jai,ajk->aik", &[70, 3, 61], &[3, 70, 93]),
        ("abij,jabk->iabk", &[2, 3, 70, 33], &[33, 2, 3, 90]),
    ];
    for (spec, a, b) in layouts.into_iter().step_by(one_of(3)) {
        let sums = text_and_numbers(spec, &whole::<f64>(a, 1), &whole::<f64>(b, 2)).1;
        let product = |dtype: DType, sums: DType| {
            let (a, b) = (whole::<f32>(a, 1).astype(dtype), whole::<f32>(b, 2).astype(dtype));
            let product = jit(move |a: Array, b: Array| {
                lax::DotOptions::new().preferred_element_type(sums).einsum(spec, &[&a, &b])
            });
            let text = product.lower((&a, &b)).unwrap().as_text().to_string();
            let is_fast = dtype == DType::I8 || has_bf16_instructions();
            assert!(!is_fast || text.contains("shardax_dot_low_precision"), "{dtype}, {spec}:\n{text}");
            floats(&product.call((a, b)).unwrap())
        };
        assert_eq!(product(DType::I8, DType::I32), sums, "{spec}");
        assert_eq!(product(DType::Bf16, DType::F32), sums, "{spec}");
        let rounded = floats(&array(sums).astype(DType::Bf16));
        assert_eq!(product(DType::Bf16, DType::Bf16), rounded, "{spec}");
    }
    // Pairs of these fit no 16 bits, and int8 results are the low bits of sums.
    let extremes = Array::from_vec(vec![-128i8; 64 * 64], &[64, 64]).unwrap();
    let sums = jit(|x: Array| lax::DotOptions::new().preferred_element_type(DType::I32).matmul(&x, &x));
    assert!(floats(&sums.call(&extremes).unwrap()).iter().all(|x| *x == 64.0 * 16384.0));
    let low_bits = jit(|x: Array| x.matmul(&x));
    assert!(floats(&low_bits.call(&extremes.at(s![..63]).set(1i8)).unwrap()).iter().take(64).all(|x| *x == -65.0));
    // Operands that a program widens itself, and gradients.
    let [x, w] = [whole::<f32>(&[64, 100], 1), whole::<f32>(&[100, 70], 2)];
    let (x, w) = (x.astype(DType::Bf16), w.astype(DType::Bf16));
    let widened = jit(|x: Array, w: Array| x.astype(DType::F32).matmul(w.astype(DType::F32)));
    let text = widened.lower((&x, &w)).unwrap().as_text().to_string();
    assert_eq!(text.contains("shardax_dot_low_precision"), has_bf16_instructions(), "{text}");
    let exact = text_and_numbers("ij,jk->ik", &x.astype(DType::F64), &w.astype(DType::F64)).1;
    assert_eq!(floats(&widened.call((&x, &w)).unwrap()), exact);
    let dw = jit(grad(|w: Array, x: Array| x.matmul(w).sum(..)));
    let ones = Array::from_vec(vec![1.0; 64 * 70], &[64, 70]).unwrap();
    let exact = array(text_and_numbers("ij,ik->jk", &x.astype(DType::F64), &ones).1).astype(DType::Bf16);
    assert_eq!(floats(&dw.call((&w, &x)).unwrap()), floats(&exact));
    // Each device computes its own part.
    let stacked = whole::<f32>(&[8, 64, 64], 5).astype(DType::Bf16);
    let per_device = floats(&pmap(|x: Array| x.matmul(&x)).call(&stacked).unwrap());
    assert_eq!(per_device, text_and_numbers("bij,bjk->bik", &stacked, &stacked).1);
}

/// The numbers of an einsum, in float64.
fn exact(spec: &str, a: &Array, b: &Array) -> Vec<f64> {
    let [a, b] = [a, b].map(|x| x.astype(DType::F64));
    floats(&einsum(spec, &[&a, &b]))
}

/// Few rows and weights that are stored in fewer bits.
fn few_rows() {
    for (d, dtype) in [DType::I8, DType::U8, DType::Bf16, DType::F16].into_iter().enumerate() {
        fn operand_of(shape: &[usize], seed: u64) -> Array {
            whole::<f32>(shape, seed)
        }
        fn weights(shape: &[usize], dtype: DType) -> Array {
            if dtype == DType::U8 { operand_of(shape, 2) + 9 } else { operand_of(shape, 2) }.astype(dtype)
        }
        // As in a program: `w.astype(DType::F32)` of integers, and half precision as it is.
        let is_half = dtype.is_float();
        fn cast(x: Array, is_half: bool, dtype: DType) -> Array {
            if is_half { x.astype(dtype) } else { x }
        }
        let cases: [(&str, &[usize], &[usize]); 8] = [
            ("ij,jk->ik", &[1, 200], &[200, 90]),
            ("ij,jk->ik", &[8, 200], &[200, 90]),
            ("ij,kj->ik", &[3, 200], &[90, 200]),
            ("j,jk->k", &[200], &[200, 90]),
            ("ji,jk->ik", &[200, 5], &[200, 90]),
            ("abj,jkl->abkl", &[2, 3, 200], &[200, 9, 10]),
            ("aij,ijk->ak", &[2, 10, 20], &[10, 20, 90]),
            ("ij,lkj->ilk", &[1, 200], &[9, 10, 200]),
        ];
        // A slice has each case with one of the dtypes.
        for (spec, a, b) in cases.into_iter().skip(d % one_of(4)).step_by(one_of(4)) {
            let (a, b) = (cast(operand_of(a, 1), is_half, dtype), weights(b, dtype));
            let (text, found) = text_and_numbers(spec, &a, &b);
            // Instructions for bfloat16 multiply three rows or more faster.
            let by_instructions = dtype == DType::Bf16 && has_bf16_instructions();
            let is_called =
                text.contains("shardax_few_rows") || by_instructions && text.contains("shardax_dot_low_precision");
            assert!(is_called, "{dtype}, {spec}:\n{text}");
            let want = exact(spec, &a, &b).into_iter();
            let want = want.map(|x| if is_half { floats(&array(x).astype(dtype))[0] } else { x });
            assert_eq!(found, want.collect::<Vec<_>>(), "{dtype}, {spec}");
        }
        // The matrix may be the left operand of a vector; more rows, and weights that were rounded to fewer bits, are
        // XLA's.
        let (text, found) =
            text_and_numbers("kj,j->k", &weights(&[90, 200], dtype), &cast(operand_of(&[200], 1), is_half, dtype));
        assert!(text.contains("shardax_few_rows") && found.len() == 90, "{text}");
        let (text, _) =
            text_and_numbers("ij,jk->ik", &cast(operand_of(&[9, 200], 1), is_half, dtype), &weights(&[200, 90], dtype));
        assert!(!text.contains("shardax_few_rows"), "{text}");
    }
    let rounded = jit(|x: Array, w: Array| x.dot(w.astype(DType::Bf16).astype(DType::F32)));
    let (x, w) = (whole::<f32>(&[1, 200], 1), whole::<f32>(&[200, 90], 2) / 7);
    let result = floats(&rounded.call((&x, &w)).unwrap());
    let want = exact("ij,jk->ik", &x, &w.astype(DType::Bf16));
    assert!(result.iter().zip(&want).all(|(x, y)| (x - y).abs() < 1e-4 * y.abs().max(1.0)), "{result:?}, not {want:?}");
    // In a loop that reads the weights from outside, and the gradient with respect to the row.
    let w = whole::<f32>(&[128, 128], 3).astype(DType::I8);
    fn product(x: &Array, w: &Array) -> Array {
        x.dot(w.astype(DType::F32)).tanh()
    }
    let looped = jit(move |x: Array, w: Array| {
        let ((x, _), ()) = scan(|(x, w): (Array, Array), _: Array| ((product(&x, &w), w), ()), (x, w), arange(0..3))?;
        Ok(x)
    });
    let x = whole::<f32>(&[1, 128], 4);
    let text = looped.lower((&x, &w)).unwrap().as_text().to_string();
    assert!(text.contains("shardax_few_rows"), "{text}");
    let dx = jit(grad(move |x: Array, w: Array| (x.dot(w.astype(DType::F32)) * 2).sum(..)));
    let sums: Vec<f64> = floats(&w).chunks(128).map(|row| row.iter().sum::<f64>() * 2.0).collect();
    assert_eq!(floats(&dx.call((&x, &w)).unwrap()), sums);
}

/// Products of rows and a matrix of integers in groups, whose sums are exact.
fn products_of_integers_in_groups() {
    fn scaled(w: &Array, scales: &Array) -> Array {
        w.astype(DType::F32) * scales.astype(DType::F32).expand_dims(-1)
    }
    for (d, dtype) in [DType::I4, DType::U4, DType::I8].into_iter().enumerate() {
        let integers = whole::<i32>(&[90, 6, 32], 1);
        let integers = match dtype {
            DType::I4 => integers % 8,
            DType::U4 => integers.abs(),
            _ => integers,
        };
        let scales = exp2(whole::<f32>(&[90, 6], 2) % 3);
        let minima = whole::<f32>(&[90, 6], 3);
        let wide = (scaled(&integers, &scales) - minima.expand_dims(-1)).reshape([90, 192]);
        let packed = (integers.astype(dtype), scales.astype(DType::F16), minima);
        for rows in [1, 3, 8, 20, 130].into_iter().skip(d % one_of(3)).step_by(one_of(3)) {
            let x = whole::<f32>(&[rows, 192], 4);
            let product = jit(move |x: Array, (w, scales, minima): (Array, Array, Array)| {
                let w = (scaled(&w, &scales) - minima.expand_dims(-1)).reshape([90, 192]);
                // The kernel of a linear layer, and a table that is also used row by row.
                let by_heads = einsum("ij,jkl->ikl", &[&x, &w.t().reshape([192, 9, 10])]);
                (by_heads.reshape([-1, 90]), einsum("ij,kj->ik", &[&x, &w]), take(&w, [4, 0, 77], 0))
            });
            let text = product.lower((&x, &packed)).unwrap().as_text().to_string();
            let calls = text.matches("shardax_grouped_rows").count();
            assert_eq!(calls, 2, "{dtype}:\n{text}");
            let expected = exact("ij,kj->ik", &x, &wide);
            let (by_heads, by_rows, some) = product.call((&x, &packed)).unwrap();
            assert_eq!(floats(&by_heads), expected, "{dtype}, {rows}");
            assert_eq!(floats(&by_rows), expected, "{dtype}, {rows}");
            assert_eq!(floats(&some), floats(&take(&wide, [4, 0, 77], 0)));
        }
        // Without minima, as the left operand of a vector, and with a gradient that multiplies with the other
        // dimension.
        let reference = jit(|w: Array, scales: Array, x: Array| scaled(&w, &scales).reshape([90, 192]).dot(x));
        let (w, scales, _) = &packed;
        let x = whole::<f32>(&[192], 5);
        let text = reference.lower((w, scales, &x)).unwrap().as_text().to_string();
        assert!(text.contains("shardax_grouped_rows"), "{text}");
        let plain = scaled(&integers, scales).reshape([90, 192]);
        assert_eq!(floats(&reference.call((w, scales, &x)).unwrap()), exact("kj,j->k", &plain, &x));
        let slope =
            jit(grad(|x: Array, w: Array, scales: Array| scaled(&w, &scales).reshape([90, 192]).dot(x).sum(..)));
        assert_eq!(floats(&slope.call((&x, w, scales)).unwrap()), exact("k,kj->j", &ones([90]), &plain));
    }
}

#[test]
fn cpu_kernels_equal_xla() {
    let mut command = child::command("products::in_a_process_with_cpu_kernels");
    child::run(command.env(VARIABLE, "auto"));
}
