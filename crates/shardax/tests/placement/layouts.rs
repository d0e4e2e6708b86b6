//! Layouts: how the elements of arrays lie in memory.

use shardax::stages::LeafTree;
use shardax::{AutoLayout, ErrorKind, LayoutOptions, export};

use super::*;
use crate::common::snapshot::snapshot;

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
const COLUMNS: [usize; 3] = [2, 1, 0];

fn cube() -> Array {
    arange(0..24).astype(DType::F32).reshape([2, 3, 4])
}

fn floats(range: std::ops::Range<i32>) -> Vec<f32> {
    range.map(|n| n as f32).collect()
}

/// In this order on the first device.
fn here(order: impl Into<Vec<usize>>) -> Result<Format> {
    setup();
    Ok(Format::new(Layout::new(order), &devices()?[0]))
}

fn order(x: &Array) -> Result<Vec<usize>> {
    Ok(x.format()?.layout().expect("the CPU tells").major_to_minor().to_vec())
}

/// The elements as they lie in the memory of the only device.
fn in_memory(x: &Array) -> Result<Vec<f32>> {
    let order: Vec<i32> = order(x)?.into_iter().map(|dim| dim as i32).collect();
    device_put(&x.transpose(order), Format::new(Layout::new([0, 1, 2]), &x.devices()?[0]))?.to_vec()
}

#[test]
fn every_order_goes_in_and_comes_out() -> Result<()> {
    setup();
    for from in ORDERS {
        let x = device_put(&cube(), here(from)?)?;
        assert_eq!((order(&x)?, x.to_vec::<f32>()?), (from.to_vec(), floats(0..24)));
        for to in ORDERS {
            let f = jit(|x: Array| x * 2.0 + 1.0).in_shardings(here(from)?).out_shardings(here(to)?);
            let want: Vec<f32> = (0..24).map(|n| 2.0 * n as f32 + 1.0).collect();
            // What was put there, and what lies nowhere in particular.
            for x in [x.clone(), cube()] {
                let y = f.call(&x)?;
                assert_eq!((order(&y)?, y.to_vec::<f32>()?), (to.to_vec(), want.clone()), "{from:?} to {to:?}");
                assert_eq!(y.format()?, here(to)?);
            }
            // From one into the other.
            let y = device_put(&x, here(to)?)?;
            assert_eq!((order(&y)?, y.to_vec::<f32>()?), (to.to_vec(), floats(0..24)));
        }
    }
    Ok(())
}

