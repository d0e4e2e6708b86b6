//! Host data without a dtype: it has 64 bits by itself, and takes the dtype of the array that it is combined with.

use shardax::prelude::*;
use shardax::{jacfwd, nn};

use super::common;
use super::common::quick::one_of;

/// `float64~` if the type is weak, as it is printed.
fn kind(x: &Array) -> String {
    format!("{}{}", x.dtype(), if x.weak_type() { "~" } else { "" })
}

/// Two numbers as they are written down.
fn host() -> Array {
    array([1.0, 2.0])
}

#[test]
fn who_states_a_dtype() -> Result<()> {
    common::quick::setup();
    let wide = vec![1.0, 2.0];
    let weak = [
        array(1.5),
        array(&wide),
        array(wide.as_slice()),
        array([[1.0], [2.0]]),
        Array::from_vec(wide.clone(), &[2])?,
        Array::from_slice(&wide, &[2])?,
        Array::from_slice_on(&wide, &[2], &devices()?[0])?,
        device_put(&array(&wide), &devices()?[0])?,
        arange(0.0..2.0),
    ];
    weak.iter().for_each(|x| assert_eq!(kind(x), "float64~"));
    let c = num_complex::Complex::new(1.0, 2.0);
    assert_eq!(kind(&array([c])), "complex128~");
    let strong = [
        array_of(&wide, DType::F64),
        array_of([1, 2], DType::F64),
        array(&wide).astype(DType::F64),
        ones_dtype(2, DType::F64),
        Array::from_bytes(&array(&wide).to_bytes()?, DType::F64, &[2])?,
        Array::from_ndarray(&ndarray::arr1(&wide))?,
    ];
    strong.iter().for_each(|x| assert_eq!(kind(x), "float64"));
    // Rust's integers have 32 bits, as JAX's: nothing is widened by accident, and a written i64 is meant.
    assert_eq!(kind(&array([1, 2])), "int32");
    assert_eq!(kind(&array([1i64, 2])), "int64");
    assert_eq!(kind(&array([1.0f32])), "float32");
    Ok(())
}

#[test]
fn array_of_converts_and_checks() -> Result<()> {
    common::quick::setup();
    assert_eq!(array_of([[1, 2], [3, 4]], DType::Bf16).type_name(), "bfloat16[2,2]");
    assert_eq!(array_of([1.7, -2.2], DType::I8).to_vec::<i8>()?, [1, -2]);
    assert_eq!(array_of([true, false], DType::F32).to_vec::<f32>()?, [1.0, 0.0]);
    let error = array_of([1, 300], DType::I8).check().unwrap_err().to_string();
    assert!(error.contains("integer 300 is out of bounds for int8"), "{error}");
    let error = array_of([vec![1], vec![2, 3]], DType::I8).check().unwrap_err().to_string();
    assert!(error.contains("rows of different lengths"), "{error}");
    Ok(())
}

/// The result type of two types, in both orders.
#[test]
fn promotion_in_both_orders() -> Result<()> {
    common::quick::setup();
    let types = [
        (ones(2), "float32"),
        (ones_dtype(2, DType::Bf16), "bfloat16"),
        (ones_dtype(2, DType::F16), "float16"),
        (ones_dtype(2, DType::F64), "float64"),
        (ones_dtype(2, DType::Complex64), "complex64"),
        (ones_dtype(2, DType::Complex128), "complex128"),
        // `~` marks a weak type: integers and booleans take the type of the Rust number.
        (ones_dtype(2, DType::I32), "float64~"),
        (ones_dtype(2, DType::U64), "float64~"),
        (ones_dtype(2, DType::Bool), "float64~"),
        (host(), "float64~"),
        (Array::from(2.0), "float64~"),
        (Array::from(2), "float64~"),
        (array([num_complex::Complex::new(1.0, 0.0); 2]), "complex128~"),
        (array([num_complex::Complex::new(1.0f32, 0.0); 2]), "complex64"),
        (Array::from(num_complex::Complex::new(1.0, 0.0)), "complex128~"),
    ];
    for (i, (other, want)) in types.into_iter().enumerate() {
        // A slice has one of the orders.
        for (a, b) in [(&host(), &other), (&other, &host())].into_iter().skip(i % one_of(2)).step_by(one_of(2)) {
            let note = format!("{} and {}", a.type_name(), b.type_name());
            assert_eq!(kind(&(a * b)), want, "{note}");
            assert_eq!(kind(&where_(array([true, false]), a, b)), want, "where_ of {note}");
            assert_eq!(kind(&jit(|a: Array, b: Array| a + b).call((a, b))?), want, "jit of {note}");
            assert_eq!(
                kind(&vmap(|a: Array, b: Array| a - b).call((&a.broadcast_to([2]), &b.broadcast_to([2])))?),
                want
            );
            if b.ndim() == 1 && a.ndim() == 1 {
                assert_eq!(kind(&a.dot(b)), want, "dot of {note}");
                assert_eq!(kind(&concatenate(&[a.clone(), b.clone()], 0)), want, "concatenate of {note}");
                assert_eq!(kind(&stack(&[a.clone(), b.clone()], 0)), want, "stack of {note}");
            }
        }
    }
    Ok(())
}

