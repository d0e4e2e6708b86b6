//! Trees: taken apart, put together, mapped, and what their errors name.

mod common;

use std::collections::{BTreeMap, HashMap};

use common::setup;
use shardax::dtype::Scalar;
use shardax::prelude::*;

#[derive(Tree, Clone)]
struct Dense {
    kernel: Array,
    bias: Option<Array>,
    #[tree(static)]
    name: String,
}

#[derive(Tree, Clone)]
enum Layer {
    Dense(Dense),
    Scale { by: Array, times: i32 },
    Identity,
}

#[derive(Tree, Clone)]
struct Pair<T>(T, T);

#[derive(Tree, Clone)]
struct Model {
    layers: Vec<Layer>,
    extra: BTreeMap<String, Pair<Array>>,
}

fn model() -> Model {
    let dense = Dense { kernel: ones([2, 3]), bias: Some(zeros(3)), name: "first".into() };
    let plain = Dense { kernel: ones([3, 1]), bias: None, name: "second".into() };
    Model {
        layers: vec![
            Layer::Dense(dense),
            Layer::Scale { by: array(2.0f32), times: 3 },
            Layer::Identity,
            Layer::Dense(plain),
        ],
        extra: [("a".to_owned(), Pair(ones(1), ones(2)))].into(),
    }
}

#[test]
fn derived_trees_round_trip() -> Result<()> {
    setup();
    let paths: Vec<String> = tree::leaves_with_path(&model()).into_iter().map(|(p, _)| p).collect();
    assert_eq!(paths.len(), 6);
    assert!(paths[0].contains("layers[0]") && paths[0].ends_with("kernel"), "{paths:?}");
    assert!(paths[4].contains("extra[\"a\"]"), "{paths:?}");
    let doubled = tree::map(|x| x * 2, model())?;
    let Layer::Dense(first) = &doubled.layers[0] else { panic!("the first layer is dense") };
    assert_eq!((first.name.as_str(), first.kernel.to_vec::<f32>()?[0]), ("first", 2.0));
    assert!(matches!(&doubled.layers[1], Layer::Scale { times: 3, .. }));
    assert!(matches!(doubled.layers[2], Layer::Identity));
    Ok(())
}

#[test]
fn flattened_trees_are_rebuilt() -> Result<()> {
    let model = model();
    let (leaves, structure) = tree::flatten(&model);
    assert_eq!(leaves.len(), tree::leaves(&model).len());
    assert_eq!(structure, tree::structure(&model));
    // The leaves are a `Vec`, a slice or an array.
    let doubled: Model = tree::unflatten(&structure, leaves.iter().map(|x| x * 2).collect::<Vec<_>>())?;
    assert_eq!(tree::leaves(&doubled)[0].to_bytes()?, (&leaves[0] * 2).to_bytes()?);
    let _same: Model = tree::unflatten(&structure, &leaves)?;
    let (x, _): (Array, Array) = tree::unflatten(&tree::structure(&(zeros(1), zeros(1))), [ones(1), ones(1)])?;
    assert_eq!(x.to_vec::<f32>()?, [1.0]);
    Ok(())
}

#[test]
fn differences_are_named() {
    setup();
    let mut other_model = model();
    other_model.layers.pop();
    let error = tree::map2(|a, b| a + b, model(), other_model).err().expect("different lengths").to_string();
    assert!(error.contains("layers") && error.contains('4') && error.contains('3'), "{error}");
    let mut renamed = model();
    if let Layer::Dense(dense) = &mut renamed.layers[0] {
        dense.name = "other".into();
    }
    let error = tree::map2(|a, b| a + b, model(), renamed).err().expect("another static").to_string();
    assert!(error.contains("first") && error.contains("other"), "{error}");
}

