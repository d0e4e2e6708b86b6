//! Restoring returns what was saved: dtypes, shapes, trees, meshes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use shardax::sharding::Sharding;
use shardax::{Format, Layout};
use shardax_nn::prelude::*;
use shardax_train::checkpoint::{self, Checkpoint, RestoreOptions, SaveArgs};

use super::{Folder, bits, fails, names, setup};

/// An array of any dtype with bytes that differ, and that mean something in it.
fn odd(dtype: DType, shape: &[usize], seed: usize) -> Array {
    let count = shape.iter().product::<usize>() * dtype.byte_size();
    fn byte(i: usize, seed: usize) -> u8 {
        (i * 31 + seed * 7 + 3) as u8
    }
    let bytes: Vec<u8> = match dtype {
        DType::Bool => (0..count).map(|i| byte(i, seed) & 1).collect(),
        DType::Float0 => vec![0; count],
        _ if dtype.bits() < 8 => (0..count).map(|i| byte(i, seed) & ((1 << dtype.bits()) - 1)).collect(),
        _ => (0..count).map(|i: usize| byte(i, seed)).collect(),
    };
    Array::from_bytes(&bytes, dtype, shape).expect("an array")
}

#[test]
fn every_dtype_and_shape_comes_back_bit_by_bit() -> Result<()> {
    setup();
    let folder = Folder::new();
    let shapes: [&[usize]; 6] = [&[], &[0], &[3], &[2, 0, 3], &[5, 7], &[1, 2, 3, 4]];
    let arrays: BTreeMap<String, Array> = DType::ALL
        .into_iter()
        .chain([DType::Float0, DType::Key])
        .flat_map(|dtype| shapes.map(|shape| (format!("{dtype} {shape:?}"), odd(dtype, shape, shape.len()))))
        .collect();
    checkpoint::save(folder.join("all"), &arrays)?;
    assert_eq!(names(&folder.join("all")), ["commit", "device-00000.safetensors", "manifest.json"]);
    let like = tree::map(|x| zeros_dtype(x.shape(), x.dtype()), arrays.clone())?;
    let restored = checkpoint::restore(folder.join("all"), &like)?;
    assert_eq!(bits(&arrays)?, bits(&restored)?);
    for (key, array) in &restored {
        assert_eq!((array.dtype(), array.shape()), (arrays[key].dtype(), arrays[key].shape()), "{key}");
        assert!(!array.committed(), "{key}");
    }
    // Restoring needs only types.
    let like = tree::map(|x| shape_dtype_struct(x.shape(), x.dtype()), arrays.clone())?;
    assert_eq!(bits(&arrays)?, bits(&checkpoint::restore(folder.join("all"), &like)?)?);
    // Any reader of safetensors knows them.
    let file = std::fs::read(folder.join("all").join("device-00000.safetensors")).expect("the file");
    let tensors = safetensors::SafeTensors::deserialize(&file).expect("a safetensors file");
    let tensor = tensors.tensor("[\"complex64 [5, 7]\"]").expect("the tensor");
    assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::F32, &[5, 7, 2][..]));
    assert_eq!(tensor.data(), arrays["complex64 [5, 7]"].to_bytes()?);
    let tensor = tensors.tensor("[\"key<fry> [3]\"]").expect("the tensor");
    assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::U32, &[3, 2][..]));
    assert_eq!(tensor.data(), random::key_data(&arrays["key<fry> [3]"]).to_bytes()?);
    assert_eq!(tensors.len(), arrays.len());
    Ok(())
}

/// Files are row-major, whatever the layout of an array in memory.
#[test]
fn layouts_make_no_difference() -> Result<()> {
    setup();
    let folder = Folder::new();
    let (whole, split) = (local_devices()?[0].clone(), NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]));
    let plain = odd(DType::F32, &[8, 3, 2], 1);
    let columns = Layout::new([2, 1, 0]);
    for format in [Format::new(&columns, &whole), Format::new(&columns, &split)] {
        let x = device_put(&plain, &format)?;
        let path = folder.join(&format!("saved on {}", x.devices()?.len()));
        checkpoint::save(&path, &x)?;
        let restored = checkpoint::restore(&path, &x)?;
        assert_eq!(restored.to_bytes()?, plain.to_bytes()?);
        assert_eq!(restored.sharding()?, x.sharding()?);
        assert_eq!(restored.format()?.layout(), Some(&Layout::new([0, 1, 2])));
        fails(
            Checkpoint::open(&path)?.restore_with(&x, &RestoreOptions::new().shardings(&format)),
            &["restore takes a sharding, but got Format("],
        );
    }
    Ok(())
}