/// Values have 64 bits until they meet another type.
#[test]
fn sixty_four_bits_alone() -> Result<()> {
    common::quick::setup();
    let x = array([0.1, 0.2]);
    assert_eq!((&x * 3.0).to_vec::<f64>()?, [0.1 * 3.0, 0.2 * 3.0]);
    assert_eq!(x.sum(..).item::<f64>()?, 0.1 + 0.2);
    assert_eq!(jit(|x: Array| x + 0.3).call(&x)?.to_vec::<f64>()?, [0.1 + 0.3, 0.2 + 0.3]);
    assert_eq!(grad(|x: Array| (&x * &x).sum(..)).call(&x)?.to_vec::<f64>()?, [0.2, 0.4]);
    assert_eq!((ones(2) * &x).to_vec::<f32>()?, [0.1f32, 0.2]);
    // A program that states float64 keeps it, whatever it meets.
    let w = array_of([0.1, 0.2], DType::F64);
    assert_eq!(kind(&(&w * &x)), "float64");
    assert_eq!(kind(&w.dot(ones(2))), "float64");
    assert_eq!(kind(&grad(|w: Array, x: Array| (w * x).sum(..)).call((&w, ones(2)))?), "float64");
    Ok(())
}

/// Results that depend only on host data are weakly typed.
#[test]
fn operations_keep_the_type_weak() -> Result<()> {
    common::quick::setup();
    type Case = (&'static str, fn(Array) -> Array);
    let cases: [Case; 43] = [
        ("sum", |x| x.sum(..)),
        ("mean", |x| x.mean(..)),
        ("var", |x| x.var(..)),
        ("std", |x| x.std(..)),
        ("prod", |x| x.prod(..)),
        ("max", |x| x.max(..)),
        ("cumsum", |x| x.cumsum(0)),
        ("logsumexp", |x| x.logsumexp(..)),
        ("softmax", |x| nn::softmax(x, 0)),
        ("relu", nn::relu),
        ("gelu", nn::gelu),
        ("softplus", nn::softplus),
        ("norm", |x| linalg::norm(x, 2.0, ..)),
        ("dot", |x| x.dot(&x)),
        ("outer", |x| outer(&x, &x)),
        ("einsum", |x| einsum("i,i->", &[&x, &x])),
        ("sort", |x| x.sort(0)),
        ("flip", |x| x.flip(0)),
        ("roll", |x| roll(&x, 1, 0)),
        ("index", |x| x.at(0).get()),
        ("take", |x| x.take(array([1, 0]), 0)),
        ("set", |x| x.at(0).set(5.0)),
        ("add", |x| x.at(0).add(5.0)),
        ("reshape", |x| x.reshape([2, 1])),
        ("transpose", |x| x.reshape([1, 2]).t()),
        ("tile", |x| tile(&x, &[2])),
        ("pad", |x| pad(&x, &[(1, 1)], PadMode::Constant(0.0))),
        ("clip", |x| x.clip(0, 1)),
        ("where", |x| where_(x.greater(1), &x, 0)),
        ("pow", |x| x.pow(2)),
        ("sqrt", |x| x.sqrt()),
        ("log2", |x| log2(&x)),
        ("sin", |x| x.sin()),
        ("arctan2", |x| arctan2(&x, &x)),
        ("diag", |x| diag(&x, 0)),
        ("zeros_like", |x| zeros_like(&x)),
        ("full_like", |x| full_like(&x, 3)),
        ("stop_gradient", stop_gradient),
        ("inverse", |x| linalg::inv(diag(&x, 0))),
        ("det", |x| linalg::det(diag(&x, 0))),
        ("cholesky", |x| linalg::cholesky(diag(&x, 0))),
        ("eigenvalues", |x| linalg::eigh(diag(&x, 0)).0),
        ("integers", |x| arange(0..2) * x),
    ];
    for (name, f) in cases.into_iter().step_by(one_of(3)) {
        assert_eq!(kind(&f(host())), "float64~", "{name}");
        assert_eq!(kind(&jit(f).call(host())?), "float64~", "{name} in jit");
        // What has a dtype keeps it.
        let stated = host().astype(DType::F64);
        assert_eq!(kind(&f(stated)), "float64", "{name} of float64");
    }
    Ok(())
}

#[test]
fn gradients_and_tangents_give_way_too() -> Result<()> {
    common::quick::setup();
    let x = ones(2);
    fn loss(w: Array, x: Array) -> Array {
        (w * x).square().mean(..)
    }
    // A parameter that is written down does not make the next step float64.
    let (value, gradient) = value_and_grad(loss).call((host(), &x))?;
    assert_eq!((kind(&value), kind(&gradient)), ("float32".into(), "float64~".into()));
    let next = host() - gradient * 0.1;
    assert_eq!(kind(&loss(next, x.clone())), "float32");
    assert_eq!(kind(&jit(grad(loss)).call((host(), &x))?), "float64~");
    assert_eq!(kind(&grad(loss).argnums(Arg::<1>).call((host(), &x))?), "float32");
    let (y, dy) = jvp(|x: Array| x.sin(), host(), host())?;
    assert_eq!((kind(&y), kind(&dy)), ("float64~".into(), "float64~".into()));
    let (_, back) = vjp(|x: Array| x.exp(), host())?;
    assert_eq!(kind(&back.call(host())?.0), "float64~");
    assert_eq!(kind(&jacfwd(|x: Array| x.square()).call(host())?), "float64~");
    assert_eq!(kind(&grad(checkpoint(|x: Array| x.sin().sum(..))).call(host())?), "float64~");
    Ok(())
}

#[test]
fn loops_and_branches() -> Result<()> {
    common::quick::setup();
    let x = ones(2);
    // A carry that is written down takes the type that the body makes of it.
    let (carry, _) = scan_n(|c: Array| (c * &x, ()), host(), 2)?;
    assert_eq!(kind(&carry), "float32");
    let (carry, rows) = scan_n(|c: Array| (&c * 2.0, c), host(), 2)?;
    assert_eq!((kind(&carry), kind(&rows)), ("float64~".into(), "float64~".into()));
    let (_, doubled) = scan(|c: Array, row: Array| (c, row * 2.0), Array::from(0), host())?;
    assert_eq!(kind(&doubled), "float64~");
    assert_eq!(kind(&fori_loop(0, 2, |_, c: Array| c * &x, host())?), "float32");
    assert_eq!(kind(&while_loop(|c: Array| c.sum(..).less(9), |c: Array| c * 2.0, host())?), "float64~");
    fn choose(p: bool, other: Array) -> Result<Array> {
        cond(array(p), |x: Array| x * 2.0, move |_: Array| other.clone(), host())
    }
    assert_eq!(kind(&choose(true, host())?), "float64~");
    assert_eq!(kind(&choose(true, host().astype(DType::F64))?), "float64");
    Ok(())
}

#[test]
fn over_devices() -> Result<()> {
    common::quick::setup();
    let x = ones(8);
    let weights: Vec<f64> = (0..8).map(f64::from).collect();
    let out = pmap(|x: Array, w: Array| (&x * &w, psum(w, "i"))).axis_name("i").call((&x, array(&weights)))?;
    assert_eq!((kind(&out.0), kind(&out.1)), ("float32".into(), "float64~".into()));
    let mesh = make_mesh([("x", 8)])?;
    let placed = device_put(&array(&weights), &NamedSharding::new(&mesh, P!["x"]))?;
    let f = shard_map(|x: Array, w: Array| x * w, &mesh).in_specs((P!["x"], P!["x"])).out_specs(P!["x"]);
    assert_eq!(kind(&f.call((&x, &placed))?), "float32");
    assert_eq!(kind(&replicate(&array(&weights))?), "float64~");
    Ok(())
}