#[test]
fn structured_arguments_and_gradients() -> Result<()> {
    setup();
    fn forward(m: Model, x: Array) -> Array {
        let mut x = x;
        for layer in &m.layers {
            x = match layer {
                Layer::Dense(d) => match &d.bias {
                    Some(b) => x.dot(&d.kernel) + b,
                    None => x.dot(&d.kernel),
                },
                Layer::Scale { by, times } => x * by * *times,
                Layer::Identity => x,
            };
        }
        x.sum(..)
    }
    let grads = jit(grad(forward)).call((model(), ones([4, 2])))?;
    let Layer::Scale { by, .. } = &grads.layers[1] else { panic!("the structure is kept") };
    assert_eq!(by.to_vec::<f32>()?, [4.0 * 2.0 * 3.0 * 3.0]);
    assert_eq!(grads.extra["a"].1.to_vec::<f32>()?, [0.0, 0.0]);
    Ok(())
}

#[test]
fn arrays_of_ndarray() -> Result<()> {
    setup();
    let host = ndarray::Array3::from_shape_fn((2, 3, 4), |(i, j, k)| (i * 12 + j * 4 + k) as i32);
    let x = Array::from_ndarray(&host)?;
    assert_eq!((x.shape(), x.to_ndarray::<i32>()?), (&[2, 3, 4][..], host.clone().into_dyn()));
    let columns = Array::from_ndarray(&host.slice(ndarray::s![.., .., ..;2]))?;
    assert_eq!(columns.to_vec::<i32>()?[..3], [0, 2, 4]);
    assert!(x.to_ndarray::<f32>().is_err());
    Ok(())
}

/// A prefix may name the keys of a map or the fields of a struct, in any order.
#[test]
fn prefixes_by_name() -> Result<()> {
    setup();
    let batch = BTreeMap::from([("image".to_owned(), ones([8, 4])), ("scale".to_owned(), array(3.0f32))]);
    fn f(b: BTreeMap<String, Array>) -> Array {
        &b["image"] * &b["scale"]
    }
    let axes = || BTreeMap::from([("scale", None), ("image", Some(0))]);
    assert_eq!(pmap(f).in_axes((axes(),)).call(&batch)?.to_vec::<f32>()?, [3.0; 32]);
    assert_eq!(vmap(f).in_axes((axes(),)).call(&batch)?.shape(), [8, 4]);
    let wrong = pmap(f).in_axes((BTreeMap::from([("scale", None), ("images", Some(0))]),)).call(&batch);
    let text = wrong.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(
        text.contains("pmap in_axes[0] has no entry [\"image\"], but the corresponding value has 2 children"),
        "{text}"
    );
    Ok(())
}

/// A list: a type that holds itself.
#[derive(Tree, Clone)]
struct Chain {
    value: Array,
    next: Option<Box<Chain>>,
}

#[test]
fn recursive_trees_are_differentiated() -> Result<()> {
    setup();
    let chain = (1..=3).rev().fold(None, |next, v| Some(Box::new(Chain { value: array(v as f32), next })));
    let chain = *chain.expect("three links");
    fn product(c: Chain) -> Array {
        let (mut product, mut link) = (c.value, c.next);
        while let Some(next) = link {
            product = product * next.value;
            link = next.next;
        }
        product
    }
    let slope = jit(grad(product)).call(&chain)?;
    let values: Vec<f32> = tree::leaves(&slope).iter().map(Array::item).collect::<Result<_>>()?;
    assert_eq!(values, [6.0, 3.0, 2.0]);
    let paths: Vec<String> = tree::leaves_with_path(&slope).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [".value", ".next.value", ".next.next.value"]);
    Ok(())
}

