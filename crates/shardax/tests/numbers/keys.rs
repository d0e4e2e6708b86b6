//! Random keys as values: what moves, maps over and compares them, with JAX's results (0.10.2).

use shardax::control_flow::{cond, fori_loop, map, scan, scan_n, switch, while_loop};
use shardax::prelude::*;
use shardax::random::RandomKey;
use shardax::{lax, make_program, numpy as np};

use super::common::quick::setup;

/// The words of `split(key(42), 4)`, in JAX.
const WORDS: [[u32; 2]; 4] =
    [[1832780943, 270669613], [64467757, 2916123636], [2465931498, 255383827], [3134548294, 894150801]];

fn words(keys: impl RandomKey) -> Vec<u32> {
    random::key_data(keys).to_vec().expect("the words of keys")
}

/// The keys by number: first the keys of `WORDS`; then `key(42)` is 4, a key of zeros 5, and a key of ones 6.
fn numbers(keys: Array) -> Vec<usize> {
    let mut known_words = WORDS.to_vec();
    known_words.extend([[0, 42], [0, 0], [u32::MAX, u32::MAX]]);
    fn number(words: &[u32], known_words: &[[u32; 2]]) -> usize {
        known_words.iter().position(|known_words| known_words == words).unwrap_or_else(|| panic!("{words:?}"))
    }
    words(keys).chunks(2).map(|words: &[u32]| number(words, &known_words)).collect()
}

fn keys() -> (Array, Array) {
    let key = random::key(42);
    let keys = random::split(&key, 4);
    (key, keys)
}

#[test]
fn operations_that_move_keys() -> Result<()> {
    setup();
    let (k, ks) = keys();
    let square = ks.reshape([2, 2]);
    let picked = array([1, 0, 3]);
    let mask = array([true, false, true, false]);
    let cases: Vec<(&str, Array, &[usize], &[usize])> = vec![
        ("reshape", square.clone(), &[2, 2], &[0, 1, 2, 3]),
        ("ravel", square.ravel(), &[4], &[0, 1, 2, 3]),
        ("transpose", square.t(), &[2, 2], &[0, 2, 1, 3]),
        ("broadcast", k.broadcast_to([2]), &[2], &[4, 4]),
        ("expand_dims", k.expand_dims(0), &[1], &[4]),
        ("squeeze", np::squeeze(ks.get(..1), 0), &[], &[0]),
        ("slice", ks.get(1..3), &[2], &[1, 2]),
        ("index", ks.get(-1), &[], &[3]),
        ("indices", ks.get(&picked), &[3], &[1, 0, 3]),
        ("take", np::take(&ks, &picked, 0), &[3], &[1, 0, 3]),
        ("take outside", np::take(&ks, array([9]), 0), &[1], &[6]),
        ("take_along_axis", np::take_along_axis(&ks, &picked, 0), &[3], &[1, 0, 3]),
        ("flip", np::flip(&ks, 0), &[4], &[3, 2, 1, 0]),
        ("rev", lax::rev(&ks, &[0]), &[4], &[3, 2, 1, 0]),
        ("roll", np::roll(&ks, 1, 0), &[4], &[3, 0, 1, 2]),
        ("repeat", np::repeat(&ks, 2, 0), &[8], &[0, 0, 1, 1, 2, 2, 3, 3]),
        ("tile", np::tile(&ks, &[2]), &[8], &[0, 1, 2, 3, 0, 1, 2, 3]),
        ("at set", ks.at(0).set(&k), &[4], &[4, 1, 2, 3]),
        ("at set of several", ks.at(&picked).set(ks.get(..3)), &[4], &[1, 0, 2, 2]),
        ("at get", ks.at(0).get(), &[], &[0]),
        ("concatenate", concatenate([&ks, &ks.get(..1)], 0), &[5], &[0, 1, 2, 3, 0]),
        ("stack", stack([&k, &k], 0), &[2], &[4, 4]),
        ("where", where_(&mask, &ks, &k), &[4], &[0, 4, 2, 4]),
        ("select", lax::select(&mask, &ks, &np::flip(&ks, 0)), &[4], &[0, 2, 2, 0]),
        ("select_n", lax::select_n(&array(1), &[ks.clone(), np::flip(&ks, 0)]), &[4], &[3, 2, 1, 0]),
        ("dynamic_slice", lax::dynamic_slice(&ks, &[array(1)], &[2]), &[2], &[1, 2]),
        ("dynamic_update_slice", lax::dynamic_update_slice(&ks, &ks.get(..1), &[array(2)]), &[4], &[0, 1, 0, 3]),
        ("pad", np::pad(&ks, 1, np::PadMode::Edge), &[6], &[0, 0, 1, 2, 3, 3]),
        ("tril", np::tril(&square, 0), &[2, 2], &[0, 5, 2, 3]),
        ("zeros_like", np::zeros_like(&ks), &[4], &[5; 4]),
        ("full", np::full([2], &k), &[2], &[4, 4]),
        ("full_like", np::full_like(&ks, &k), &[4], &[4; 4]),
        ("stop_gradient", lax::stop_gradient(k.clone()), &[], &[4]),
        ("choice", random::choice(&k, &ks, ()), &[], &[0]),
        ("clone", random::clone(&k), &[], &[4]),
        ("wrap_key_data", random::wrap_key_data(random::key_data(&square)), &[2, 2], &[0, 1, 2, 3]),
    ];
    for (name, moved, shape, want) in cases {
        moved.check()?;
        assert_eq!((moved.dtype(), moved.shape()), (DType::Key, shape), "{name}");
        assert_eq!(numbers(moved), want, "{name}");
    }
    assert_eq!(ks.iter().nth(2).map(numbers), Some(vec![2]));
    assert_eq!(ks.equal(ks.get(1)).to_vec::<bool>()?, [false, true, false, false]);
    assert_eq!(ks.not_equal(&k).to_vec::<bool>()?, [true; 4]);
    assert!(np::array_equal(&ks, &ks).item::<bool>()?);
    // As host data, and as text.
    let bytes: Vec<u8> = WORDS.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(ks.to_bytes()?, bytes);
    assert_eq!(numbers(Array::from_bytes(&bytes, DType::Key, &[4])?), [0, 1, 2, 3]);
    assert_eq!((DType::Key.byte_size(), ks.type_name()), (8, "key<fry>[4]".to_owned()));
    assert_eq!(k.to_string(), "Array(shape=[], dtype=key<fry>) overlaying:\n[ 0 42]");
    assert_eq!(format!("{:?}", ks.get(..1)), "Array(shape=[1], dtype=key<fry>) overlaying:\n[[1832780943  270669613]]");
    Ok(())
}

