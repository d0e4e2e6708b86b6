//! Random numbers equal JAX's in every form of a program, and have the expected distributions.
//!
//! The reference values of every distribution are in `golden.rs`.

mod common;

use common::quick::setup;
use common::values::error_of;
use shardax::nn::initializers::{self, Distribution, Fan, Initializer};
use shardax::prelude::*;
use shardax::{Error, ErrorKind};

fn moments(x: &Array) -> Result<(f64, f64)> {
    let values = x.to_f64_vec()?;
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    Ok((mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64))
}

fn words(keys: impl random::RandomKey) -> Result<Vec<u32>> {
    random::key_data(keys).to_vec()
}

#[test]
fn keys_and_values_of_jax() -> Result<()> {
    setup();
    let raw = random::PRNGKey(42);
    assert_eq!((raw.shape(), raw.dtype(), raw.to_vec::<u32>()?), (&[2][..], DType::U32, vec![0, 42]));
    let key = random::key(42);
    assert_eq!((key.type_name(), words(&key)?), ("key<fry>[]".to_owned(), vec![0, 42]));
    assert_eq!(words(random::key(-1))?, [0, u32::MAX]);
    assert_eq!(words(random::key(7u64 + (1 << 32)))?, [0, 7]);
    assert_eq!(words(jit(|s: Array| random::key(s)).call(array(-1))?)?, [0, u32::MAX]);
    assert_eq!(jit(|s: Array| random::PRNGKey(s)).call(array(-1))?.to_vec::<u32>()?, [0, u32::MAX]);
    assert_eq!(random::bits(&key, [2]).to_vec::<u32>()?, [2098992034, 2919706841]);
    let keys = random::split(&key, 2);
    assert_eq!(words(&keys)?, [1832780943, 270669613, 64467757, 2916123636]);
    assert_eq!(words(random::fold_in(&key, 5))?, [2765691542, 824333390]);
    let normal = random::normal(&key, [2]).to_vec::<f32>()?;
    assert!((normal[0] + 0.028304616).abs() < 1e-7 && (normal[1] - 0.46713185).abs() < 1e-6, "{normal:?}");
    assert_eq!(random::normal(&key, ()).shape(), [0usize; 0]);
    assert_eq!(random::randint(&key, [4], 3, 17).to_vec::<i32>()?, [11, 15, 14, 14]);
    assert_eq!(random::permutation(&key, 8).to_vec::<i32>()?, [7, 4, 2, 5, 3, 6, 0, 1]);
    Ok(())
}

#[test]
fn values_do_not_depend_on_how_they_are_computed() -> Result<()> {
    setup();
    let key = random::key(3);
    let eager = random::normal(&key, [8, 4]).to_vec::<f32>()?;
    assert_eq!(jit(|k: Array| random::normal(&k, [8, 4])).call(&key)?.to_vec::<f32>()?, eager);
    // Longer arrays begin with shorter ones.
    assert_eq!(random::bits(&key, [3]).to_vec::<u32>()?, random::bits(&key, [100]).get(..3).to_vec::<u32>()?);
    assert_eq!(random::bits(&key, [2, 3]).to_vec::<u32>()?, random::bits(&key, [6]).to_vec::<u32>()?);
    // Nor on the devices that compute them.
    let mesh = make_mesh([("x", 8)])?;
    let on_mesh = device_put(&key, NamedSharding::new(&mesh, P![]))?;
    assert_eq!(random::normal(&on_mesh, [8, 4]).to_vec::<f32>()?, eager);
    // A batch of keys draws the same numbers as each key.
    let keys = random::split(&key, 4);
    let batch = vmap(|k: Array| random::uniform(&k, [3])).call(&keys)?;
    for i in 0..4 {
        assert_eq!(batch.get(i).to_vec::<f32>()?, random::uniform(&keys.get(i), [3]).to_vec::<f32>()?);
    }
    let folded = vmap(|k: Array, i: Array| random::fold_in(&k, i)).in_axes((None, 0)).call((&key, arange(0..3)))?;
    assert_eq!(words(folded.get(2))?, words(random::fold_in(&key, 2))?);
    // Each device has one key, which does not change.
    let (same, drawn) = pmap(|k: Array| (k.clone(), random::uniform(&k, [2]))).call(random::split(&key, 8))?;
    assert_eq!((same.dtype(), same.shape()), (DType::Key, &[8][..]));
    assert_eq!(drawn.get(5).to_vec::<f32>()?, random::uniform(&random::split(&key, 8).get(5), [2]).to_vec::<f32>()?);
    Ok(())
}

