//! Elements of 8 bits and fewer: the host's conversions compared with the device's, arrays over several devices, and what is an
//! error. (The golden family `narrow` compares values with JAX's.)

use shardax::dtype::{Element, F4E2M1Fn, F8E4M3Fn, F8E5M2, I2, I4, U4, promote};
use shardax::lax::{DotOptions, bitcast_convert_type};
use shardax::numpy::{finfo, iinfo};
use shardax::prelude::*;

use super::common::quick::{one_of, setup};

fn narrow() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.bits() < 8 || dtype.to_string().starts_with("float8"))
}

/// Every code of a dtype, as the host has it.
fn codes(dtype: DType) -> Array {
    let count = 1u16 << dtype.bits();
    let bytes: Vec<u8> = (0..count).map(|code| code as u8).collect();
    Array::from_bytes(&bytes, dtype, &[bytes.len()]).expect("codes")
}

fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

#[test]
fn host_and_device_convert_alike() -> Result<()> {
    setup();
    let mut odd = Vec::new();
    for dtype in narrow() {
        let every_code = codes(dtype);
        let host = every_code.to_f64_vec()?;
        let device = every_code.astype(DType::F32).to_f64_vec()?;
        // The plugin (xla-cpu-pjrt 0.0.1) makes NaN of float8_e8m0fnu infinite.
        let count = if dtype == DType::F8E8M0Fnu { 255 } else { host.len() };
        assert!(same(&host[..count], &device[..count]), "{dtype}\n{host:?}\n{device:?}");
        // Numbers between two neighbours, halfway and nearby, and numbers that are too large.
        let mut numbers: Vec<f32> = host.iter().filter(|v| v.is_finite()).map(|v| *v as f32).collect();
        numbers.sort_by(f32::total_cmp);
        let between = numbers.windows(2).flat_map(|pair| {
            let half = (pair[0] + pair[1]) / 2.0;
            // Far enough for a plugin that rounds to float16 first.
            [half, half * (1.0 + 1.0 / 64.0), half * (1.0 - 1.0 / 64.0)]
        });
        // The plugin takes subnormal numbers for 0.
        let mut points: Vec<f32> =
            between.chain(numbers.iter().copied()).filter(|v| *v == 0.0 || v.is_normal()).collect();
        if dtype.is_float() && dtype != DType::F8E8M0Fnu {
            let largest = numbers[numbers.len() - 1];
            points.extend([1.03f32, 1.0625, 1.07, 1.5, 2.0].map(|by| largest * by));
            points.extend([1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY]);
            if dtype != DType::F4E2M1Fn {
                points.push(f32::NAN);
            }
        }
        let host = array_of(points.as_slice(), dtype).to_f64_vec()?;
        let device = array(points.as_slice()).astype(dtype).to_f64_vec()?;
        let differs = (0..points.len()).filter(|&i| !same(&host[i..=i], &device[i..=i]));
        odd.extend(
            differs.map(|i| format!("{dtype} of {}: {} on the host, {} on the device", points[i], host[i], device[i])),
        );
    }
    assert!(odd.is_empty(), "{}", odd.join("\n"));
    Ok(())
}

#[test]
fn narrow_floats_are_integers() -> Result<()> {
    setup();
    for dtype in narrow().filter(|dtype| dtype.is_float()) {
        let values = codes(dtype).to_f64_vec()?.into_iter().filter(|v| v.abs() < 100.0).collect::<Vec<_>>();
        let expected: Vec<f64> = values.iter().map(|v| v.trunc() + 0.0).collect();
        let x = array_of(values, dtype);
        for integer in [DType::I8, DType::I32, DType::I64] {
            let compiled = jit(move |x: Array| x.astype(integer)).call(&x)?;
            assert_eq!(x.astype(integer).to_f64_vec()?, expected, "{dtype} to {integer}");
            assert_eq!(compiled.to_f64_vec()?, expected, "{dtype} to {integer} in jit");
        }
    }
    Ok(())
}

