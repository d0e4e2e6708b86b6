//! Numbers, indices and bytes at the edges of what their types hold.

use shardax::ErrorKind;
use shardax::prelude::*;

use super::common::quick::setup;

fn error_of(x: Array) -> shardax::Error {
    x.check().expect_err("an error")
}

#[test]
fn starts_of_blocks_keep_their_width() -> Result<()> {
    setup();
    let x = arange(0..5);
    let far = [1i64 << 32, i64::MAX, (1 << 40) + 1];
    for start in far {
        assert_eq!(lax::dynamic_slice(&x, &[array(start)], &[2]).to_vec::<i32>()?, [3, 4], "{start}");
        assert_eq!(lax::dynamic_slice(&x, &[Array::from(start)], &[2]).to_vec::<i32>()?, [3, 4], "{start}");
        assert_eq!(lax::dynamic_slice(&x, &[array(-start)], &[2]).to_vec::<i32>()?, [0, 1], "-{start}");
        assert_eq!(lax::dynamic_index_in_dim(&x, array(start), 0).to_vec::<i32>()?, [4]);
        let y = lax::dynamic_update_slice(&x, &array([9]), &[array(start as u64)]);
        assert_eq!(y.to_vec::<i32>()?, [0, 1, 2, 3, 9]);
        assert_eq!(x.get(&array([start, 1])).to_vec::<i32>()?, [4, 1]);
        assert_eq!(x.get(&array([start as u64])).to_vec::<i32>()?, [4]);
        assert_eq!(x.at(&array([start])).set(7).to_vec::<i32>()?, [0, 1, 2, 3, 4]);
    }
    assert_eq!(lax::dynamic_slice(&x, &[array(u32::MAX)], &[2]).to_vec::<i32>()?, [3, 4]);
    assert_eq!(lax::dynamic_slice(&x, &[array(u64::MAX)], &[2]).to_vec::<i32>()?, [3, 4]);
    assert_eq!(x.get(&array([u64::MAX])).to_vec::<i32>()?, [4]);
    assert_eq!(lax::dynamic_slice(&x, &[array(-1i8)], &[1]).to_vec::<i32>()?, [4]);
    // Mapped over, they are a gather's.
    let starts = array([0i64, 1 << 32, -1]);
    let rows = vmap(|start: Array| lax::dynamic_slice(&x, &[start], &[1])).call(&starts)?;
    assert_eq!(rows.to_vec::<i32>()?, [0, 4, 4]);
    Ok(())
}

#[test]
fn narrow_indices_reach_large_arrays() -> Result<()> {
    setup();
    let x = arange(0..1000);
    assert_eq!(x.take_along_axis(&array([-1i8, 5]), 0).to_vec::<i32>()?, [999, 5]);
    assert_eq!(x.take([999, -1], 0).to_vec::<i32>()?, [999, 999]);
    assert_eq!(x.take(&array([-1i8]), 0).to_vec::<i32>()?, [999]);
    Ok(())
}

#[test]
fn an_entry_at_a_computed_place_keeps_its_axis() -> Result<()> {
    setup();
    let x = arange(0..6).reshape([2, 3]);
    assert_eq!(lax::dynamic_index_in_dim(&x, array(1), 0).shape(), [1, 3]);
    for update in [ones_dtype([1, 3], DType::I32), ones_dtype([3], DType::I32)] {
        let y = lax::dynamic_update_index_in_dim(&x, &update, 1, 0);
        assert_eq!(y.to_vec::<i32>()?, [0, 1, 2, 1, 1, 1]);
    }
    Ok(())
}