#[test]
fn distributions() -> Result<()> {
    setup();
    let key = random::key(0);
    let n = [20000];
    fn near(name: &str, x: Array, mean: f64, variance: f64) -> Result<()> {
        let (m, v) = moments(&x)?;
        assert!((m - mean).abs() < 0.05 && (v / variance - 1.0).abs() < 0.1, "{name}: mean {m}, variance {v}");
        Ok(())
    }
    near("uniform", random::uniform_dtype(&key, n, DType::F32, -1, 3), 1.0, 16.0 / 12.0)?;
    near("normal", random::normal(&key, n), 0.0, 1.0)?;
    near("truncated_normal", random::truncated_normal(&key, -1.0, 1.0, n), 0.0, 0.2911)?;
    near("gumbel", random::gumbel(&key, n), 0.5772, 1.6449)?;
    near("exponential", random::exponential(&key, n), 1.0, 1.0)?;
    near("laplace", random::laplace(&key, n), 0.0, 2.0)?;
    near("logistic", random::logistic(&key, n), 0.0, 3.2899)?;
    near("bernoulli", random::bernoulli(&key, 0.3, n), 0.3, 0.21)?;
    near("rademacher", random::rademacher(&key, n), 0.0, 1.0)?;
    near("randint", random::randint(&key, n, -3, 4), 0.0, 4.0)?;
    near("choice", random::ChoiceOptions::new().p(&array([0.25f32, 0.75])).choice(&key, 2, n), 0.75, 0.1875)?;
    let logits = array([0.0f32, 3f32.ln()]);
    near("categorical", random::categorical_shape(&key, &logits, 0, Some(&n)), 0.75, 0.1875)?;
    for dtype in [DType::F16, DType::Bf16, DType::F64] {
        let x = random::normal_dtype(&key, n, dtype);
        assert_eq!(x.dtype(), dtype);
        near("normal of another dtype", x, 0.0, 1.0)?;
    }
    near("normal, complex", random::normal_dtype(&key, n, DType::Complex64), 0.0, 0.5)?;
    // Ends: 0 and no 1; nothing outside.
    let u = random::uniform_dtype(&key, n, DType::Bf16, 0, 1).to_f64_vec()?;
    assert!(u.iter().all(|v| (0.0..1.0).contains(v)) && u.contains(&0.0));
    let x = random::truncated_normal(&key, -2, 2, n).to_f64_vec()?;
    assert!(x.iter().all(|v| v.abs() < 2.0));
    assert_eq!(random::randint(&key, [3], 5, 5).to_vec::<i32>()?, [5; 3]);
    assert_eq!(random::randint(&key, [3], 9, 2).to_vec::<i32>()?, [9; 3]);
    // Bounds beyond 32 bits are clamped to a narrow dtype, not cut to their low bits.
    let all = random::randint_dtype(&key, [4], 0, 256, DType::U8).to_vec::<u8>()?;
    assert_eq!(random::randint_dtype(&key, [4], 0, 1i64 << 32, DType::U8).to_vec::<u8>()?, all);
    assert_eq!(random::randint_dtype(&key, [4], 0, array([u32::MAX; 4]), DType::U8).to_vec::<u8>()?, all);
    Ok(())
}