#[test]
fn weak_types_and_commitment_come_back() -> Result<()> {
    setup();
    let folder = Folder::new();
    let device = devices()?[3].clone();
    let tree = (array([0.25, 0.5]), array([0.5f32]) * 2.0, device_put(&array([1, 2]), &device)?, Array::from(0.5));
    checkpoint::save(folder.join("weak"), &tree)?;
    let restored = checkpoint::restore(folder.join("weak"), &tree)?;
    fn types(tree: &(Array, Array, Array, Array)) -> Vec<(shardax::program::Aval, bool)> {
        tree::leaves(tree).iter().map(|x| (x.aval(), x.committed())).collect::<Vec<_>>()
    }
    assert_eq!(types(&restored), types(&tree));
    assert!(restored.0.weak_type() && !restored.1.weak_type() && restored.3.weak_type());
    assert_eq!(restored.2.devices()?, [device]);
    Ok(())
}

#[derive(Module, Clone)]
struct Net {
    layers: Vec<Linear>,
    norm: BatchNorm,
    bias: Option<Param>,
}

fn net(seed: u32) -> Net {
    let mut rngs = Rngs::new(seed);
    let layers = vec![Linear::new(4, 8, &mut rngs), Linear::new(8, 2, &mut rngs)];
    Net { layers, norm: BatchNorm::new(8, &mut rngs), bias: Some(random::normal(&random::key(seed), [2]).into()) }
}

#[test]
fn models_optimizers_and_keys_come_back() -> Result<()> {
    setup();
    let folder = Folder::new();
    let make = |seed: u32| -> Result<_> {
        let optimizer = Optimizer::new(net(seed), adamw(1e-3, 1e-4))?;
        Ok((optimizer, Rngs::new(seed).with("dropout", seed + 1), random::split(random::key(seed), 3)))
    };
    let (saved, other) = (make(1)?, make(2)?);
    checkpoint::save(folder.join("state"), &saved)?;
    assert_ne!(bits(&saved)?, bits(&other)?);
    assert_eq!(bits(&saved)?, bits(&checkpoint::restore(folder.join("state"), &other)?)?);
    let opened = Checkpoint::open(folder.join("state"))?;
    opened.verify()?;
    let paths: Vec<String> = opened.arrays().into_iter().map(|array| array.path).collect();
    assert!(paths.contains(&"[0].model.layers[1].kernel".to_owned()), "{paths:?}");
    Ok(())
}

/// A checkpoint that has words of keys, as those written when keys were no dtype, is restored into a tree of keys.
#[test]
fn words_are_restored_as_keys() -> Result<()> {
    setup();
    let folder = Folder::new();
    let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    let raw = device_put(&random::split(random::PRNGKey(5), 16), &rows)?;
    checkpoint::save(folder.join("words"), &(random::PRNGKey(3), raw.clone()))?;
    let like = (random::key(0), device_put(&random::split(random::key(0), 16), &rows)?);
    let (key, keys) = checkpoint::restore(folder.join("words"), &like)?;
    assert_eq!((key.type_name(), random::key_data(key).to_vec::<u32>()?), ("key<fry>[]".to_owned(), vec![0, 3]));
    assert_eq!(random::key_data(&keys).to_vec::<u32>()?, raw.to_vec::<u32>()?);
    assert_eq!(keys.sharding()?, like.1.sharding()?);
    // Numbers that are not words are restored unchanged.
    checkpoint::save(folder.join("numbers"), &(array([1i32, 2]), raw))?;
    fails(checkpoint::restore(folder.join("numbers"), &like), &["`[0]` was saved as int32[2]", "key<fry>[]"]);
    Ok(())
}