/// In the order of their keys, whatever order the map has.
#[test]
fn hash_maps_are_trees() -> Result<()> {
    setup();
    let batch: HashMap<String, Array> = (0..20).map(|i| (format!("{i:02}"), ones([2]) * i)).collect();
    let paths: Vec<String> = tree::leaves_with_path(&batch).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, (0..20).map(|i| format!("[\"{i:02}\"]")).collect::<Vec<_>>());
    let sums = vmap(|b: HashMap<String, Array>| &b["03"] + &b["19"]).call(&batch)?;
    assert_eq!(sums.to_vec::<f32>()?, [22.0; 2]);
    fn f(b: HashMap<String, Array>) -> Array {
        &b["x"] * &b["y"]
    }
    let batch = HashMap::from([("x".to_owned(), ones([8])), ("y".to_owned(), array(3.0f32))]);
    let axes = HashMap::from([("y", None), ("x", Some(0))]);
    assert_eq!(vmap(f).in_axes((axes,)).call(&batch)?.to_vec::<f32>()?, [3.0; 8]);
    Ok(())
}

#[test]
fn functions_take_sixteen_arguments() -> Result<()> {
    setup();
    #[rustfmt::skip]
    let f = |a: Array, b: Array, c: Array, d: Array, e: Array, f: Array, g: Array, h: Array,
             i: Array, j: Array, k: Array, l: Array, m: Array, n: Array, o: Array, p: Array| {
        a + b + c + d + e + f + g + h + i + j + k + l + m + n + o * p
    };
    fn x() -> Array {
        array(2.0f32)
    }
    let args = (x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), 5.0f32);
    assert_eq!(jit(f).call(args.clone())?.item::<f32>()?, 38.0);
    // The last argument is the factor of the one before it: its slope is 2.
    assert_eq!(grad(f).argnums(Arg::<15>).call(args.clone())?.item::<f32>()?, 2.0);
    let several =
        vmap(f).in_axes((None, None, None, None, None, None, None, None, None, None, None, None, None, None, None, 0));
    let last = array([1.0f32, 2.0]);
    let args = (x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), x(), last);
    assert_eq!(several.call(args)?.to_vec::<f32>()?, [30.0, 32.0]);
    Ok(())
}

#[test]
fn a_leaf_of_several_elements_is_neither_true_nor_false() -> Result<()> {
    setup();
    assert!(tree::all(&(array(true), vec![array(2), array(0.5f32)]))?);
    assert!(!tree::all(&(array(true), array(0)))?);
    let error = tree::all(&(array(true), array([true, true]))).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("2 elements is ambiguous: leaf[1], of type bool[2]"), "{error}");
    Ok(())
}

#[test]
fn trees_of_unlike_types_are_mapped_together() -> Result<()> {
    setup();
    let params = Pair(array([1.0f32]), array([2.0f32]));
    let named: BTreeMap<String, Array> =
        [("0".to_owned(), array([10.0f32])), ("1".to_owned(), array([20.0f32]))].into();
    let sum = tree::map(|(x, y)| x + y, tree::zip((params.clone(), named.clone())))?;
    assert_eq!((sum.0.item::<f32>()?, sum.1.item::<f32>()?), (11.0, 22.0));
    // The other way round, the result is the map.
    let sum = tree::map(|(x, y)| x - y, tree::zip((named, params.clone())))?;
    assert_eq!(sum["1"].item::<f32>()?, 18.0);
    // Values that are not arrays, and eight trees.
    let scales = Pair(2.0f32, 3.0f32);
    let scaled = tree::map(|(x, s): (Array, f32)| x * s, tree::zip((params.clone(), scales)).is_leaf())?;
    assert_eq!(scaled.1.item::<f32>()?, 6.0);
    fn p(params: &Pair<Array>) -> Pair<Array> {
        params.clone()
    }
    let zipped =
        tree::zip((p(&params), p(&params), p(&params), p(&params), p(&params), p(&params), p(&params), p(&params)));
    let total = tree::map(|(a, b, c, d, e, f, g, h)| a + b + c + d + e + f + g + h, zipped)?;
    assert_eq!(total.1.item::<f32>()?, 16.0);
    // Functions may fail.
    fn fails(x: Array) -> Result<Array> {
        x.reshape(7).check().map(|()| x)
    }
    let error = tree::map(fails, params).map(drop).unwrap_err().to_string();
    assert!(error.contains("cannot reshape"), "{error}");
    Ok(())
}