#[test]
fn permutations_and_choices() -> Result<()> {
    setup();
    let key = random::key(1);
    let mut order = random::permutation(&key, 100).to_vec::<i32>()?;
    assert_ne!(order, (0..100).collect::<Vec<_>>());
    order.sort_unstable();
    assert_eq!(order, (0..100).collect::<Vec<_>>());
    // Rows stay whole, columns of an independent permutation do not.
    let x = arange(0..20).reshape([10, 2]);
    let rows = random::permutation(&key, &x).to_vec::<i32>()?;
    assert!(rows.chunks(2).all(|r| r[0] % 2 == 0 && r[1] == r[0] + 1));
    let mixed = random::PermutationOptions::new().independent(true).permutation(&key, &x).to_vec::<i32>()?;
    assert!(mixed.chunks(2).all(|r| r[0] % 2 == 0 && r[1] % 2 == 1) && mixed.chunks(2).any(|r| r[1] != r[0] + 1));
    let mut drawn = random::ChoiceOptions::new().replace(false).choice(&key, 6, [2, 3]).to_vec::<i32>()?;
    drawn.sort_unstable();
    assert_eq!(drawn, [0, 1, 2, 3, 4, 5]);
    assert_eq!(random::choice(&key, &x, [3]).shape(), [3, 2]);
    assert_eq!(random::choice(&key, &x, [0]).shape(), [0, 2]);
    assert_eq!(random::permutation(&key, 0).shape(), [0]);
    Ok(())
}

/// The drawn rows of an axis, JAX's.
#[test]
fn choices_along_an_axis() -> Result<()> {
    setup();
    let (key, x) = (random::key(3), arange(0..24).reshape([2, 4, 3]));
    fn rows(drawn: Array, shape: &[usize], want: &[i32]) -> Result<()> {
        assert_eq!(drawn.shape(), shape);
        let first = drawn.get((.., .., 0)).to_vec::<i32>();
        assert_eq!(if shape.len() == 3 { first? } else { drawn.get((0, .., .., 0)).to_vec()? }, want);
        Ok(())
    }
    rows(random::ChoiceOptions::new().axis(1).choice(&key, &x, [2, 2]), &[2, 2, 2, 3], &[9, 9, 3, 6])?;
    let once = random::ChoiceOptions::new().replace(false);
    let p = array([0.1f32, 0.2, 0.3, 0.4]);
    rows(once.clone().axis(-2).p(&p).choice(&key, &x, [3]), &[2, 3, 3], &[9, 3, 6, 21, 15, 18])?;
    rows(once.clone().axis(1).choice(&key, &x, [3]), &[2, 3, 3], &[0, 6, 3, 12, 18, 15])?;
    let e = error_of(once.axis(3).choice(&key, &x, [1]));
    assert!(e.check_kind(ErrorKind::Index));
    Ok(())
}

/// An array of literals is float64 with a weak type, but as in JAX samples are drawn in float32.
#[test]
fn literals_have_the_samples_of_float32() -> Result<()> {
    let key = &random::key(12);
    let (literals, narrow) = (&array([0.2, 0.3, 0.5]), &array([0.2f32, 0.3, 0.5]));
    let samples = |p: &Array| {
        [
            random::bernoulli(key, p, [5, 3]).astype(DType::F32),
            random::categorical(key, p, -1).astype(DType::F32),
            random::categorical_shape(key, p, -1, Some(&[7])).astype(DType::F32),
            random::multinomial(key, 20, p),
            random::ChoiceOptions::new().p(p).choice(key, 3, [6]).astype(DType::F32),
            random::ChoiceOptions::new().p(p).replace(false).choice(key, 3, [3]).astype(DType::F32),
            random::binomial(key, 20, p, [3]),
            random::beta(key, p, p, [3]),
            random::dirichlet(key, p, [2]),
            random::geometric(key, p, [3]).astype(DType::F32),
            random::multivariate_normal(key, p, eye(3), [2]),
        ]
    };
    for (literal, narrow) in samples(literals).iter().zip(samples(narrow)) {
        assert_eq!(literal.to_vec::<f32>()?, narrow.to_vec::<f32>()?);
    }
    // JAX 0.12.
    assert_eq!(random::multinomial(key, 20, literals).to_vec::<f32>()?, [5.0, 5.0, 10.0]);
    Ok(())
}