#[test]
fn plain_numbers_are_the_programs_or_the_checkpoints() -> Result<()> {
    setup();
    let folder = Folder::new();
    let path = folder.join("numbers");
    fn tree(lr: f64, epoch: usize, on: bool) -> (Array, (f64, usize), (bool, f32)) {
        (zeros([2]), (lr, epoch), (on, 0.1f32))
    }
    checkpoint::save(&path, &tree(1e-3, 7, true))?;
    assert_eq!(checkpoint::restore(&path, &tree(1e-3, 7, true))?.1, (1e-3, 7));
    fails(
        checkpoint::restore(&path, &tree(1e-3, 0, true)),
        &["the number `[1][1]` is 0, but was saved as 7", "keep_numbers", "restore_numbers"],
    );
    let saved = Checkpoint::open(&path)?;
    let restored = saved.restore_with(&tree(0.5, 0, false), &RestoreOptions::new().restore_numbers())?;
    assert_eq!((restored.1, restored.2), ((1e-3, 7), (true, 0.1)));
    let restored = saved.restore_with(&tree(0.5, 0, false), &RestoreOptions::new().keep_numbers())?;
    assert_eq!((restored.1, restored.2), ((0.5, 0), (false, 0.1)));
    // A type that cannot represent the saved value.
    let path = folder.join("types");
    checkpoint::save(&path, &(zeros([2]), 0.5f64, 1i64 << 40))?;
    let saved = Checkpoint::open(&path)?;
    fn all() -> RestoreOptions {
        RestoreOptions::new().restore_numbers()
    }
    fails(
        saved.restore_with(&(zeros([2]), 7i32, 1i64), &all()),
        &["the number `[1]` was saved as 0.5 in", "the tree's type is the type of 7", "keep_numbers"],
    );
    fails(
        saved.restore_with(&(zeros([2]), 7f64, 1i32), &all()),
        &["types", "the number `[2]` is of type i32, which cannot hold 1099511627776", "keep_numbers"],
    );
    assert_eq!(saved.restore_with(&(zeros([2]), 7f32, 1u64), &all())?.2, 1 << 40);
    Ok(())
}

#[test]
fn a_part_has_no_arrays_of_one_whose_name_begins_alike() -> Result<()> {
    setup();
    let folder = Folder::new();
    let path = folder.join("named");
    #[derive(Tree, Clone)]
    struct State {
        params: (Array, Array),
        params_ema: Array,
    }
    checkpoint::save(&path, &State { params: (array(1.0f32), array(2.0f32)), params_ema: array(3.0f32) })?;
    let saved = Checkpoint::open(&path)?;
    fn below(path: &str) -> RestoreOptions {
        RestoreOptions::new().below(path)
    }
    let (a, b) = saved.restore_with(&(zeros(()), zeros(())), &below(".params"))?;
    assert_eq!((a.item::<f32>()?, b.item::<f32>()?), (1.0, 2.0));
    assert_eq!(saved.restore_with(&zeros(()), &below(".params_ema"))?.item::<f32>()?, 3.0);
    // The remainder of the part itself is still named.
    fails(saved.restore_with(&(zeros(()),), &below(".params")), &["the tree has no `.params[1]`"]);
    Ok(())
}

#[test]
fn a_part_of_a_tree_is_restored() -> Result<()> {
    setup();
    let folder = Folder::new();
    let path = folder.join("state");
    let state = Optimizer::new(net(1), adamw(1e-3, 1e-4))?;
    checkpoint::save(&path, &state)?;
    let saved = Checkpoint::open(&path)?;

    // A model out of a training's state.
    let model = saved.restore_with(&net(2), &RestoreOptions::new().below(".model"))?;
    assert_eq!(bits(&model)?, bits(&state.model)?);
    // In evaluation, though it was saved in training.
    let mut evaluated = net(2);
    evaluated.eval();
    let evaluated = saved.restore_with(&evaluated, &RestoreOptions::new().below(".model"))?;
    assert_eq!((bits(&evaluated)?, evaluated.norm.training), (bits(&state.model)?, false));
    // Some arrays by their paths or kinds; the others stay.
    let net_of_two = net(2);
    let some = RestoreOptions::new().below(".model").filter("layers[0].*");
    let some = saved.restore_with(&net_of_two, &some)?;
    assert_eq!(bits(&some.layers[0])?, bits(&state.model.layers[0])?);
    assert_eq!((bits(&some.layers[1])?, bits(&some.norm)?), (bits(&net_of_two.layers[1])?, bits(&net_of_two.norm)?));
    let stats =
        saved.restore_with(&net_of_two, &RestoreOptions::new().below(".model").filter(Filter::of::<BatchStat>()))?;
    assert_eq!(bits(&stats.state_of(Filter::of::<Param>()))?, bits(&net_of_two.state_of(Filter::of::<Param>()))?);

    // Other trees are errors that name the arrays, unless that is asked for.
    let mut rngs = Rngs::new(3);
    let wider = Net { layers: (0..3).map(|_| Linear::new(4, 8, &mut rngs)).collect(), bias: None, ..net(3) };
    fn below() -> RestoreOptions {
        RestoreOptions::new().below(".model")
    }
    fails(
        saved.restore_with(&wider, &below()),
        &["has no `.model.layers[2].kernel`", "`.model.bias`, which the checkpoint has", "allow_missing"],
    );
    fails(saved.restore_with(&wider, &below().allow_missing(true)), &["the tree has no `.model.bias`"]);
    let narrow = (net(4).layers[0].clone(), Array::from(0));
    fails(saved.restore_with(&narrow, &below()), &["has no", "[1]"]);
    let mut same = net(5);
    same.bias = None;
    let restored = saved.restore_with(&same, &below().allow_extra(true))?;
    assert_eq!(bits(&restored.layers)?, bits(&state.model.layers)?);
    Ok(())
}