#[test]
fn narrow_elements_are_copied_without_conversion() -> Result<()> {
    setup();
    let x = array([F8E4M3Fn::from_f64(0.3), F8E4M3Fn::from_f64(-8.0)]);
    assert_eq!((x.dtype(), x.to_string()), (DType::F8E4M3Fn, "[ 0.3125 -8.    ]".to_owned()));
    assert_eq!(x.to_vec::<F8E4M3Fn>()?, [F8E4M3Fn::from_f64(0.3125), F8E4M3Fn::from_bits(0xd0)]);
    let signed: Vec<I4> = (-8..8).map(I4::wrapping).collect();
    let x = Array::from_slice(&signed, &[4, 4])?;
    assert_eq!(x.to_vec::<I4>()?, signed);
    assert_eq!(x.to_bytes()?, (-8i8..8).map(|v| v as u8 & 15).collect::<Vec<_>>());
    // Large enough to take over a vector's memory.
    let many: Vec<I4> = (0..10_000).map(|i| I4::wrapping((i % 16) as i8)).collect();
    assert_eq!(Array::from_vec(many.clone(), &[100, 100])?.t().t().to_vec::<I4>()?, many);
    let wide = device_put(&x, &NamedSharding::new(&make_mesh([("x", 4)])?.auto(), P!["x"]))?;
    assert_eq!(
        (&wide + &wide).to_f64_vec()?,
        x.astype(DType::F32).to_f64_vec()?.iter().map(|v| wrap(2.0 * v)).collect::<Vec<_>>()
    );
    assert_eq!(wide.sum(0).to_f64_vec()?, [-8.0, -4.0, 0.0, 4.0], "as int32");
    assert_eq!(wide.sum(0).dtype(), DType::I32);
    // The low bits count, whatever is above them.
    assert_eq!(
        Array::from_bytes(&[0xff, 0x0f, 7], DType::I4, &[3])?.to_vec::<i8>().err().map(|e| e.kind()),
        Some(shardax::ErrorKind::Type)
    );
    assert_eq!(Array::from_bytes(&[0xff, 0x0f, 7], DType::I4, &[3])?.to_f64_vec()?, [-1.0, -1.0, 7.0]);
    for (dtype, byte) in [(DType::I4, 16u8), (DType::U4, 16), (DType::I2, 4), (DType::U2, 4), (DType::F4E2M1Fn, 16)] {
        let error = Array::from_bytes(&[1, byte], dtype, &[2]).err().expect("too large").to_string();
        assert!(error.contains(&format!("byte 1 of an array {dtype}[2] is {byte}")), "{error}");
    }
    let error = array_of([8], DType::I4).check().err().expect("too large").to_string();
    assert!(error.contains("integer 8 is out of bounds for int4"), "{error}");
    Ok(())
}

fn wrap(v: f64) -> f64 {
    (v + 8.0).rem_euclid(16.0) - 8.0
}

#[test]
fn no_implicit_promotion() -> Result<()> {
    setup();
    let x = ones_dtype([2], DType::F8E4M3Fn);
    let error = (&x + ones([2])).check().err().expect("rejected").to_string();
    let message = "float8_e4m3fn and float32 have no implicit promotion: floats of 8 bits and fewer take part in none";
    assert!(error.contains(message) && error.contains("`x.astype(DType::F32)`"), "{error}");
    assert_eq!((&x * 2.0 + 1).dtype(), DType::F8E4M3Fn);
    assert_eq!((&x + arange(0..2)).dtype(), DType::F8E4M3Fn);
    let n = ones_dtype([2], DType::I4);
    let error = (&n + arange(0..2)).check().err().expect("rejected").to_string();
    assert!(error.contains("int4 and int32 have no implicit promotion: integers of 4 bits and fewer"), "{error}");
    assert!((&n * 1.5).check().is_err() && (&n * 3).dtype() == DType::I4);
    assert!(promote((DType::I4, false), (DType::U4, false)).is_err());
    assert_eq!(promote((DType::U2, false), (DType::Bool, false))?, (DType::U2, false));
    // A carry that changes its dtype, and an update of another one.
    fn f(x: Array) -> Result<(Array, Array)> {
        scan(|c: Array, _: Array| (&c + ones(()), c), x.get(0), x.clone())
    }
    assert!(jit(f).call(&x).is_err());
    assert!(x.at(0).set(ones(())).check().is_err());
    Ok(())
}