#[test]
fn gradients_reach_the_parameters() -> Result<()> {
    setup();
    let key = random::key(5);
    let k = key.clone();
    let f = move |lo: Array, hi: Array| random::uniform_dtype(&k, [50], DType::F32, lo, hi).sum(..);
    let (lo, hi) = grad(f).argnums((Arg::<0>, Arg::<1>)).call((array(-1.0f32), array(2.0f32)))?;
    // Each sample is lo + u (hi - lo).
    let u = random::uniform(&key, [50]).to_f64_vec()?;
    let sum: f64 = u.iter().sum();
    assert!((hi.to_f64()? - sum).abs() < 1e-3 && (lo.to_f64()? - (50.0 - sum)).abs() < 1e-3);
    let g = grad(|s: Array| (random::normal(&random::key(0), [10]) * s).sum(..)).call(array(1.0f32))?;
    assert!((g.to_f64()? - random::normal(&random::key(0), [10]).sum(..).to_f64()?).abs() < 1e-5);
    Ok(())
}

#[test]
fn errors() {
    setup();
    let key = random::key(0);
    // Arrays that are no keys, several keys, seeds, shapes and types that a distribution does not have.
    let e = error_of(random::normal(&array([1.0f32, 2.0]), [2]));
    assert!(e.kind() == ErrorKind::Type && e.help_text().is_some_and(|h| h.contains("random::key")), "{e}");
    assert!(e.location().is_some_and(|at| at.file().ends_with("random.rs")), "{e}");
    let e = error_of(random::uniform(&random::split(&key, 3), [2]));
    assert!(e.message().contains("accepts a single key") && e.help_text().is_some_and(|h| h.contains("vmap")), "{e}");
    assert!(error_of(random::key(0.5)).message().contains("must be an integer"));
    assert!(error_of(random::key(array([1, 2]))).message().contains("scalar"));
    assert!(error_of(random::fold_in(&key, -1)).message().contains("OverflowError"));
    assert!(error_of(random::fold_in(&key, array([1]))).message().contains("scalar"));
    assert!(error_of(random::normal_dtype(&key, [2], DType::I32)).message().contains("int32"));
    assert!(error_of(random::uniform_dtype(&key, [2], DType::Complex64, 0, 1)).message().contains("float dtype"));
    assert!(error_of(random::bits_dtype(&key, [2], DType::I32)).message().contains("unsigned"));
    assert!(error_of(random::randint_dtype(&key, [2], 0, 1, DType::F32)).message().contains("integer dtypes"));
    assert!(error_of(random::randint(&key, [2], 0.5, 1)).message().contains("integers"));
    assert!(error_of(random::bernoulli(&key, 1, [2])).message().contains("floating dtype"));
    let e = error_of(random::bernoulli(&key, array([0.5f32, 0.1]), [3]));
    assert!(e.message().contains("[2]") && e.message().contains("[3]"), "{e}");
    assert!(error_of(random::normal(&key, [-2])).message().contains("not negative"));
    assert!(error_of(random::split(&key, -1)).check_kind(ErrorKind::Value));
    assert!(
        error_of(random::ChoiceOptions::new().replace(false).choice(&key, 3, [4]))
            .message()
            .contains("when `replace` is false")
    );
    assert!(error_of(random::choice(&key, 0, [4])).message().contains("greater than 0"));
    assert!(
        error_of(random::ChoiceOptions::new().p(&array([0.5f32])).choice(&key, 3, [4]))
            .message()
            .contains("must be a vector of 3 numbers")
    );
    assert!(error_of(random::categorical(&key, &array([1, 2]), 0)).message().contains("floating dtype"));
    assert!(error_of(random::categorical(&key, &zeros([2, 2]), 2)).check_kind(ErrorKind::Index));
    assert!(error_of(random::permutation(&key, &array(1))).check_kind(ErrorKind::Index));
}