#[test]
fn other_dtypes_are_converted_where_nothing_but_precision_is_lost() -> Result<()> {
    setup();
    let folder = Folder::new();
    let path = folder.join("dtypes");
    let x = array([1.5f32, -2.25, 1e-3]);
    checkpoint::save(&path, &(x.clone(), array([1, -2, 3])))?;
    let rows = NamedSharding::new(&make_mesh([("x", 3)])?, P!["x"]);
    let half = device_put(&zeros_dtype([3], DType::Bf16), &rows)?;
    let (y, n) = checkpoint::restore(&path, &(half, zeros_dtype([3], DType::I64)))?;
    assert_eq!((y.dtype(), n.dtype()), (DType::Bf16, DType::I64));
    assert_eq!(y.sharding()?, Sharding::from(&rows));
    let _mesh = set_mesh(&make_mesh([("x", 3)])?);
    let options = RestoreOptions::new().shardings((P!["x"], UNSPECIFIED));
    let like = (shape_dtype_struct([3], DType::F32), zeros_dtype([3], DType::I32));
    assert_eq!(Checkpoint::open(&path)?.restore_with(&like, &options)?.0.sharding()?, Sharding::from(&rows));
    assert_eq!(y.to_bytes()?, x.astype(DType::Bf16).to_bytes()?);
    assert_eq!(n.to_vec::<i64>()?, [1, -2, 3]);
    let like = |a: DType, b: DType| (zeros_dtype([3], a), zeros_dtype([3], b));
    fails(
        checkpoint::restore(&path, &like(DType::F32, DType::I16)),
        &["`[1]` was saved as int32[3]", "int16[3]", "astype"],
    );
    fails(checkpoint::restore(&path, &like(DType::I32, DType::I32)), &["`[0]` was saved as float32[3]", "int32[3]"]);
    Ok(())
}

#[test]
fn metrics_and_metadata_are_restored() -> Result<()> {
    setup();
    let folder = Folder::new();
    let path = folder.join("beside");
    let args = SaveArgs::new()
        .metrics([("loss", 0.1), ("odd", f64::NAN)])
        .metadata(serde_json::json!({ "epoch": [3, "a\u{1F980}"] }));
    checkpoint::save_with(&path, &ones([2]), &args)?;
    let saved = Checkpoint::open(&path)?;
    assert_eq!(saved.metadata()["epoch"][1], "a\u{1F980}");
    assert_eq!(saved.metrics()["loss"], 0.1);
    assert!(saved.metrics()["odd"].is_nan() && saved.step().is_none());
    // A place that is taken is an error, unless it is asked for.
    fails(checkpoint::save(&path, &ones([2])), &["exists already", "force"]);
    checkpoint::save_with(&path, &zeros([2]), &SaveArgs::new().force(true))?;
    assert_eq!(checkpoint::restore(&path, &ones([2]))?.to_vec::<f32>()?, [0.0; 2]);
    assert_eq!(names(&folder.0), ["beside"]);
    // What programs left that were ended while they replaced it.
    std::fs::create_dir(folder.join("beside.unfinished")).expect("a folder");
    fails(checkpoint::save(folder.join("beside"), &ones([2])), &["exists already"]);
    for name in ["beside.replaced", "beside.unfinished"] {
        let _ = std::fs::create_dir(folder.join(name));
        std::fs::write(folder.join(name).join("half"), "half").expect("a file");
    }
    checkpoint::save_with(&path, &ones([2]), &SaveArgs::new().force(true))?;
    assert_eq!(names(&folder.0), ["beside"]);
    std::fs::rename(&path, folder.join("beside.replaced")).expect("a folder");
    fails(Checkpoint::open(&path), &["the program that was replacing it was interrupted", ".replaced"]);
    checkpoint::save_with(&path, &ones([2]), &SaveArgs::new().force(true))?;
    assert_eq!(names(&folder.0), ["beside"]);
    Ok(())
}

