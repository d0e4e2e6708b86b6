//! Layouts: the order of the elements of arrays in memory.

use shardax::{ErrorKind, Format, Layout, LayoutOptions};

use super::*;

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
pub const COLUMNS: [usize; 3] = [2, 1, 0];

pub fn cube() -> Array {
    arange(0..24).astype(DType::F32).reshape([2, 3, 4])
}

pub fn floats(range: std::ops::Range<i32>) -> Vec<f32> {
    range.map(|n| n as f32).collect()
}

/// In this order on the first device.
pub fn here(order: impl Into<Vec<usize>>) -> Result<Format> {
    setup();
    Ok(Format::new(Layout::new(order), &devices()?[0]))
}

pub fn order(x: &Array) -> Result<Vec<usize>> {
    Ok(x.format()?.layout().expect("the CPU tells").major_to_minor().to_vec())
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
            // An array in the requested layout, and an uncommitted array in the default layout.
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
    let retained = x.retain()?;
    let mut bytes = Vec::new();
    retained.copy_to(&mut bytes)?;
    assert_eq!(bytes, plain.to_bytes()?);
    drop(retained);

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
        let placed = device_put(&y, here(COLUMNS)?)?;
        assert_eq!((order(&placed)?, placed.to_bytes()?), (COLUMNS.to_vec(), y.to_bytes()?), "{dtype}");
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
    // Products, which libraries compute that ask for rows.
    for dtype in [DType::F32, DType::F64] {
        let a = (arange(0..128 * 96).reshape([128, 96]) % 7).astype(dtype);
        let columns = Format::new(Layout::new([1, 0]), &devices()?[0]);
        let (x, y) = (device_put(&a, &columns)?, device_put(&a.t(), &columns)?);
        let want = a.dot(a.t()).to_bytes()?;
        assert_eq!(jit(|x: Array, y: Array| x.dot(y)).call((&x, &y))?.to_bytes()?, want, "{dtype}");
        let f = jit(|x: Array, y: Array| x.dot(y)).in_shardings(&columns).out_shardings(&columns);
        assert_eq!(f.call((&x, &y))?.to_bytes()?, want, "{dtype}");
        fn row(x: &Array) -> Result<Vec<u8>> {
            x.get(0).dot(x.t()).to_bytes()
        }
        assert_eq!(row(&x)?, row(&a)?, "{dtype}");
    }
    // Searched for NaN.
    config::set_debug_nans(true);
    let f = jit(|x: Array| x * 3.0).in_shardings(here(COLUMNS)?).donate_argnums([0]).out_shardings(here(COLUMNS)?);
    let result = f.call(device_put(&plain, here(COLUMNS)?)?);
    config::set_debug_nans(false);
    assert_eq!(result?.to_vec::<f32>()?, (&plain * 3.0).to_vec::<f32>()?);
    Ok(())
}