trait CheckKind {
    fn check_kind(&self, kind: ErrorKind) -> bool;
}

impl CheckKind for Error {
    fn check_kind(&self, kind: ErrorKind) -> bool {
        self.kind() == kind
    }
}

#[test]
fn initializers_have_the_variance_of_their_name() -> Result<()> {
    setup();
    let key = random::key(0);
    fn check(name: &str, init: Initializer, shape: &[usize], variance: f64, key: &Array) -> Result<()> {
        let w = init.init(key, shape, DType::F32);
        let (mean, v) = moments(&w)?;
        assert!(
            mean.abs() < 3.0 * (variance / w.size() as f64).sqrt() && (v / variance - 1.0).abs() < 0.1,
            "{name}: {mean} {v}"
        );
        Ok(())
    }
    // The expected variance is the scale over the fan, which includes the spatial size of a filter.
    let (dense, conv): (&[usize], &[usize]) = (&[100, 80], &[3, 3, 20, 40]);
    check("lecun_normal", initializers::lecun_normal(), dense, 1.0 / 100.0, &key)?;
    check("he_normal", initializers::he_normal(), conv, 2.0 / 180.0, &key)?;
    check("glorot_uniform", initializers::glorot_uniform(), conv, 2.0 / 540.0, &key)?;
    check("he_uniform", initializers::he_uniform(), dense, 2.0 / 100.0, &key)?;
    check("normal", initializers::normal(0.5), dense, 0.25, &key)?;
    let out = initializers::variance_scaling(1.0, Fan::Out, Distribution::Normal);
    check("fan out", out, dense, 1.0 / 80.0, &key)?;
    check("other axes", out.axes(1, 0), dense, 1.0 / 100.0, &key)?;
    assert_eq!(initializers::ones().init(&key, &[2], DType::Bf16).to_f64_vec()?, [1.0, 1.0]);
    assert_eq!(initializers::zeros().init(&key, &[2, 2], DType::F32).to_vec::<f32>()?, [0.0; 4]);
    let e = error_of(initializers::he_normal().init(&key, &[3], DType::F32));
    assert!(e.message().contains("1-dimensional weights tensor"), "{e}");
    assert!(initializers::he_normal().init(&key, &[3, 2], DType::I32).check().is_err());
    Ok(())
}

/// Rejection sampling on devices with different keys draws the same numbers as each key by itself.
#[test]
fn rejection_runs_on_each_device() -> Result<()> {
    setup();
    fn draw(key: &Array) -> Array {
        stack(&[random::gamma(key, 2.0, 2), random::poisson(key, 4.0, 2).astype(DType::F32)], 0)
    }
    let keys = random::split(random::key(5), 2);
    let mesh = make_mesh([("i", 2)])?;
    let per_device = shard_map(move |keys: Array| draw(&keys.get(0)).expand_dims(0), &mesh);
    let apart = per_device.in_specs(P!["i"]).out_specs(P!["i"]).call(&keys)?;
    let together = vmap(move |key: Array| draw(&key)).call(&keys)?;
    assert!(allclose(&apart, &together, 1e-5, 1e-5)?, "{apart}\n{together}");
    Ok(())
}