#[test]
fn bits_and_limits() -> Result<()> {
    setup();
    let x = codes(DType::F8E5M2);
    assert_eq!(bitcast_convert_type(&x, DType::U8).to_bytes()?, (0..=255).collect::<Vec<u8>>());
    assert_eq!(bitcast_convert_type(&bitcast_convert_type(&x, DType::U8), DType::F8E5M2).to_bytes()?, x.to_bytes()?);
    // Two of 4 bits are a byte, the low one first.
    let pairs = Array::from_slice(&[U4::wrapping(3), U4::wrapping(10)], &[1, 2])?;
    assert_eq!(bitcast_convert_type(&pairs, DType::U8).to_vec::<u8>()?, [0xa3]);
    assert_eq!(bitcast_convert_type(&array([0xa3u8]), DType::U4).to_vec::<U4>()?, pairs.to_vec::<U4>()?);
    let limits = finfo(DType::F4E2M1Fn)?;
    assert_eq!((limits.max, limits.eps, limits.epsneg, limits.smallest_normal, limits.bits), (6.0, 0.5, 0.5, 1.0, 4));
    let limits = finfo(DType::F8E8M0Fnu)?;
    assert_eq!((limits.max, limits.min, limits.nmant), (2f64.powi(127), 2f64.powi(-127), 0));
    assert_eq!((iinfo(DType::I2)?.min, iinfo(DType::U4)?.max), (-2, 15));
    Ok(())
}

#[test]
fn two_bits() -> Result<()> {
    setup();
    let x = Array::from_slice(&[-2, -1, 0, 1].map(I2::wrapping), &[4])?;
    let joined = jit(|x: Array| concatenate(&[x.clone(), x], 0)).call(&x)?;
    assert_eq!(joined.to_f64_vec()?, [-2.0, -1.0, 0.0, 1.0, -2.0, -1.0, 0.0, 1.0]);
    assert_eq!(stack(&[x.clone(), x.clone()], 0).shape(), [2, 4]);
    let padded = shardax::numpy::pad(&x, &[(1, 0)], shardax::numpy::PadMode::Constant(0.0));
    assert_eq!(padded.to_f64_vec()?, [0.0, -2.0, -1.0, 0.0, 1.0]);
    assert_eq!((&x + &x).to_f64_vec()?, [0.0, -2.0, 0.0, -2.0]);
    assert_eq!(x.max(..).to_f64()?, 1.0);
    assert_eq!(x.get(array([3, 0])).to_f64_vec()?, [1.0, -2.0]);
    Ok(())
}

/// The program of a function for GPUs, where int8 is widened. (The CPU widens all narrow integers.)
fn text_for_gpu(f: &dyn Fn(Array, Array) -> Array, x: &Array, y: &Array) -> Result<String> {
    let options = shardax::export::ExportOptions::new().platforms(["cuda"]);
    let exported = options.export(|x: Array, y: Array| f(x, y), (x, y))?;
    Ok(exported.mlir_module("cuda").unwrap_or_default().to_owned())
}

#[test]
fn products() -> Result<()> {
    setup();
    fn wide(dtype: DType) -> DotOptions {
        DotOptions::new().preferred_element_type(dtype)
    }
    let x = array([[100i8, 100], [-128, 127]]);
    assert_eq!(wide(DType::I32).dot(&x, &x).to_vec::<i32>()?, [10000 - 12800, 22700, -12800 - 16256, -12800 + 16129]);
    let text = text_for_gpu(&move |x, y| wide(DType::I32).dot(x, y), &x, &x)?;
    assert!(text.contains("(tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>"), "{text}");
    fn f(x: Array, y: Array) -> Array {
        wide(DType::F32).dot(x, y)
    }
    let q = array([[F8E4M3Fn::from_f64(448.0); 4]; 2]);
    // XLA adds up small products of float8 in float16, where this sum is infinite.
    let text = text_for_gpu(&f, &q, &q.t())?;
    assert!(text.contains("(tensor<2x4xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>"), "{text}");
    let large = array([[F8E4M3Fn::from_f64(1.0); 64]; 32]);
    let text = text_for_gpu(&f, &large, &large.t())?;
    assert!(text.contains("(tensor<32x64xf8E4M3FN>, tensor<64x32xf8E4M3FN>) -> tensor<32x32xf32>"), "{text}");
    assert_eq!(f(q.clone(), q.t()).to_vec::<f32>()?, [4.0 * 448.0 * 448.0; 4]);
    let n = Array::from_slice(&[7i8, -8, 3, 5].map(I4::wrapping), &[2, 2])?;
    assert_eq!(wide(DType::I32).dot(&n, &n).to_vec::<i32>()?, [49 - 24, -56 - 40, 21 + 15, -24 + 25]);
    // Two kinds of float8: values and gradients.
    let g = array([[F8E5M2::from_f64(0.5); 4]; 2]);
    assert_eq!(wide(DType::F32).dot(&q, g.t()).to_vec::<f32>()?, [4.0 * 448.0 * 0.5; 4]);
    assert_eq!(q.dot(g.t()).dtype(), DType::F8E5M2);
    assert_eq!(q.dot(g.t()).to_f64_vec()?, [896.0; 4]);
    let text = text_for_gpu(&f, &large, &large.t().astype(DType::F8E5M2))?;
    assert!(text.contains("(tensor<32x64xf8E4M3FN>, tensor<64x32xf8E5M2>) -> tensor<32x32xf32>"), "{text}");
    Ok(())
}