fn error_text(e: shardax::Error) -> String {
    e.to_string()
}

#[test]
fn structures_that_differ_are_errors_of_zip() {
    setup();
    fn three() -> Vec<Array> {
        vec![ones(1), ones(1), ones(1)]
    }
    let short = tree::map(|(x, y)| x + y, tree::zip((three(), vec![ones(1)]))).map_err(error_text).unwrap_err();
    assert!(short.contains("a list of 3") && short.contains("a list of 1"), "{short}");
    let deep = tree::map(|(x, y)| x + y, tree::zip((three(), vec![vec![ones(1)], vec![], vec![]])));
    let deep = deep.map_err(error_text).unwrap_err();
    assert!(deep.contains("leaf[0]"), "{deep}");
    let kinds =
        tree::map(|(x, y)| x + y, tree::zip((three(), (ones(1), ones(1), ones(1))))).map_err(error_text).unwrap_err();
    assert!(kinds.contains("a tuple of 3"), "{kinds}");
    let none = tree::map(|(x, y)| x + y, tree::zip((vec![Some(ones(1))], vec![None::<Array>]))).map_err(error_text);
    assert!(none.unwrap_err().contains("None"));
}

#[test]
fn zip_of_a_list_maps_arrays_of_all_trees() -> Result<()> {
    setup();
    let models = vec![Pair(array([1.0f32]), array(2.0f32)), Pair(array([3.0f32]), array(4.0f32))];
    let stacked = tree::map(|arrays| stack(arrays, 0), tree::zip(models.clone()))?;
    assert_eq!((stacked.0.shape(), stacked.1.to_vec::<f32>()?), (&[2, 1][..], vec![2.0, 4.0]));
    let pairs = |pairs: Vec<Pair<Array>>| Pair(pairs[0].0.clone(), pairs[1].1.clone());
    let joined = tree::map(pairs, tree::zip(models).is_leaf())?;
    assert_eq!((joined.0.item::<f32>()?, joined.1.item::<f32>()?), (1.0, 4.0));

    let empty = tree::map(|arrays| stack(arrays, 0), tree::zip(Vec::<Array>::new())).map_err(error_text).unwrap_err();
    assert!(empty.contains("tree::zip of an empty list"), "{empty}");
    let lists = vec![vec![ones(1)], vec![ones(1), ones(1)]];
    let lists = tree::map(|arrays| stack(arrays, 0), tree::zip(lists)).map_err(error_text).unwrap_err();
    assert!(lists.contains("a list of 1") && lists.contains("a list of 2"), "{lists}");
    Ok(())
}

/// JAX doubles them, and a silent result with the old numbers would be wrong.
#[test]
fn map_of_rust_numbers_is_an_error() -> Result<()> {
    setup();
    let error = tree::map(|x| x * 2, vec![vec![1, 2], vec![3]]).map(drop).map_err(error_text).unwrap_err();
    assert!(error.contains("tree::map of the Rust number 1") && error.contains("array(1)"), "{error}");
    // Numbers next to arrays, and configuration in structs, are part of the structure.
    assert_eq!(tree::map(|x| x * 2, (array(1), 3))?.1, 3);
    assert!(tree::map(|x| x * 2, Vec::<Array>::new())?.is_empty());
    Ok(())
}