/// Keys of the device's generator, with JAX's values (0.10.2, on CPU).
#[test]
fn keys_of_the_device_s_generator() -> Result<()> {
    setup();
    let key = random::PrngImpl::Rbg.key(42);
    let keys = random::split(&key, [2, 2]);
    assert_eq!((key.type_name(), words(&key)?), ("key<rbg>[]".to_owned(), vec![0, 42, 0, 42]));
    assert_eq!(random::key_impl(&key)?, "rbg");
    assert_eq!(words(random::PrngImpl::Rbg.key(-1))?, [0, u32::MAX, 0, u32::MAX]);
    assert_eq!((keys.type_name(), random::key_data(&keys).shape()), ("key<rbg>[2,2]".to_owned(), &[2, 2, 4][..]));
    let third = words(keys.get(1).get(0))?;
    assert_eq!(third, [2465931498, 255383827, 2465931498, 255383827]);
    assert_eq!(words(random::fold_in(&key, 5))?, [2765691542, 824333390, 2765691542, 824333390]);
    assert_eq!(format!("{key}"), "Array(shape=[], dtype=key<rbg>) overlaying:\n[ 0 42  0 42]");

    assert_eq!(random::bits_dtype(&key, [5], DType::U8).to_vec::<u8>()?, [210, 89, 227, 186, 234]);
    assert_eq!(random::bits_dtype(&key, [3], DType::U16).to_vec::<u16>()?, [14546, 58969, 995]);
    let expected = [2620864722, 2991908441, 282133475, 2589630650, 1779689962, 1069940430];
    assert_eq!(random::bits(&key, [2, 3]).to_vec::<u32>()?, expected);
    assert_eq!(
        random::bits_dtype(&key, [3], DType::U64).to_vec::<u64>()?,
        [12850148909342210258, 11122378950751355875, 4595359157297867242]
    );
    fn near(x: Array, want: &[f32]) -> Result<()> {
        let x = x.to_vec::<f32>()?;
        assert!(x.iter().zip(want).all(|(x, w)| (x - w).abs() < 2e-6), "{x:?} is not {want:?}");
        Ok(())
    }
    near(random::normal(&key, [3]), &[0.279_886_22, 0.514_669_5, -1.508_688_2])?;
    near(random::uniform(&key, [3]), &[0.610_217_6, 0.696_607_95, 0.065_689_206])?;
    near(random::gamma(&key, 2.0, [3]), &[0.562_835, 2.062_191, 0.437_543_03])?;
    assert_eq!(random::randint(&key, [4], 3, 17).to_vec::<i32>()?, [8, 5, 12, 14]);
    assert_eq!(random::permutation(&key, 8).to_vec::<i32>()?, [2, 1, 3, 6, 4, 5, 0, 7]);
    assert_eq!(random::choice(&key, 10, [4]).to_vec::<i32>()?, [1, 0, 5, 1]);

    // Each key of a batch draws its own; JAX does so in `lax.map`, and draws all with the first key in `vmap`.
    let keys = random::split(&key, 3);
    fn draw(k: Array) -> Array {
        random::bits(&k, [2])
    }
    let words = [1826589366, 4083436224, 4032995965, 691517416, 3001746292, 1410656114];
    assert_eq!(vmap(draw).call(&keys)?.to_vec::<u32>()?, words);
    assert_eq!(shardax::control_flow::map(draw, keys.clone())?.to_vec::<u32>()?, words);
    // The same whole, split, and on the devices of a mesh each with its own key.
    let mesh = make_mesh([("x", 8)])?;
    let split = jit(|k: Array| random::normal(&k, [16])).out_shardings(NamedSharding::new(&mesh, P!["x"]));
    assert_eq!(split.call(&key)?.to_vec::<f32>()?, random::normal(&key, [16]).to_vec::<f32>()?);
    let keys = random::split(&key, 8);
    let custom =
        shard_map(|k: Array| random::bits(k.get(0), [2]), &mesh).in_specs(P!["x"]).out_specs(P!["x"]).call(&keys)?;
    let one_by_one = shardax::control_flow::map(draw, keys.clone())?;
    assert_eq!(custom.to_vec::<u32>()?, one_by_one.to_vec::<u32>()?);
    // Loops, branches and the moves of keys.
    let last = fori_loop(0, 3, |i: Array, k: Array| random::fold_in(&k, i), key.clone())?;
    assert_eq!(last.type_name(), "key<rbg>[]");
    assert!(shardax::numpy::flip(&keys, 0).get(7).equal(keys.get(0)).item::<bool>()?);
    Ok(())
}