/// Devices exchange them, one by one as well as in sums.
#[test]
fn over_devices() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4)])?.auto();
    let float8_dtypes = DType::ALL.into_iter().filter(|dtype| dtype.to_string().starts_with("float8"));
    for dtype in float8_dtypes.step_by(one_of(2)) {
        // Exchanged as it is, not as integers of the same bits.
        let x = (arange(0..16) % 3 + 1).astype(DType::F32).reshape([4, 4]).astype(dtype);
        fn moves(x: Array) -> (Array, Array, Array) {
            let ring = [(0, 1), (1, 2), (2, 3), (3, 0)];
            (all_gather(x.clone(), "i", 0), ppermute(x.clone(), "i", ring), all_to_all(x, "i", 0, 0))
        }
        let (one, many) = (vmap(moves).axis_name("i").call(&x)?, pmap(moves).axis_name("i").call(&x)?);
        for (a, b) in [(&one.0, &many.0), (&one.1, &many.1), (&one.2, &many.2)] {
            assert_eq!((a.dtype(), a.to_bytes()?), (b.dtype(), b.to_bytes()?), "{dtype}");
        }
    }
    let dtypes = [DType::F8E4M3Fn, DType::F8E5M2, DType::F4E2M1Fn, DType::I4, DType::U4];
    for dtype in dtypes.into_iter().step_by(one_of(3)) {
        let x = (arange(0..16) % 3).astype(dtype).reshape([4, 4]);
        fn f(x: Array) -> (Array, Array, Array, Array) {
            (
                psum(x.clone(), "i"),
                pmax(x.clone(), "i"),
                all_gather(x.clone(), "i", 0),
                ppermute(x, "i", [(0, 1), (1, 0)]),
            )
        }
        let mapped = vmap(f).axis_name("i").call(&x)?;
        let many = pmap(f).axis_name("i").call(&x)?;
        for (a, b) in [(&mapped.0, &many.0), (&mapped.1, &many.1), (&mapped.2, &many.2), (&mapped.3, &many.3)] {
            assert_eq!((a.dtype(), a.to_f64_vec()?), (b.dtype(), b.to_f64_vec()?), "{dtype}");
        }
        let split = device_put(&x, &NamedSharding::new(&mesh, P!["i"]))?;
        assert_eq!(split.t().to_f64_vec()?, x.t().to_f64_vec()?);
        assert_eq!(split.addressable_data(1)?.to_f64_vec()?, x.get(1).to_f64_vec()?);
        assert_eq!(device_put(&split, &devices()?[0])?.to_bytes()?, x.to_bytes()?);
        // By the compiler's own collectives.
        let replicated = jit(|x: Array| x).out_shardings(NamedSharding::new(&mesh, P![])).call(&split)?;
        assert_eq!(replicated.addressable_data(3)?.to_bytes()?, x.to_bytes()?);
        assert_eq!(jit(|x: Array| x.cumsum(0)).call(&split)?.to_f64_vec()?, x.cumsum(0).to_f64_vec()?);
    }
    Ok(())
}