#[test]
fn arrays_move_with_their_layouts() -> Result<()> {
    setup();
    let all_devices = devices()?;
    let (plain, columns) = (cube(), Layout::new(COLUMNS));
    let x = device_put(&plain, here(COLUMNS)?)?;
    // A whole array keeps it, one that is cut does not; a format says it.
    for (y, want) in [
        (device_put(&x, &all_devices[0])?, COLUMNS),
        (device_put(&x, &all_devices[1])?, COLUMNS),
        (device_put(&x, None)?, COLUMNS),
        (device_put(&x, Format::new(LayoutOptions::Unspecified, &all_devices[2]))?, COLUMNS),
        (device_put(&x, Format::default())?, COLUMNS),
        (device_put(&x, Format::new(Layout::new([0, 1, 2]), &all_devices[1]))?, [0, 1, 2]),
        (device_put(&x, Format::new(Layout::new([1, 0, 2]), &all_devices[1]))?, [1, 0, 2]),
        (PutOptions::new().may_alias(false).device_put(&x, &all_devices[0])?, COLUMNS),
        (device_put(&x, &shardings()?.1)?, [0, 1, 2]),
        (device_put(&x, Format::new(&columns, &shardings()?.1))?, COLUMNS),
    ] {
        assert_eq!((order(&y)?, y.to_vec::<f32>()?), (want.to_vec(), floats(0..24)));
    }
    let copy = PutOptions::new().may_alias(false).device_put(&x, here(COLUMNS)?)?;
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
    assert_eq!(device_put(&y, &all_devices[0])?.to_vec::<f32>()?, floats(0..96));
    let mixed = [&parts[..7], &[device_put(&parts[7], Format::new(Layout::new([0, 1, 2]), &all_devices[7]))?]].concat();
    let result = make_array_from_single_device_arrays([16, 3, 2], &split, &mixed);
    fails(result, ErrorKind::Value, &["must have one layout in memory"]);

    // Given away.
    let gone = PutOptions::new().donate(true).device_put(&y, &split)?;
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
    let in_columns = jit(|x: Array| x + 1.0).donate_argnums([0]).in_shardings(&columns).lower(&y)?;
    assert_eq!(in_columns.unused_donations(), ["argument[0] of type float32[2,3,4]"]);
    assert_eq!(in_columns.compile()?.call(&y)?.to_vec::<f32>()?, floats(2..26));
    assert!(!y.is_deleted());
    let auto = Format::from(Layout::AUTO);
    let x = shape_dtype_struct([2, 3, 4], DType::F32);
    let automatic = jit(|x: Array| x + 1.0).donate_argnums([0]).in_shardings(&auto).out_shardings(&auto).lower(&x)?;
    assert_eq!(automatic.compile()?.memory_analysis()?.aliased, 96);
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
    fn step(x: Array, _: Array) -> Result<(Array, ())> {
        Ok((with_layout_constraint(x + 1.0, Layout::new(COLUMNS)), ()))
    }
    assert_eq!(jit(move |x: Array| Ok(scan(step, x, zeros(3))?.0)).call(cube())?.to_vec::<f32>()?, floats(3..27));
    let (split, _) = shardings()?;
    let x = device_put(&arange(0..96).astype(DType::F32).reshape([16, 3, 2]), &split)?;
    let mapped = shard_map(twice.clone(), split.mesh()).in_specs(P!["x"]).out_specs(P!["x"]);
    assert_eq!(jit(mapped).call(&x)?.to_vec::<f32>()?, (&x * 2.0).to_vec::<f32>()?);
    assert_eq!(jit(twice).call(&x)?.to_vec::<f32>()?, (&x * 2.0).to_vec::<f32>()?);
    // By a format, with a sharding.
    let format = Format::new(&columns, &split);
    // The partitioner of the CPU plugin (xla-cpu-pjrt 0.0.1) would gather all shards for the constraint.
    let compiled = jit(move |x: Array| with_sharding_constraint(x * 2.0, &format)).lower(&x)?.compile()?;
    assert_eq!(compiled.collectives()?.count(), 0);
    assert_eq!((spec(&compiled.call(&x)?)?, compiled.call(&x)?.to_vec::<f32>()?), (P!["x"], (&x * 2.0).to_vec()?));
    let in_columns = here(COLUMNS)?;
    let y = jit(move |x: Array| with_sharding_constraint(x * 2.0, &in_columns)).call(cube())?;
    assert_eq!((order(&y)?, y.to_vec::<f32>()?), (COLUMNS.to_vec(), (cube() * 2.0).to_vec()?));
    // Within another jit a format says where, and of the layout nothing.
    let inner = jit(|x: Array| x * 2.0).in_shardings(here(COLUMNS)?).out_shardings(here(COLUMNS)?);
    let y = jit(move |x: Array| Ok(inner.call(x)? + 0.0)).call(cube())?;
    assert_eq!((order(&y)?, y.to_vec::<f32>()?), (vec![0, 1, 2], (cube() * 2.0).to_vec()?));
    Ok(())
}