#[test]
fn words_of_the_device_s_generator() -> Result<()> {
    setup();
    let prng = random::PrngImpl::Rbg;
    assert_eq!(prng.raw_key(7).to_vec::<u32>()?, [0, 7, 0, 7]);
    assert!(prng.wrap_key_data(prng.raw_key(7)).equal(prng.key(7)).item::<bool>()?);
    // The words are JAX's on CPU.
    let raw = array([1u32, 2, 3, 4]);
    let split = [629071667, 2343584484, 1144503774, 142997786, 629003988, 1317161160, 1441834994, 695621559];
    assert_eq!(random::split(&raw, 2).to_vec::<u32>()?, split);
    assert_eq!(random::fold_in(&raw, 3).to_vec::<u32>()?, [2052595727, 1880214352, 1746439729, 307540736]);
    assert_eq!(random::bits(&raw, [3]).to_vec::<u32>()?, [512747620, 1298009047, 1267190206]);
    let (state, bits) = lax::rng_bit_generator(&raw, &[3], DType::U32, lax::RandomAlgorithm::Default);
    assert_eq!(
        (state.to_vec::<u32>()?, bits.to_vec::<u32>()?),
        (vec![1, 2, 4, 4], vec![512747620, 1298009047, 1267190206])
    );
    let (state, bits) = lax::rng_bit_generator(&raw, &[3], DType::U32, lax::RandomAlgorithm::ThreeFry);
    assert_eq!(
        (state.to_vec::<u32>()?, bits.to_vec::<u32>()?),
        (vec![1, 2, 5, 4], vec![1576285164, 2249660814, 740599976])
    );
    let states = array([1u32, 2, 3, 4, 5, 6, 7, 8]).reshape([2, 4]);
    fn draw(s: Array) -> (Array, Array) {
        lax::rng_bit_generator(&s, &[2], DType::U32, lax::RandomAlgorithm::Default)
    }
    let (states, bits) = vmap(draw).call(&states)?;
    assert_eq!(states.to_vec::<u32>()?, [1, 2, 4, 4, 5, 6, 8, 8]);
    assert_eq!(bits.get(0).to_vec::<u32>()?, [512747620, 1298009047]);

    // Words that are no key of this generator, and keys of two generators in one operation.
    let refused = error_of(prng.wrap_key_data(&raw));
    assert!(refused.message().contains("the words [1, 2, 3, 4] of rbg are not twice the same two"), "{refused}");
    let traced =
        jit(move |w: Array| prng.wrap_key_data(&w)).call(prng.raw_key(1)).expect_err("a typed key of traced words");
    assert!(traced.message().contains("while a function is traced"), "{traced}");
    let mixed = error_of(lax::select(&array(true), &random::key(0), &prng.key(0)));
    assert!(mixed.message().contains("key<rbg>"), "{mixed}");
    let short = error_of(lax::rng_bit_generator(&array([1u32]), &[2], DType::U32, lax::RandomAlgorithm::Default).1);
    assert!(short.message().contains("uint32[4] or uint64[2], got uint32[1]"), "{short}");
    Ok(())
}

#[test]
fn numbers_of_a_failed_key_have_its_error() {
    let failed = array([1.0f32, 2.0]).reshape([7]);
    let scalar = array(1.0f32);
    let draws = [
        random::split(&failed, 2),
        random::fold_in(&failed, 1),
        random::normal(&failed, [2]),
        random::gamma(&failed, &scalar, [2]),
        random::beta(&failed, &scalar, &scalar, [2]),
        random::poisson(&failed, &scalar, [2]),
        random::permutation(&failed, 10),
    ];
    for numbers in draws {
        let error = numbers.check().expect_err("the error of the key").to_string();
        assert!(error.contains("cannot reshape array of shape (2,)"), "{error}");
    }
}