#[test]
fn functions_of_bits() -> Result<()> {
    setup();
    let x = array([F8E4M3Fn::from_f64(-0.0), F8E4M3Fn::from_f64(6.0)]);
    assert_eq!(shardax::numpy::signbit(&x).to_vec::<bool>()?, [true, false]);
    let (mantissa, exponent) = shardax::numpy::frexp(&x);
    assert_eq!((mantissa.to_f64_vec()?, exponent.to_vec::<i32>()?), (vec![-0.0, 0.75], vec![0, 3]));
    assert_eq!(shardax::numpy::ldexp(&x, 2).to_f64_vec()?, [-0.0, 24.0]);
    assert_eq!(F4E2M1Fn::DTYPE.to_string(), "float4_e2m1fn");
    let x = random::uniform_dtype(random::key(0), [1000], DType::F8E5M2, 0.0, 1.0);
    assert!(x.greater_equal(0).all(..).item::<bool>()? && x.less(1).all(..).item::<bool>()?);
    assert!(random::uniform_dtype(random::key(0), [2], DType::F4E2M1Fn, 0.0, 1.0).check().is_err());
    assert!(random::bits_dtype(random::key(0), [2], DType::U4).check().is_err());
    Ok(())
}

fn matrix_of(values: [i32; 4], dtype: DType) -> Array {
    array(values).astype(dtype).reshape([2, 2])
}

/// Operations whose elements the plugin packs into bytes, each by itself.
#[test]
fn packed_elements() -> Result<()> {
    setup();
    for dtype in [DType::I2, DType::I4, DType::F4E2M1Fn] {
        let x = matrix_of([1, 0, 1, 1], dtype);
        let padded = shardax::numpy::pad(&x, &[(1, 1), (0, 0)], shardax::numpy::PadMode::Constant(0.0));
        assert_eq!(padded.to_f64_vec()?, [0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0], "{dtype}");
        assert_eq!(x.sort(-1).to_f64_vec()?, [0.0, 1.0, 1.0, 1.0], "{dtype}");
        assert_eq!(x.get((1, array([1, 0]))).to_f64_vec()?, [1.0, 1.0], "{dtype}");
        assert_eq!(x.at((0, 1)).set(1).to_f64_vec()?, [1.0; 4], "{dtype}");
        assert_eq!(
            concatenate(&[x.clone(), x.t()], 1).to_f64_vec()?,
            [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0],
            "{dtype}"
        );
    }
    // With another use in the same program, the plugin would transpose packed elements, and abort.
    let x = matrix_of([1, 2, 3, 0], DType::I4);
    let (turned, negative) = jit(|x: Array| (x.t(), -x)).call(&x)?;
    assert_eq!((turned.to_f64_vec()?, negative.to_f64_vec()?), (vec![1.0, 3.0, 2.0, 0.0], vec![-1.0, -2.0, -3.0, 0.0]));
    assert_eq!(x.dot(&x).to_f64_vec()?, [7.0, 2.0, 3.0, 6.0]);
    Ok(())
}

/// All pairs of numbers. JAX returns these numbers for int4, and an error for its powers.
#[test]
fn packed_elements_are_shifted_as_their_bits() -> Result<()> {
    setup();
    for (dtype, bits) in [(DType::I4, 4), (DType::U4, 4), (DType::I2, 2), (DType::U2, 2)] {
        let count = 1 << bits;
        let lowest = if dtype.is_signed() { -count / 2 } else { 0 };
        let numbers: Vec<i32> = (lowest..lowest + count).collect();
        let x = array(numbers.clone()).astype(dtype).expand_dims(1).broadcast_to([numbers.len(), numbers.len()]);
        let y = array(numbers.clone()).astype(dtype).broadcast_to([numbers.len(), numbers.len()]);
        let unsigned = |number: &i32| number & (count - 1);
        let shifted = numbers.iter().flat_map(|x| {
            numbers.iter().map(move |y| {
                let result = if unsigned(y) < bits { unsigned(x) >> unsigned(y) } else { 0 };
                f64::from(if result >= lowest + count { result - count } else { result })
            })
        });
        let shifted: Vec<f64> = shifted.collect();
        assert_eq!(lax::shift_right_logical(&x, &y).to_f64_vec()?, shifted, "{dtype}");
    }
    let x = array([-2, -1, 2, 3]).astype(DType::I4);
    assert_eq!(power(&x, array([3, 3, 2, 1]).astype(DType::I4)).to_f64_vec()?, [-8.0, -1.0, 4.0, 3.0]);
    Ok(())
}