/// A sharding over some of the eight devices.
fn sharding(axes: &[(&'static str, usize)], dims: &[Option<&'static str>]) -> Result<Sharding> {
    let mesh = make_mesh(axes.iter().copied())?;
    let spec = PartitionSpec::new(dims.iter().copied());
    Ok(NamedSharding::new(&mesh, spec).into())
}

#[test]
fn each_part_is_written_once() -> Result<()> {
    setup();
    let folder = Folder::new();
    let x = arange(0..64).reshape([8, 8]);
    let grid = sharding(&[("i", 4), ("j", 2)], &[Some("i")])?;
    let replicated = sharding(&[("i", 8)], &[])?;
    checkpoint::save(folder.join("x"), &(device_put(&x, &grid)?, device_put(&x, &replicated)?))?;
    let bytes: u64 = names(&folder.join("x"))
        .iter()
        .filter(|name| name.ends_with("safetensors"))
        .map(|name| {
            let file = std::fs::read(folder.join("x").join(name)).expect("a file");
            let tensors = safetensors::SafeTensors::deserialize(&file).expect("a safetensors file");
            tensors.iter().map(|(_, tensor)| tensor.data().len() as u64).sum::<u64>()
        })
        .sum();
    assert_eq!(bytes, 2 * 64 * 4);
    // The first of the devices that share a part, in the mesh's order.
    let files: Vec<String> = names(&folder.join("x")).into_iter().filter(|name| name.starts_with("device")).collect();
    let devices = ["device-00000", "device-00002", "device-00004", "device-00006"];
    assert_eq!(files, devices.map(|device| format!("{device}.safetensors")));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn from_any_mesh_to_any_other(
        shape in proptest::collection::vec(prop_oneof![Just(0usize), Just(1), Just(8), Just(16), Just(24)], 1..4),
        dtype in proptest::sample::select(DType::ALL.to_vec()),
        from in (0usize..5, 0usize..4, 0usize..4),
        to in (0usize..5, 0usize..4, 0usize..4),
    ) {
        moves(&shape, dtype, from, to).map_err(|error| TestCaseError::fail(error.to_string()))?;
    }
}

/// `SHARDAX_TEST_PROPERTY_CASES=1000` for more.
fn cases() -> u32 {
    std::env::var("SHARDAX_TEST_PROPERTY_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24)
}

fn moves(shape: &[usize], dtype: DType, from: (usize, usize, usize), to: (usize, usize, usize)) -> Result<()> {
    setup();
    fn place((mesh, i, j): (usize, usize, usize), shape: &[usize]) -> Result<Sharding> {
        let axes = [
            [("i", 1), ("j", 1)],
            [("i", 2), ("j", 1)],
            [("i", 2), ("j", 2)],
            [("i", 4), ("j", 2)],
            [("i", 1), ("j", 8)],
        ];
        let mut dims = vec![None; shape.len()];
        if let Some(dim) = dims.get_mut(i) {
            *dim = Some("i");
        }
        if let Some(dim) = dims.get_mut(j).filter(|_| i != j) {
            *dim = Some("j");
        }
        sharding(&axes[mesh], &dims)
    }
    let (from, to) = (place(from, shape)?, place(to, shape)?);
    // A dimension that cannot be divided has a separate error.
    if from.shard_shape(shape).is_err() || to.shard_shape(shape).is_err() {
        return Ok(());
    }
    let folder = Folder::new();
    let x = odd(dtype, shape, shape.len());
    checkpoint::save(folder.join("x"), &device_put(&x, &from)?)?;
    let like = shape_dtype_struct(shape, dtype);
    let options = RestoreOptions::new().shardings(&to);
    let y = Checkpoint::open(folder.join("x"))?.restore_with(&like, &options)?;
    assert_eq!(y.sharding()?, to);
    assert_eq!(y.to_bytes()?, x.to_bytes()?);
    for shard in y.addressable_shards()? {
        let part = device_put(&x, &to)?.addressable_shards()?.into_iter().find(|s| s.device == shard.device);
        assert_eq!(shard.data.to_bytes()?, part.expect("the same devices").data.to_bytes()?);
    }
    Ok(())
}