/// The numbers are from JAX 0.12.
#[test]
fn complex_weights_have_a_variance() -> Result<()> {
    setup();
    let key = random::key(5);
    let parts = |x: Array| -> Result<Vec<f32>> { stack([x.real(), x.imag()], -1).to_vec::<f32>() };
    let weights = |initializer: Initializer| parts(initializer.init(&key, &[2, 3], DType::Complex64));
    let cases: [(Initializer, [f32; 12]); 3] = [
        (
            initializers::variance_scaling(2.0, Fan::Avg, Distribution::TruncatedNormal),
            [
                0.830_033_8,
                0.482_563_64,
                0.171_054_5,
                1.302_232_4,
                0.381_621_06,
                0.325_301_74,
                -0.157_667_67,
                1.347_826,
                0.759_143_23,
                0.727_608_1,
                -0.752_208_8,
                0.216_066_84,
            ],
        ),
        (
            initializers::he_uniform(),
            [
                0.994_027,
                0.577_905_8,
                0.172_286_88,
                1.311_614_5,
                0.541_371_94,
                0.461_476_74,
                -0.155_256_15,
                1.327_211_1,
                0.871_386_35,
                0.835_188_6,
                -0.971_205_4,
                0.278_972_12,
            ],
        ),
        (
            initializers::variance_scaling(1.0, Fan::Out, Distribution::Normal),
            [
                0.169_538_42,
                -0.563_329_6,
                0.469_643_38,
                -0.302_691_7,
                -0.271_489,
                -0.495_670_56,
                0.506_856_74,
                -0.251_992_88,
                0.248_240_59,
                -0.476_386_2,
                0.010_779_592,
                -0.045_651_01,
            ],
        ),
    ];
    for (initializer, expected) in cases {
        let weights = weights(initializer)?;
        assert!(allclose(array(weights.clone()), array(expected), 1e-5, 1e-6)?, "{weights:?} is not {expected:?}");
    }
    // JAX's constant for the truncated distribution makes the variance 1.9 % too large.
    let many = initializers::lecun_normal().init(&key, &[100, 500], DType::Complex128);
    assert!((many.abs().square().mean(..).to_f64()? - 0.010_187).abs() < 2e-4);
    assert!(initializers::uniform(1.0).init(&key, &[2], DType::Complex64).error().is_some());
    Ok(())
}

/// A narrow dtype of the result only rounds counts. The numbers are from JAX 0.12.
#[test]
fn binomial_counts_are_drawn_in_the_dtype_of_the_probability() -> Result<()> {
    setup();
    let (n, p) = (array([5.0f32, 100.0, 1000.0]), array([0.5f32, 0.9, 0.1]));
    let draw = |p: &Array, dtype| random::binomial_dtype(random::key(5), &n, p, [2, 3], dtype).to_f64_vec();
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        assert_eq!(draw(&p, dtype)?, [1.0, 89.0, 112.0, 2.0, 86.0, 99.0], "{dtype}");
    }
    assert_eq!(draw(&p.astype(DType::Bf16), DType::F32)?, [3.0, 90.0, 105.0, 1.0, 91.0, 91.0]);
    let quarters = random::binomial_dtype(random::key(5), &n, 0.25, [2, 3], DType::Bf16);
    assert_eq!(quarters.to_f64_vec()?, [2.0, 21.0, 231.0, 1.0, 19.0, 248.0]);
    Ok(())
}

#[test]
fn samples_of_large_orders_are_uniform() -> Result<()> {
    setup();
    let draw = |key: Array| -> Vec<Array> {
        let orders = [(1e4, DType::F32), (1e30, DType::F32), (f64::INFINITY, DType::F32), (f64::INFINITY, DType::F16)];
        let lines =
            orders.map(|(p, dtype)| random::generalized_normal_dtype(&key, p, [4000], dtype).astype(DType::F32));
        lines.into_iter().chain([random::ball(&key, 2, f64::INFINITY, [2000])]).collect()
    };
    for x in jit(draw).call(random::key(3))? {
        let (mean, variance) = moments(&x)?;
        assert!(mean.abs() < 0.03 && (variance - 1.0 / 3.0).abs() < 0.02, "{mean} {variance}");
        assert!(x.to_f64_vec()?.iter().all(|x| x.abs() <= 1.001));
    }
    assert!(error_of(random::ball(random::key(0), 2, f64::NAN, [2])).to_string().contains("got NaN"));
    Ok(())
}