#[test]
fn subtrees_are_leaves() -> Result<()> {
    setup();
    let exchanged = tree::map(|pair: Pair<Array>| Pair(pair.1, pair.0), tree::is_leaf(model()))?;
    assert_eq!(exchanged.extra["a"].0.shape(), [2]);
    // What is outside of them stays.
    assert_eq!(tree::leaves(&exchanged).len(), 6);
    let paths: Vec<String> =
        tree::subtrees_with_path::<Dense, _>(&model())?.into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [".layers[0].0", ".layers[3].0"]);
    let named =
        tree::map_with_path(|path, dense: Dense| Dense { name: path.to_owned(), ..dense }, tree::is_leaf(model()))?;
    let Layer::Dense(last) = &named.layers[3] else { panic!("the last layer is dense") };
    assert_eq!(last.name, ".layers[3].0");
    // A leaf that is the whole tree, and a tree without such leaves.
    let model_tree =
        tree::map(|x: Vec<Array>| x.into_iter().rev().collect::<Vec<_>>(), tree::is_leaf(vec![ones(1), ones(2)]))?;
    assert_eq!(model_tree[0].shape(), [2]);
    assert_eq!(tree::subtrees_with_path::<Dense, _>(&vec![ones(1)])?.len(), 0);
    Ok(())
}

#[test]
fn transposed_trees_keep_their_leaves() -> Result<()> {
    setup();
    let columns: BTreeMap<String, Vec<Array>> =
        [("a".to_owned(), vec![array(1), array(2)]), ("b".to_owned(), vec![array(3), array(4)])].into();
    let keys = BTreeMap::from([("a".to_owned(), array(0)), ("b".to_owned(), array(0))]);
    let outer = tree::structure(&keys);
    let inner = tree::structure(&vec![array(0), array(0)]);
    let rows: Vec<BTreeMap<String, Array>> = tree::transpose(&outer, &inner, columns.clone())?;
    assert_eq!((rows[1]["a"].item::<i32>()?, rows[0]["b"].item::<i32>()?), (2, 3));
    let back: BTreeMap<String, Vec<Array>> = tree::transpose(&inner, &outer, rows)?;
    assert_eq!(back["b"][1].item::<i32>()?, 4);
    let error = tree::transpose::<Vec<Array>, _>(&inner, &inner, columns).unwrap_err().to_string();
    assert!(error.contains("a map with keys"), "{error}");
    let rates: Pair<Vec<Array>> =
        tree::broadcast(Pair(array(1), array(2)), &Pair(vec![ones(1)], vec![ones(1), ones(2)]))?;
    assert_eq!(rates.1[1].item::<i32>()?, 2);
    Ok(())
}

/// Numbers that a caller passes do not wrap around, and neither do numbers of a damaged file.
#[test]
fn numbers_out_of_the_range_of_their_field_are_errors() -> Result<()> {
    #[derive(Tree, Clone, Debug, PartialEq)]
    struct Config {
        rate: (f32, f64),
        small: (i8, u8, i16, u16),
        large: (i32, u32, i64, u64, usize),
        on: bool,
    }
    let config = Config { rate: (0.5, 0.5), small: (1, 2, 3, 4), large: (5, 6, 7, 8, 9), on: true };
    let def = tree::structure(&config);
    let array_numbers = def.numbers();
    // Replaces one number of the structure, as a caller of `with_numbers` or a damaged file could.
    fn set(at: usize, value: Scalar, array_numbers: &[(String, Scalar)], def: &tree::TreeDef) -> Result<Config> {
        let numbers = array_numbers
            .iter()
            .enumerate()
            .map(|(i, (_, array_numbers))| if i == at { value } else { *array_numbers });
        def.with_numbers(numbers).and_then(|def| tree::unflatten::<Config>(&def, &[]))
    }
    let ranges: [(usize, &str, i128, i128); 9] = [
        (2, "i8", -128, 127),
        (3, "u8", 0, 255),
        (4, "i16", -32768, 32767),
        (5, "u16", 0, 65535),
        (6, "i32", i32::MIN.into(), i32::MAX.into()),
        (7, "u32", 0, u32::MAX.into()),
        (8, "i64", i64::MIN.into(), i64::MAX.into()),
        (9, "u64", 0, u64::MAX.into()),
        (10, "usize", 0, usize::MAX as i128),
    ];
    fn says(at: usize, of: &str, value: Scalar, array_numbers: &[(String, Scalar)], def: &tree::TreeDef) {
        let error = set(at, value, array_numbers, def).expect_err("it does not fit");
        let path = &array_numbers[at].0;
        assert_eq!(error.message(), format!("the number `{path}` is of type {of}, which cannot hold {value:?}"));
        assert!(error.to_string().contains(file!()), "{error}");
    }
    for (at, of, low, high) in ranges {
        // The limits are accepted, the numbers next to them are not, and neither are other kinds of numbers.
        for value in [low, high] {
            let numbers = tree::structure(&set(at, Scalar::Int(value), &array_numbers, &def)?).numbers();
            assert_eq!(numbers[at].1, Scalar::Int(value), "{of}");
        }
        for value in [low - 1, high + 1, i128::MIN, i128::MAX] {
            says(at, of, Scalar::Int(value), &array_numbers, &def);
        }
        for value in [Scalar::float(0.5), Scalar::float(f64::NAN), Scalar::Bool(true), Scalar::Complex(0, 0)] {
            says(at, of, value, &array_numbers, &def);
        }
    }
    says(0, "f32", Scalar::float(1e300), &array_numbers, &def);
    says(1, "f64", Scalar::Complex(0, 0), &array_numbers, &def);
    says(11, "bool", Scalar::Int(1), &array_numbers, &def);
    assert_eq!(set(0, Scalar::float(0.1), &array_numbers, &def)?.rate.0, 0.1);
    assert_eq!(set(0, Scalar::float(f64::INFINITY), &array_numbers, &def)?.rate.0, f32::INFINITY);
    assert_eq!(set(1, Scalar::Int(3), &array_numbers, &def)?.rate.1, 3.0);
    assert!(!set(11, Scalar::Bool(false), &array_numbers, &def)?.on);
    Ok(())
}