#[test]
fn numbers_of_another_type_are_converted_as_arrays_are() -> Result<()> {
    setup();
    let i = zeros_dtype([1], DType::I32);
    let wide = array([3e9f32, 1e30, -1e30, f32::NAN, 2.7]).astype(DType::I32).to_vec::<i32>()?;
    for (f, want) in [3e9, 1e30, -1e30, f64::NAN, 2.7].into_iter().zip(wide) {
        assert_eq!(full_like(&i, f).item::<i32>()?, want, "full_like {f}");
        assert_eq!(pad(&i, &[(1, 0)], PadMode::Constant(f)).get(0).item::<i32>()?, want, "pad {f}");
        assert_eq!(i.at(&array([7])).fill_value(f).get().item::<i32>()?, want, "fill_value {f}");
        assert_eq!(jit(|x: Array| full_like(&x, f)).call(&i)?.item::<i32>()?, want, "traced {f}");
    }
    assert_eq!(full_like(&zeros_dtype([1], DType::U8), -1.0).item::<u8>()?, 0);
    assert_eq!(full_like(&zeros_dtype([1], DType::U8), 300.0).item::<u8>()?, 255);
    let places = array([7]);
    for failed in [full_like(&i, 3_000_000_000i64), i.at(&places).fill_value(3_000_000_000i64).get()] {
        let e = error_of(failed);
        assert!(e.message().contains("integer 3000000000 is out of bounds for int32"), "{e}");
    }
    Ok(())
}

#[test]
fn fill_values_may_be_scalars_and_never_hide_an_error() -> Result<()> {
    setup();
    let x = array([1.0f32, 2.0]);
    let places = array([0, 9]);
    assert_eq!(x.at(&places).fill_value(array(5.0f32)).get().to_vec::<f32>()?, [1.0, 5.0]);
    assert_eq!(x.at(&places).fill_value(array(5)).get().to_vec::<f32>()?, [1.0, 5.0]);
    let e = error_of(x.at(&places).fill_value(&x).get());
    assert!(e.message().contains("fill_value argument to indexed get() must be a scalar"), "{e}");
    let e = error_of(x.at(&places).fill_value(x.get(5)).get());
    assert_eq!(e.kind(), ErrorKind::Index);
    let traced = jit(|fill: Array| array([1.0f32]).at(&array([3])).fill_value(fill).get()).call(array(2.0f32));
    assert!(traced.is_err_and(|e| e.message().contains("fill_value")));
    Ok(())
}

#[test]
fn bytes_of_booleans_are_0_or_1() {
    setup();
    let e = Array::from_bytes(&[1, 0, 255], DType::Bool, &[3]).expect_err("no boolean");
    assert!(e.message().contains("byte 2") && e.message().contains("255"), "{e}");
    assert!(e.location().is_some_and(|l| l.file() == file!()), "{e}");
    assert!(Array::from_bytes(&[1, 0, 1], DType::Bool, &[3]).is_ok());
}

#[test]
fn sizes_beyond_memory_are_no_wildcards() {
    setup();
    let e = error_of(arange(0..4).reshape([usize::MAX]));
    assert!(e.message().contains("reshape"), "{e}");
    assert!(zeros([usize::MAX]).check().is_err() && ones([2]).broadcast_to([usize::MAX]).check().is_err());
}

#[test]
fn decimals_beyond_the_digits_change_nothing() -> Result<()> {
    setup();
    let x = array([5.5f32, -1e38, f32::INFINITY]);
    for decimals in [39, 2000, i32::MAX] {
        assert_eq!(around(&x, decimals).to_vec::<f32>()?, [5.5, -1e38, f32::INFINITY]);
    }
    assert_eq!(around(&x, 5).to_vec::<f32>()?, [5.5, -1e38, f32::INFINITY]);
    assert_eq!(around(&x, i32::MIN).to_vec::<f32>()?, [0.0, 0.0, f32::INFINITY]);
    assert!(around(&array([5]), i32::MIN).check().is_err());
    Ok(())
}

#[test]
fn associative_functions_keep_shapes() {
    setup();
    let e = associative_scan(|a: Array, _: Array| a.get(0), arange(0..6)).expect_err("a scalar");
    assert!(e.message().contains("[3]") && e.message().contains("int32[]"), "{e}");
    assert!(e.location().is_some_and(|l| l.file() == file!()), "{e}");
    let e = associative_scan(|a: Array, _: Array| a.get(9), arange(0..6)).expect_err("out of bounds");
    assert_eq!(e.kind(), ErrorKind::Index);
}