#[test]
fn programs_over_keys() -> Result<()> {
    setup();
    let (k, ks) = keys();
    fn fold(key: Array) -> Array {
        random::fold_in(key, 1)
    }
    let types = eval_shape(|k: Array| random::split(k, 3), shape_dtype_struct((), DType::Key))?;
    assert_eq!(types.type_name(), "key<fry>[3]");
    let program = make_program(|k: Array| random::key_data(k), &k)?.to_string();
    assert!(program.contains("key<fry>[]") && program.contains("random_unwrap"), "{program}");
    assert_eq!(words(jit(|k: Array| random::split(k, [2, 2])).call(&k)?), WORDS.as_flattened());
    let drawn = vmap(|k: Array| random::normal(k, ())).call(&ks)?;
    assert!(allclose(drawn, array([0.07592554f32, 0.60576403, 0.4323065, -0.2818947]), 1e-6, 1e-6)?);
    let (_, carried): (Array, Array) = scan_n(|k: Array| (random::split(&k, 2).get(0), k), k.clone(), 2)?;
    assert_eq!(numbers(carried), [4, 0]);
    let (_, same): (Array, Array) =
        scan(|n: Array, k: Array| (n + random::uniform(&k, ()), k), array(0.0f32), ks.clone())?;
    assert_eq!(numbers(same), [0, 1, 2, 3]);
    fn twice(k: Array) -> Result<Array> {
        let (k, _): (Array, Array) = scan_n(|k: Array| (random::fold_in(&k, 1), random::bits(&k, ())), k, 2)?;
        Ok(k)
    }
    let folded = vmap(twice).call(ks.get(..2))?;
    assert_eq!(words(folded), [2451885785, 2215112154, 1337563380, 4229806652]);
    let (_, last) = while_loop(
        |(i, _): (Array, Array)| i.less(2),
        move |(i, k): (Array, Array)| (i + 1, fold(k)),
        (array(0), k.clone()),
    )?;
    assert_eq!(words(last), [2350016172, 1168365246]);
    assert_eq!(words(fori_loop(0, 2, |i: Array, k: Array| random::fold_in(k, i), k.clone())?), [1705926158, 899080142]);
    assert_eq!(numbers(cond(true, |k: Array| k, fold, k.clone())?), [4]);
    assert_eq!(numbers(switch(1, (|k: Array| k, fold), k.clone())?), [1]);
    assert_eq!(words(map(fold, ks.clone())?)[..4], [1705926158, 899080142, 2350016172, 1168365246]);
    // A donated key is gone.
    let key = random::key(1);
    assert_eq!(words(jit(fold).donate_argnums(0).call(&key)?), [1948878966, 4237131848]);
    assert!(random::key_data(&key).check().is_err());
    Ok(())
}