#[derive(Tree, Clone)]
struct Point {
    x: Array,
    rest: Option<Vec<Array>>,
}

#[derive(Tree, Clone)]
struct Nothing;

#[test]
fn structures_print_as_jax_prints_them() {
    let text = |structure: tree::TreeDef| structure.to_string();
    let map = BTreeMap::from([("b".to_owned(), ones(1)), ("a".to_owned(), ones(2))]);
    assert_eq!(text(tree::structure(&(map, vec![ones(1), ones(1)]))), r#"({"a": *, "b": *}, [*, *])"#);
    assert_eq!(text(tree::structure(&(ones(1),))), "(*,)");
    assert_eq!(text(tree::structure(&ones(1))), "*");
    assert_eq!(text(tree::structure(&((), 2, Nothing))), "((), 2, Nothing)");
    let points = (Point { x: ones(1), rest: None }, Point { x: ones(1), rest: Some(vec![ones(2)]) });
    assert_eq!(text(tree::structure(&points)), "(Point { x: *, rest: None }, Point { x: *, rest: [*] })");
}

#[test]
fn functions_of_trees_accept_references() -> Result<()> {
    setup();
    #[derive(Tree, Clone)]
    struct Params<T = Array> {
        w: T,
    }
    let (x, params) = (ones([2, 3]), Params { w: ones([2, 3]) });
    let f = vmap(|x: Array| psum(&x, "i") + pmax(&x, "i") + all_gather(&x, "i", 0).sum(0)).axis_name("i");
    assert_eq!(f.call(&x)?.to_vec::<f32>()?, [5.0; 6]);
    let sums = vmap(|p: Params| psum(&p, "i")).axis_name("i").call(&params)?;
    assert_eq!(sums.w.to_vec::<f32>()?, [2.0; 6]);
    let slope = grad(|x: Array| (stop_gradient(&x) * &x).sum(..)).call(&x)?;
    assert_eq!(slope.to_vec::<f32>()?, [1.0; 6]);
    let pair = (x.clone(), vec![x]);
    let (a, list) = stop_gradient(&pair);
    assert_eq!((a.shape(), stop_gradient(&list).len()), (pair.0.shape(), 1));
    Ok(())
}