/// The kind of an array's error.
fn kind_of(x: &Array) -> Option<ErrorKind> {
    x.error().map(|e| e.kind())
}

#[test]
fn the_first_error_wins() {
    setup();
    let x = arange(0..3);
    let (first, second) = (x.get(7), x.reshape([5]));
    assert_ne!(kind_of(&first), kind_of(&second));
    for (a, b) in [(&first, &second), (&second, &first)] {
        let constructors = [
            where_(a, b, 0),
            where_(a, 0, b),
            where_(true, a, b),
            a + b,
            lax::select(a, b, b),
            x.at(1).set(a) + b,
            lax::dynamic_update_slice(&x, a, std::slice::from_ref(b)),
        ];
        for failed in constructors {
            assert_eq!(kind_of(&failed), kind_of(a));
        }
    }
}

#[test]
fn tracers_of_a_live_trace_say_that_they_have_a_thread() {
    setup();
    let log = std::sync::Mutex::new(None);
    let _ = jit(|x: Array| {
        let e = std::thread::scope(|s| s.spawn(|| (&x + 1).check().expect_err("another thread")).join());
        *log.lock().expect("an error") = e.ok();
        x
    })
    .call(array(1.0f32));
    let e = log.into_inner().expect("an error").expect("an error");
    assert_eq!(e.kind(), ErrorKind::Leak);
    assert!(e.message().contains("another thread") && e.message().contains("UnexpectedTracerError"), "{e}");
    assert!(e.help_text().is_some_and(|help| help.contains("traced on one thread")));
}

#[test]
fn errors_of_sort_name_the_line() {
    setup();
    for e in [lax::sort(&[], 0, 1), lax::sort(&[arange(0..3)], 4, 1), lax::sort(&[arange(0..3), arange(0..4)], 0, 1)] {
        let e = e.expect_err("an error");
        assert!(e.location().is_some_and(|l| l.file() == file!()), "{e}");
        assert!(!e.message().is_empty());
    }
}

#[test]
fn plain_numbers_meet_arrays_of_64_bits_with_all_their_digits() -> Result<()> {
    setup();
    let x = array([1.0f64]);
    fn times(x: Array, y: Array) -> Array {
        x * y
    }
    let want = [0.1];
    assert_eq!(jit(times).call((&x, 0.1))?.to_vec::<f64>()?, want);
    assert_eq!(jit(times).call((0.1, &x))?.to_vec::<f64>()?, want);
    assert_eq!(shardax::vmap(times).in_axes((0, None)).call((&x, 0.1))?.to_vec::<f64>()?, want);
    assert_eq!(grad(|x: Array, y: Array| (x * y).sum(..)).call((&x, 0.1))?.to_vec::<f64>()?, want);
    let (_, tangent) = jvp(times, (&x, 0.1), (&x, 0.0))?;
    assert_eq!(tangent.to_vec::<f64>()?, want);
    assert_eq!(pmap(times).in_axes((0, None)).call((&x, 0.1))?.to_vec::<f64>()?, want);
    let n = array([1i64]);
    assert_eq!(jit(|x: Array, y: Array| x * y).call((&n, 1i64 << 40))?.to_vec::<i64>()?, [1 << 40]);
    // Among others a plain number has 32 bits.
    assert_eq!(jit(times).call((array([1.0f32]), 0.1))?.dtype(), DType::F32);
    assert_eq!(jit(|x: Array| x).call(0.5)?.dtype(), DType::F32);
    Ok(())
}

#[test]
fn signs_are_integers_unless_asked_otherwise() -> Result<()> {
    setup();
    let key = random::key(0);
    assert_eq!(random::rademacher(&key, 4).to_vec::<i32>()?, [-1, -1, 1, 1]);
    assert_eq!(random::rademacher_dtype(&key, 4, DType::U8).to_vec::<u8>()?, [255, 255, 1, 1]);
    assert_eq!(
        random::rademacher_dtype(&key, 4, DType::Bf16).astype(DType::F32).to_vec::<f32>()?,
        [-1.0, -1.0, 1.0, 1.0]
    );
    Ok(())
}