/// Keys have no gradient: their tangents are float0.
#[test]
fn gradients_beside_keys() -> Result<()> {
    setup();
    let (k, _) = keys();
    fn f(k: Array, x: Array) -> Array {
        x * random::normal(k, ())
    }
    let x = array(2.0f32);
    let slope = grad(f).argnums(Arg::<1>).call((&k, &x))?;
    assert!((slope.item::<f32>()? + 0.02830462).abs() < 1e-7);
    let zero = grad(|k: Array| random::normal(k, ())).allow_int().call(&k)?;
    assert_eq!(zero.type_name(), "float0[]");
    let (y, pull) = vjp(f, (&k, &x))?;
    let (of_key, of_x) = pull.call(np::ones_like(&y))?;
    assert_eq!((of_key.type_name(), of_x.to_f64()? as f32), ("float0[]".to_owned(), slope.item::<f32>()?));
    let (_, tangent) = jvp(f, (k.clone(), x), (zero, array(1.0f32)))?;
    assert_eq!(tangent.item::<f32>()?, slope.item::<f32>()?);
    let ((next, _), pull) = vjp(|k: Array, x: Array| (random::fold_in(k, 1), x * 2), (&k, array(1.0f32)))?;
    assert_eq!(numbers(next), [1]);
    assert_eq!(pull.call((of_key, array(1.0f32)))?.1.item::<f32>()?, 2.0);
    Ok(())
}

/// Keys are sharded like an array of their shape.
#[test]
fn keys_on_many_devices() -> Result<()> {
    setup();
    let (k, ks) = keys();
    let mesh = Mesh::new(devices()?[..2].to_vec(), [("x", 2)])?;
    let rows = NamedSharding::new(&mesh, P!["x"]);
    let placed = device_put(&ks, &rows)?;
    assert_eq!(numbers(placed.addressable_data(1)?), [2, 3]);
    assert_eq!(numbers(placed.clone()), [0, 1, 2, 3]);
    // Collectives move keys like any other elements.
    let over = |f: fn(Array) -> Array| shard_map(f, &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    let drawn =
        over(|k| vmap(|k: Array| random::normal(k, ())).call(k).unwrap_or_else(|e| panic!("{e}"))).call(&placed)?;
    assert!(allclose(drawn, array([0.07592554f32, 0.60576403, 0.4323065, -0.2818947]), 1e-6, 1e-6)?);
    assert_eq!(numbers(over(|k| k).call(&ks)?), [0, 1, 2, 3]);
    assert_eq!(numbers(over(|k| ppermute(k, "x", [(0, 1), (1, 0)])).call(&ks)?), [2, 3, 0, 1]);
    assert_eq!(numbers(over(|k| all_to_all(k, "x", 0, 0)).call(&ks)?), [0, 2, 1, 3]);
    let expected =
        shard_map(|k: Array| all_gather_tiled(k, "x", 0), &mesh).in_specs(P!["x"]).out_specs(P![]).check_vma(false);
    assert_eq!(numbers(expected.call(&ks)?), [0, 1, 2, 3]);
    fn per_device(k: Array) -> Array {
        random::split(random::fold_in(k, axis_index("x")), 1)
    }
    let per_device = shard_map(per_device, &mesh).in_specs(P![]).out_specs(P!["x"]).call(&k)?;
    assert_eq!(words(per_device), [1012194634, 3152801799, 3187376881, 129218101]);
    let folded = pmap(|k: Array| random::fold_in(k, 1)).call(ks.get(..2))?;
    assert_eq!(words(folded), [1705926158, 899080142, 2350016172, 1168365246]);
    let constrained = jit(move |k: Array| with_sharding_constraint(k, &rows)).call(&ks)?;
    assert_eq!((numbers(constrained.clone()), constrained.sharding()?), (vec![0, 1, 2, 3], placed.sharding()?));
    Ok(())
}