#[test]
fn memory_is_as_the_layout_says() -> Result<()> {
    setup();
    let x = device_put(&array([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]).reshape([2, 3, 1]), here([1, 0, 2])?)?;
    assert_eq!(in_memory(&x)?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    // A program that takes its result's memory from the argument as it lies there.
    let same = jit(|x: Array| x).in_shardings(here([1, 0, 2])?).out_shardings(here([1, 0, 2])?).lower(&x)?.compile()?;
    assert_eq!(same.call(&x)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    Ok(())
}

#[test]
fn arrays_read_alike_in_any_layout() -> Result<()> {
    setup();
    let plain = cube();
    let x = device_put(&plain, here(COLUMNS)?)?;
    assert_eq!((x.to_string(), format!("{x:?}")), (plain.to_string(), format!("{plain:?}")));
    assert_eq!(x.to_bytes()?, plain.to_bytes()?);
    assert_eq!(x.with_bytes(<[u8]>::to_vec)?, plain.to_bytes()?);
    let view = x.view::<f32>()?;
    assert!(!view.is_in_place() && view[..] == floats(0..24)[..]);
    assert!(device_put(&plain, here([0, 1, 2])?)?.view::<f32>()?.is_in_place());
    let held = x.hold()?;
    let mut bytes = Vec::new();
    held.copy_to(&mut bytes)?;
    assert_eq!(bytes, plain.to_bytes()?);
    drop(held);

    // The sharding says nothing of it.
    assert_eq!(x.sharding()?, SingleDeviceSharding::new(&devices()?[0]).into());
    assert_eq!((x.copy()?.to_vec::<f32>()?, order(&x.copy()?)?), (floats(0..24), vec![0, 1, 2]));
    assert_eq!(x.with_weak_type(true).to_vec::<f32>()?, floats(0..24));
    let part = x.addressable_data(0)?;
    assert_eq!((order(&part)?, part.to_vec::<f32>()?), (COLUMNS.to_vec(), floats(0..24)));
    // Of one dimension and none there is one layout.
    for y in [array([1.0f32, 2.0]), array(3.0f32)] {
        let dims: Vec<usize> = (0..y.ndim()).collect();
        assert_eq!(device_put(&y, here(dims.clone())?)?.to_vec::<f32>()?, y.to_vec::<f32>()?);
        assert_eq!(order(&y)?, dims);
    }
    // Elements of all sizes; none at all.
    for dtype in [DType::Bool, DType::I8, DType::Bf16, DType::F64, DType::Complex64, DType::Complex128] {
        let y = plain.astype(dtype);
        let put = device_put(&y, here(COLUMNS)?)?;
        assert_eq!((order(&put)?, put.to_bytes()?), (COLUMNS.to_vec(), y.to_bytes()?), "{dtype}");
    }
    let none = device_put(&zeros([0, 3, 2]), here(COLUMNS)?)?;
    assert_eq!(none.to_vec::<f32>()?, [0.0; 0]);
    Ok(())
}

#[test]
fn operations_take_any_layout_and_give_the_default() -> Result<()> {
    setup();
    let plain = cube();
    let x = device_put(&plain, here(COLUMNS)?)?;
    let results = [
        (&x + &plain, &plain * 2.0),
        (x.transpose([1, 0, 2]), plain.transpose([1, 0, 2])),
        (x.reshape([4, 6]), plain.reshape([4, 6])),
        (x.get(1), plain.get(1)),
        (jit(|x: Array| x.sin()).call(&x)?, plain.sin()),
        (jit(|x: Array| x).call(&x)?, plain.clone()),
        (vmap(|x: Array| x.sum(0)).in_axes(1).call(&x)?, plain.sum(0)),
        (grad(|x: Array| (x.square() * 0.5).sum(..)).call(&x)?, plain.clone()),
    ];
    for (n, (have, want)) in results.iter().enumerate() {
        assert_eq!((have.shape(), have.to_vec::<f32>()?), (want.shape(), want.to_vec::<f32>()?), "{n}");
        assert_eq!(order(have)?, (0..want.ndim()).collect::<Vec<_>>(), "{n}");
    }
    // Captured.
    let captured = x.clone();
    assert_eq!(jit(move |y: Array| y + &captured).call(&plain)?.to_vec::<f32>()?, (&plain * 2.0).to_vec::<f32>()?);
    // One function, compiled for each layout.
    let f = jit(|x: Array| x.sum(2));
    for from in ORDERS {
        assert_eq!(f.call(device_put(&plain, here(from)?)?)?.to_vec::<f32>()?, plain.sum(2).to_vec::<f32>()?);
    }
    // Searched for NaN.
    config::set_debug_nans(true);
    let f = jit(|x: Array| x * 3.0).in_shardings(here(COLUMNS)?).donate_argnums([0]).out_shardings(here(COLUMNS)?);
    let found = f.call(device_put(&plain, here(COLUMNS)?)?);
    config::set_debug_nans(false);
    assert_eq!(found?.to_vec::<f32>()?, (&plain * 3.0).to_vec::<f32>()?);
    Ok(())
}

#[test]
fn arrays_move_with_their_layouts() -> Result<()> {
    setup();
    let all = devices()?;
    let (plain, columns) = (cube(), Layout::new(COLUMNS));
    let x = device_put(&plain, here(COLUMNS)?)?;
    // A whole array keeps it, one that is cut does not; a format says it.
    for (y, want) in [
        (device_put(&x, &all[0])?, COLUMNS),
        (device_put(&x, &all[1])?, COLUMNS),
        (device_put(&x, None)?, COLUMNS),
        (device_put(&x, Format::new(LayoutOptions::Unspecified, &all[2]))?, COLUMNS),
        (device_put(&x, Format::default())?, COLUMNS),
        (device_put(&x, Format::new(Layout::new([0, 1, 2]), &all[1]))?, [0, 1, 2]),
        (device_put(&x, Format::new(Layout::new([1, 0, 2]), &all[1]))?, [1, 0, 2]),
        (PutOptions::default().may_alias(false).device_put(&x, &all[0])?, COLUMNS),
        (device_put(&x, &shardings()?.1)?, [0, 1, 2]),
        (device_put(&x, Format::new(&columns, &shardings()?.1))?, COLUMNS),
    ] {
        assert_eq!((order(&y)?, y.to_vec::<f32>()?), (want.to_vec(), floats(0..24)));
    }
    let copy = PutOptions::default().may_alias(false).device_put(&x, here(COLUMNS)?)?;
    assert!(!is_same_memory(copy, &x)?);

    // Parts on eight devices.
    let (split, _) = shardings()?;
    let big = arange(0..16 * 6).astype(DType::F32).reshape([16, 3, 2]);
    let y = device_put(&big, Format::new(&columns, &split))?;
    assert_eq!(
        (order(&y)?, y.to_vec::<f32>()?, y.sharding()?),
        (COLUMNS.to_vec(), floats(0..96), split.clone().into())
    );
    let shards = y.addressable_shards()?;
    assert_eq!((order(&shards[3].data)?, shards[3].data.to_vec::<f32>()?), (COLUMNS.to_vec(), floats(36..48)));
    let parts: Vec<Array> = shards.iter().map(|shard| shard.data.clone()).collect();
    let again = make_array_from_single_device_arrays([16, 3, 2], &split, &parts)?;
    assert_eq!((order(&again)?, again.to_vec::<f32>()?), (COLUMNS.to_vec(), floats(0..96)));
    let format = Format::new(&columns, &split);
    let f = jit(|x: Array| x + 1.0).in_shardings(&format).out_shardings(&format);
    let z = f.call(&y)?;
    assert_eq!((z.format()?, z.to_vec::<f32>()?), (format.clone(), floats(1..97)));
    assert_eq!(order(&(&y + 1.0))?, [0, 1, 2]);
    let mapped = shard_map(|x: Array| psum(x.sum(..), "x"), split.mesh()).in_specs(P!["x"]).out_specs(P![]);
    assert_eq!(mapped.call(&y)?.item::<f32>()?, big.sum(..).item::<f32>()?);
    assert_eq!(device_put(&y, &all[0])?.to_vec::<f32>()?, floats(0..96));
    let mixed = [&parts[..7], &[device_put(&parts[7], Format::new(Layout::new([0, 1, 2]), &all[7]))?]].concat();
    let made = make_array_from_single_device_arrays([16, 3, 2], &split, &mixed);
    fails(made, ErrorKind::Value, &["must have one layout in memory"]);

    // Given away.
    let gone = PutOptions::default().donate(true).device_put(&y, &split)?;
    assert!(y.is_deleted());
    assert_eq!(gone.to_vec::<f32>()?, floats(0..96));
    // In other memory.
    let host = device_put(&x, Space::Host)?;
    assert_eq!((host.to_vec::<f32>()?, (&host + 0.0).to_vec::<f32>()?), (floats(0..24), floats(0..24)));
    Ok(())
}

#[test]
fn donated_memory_is_taken_over_in_one_layout() -> Result<()> {
    setup();
    let columns = here(COLUMNS)?;
    let f = jit(|x: Array| x + 1.0).donate_argnums([0]);
    let same = f.in_shardings(&columns).out_shardings(&columns);
    let x = device_put(&cube(), &columns)?;
    let compiled = same.lower(&x)?.compile()?;
    assert_eq!((compiled.memory_analysis()?.aliased, x.is_deleted()), (96, false));
    let y = compiled.call(&x)?;
    assert!(x.is_deleted());
    assert_eq!((order(&y)?, y.to_vec::<f32>()?), (COLUMNS.to_vec(), floats(1..25)));
    // Not into another.
    let other = jit(|x: Array| x + 1.0).donate_argnums([0]).in_shardings(&columns).lower(&y)?;
    assert_eq!(other.unused_donations(), ["argument[0] of type float32[2,3,4]"]);
    assert_eq!(other.compile()?.call(&y)?.to_vec::<f32>()?, floats(2..26));
    assert!(!y.is_deleted());
    let auto = Format::from(Layout::AUTO);
    let x = shape_dtype_struct([2, 3, 4], DType::F32);
    let both = jit(|x: Array| x + 1.0).donate_argnums([0]).in_shardings(&auto).out_shardings(&auto).lower(&x)?;
    assert_eq!(both.compile()?.memory_analysis()?.aliased, 96);
    let error = jit(|x: Array| x + 1.0).donate_argnums([0]).in_shardings(&auto).lower(&x);
    fails(
        error,
        ErrorKind::Value,
        &["Input layout being donated was AUTO while output layout was None", "output layout to AUTO?"],
    );
    let error = jit(|x: Array| x + 1.0).donate_argnums([0]).out_shardings(&auto).lower(&x);
    fails(
        error,
        ErrorKind::Value,
        &["Input layout being donated was None while output layout was AUTO", "input layout to AUTO?"],
    );
    Ok(())
}

#[test]
fn the_compiler_chooses_where_it_may() -> Result<()> {
    setup();
    let device = &devices()?[0];
    let turned = jit(|x: Array| x.transpose([2, 1, 0])).out_shardings(Format::new(Layout::AUTO, device));
    let y = turned.call(cube())?;
    assert_eq!(
        (y.shape(), order(&y)?, y.to_vec::<f32>()?),
        (&[4, 3, 2][..], COLUMNS.to_vec(), cube().t().to_vec::<f32>()?)
    );
    assert!(y.committed());
    // Without a sharding, the result may leave its device.
    let y = jit(|x: Array| x.t()).out_shardings(Format::from(Layout::AUTO)).call(cube())?;
    assert_eq!((y.committed(), order(&y)?, y.to_vec::<f32>()?), (false, COLUMNS.to_vec(), cube().t().to_vec::<f32>()?));
    assert_eq!((&y + 1.0).to_vec::<f32>()?, (cube().t() + 1.0).to_vec::<f32>()?);

    let f = jit(|(x, y): (Array, Array), z: Array| (x.t().dot(y), z)).in_shardings(Format::from(Layout::AUTO));
    let (a, b) = (shape_dtype_struct([64, 32], DType::F32), shape_dtype_struct([64, 8], DType::F32));
    let compiled = f.lower(((a, b), shape_dtype_struct([2, 3, 4], DType::F32)))?.compile()?;
    let formats: LeafTree<Option<Format>> = compiled.input_formats();
    assert_eq!(formats.leaves().len(), 3);
    for (format, rank) in formats.leaves().iter().zip([2, 2, 3]) {
        let format = format.as_ref().expect("it is taken");
        assert_eq!(format.layout().map(|l| l.major_to_minor().len()), Some(rank));
        assert_eq!(format.sharding(), Some(&device.into()));
    }
    assert_eq!(compiled.output_formats().leaves()[0].layout(), Some(&Layout::new([0, 1])));
    let args = device_put(&((ones([64, 32]), ones([64, 8])), cube()), &compiled.input_formats())?;
    assert_eq!(compiled.call(args)?.0.to_vec::<f32>()?, [64.0; 256]);
    // Arguments that are not taken have no format.
    let unused = jit(|x: Array, _: Array| x).lower((cube(), cube()))?.compile()?;
    assert!(unused.input_formats().leaves()[0].is_some() && unused.input_formats().leaves()[1].is_none());
    Ok(())
}

#[test]
fn compiled_programs_travel_with_their_layouts() -> Result<()> {
    setup();
    let (from, to) = (here(COLUMNS)?, here([1, 0, 2])?);
    let f = jit(|x: Array| x * 2.0).in_shardings(&from).out_shardings(&to);
    let lowered = f.lower(shape_dtype_struct([2, 3, 4], DType::F32))?;
    let bytes = lowered.compile()?.serialize()?;
    let loaded = Compiled::load(&lowered, &bytes)?;
    assert_eq!(loaded.input_formats().leaves(), [Some(from.clone())]);
    assert_eq!(loaded.output_formats().leaves(), std::slice::from_ref(&to));
    let y = loaded.call(device_put(&cube(), &from)?)?;
    assert_eq!((y.format()?, y.to_vec::<f32>()?), (to, (cube() * 2.0).to_vec::<f32>()?));
    // Types that stand for arrays say it too.
    let typed = shape_dtype_struct_on([2, 3, 4], DType::F32, &from);
    let compiled = jit(|x: Array| x * 2.0).lower(&typed)?.compile()?;
    assert_eq!(compiled.input_formats().leaves(), [Some(from.clone())]);
    assert_eq!(order(&compiled.call(device_put(&cube(), &from)?)?)?, [0, 1, 2]);

    // What is exported is a function, which lies nowhere.
    let exported = export::export(f, shape_dtype_struct([2, 3, 4], DType::F32))?;
    assert_eq!(exported.call(cube())?.to_vec::<f32>()?, (cube() * 2.0).to_vec::<f32>()?);
    Ok(())
}

#[test]
fn values_inside_of_programs_are_constrained() -> Result<()> {
    setup();
    let columns = Layout::new(COLUMNS);
    let twice = {
        let columns = columns.clone();
        move |x: Array| with_layout_constraint(x * 2.0, &columns)
    };
    let y = jit(twice.clone()).call(cube())?;
    assert_eq!((order(&y)?, y.to_vec::<f32>()?), (COLUMNS.to_vec(), (cube() * 2.0).to_vec::<f32>()?));
    // Not a result by itself.
    let inner = twice.clone();
    let y = jit(move |x: Array| inner(x) + 1.0).call(cube())?;
    assert_eq!((order(&y)?, y.to_vec::<f32>()?), (vec![0, 1, 2], (cube() * 2.0 + 1.0).to_vec::<f32>()?));
    // At once.
    let y = with_layout_constraint((cube(), ones([2, 2])), (&columns, Layout::new([1, 0])));
    assert_eq!((order(&y.0)?, order(&y.1)?, y.0.to_vec::<f32>()?), (COLUMNS.to_vec(), vec![1, 0], floats(0..24)));

    // Gradients of both kinds, vmap over each dimension, in loops and on parts.
    let loss = {
        let twice = twice.clone();
        move |x: Array| twice(x).square().sum(..)
    };
    let want = (cube() * 8.0).to_vec::<f32>()?;
    assert_eq!(grad(&loss).call(cube())?.to_vec::<f32>()?, want);
    assert_eq!(jit(grad(&loss)).call(cube())?.to_vec::<f32>()?, want);
    let (value, tangent) = jvp(twice.clone(), cube(), ones([2, 3, 4]))?;
    assert_eq!((value.to_vec::<f32>()?, tangent.to_vec::<f32>()?), ((cube() * 2.0).to_vec()?, vec![2.0; 24]));
    for (axis, want) in [(0, vec![0, 2, 1]), (1, vec![1, 2, 0]), (2, vec![2, 1, 0])] {
        let f = vmap(|x: Array| with_layout_constraint(x, Layout::new([1, 0]))).in_axes(axis).out_axes(axis);
        let y = jit(f).call(cube())?;
        assert_eq!((order(&y)?, y.to_vec::<f32>()?), (want, floats(0..24)), "{axis}");
    }
    let step = |x: Array, _: Array| Ok((with_layout_constraint(x + 1.0, Layout::new(COLUMNS)), ()));
    assert_eq!(jit(move |x: Array| Ok(scan(step, x, zeros(3))?.0)).call(cube())?.to_vec::<f32>()?, floats(3..27));
    let (split, _) = shardings()?;
    let x = device_put(&arange(0..96).astype(DType::F32).reshape([16, 3, 2]), &split)?;
    let mapped = shard_map(twice.clone(), split.mesh()).in_specs(P!["x"]).out_specs(P!["x"]);
    assert_eq!(jit(mapped).call(&x)?.to_vec::<f32>()?, (&x * 2.0).to_vec::<f32>()?);
    assert_eq!(jit(twice).call(&x)?.to_vec::<f32>()?, (&x * 2.0).to_vec::<f32>()?);
    // By a format, with a sharding.
    let format = Format::new(&columns, &split);
    // (What the compiler splits, it would put together on the CPU, to no effect.)
    let lowered = jit(move |x: Array| with_sharding_constraint(x * 2.0, &format)).lower(&x)?;
    assert!(!lowered.as_text().contains("LayoutConstraint"), "{}", lowered.as_text());
    let compiled = lowered.compile()?;
    assert_eq!(compiled.collectives()?.count(), 0);
    assert_eq!((spec(&compiled.call(&x)?)?, compiled.call(&x)?.to_vec::<f32>()?), (P!["x"], (&x * 2.0).to_vec()?));
    let one = here(COLUMNS)?;
    let y = jit(move |x: Array| with_sharding_constraint(x * 2.0, &one)).call(cube())?;
    assert_eq!((order(&y)?, y.to_vec::<f32>()?), (COLUMNS.to_vec(), (cube() * 2.0).to_vec()?));
    // Within another jit a format says where, and of the layout nothing.
    let inner = jit(|x: Array| x * 2.0).in_shardings(here(COLUMNS)?).out_shardings(here(COLUMNS)?);
    let y = jit(move |x: Array| Ok(inner.call(x)? + 0.0)).call(cube())?;
    assert_eq!((order(&y)?, y.to_vec::<f32>()?), (vec![0, 1, 2], (cube() * 2.0).to_vec()?));
    Ok(())
}

#[test]
fn what_cannot_be_is_an_error() -> Result<()> {
    setup();
    let device = &devices()?[0];
    let columns = here(COLUMNS)?;
    let x = cube();
    let put = device_put(&x, device)?;
    let wrong = |order: &[usize]| Format::new(Layout::new(order), device);
    let rank = [
        "Length of major_to_minor and the rank of the value should match. Got major_to_minor=(1, 0) and shape=(2, 3, 4)",
    ];
    fails(device_put(&x, wrong(&[1, 0])), ErrorKind::Value, &rank);
    fails(
        jit(|x: Array| x).in_shardings(wrong(&[1, 0])).call(&x),
        ErrorKind::Value,
        &[
            rank[0],
            "One of jit arguments, argument[0], is incompatible with its layout annotation Layout(major_to_minor=(1, 0), tiling=(), sub_byte_element_size_in_bits=0)",
        ],
    );
    fails(
        jit(|x: Array| x).out_shardings(wrong(&[1, 0])).call(&x),
        ErrorKind::Value,
        &[rank[0], "One of jit outputs, output, is"],
    );
    let constrained =
        |order: &'static [usize]| jit(move |x: Array| with_layout_constraint(x, Layout::new(order))).call(cube());
    fails(constrained(&[1, 0]), ErrorKind::Value, &[rank[0], "One of with_layout_constraint arguments"]);
    let words = ["major_to_minor must be a permutation of the dimensions of the value"];
    for order in [[1, 1, 0], [1, 5, 0]] {
        fails(device_put(&x, wrong(&order)), ErrorKind::Value, &words);
        fails(jit(|x: Array| x).in_shardings(wrong(&order)).call(&x), ErrorKind::Value, &words);
        fails(with_layout_constraint(x.clone(), Layout::new(order)).to_vec::<f32>(), ErrorKind::Value, &words);
    }
    fails(constrained(&[0, 1, 1]), ErrorKind::Value, &words);
    fails(
        with_layout_constraint(x.clone(), [Layout::new([0]), Layout::new([0])]).to_vec::<f32>(),
        ErrorKind::Value,
        &["with_layout_constraint layouts has 2 entries"],
    );

    // The compiler's choice is not known before it is made.
    let auto = Format::new(Layout::AUTO, device);
    fails(
        device_put(&x, &auto),
        ErrorKind::Value,
        &["should be concrete. Got layout: Format(layout=AUTO, sharding=SingleDeviceSharding("],
    );
    fails(shape_dtype_struct_on([2], DType::F32, &auto).check(), ErrorKind::Value, &["should be concrete"]);
    let f = jit({
        let auto = auto.clone();
        move |x: Array| with_sharding_constraint(x, &auto)
    });
    fails(f.call(&x), ErrorKind::Value, &["with_sharding_constraint takes a layout or none, and got Layout.AUTO"]);
    let error = fails(
        jit(|x: Array| x).in_shardings(&auto).call(&put),
        ErrorKind::Value,
        &[
            "Layout passed to jit does not match the layout on the respective arg. Got jit layout: AUTO, arg layout: Layout(major_to_minor=(0, 1, 2)",
            "for argument[0] of type float32[2,3,4]",
        ],
    );
    assert!(error.help_text().is_some_and(|help| help.contains("shape_dtype_struct")), "{error}");

    // Where an array was put, it stays.
    let f = jit(|x: Array| x).in_shardings(&columns);
    fails(
        f.call(&put),
        ErrorKind::Value,
        &["Got jit layout: Layout(major_to_minor=(2, 1, 0)", "arg layout: Layout(major_to_minor=(0, 1, 2)"],
    );
    let other = device_put(&x, here([1, 0, 2])?)?;
    fails(f.call(&other), ErrorKind::Value, &["arg layout: Layout(major_to_minor=(1, 0, 2)"]);
    let compiled = f.lower(&x)?.compile()?;
    fails(
        compiled.call(&other),
        ErrorKind::Value,
        &[
            "Computation was compiled for input layouts that disagree with the layouts of arguments passed to it",
            "argument[0] of type float32[2,3,4]: passed layout Layout(major_to_minor=(1, 0, 2)",
            "required layout Layout(major_to_minor=(2, 1, 0)",
        ],
    );
    fails(compiled.call(&put), ErrorKind::Value, &["passed layout Layout(major_to_minor=(0, 1, 2)"]);
    assert_eq!(compiled.call(&x)?.to_vec::<f32>()?, floats(0..24));
    fails(
        jit(|x: Array| x).lower(&x)?.compile()?.call(&other),
        ErrorKind::Value,
        &["required layout Layout(major_to_minor=(0, 1, 2)"],
    );

    // A layout is of an array somewhere; the CPU has no tiles.
    let nowhere = Format::new(Layout::new(COLUMNS), None);
    for error in [
        device_put(&x, &nowhere).err(),
        jit(|x: Array| x).in_shardings(&nowhere).call(&x).err(),
        jit(|x: Array| x).out_shardings(&nowhere).call(&x).err(),
    ] {
        fails(error.map_or(Ok(()), Err), ErrorKind::Value, &["Sharding has to be concrete when layout is given"]);
    }
    let tiled = Format::new(Layout::new([0, 1, 2]).with_tiling([[2, 2]]), device);
    for error in [
        device_put(&x, &tiled).err(),
        jit(|x: Array| x).in_shardings(&tiled).call(&x).err(),
        jit(|x: Array| x).out_shardings(&tiled).call(&x).err(),
    ] {
        fails(
            error.map_or(Ok(()), Err),
            ErrorKind::NotImplemented,
            &[
                "a layout with tiles, Layout(major_to_minor=(0, 1, 2), tiling=((2, 2),), sub_byte_element_size_in_bits=0), is not implemented on CPU",
            ],
        );
    }
    let empty = Format::new(Layout::new([0, 1, 2]).with_tiling([Vec::new()]), device);
    fails(device_put(&x, &empty), ErrorKind::Value, &["a tile has at least one dimension"]);
    fails(jit(|x: Array| x.format().map(|_| x)).call(&x), ErrorKind::Type, &["float32[2,3,4]"]);
    assert_eq!((Layout::AUTO, auto.is_auto(), auto.layout()), (AutoLayout, true, None));
    Ok(())
}

/// What JAX says of layouts in the same programs (`tools/golden/layouts.py`).
#[test]
fn the_compiler_is_told_as_jax_tells_it() -> Result<()> {
    setup();
    let device = &devices()?[0];
    let split = NamedSharding::new(&make_mesh([("a", 2), ("b", 4)])?, P!["a"]);
    let (columns, rows) = (Layout::new(COLUMNS), Layout::new([0, 1, 2]));
    let (given, auto) = (Format::new(&columns, device), Format::new(Layout::AUTO, device));
    let x = shape_dtype_struct([2, 3, 4], DType::F32);
    let put = device_put(&cube(), &given)?;
    let f = |x: Array| x + 1.0;
    let both = |format: &Format| jit(f).in_shardings(format).out_shardings(format);
    let text = |lowered: Lowered<(Array,), Array>| lowered.as_text().to_owned();
    let constrained = |x: Array| with_layout_constraint(x * 2.0, Layout::new(COLUMNS));
    let by_format = {
        let given = given.clone();
        move |x: Array| with_sharding_constraint(x * 2.0, &given)
    };
    let squared = |x: Array| with_layout_constraint(x, Layout::new(COLUMNS)).square().sum(..);
    let tiles = Format::new(rows.clone().with_tiling([[8, 128], [2, 1]]), device);
    let cases = [
        ("given", text(both(&given).lower(&x)?)),
        ("default", text(both(&Format::new(&rows, device)).lower(&x)?)),
        ("auto", text(both(&auto).lower(&x)?)),
        ("auto without a sharding", text(both(&Format::from(Layout::AUTO)).lower(&x)?)),
        ("split", text(both(&Format::new(&columns, &split)).lower(&x)?)),
        ("tiles", text(jit(f).in_shardings(tiles).lower(&x)?)),
        ("passed", text(jit(f).lower(&put)?)),
        ("passed, sharding given", text(jit(f).in_shardings(device).lower(&put)?)),
        ("donated", text(both(&given).donate_argnums([0]).lower(&x)?)),
        ("donated, auto", text(both(&auto).donate_argnums([0]).lower(&x)?)),
        ("constrained", text(jit(constrained).lower(&x)?)),
        ("constrained inside", text(jit(move |x: Array| constrained(x) + 1.0).lower(&x)?)),
        ("constrained by a format", text(jit(by_format).lower(&x)?)),
        ("constrained, gradient", text(jit(grad(squared)).lower(&x)?)),
        ("constrained, vmap", text(jit(vmap(|x: Array| with_layout_constraint(x, Layout::new([1, 0])))).lower(&x)?)),
    ];
    let lines: Vec<String> = cases.iter().map(|(name, text)| format!("{name}: {}", summary(text))).collect();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/jax_layouts.txt");
    assert_eq!(lines, std::fs::read_to_string(golden).expect("it is committed").lines().collect::<Vec<_>>());

    let f = jit(move |x: Array| (with_layout_constraint(x.sin(), &columns), x))
        .in_shardings(&given)
        .out_shardings((None, &auto));
    let lowered = f.lower(&x)?;
    snapshot("lowered_layouts", &format!("{}\n\n{}", lowered.program(), lowered.as_text()));
    Ok(())
}

/// As the generator of the reference sums a text up.
fn summary(text: &str) -> String {
    let main = text.lines().find(|line| line.contains("@main(")).expect("a main");
    let (arguments, results) = main.split_once(") -> (").expect("results");
    let mode = |part: &str| {
        let mode = part.split_once("mhlo.layout_mode = \"").and_then(|(_, rest)| rest.split_once('"'));
        mode.map_or("-".to_owned(), |(mode, _)| mode.to_owned())
    };
    let orders = text.lines().filter(|line| line.contains("\"LayoutConstraint\""));
    let order = |line: &str| {
        let (_, rest) = line.split_once("result_layouts = ").expect("an order");
        format!(
            "'{}]'",
            rest.split_once(']')
                .map(|(a, b)| format!("{a}]{}", b.split_once(']').expect("its end").0))
                .expect("a list")
        )
    };
    let orders: Vec<String> = orders.map(order).collect();
    let aliased = if arguments.contains("tf.aliasing_output") { "True" } else { "False" };
    format!(
        "argument {} result {} constraints [{}] aliased {aliased}",
        mode(arguments),
        mode(results),
        orders.join(", ")
    )
}