#[test]
fn ranges_in_a_trace_are_computed_where_they_are_used() -> Result<()> {
    setup();
    // As constants of the program they would take 16 GB, 4 TB and 16 GB here.
    for make in [
        |_: Array| linspace(-1.0, 2.0, 1 << 32).get(0),
        |_: Array| eye(1 << 20).get((3, 3)),
        |_: Array| arange(i32::MIN..i32::MAX).get(-1),
    ] {
        let program = make_program(make, array(0.0f32))?.to_string();
        assert!(program.contains("iota"), "{program}");
    }
    Ok(())
}

#[test]
fn ranges_are_the_same_traced_and_at_once() -> Result<()> {
    setup();
    fn traced(make: fn() -> Array) -> Result<Array> {
        jit(move |_: Array| make()).call(&array(0.0f32))
    }
    // These must be equal bit by bit.
    let same: [fn() -> Array; 11] = [
        || arange(2..5),
        || arange(250u8..255),
        || arange(-3i8..100),
        || arange(7..2),
        || arange_step(10..0, -3.0),
        || arange_step(0..5, 0.5),
        || arange_step(i8::MIN..i8::MAX, 100.0),
        || arange_step(-1.0f64..1.0, 0.125),
        || eye(0),
        || eye(1),
        || eye(5),
    ];
    for (k, make) in same.into_iter().enumerate() {
        let (now, traced) = (make(), traced(make)?);
        assert_eq!(now.type_name(), traced.type_name(), "{k}");
        assert_eq!(now.to_bytes()?, traced.to_bytes()?, "{k}");
    }
    // These may differ in the last bits, because the compiler contracts products and sums.
    let near: [fn() -> Array; 5] = [
        || linspace(-1.0, 2.0, 1001),
        || linspace(3.0, 3.5, 1),
        || linspace(0.0, 1.0, 0),
        || linspace(0.25, f64::INFINITY, 2),
        || arange_step(0.1f32..100.0, 0.1),
    ];
    for (k, make) in near.into_iter().enumerate() {
        let (now, traced) = (make().to_vec::<f32>()?, traced(make)?.to_vec::<f32>()?);
        assert_eq!(now.len(), traced.len(), "{k}");
        for (a, b) in now.iter().zip(&traced) {
            let alike = a.is_nan() && b.is_nan() || a == b;
            assert!(alike || (a - b).abs() <= 2.0 * f32::EPSILON * a.abs().max(1.0), "{k}: {a} {b}");
        }
    }
    Ok(())
}

#[test]
fn ranges_that_are_large_are_the_same() -> Result<()> {
    setup();
    let n = (64 << 20) / 4 + 1;
    assert_eq!(arange(0..n).get(array([-1, 5])).to_vec::<i32>()?, [n - 1, 5]);
    assert_eq!(zeros([n]).get(-1).item::<f32>()?, 0.0);
    Ok(())
}

#[test]
fn float_ranges_are_rounded_as_in_jax() -> Result<()> {
    setup();
    // jnp.arange(0.1, 100, 0.1, dtype=jnp.float32)[[6, 308, 638]]
    let x = arange_step(0.1f32..100.0, 0.1);
    assert_eq!(x.size(), 999);
    assert_eq!(x.get(array([6, 308, 638])).to_vec::<f32>()?, [0.70000005, 30.900002, 63.899998]);
    let e = error_of(arange(0.0f32..f32::NAN));
    assert!(e.message().contains("cannot convert float NaN to integer"), "{e}");
    Ok(())
}

/// Numbers on the left, references, lists of references and what an operator returns: each function takes each of them.
#[test]
fn functions_accept_numbers_references_and_results_of_operators() -> Result<()> {
    use shardax::numpy as np;
    setup();
    let x = array([0.25f32, 0.75]);
    assert_eq!((1.0 - &x).sqrt().to_vec::<f32>()?, [0.75f32.sqrt(), 0.5]);
    assert_eq!((2 * &x).clip(0, 1).to_vec::<f32>()?, [0.5, 1.0]);
    assert_eq!(np::exp(&x - 1).to_vec::<f32>()?, (&x - 1).exp().to_vec::<f32>()?);
    assert_eq!(np::sqrt(4.0).item::<f32>()?, 2.0);
    assert_eq!(np::stack([&x, &x], 0).shape(), [2, 2]);
    assert_eq!(np::concatenate([1 - &x, x.clone()], 0).shape(), [4]);
    assert_eq!(np::vstack(vec![&x; 3]).shape(), [3, 2]);
    let shape = vec![2usize, 1];
    assert_eq!(x.reshape(&shape).flatten().shape(), [2]);
    block_until_ready((&x, &vec![x.clone()]))?;
    Ok(())
}

#[test]
fn shifts_and_places_are_lists_or_arrays() -> Result<()> {
    setup();
    let x = array([[1, 2, 3], [4, 5, 6]]);
    let shifts: Vec<i32> = vec![1, -1];
    let rolled = [5, 6, 4, 2, 3, 1];
    assert_eq!(x.roll(&shifts, [0, 1]).to_vec::<i32>()?, rolled);
    assert_eq!(x.roll(shifts.as_slice(), [0, 1]).to_vec::<i32>()?, rolled);
    assert_eq!(x.roll(vec![1i64, -1], [0, 1]).to_vec::<i32>()?, rolled);

    let x = array([1, 2, 3]);
    let inserted = [9, 1, 7, 2, 3, 8];
    let values = array([8, 9, 7]);
    let places: Vec<i64> = vec![3, 0, -2];
    assert_eq!(insert(&x, &places, &values, 0).to_vec::<i32>()?, inserted);
    assert_eq!(insert(&x, array([3, 0, -2]), &values, 0).to_vec::<i32>()?, inserted);
    let traced = jit(|x: Array, places: Array, values: Array| insert(x, places, values, 0));
    assert_eq!(traced.call((&x, array([3i8, 0, -2]), &values))?.to_vec::<i32>()?, inserted);
    assert_eq!(traced.call((&x, array([0; 0]), array([0; 0])))?.to_vec::<i32>()?, [1, 2, 3]);
    assert_eq!(traced.call((&x, array(1), array([8, 9])))?.to_vec::<i32>()?, [1, 8, 9, 2, 3]);
    let rows = jit(|x: Array, places: Array| insert(x, places, 0, 1));
    assert_eq!(rows.call((array([[1, 2], [3, 4]]), array([1, 1])))?.to_vec::<i32>()?, [1, 0, 0, 2, 3, 0, 0, 4]);
    assert_eq!(delete(&x, array([0, -1]), 0).to_vec::<i32>()?, [2]);
    // The number of remaining elements depends on the values of the indices, which a trace does not know.
    let deleted = jit(|x: Array, places: Array| delete(x, places, 0)).call((&x, array([0])));
    assert!(deleted.expect_err("an error").to_string().contains("traced indices"));
    assert!(error_of(insert(&x, array([0.5f32]), 1, 0)).to_string().contains("indices of type float32"));
    Ok(())
}

#[test]
fn frequencies_and_diagonals_of_more_elements_than_int32_counts() -> Result<()> {
    setup();
    const N: usize = (1 << 32) + 6;
    let functions: [(fn() -> Array, usize); 3] = [
        (|| shardax::fft::fftfreq(N, 1.0), N),
        (|| shardax::fft::rfftfreq(N, 1.0), N / 2 + 1),
        (|| shardax::numpy::diag_indices(N).1, N),
    ];
    for (f, size) in functions {
        // Such an array does not fit in memory, so it is only traced.
        assert_eq!(shardax::eval_shape(move |_: Array| f(), (array(0),))?.shape(), [size]);
    }
    Ok(())
}
