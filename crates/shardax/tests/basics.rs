//! Devices, arrays, calls and errors that take a few lines each.

mod common;

use common::setup;
use shardax::ErrorKind;
use shardax::prelude::*;

#[test]
fn devices_of_one_process() -> Result<()> {
    setup();
    assert_eq!((device_count(), local_device_count()), (8, 8));
    assert_eq!(devices()?, local_devices()?);
    assert_eq!(format!("{:?}", devices()?[..2].to_vec()), "[CpuDevice(id=0), CpuDevice(id=1)]");
    assert_eq!((process_index(), process_count()), (0, 1));
    Ok(())
}

#[test]
fn the_first_devices_are_used() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x + 1).call(arange(0..3))?;
    assert_eq!(y.devices()?, devices()?[..3]);
    Ok(())
}

#[test]
fn pmap_on_a_named_platform() -> Result<()> {
    setup();
    let all_devices = devices()?;
    for name in ["cpu", "CPU"] {
        let y = pmap(|x: Array| x + 1).backend(name).devices(&all_devices[2..6]).call(arange(0..4))?;
        assert_eq!((y.to_vec::<i32>()?, y.devices()?), (vec![1, 2, 3, 4], all_devices[2..6].to_vec()));
    }
    for name in ["cuda", "gpu", "tpu", "no_such_platform"] {
        let f = pmap(|x: Array| x + 1).backend(name);
        let says = |error: shardax::Error| {
            assert_eq!(error.kind(), ErrorKind::Value);
            let text = error.to_string();
            assert!(text.contains(&format!("Unknown backend {name}. Available backends are [\"cpu\"]")), "{text}");
            assert!(text.contains(&format!("SHARDAX_PLATFORM={name}")) && text.contains(file!()), "{text}");
        };
        says(f.call(arange(0..4)).err().expect("no such platform"));
        says(f.lower(arange(0..4)).err().expect("no such platform"));
        says(jit(move |x: Array| f.call(x)).call(arange(0..4)).err().expect("no such platform"));
    }
    Ok(())
}

#[test]
fn settings_by_name() {
    setup();
    assert!(config::update("jax_num_cpu_devices", "8").is_ok());
    let late = config::set_num_cpu_devices(4);
    // Once devices are in use their number is fixed.
    if device_count() == 8 {
        assert!(late.is_err());
    }
    assert_eq!(config::update("no_such_option", "1").err().map(|e| e.kind()), Some(ErrorKind::Value));
    assert!(config::update("num_cpu_devices", "many").is_err());
}

#[test]
fn meshes_and_shardings() -> Result<()> {
    setup();
    let mesh = Mesh::new(devices()?, [("x", 8)])?;
    assert_eq!(mesh.explicit(), make_mesh([("x", 8)])?);
    assert_eq!(mesh, mesh.explicit().auto());
    let replicated = Sharding::from(NamedSharding::new(&mesh, P![]));
    let gaps = Sharding::from(NamedSharding::new(&mesh, P![None, None]));
    assert_ne!(replicated, gaps);
    assert!(replicated.is_equivalent_to(&gaps, 2) && gaps.is_fully_replicated());
    assert_eq!(P![("x",)], P!["x"]);
    assert_ne!(P!["x"], P!["x", None]);
    assert!(matches!(arange(0..4).sharding()?, Sharding::Single(_)));
    Ok(())
}

#[test]
fn results_of_pmap_meet_jit() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x * 2).axis_name("x").call(arange(0..32).reshape([8, 4]))?;
    assert_eq!(y.sharding()?.spec()?, &P!["x"]);
    assert_eq!(jit(|y: Array| y.mean(..)).call(&y)?.item::<f32>()?, 31.0);
    assert_eq!(y.mean(..).item::<f32>()?, 31.0);
    Ok(())
}

#[test]
fn host_data_in_and_out() -> Result<()> {
    setup();
    let sharding = NamedSharding::new(&make_mesh([("x", 8)])?.auto(), P!["x"]);
    let x = device_put(&array(vec![1.5f32; 16]), &sharding)?;
    let host = device_get(&x)?;
    assert_eq!((host.devices()?.len(), host.to_vec::<f32>()?), (1, vec![1.5; 16]));
    assert_eq!(x.get(3).item::<f32>()?, 1.5);
    Ok(())
}

#[test]
fn replication_without_an_axis() -> Result<()> {
    setup();
    let x = device_put(&arange(0..4), &NamedSharding::new(&make_mesh([("x", 8)])?, P![]))?;
    assert_eq!((x.shape(), x.is_fully_replicated()), (&[4][..], true));
    assert_eq!(pmap(|x: Array, y: Array| x * y.sum(..)).in_axes((None, 0)).call((&x, ones(8)))?.shape(), [8, 4]);
    Ok(())
}

#[test]
fn the_usual_functions() -> Result<()> {
    setup();
    let x = arange(0..6).reshape([2, 3]);
    assert_eq!(stack(&[x.clone(), x.clone()], 0).shape(), [2, 2, 3]);
    assert_eq!(stack(&[&x, &x], 0).shape(), [2, 2, 3]);
    assert_eq!(x.expand_dims(0).squeeze(0).broadcast_to([4, 2, 3]).shape(), [4, 2, 3]);
    assert_eq!((&x + 1 - 1).to_vec::<i32>()?, x.to_vec::<i32>()?);
    assert_eq!((x.pow(2).sum(..).item::<i32>()?, x.argmax(1).to_vec::<i32>()?), (55, vec![2, 2]));
    assert_eq!(x.dot(x.t()).to_vec::<i32>()?, x.matmul(x.t()).to_vec::<i32>()?);
    let half = (&x / 2).astype(DType::Bf16);
    assert_eq!((half.dtype(), (&half * 2.0).dtype()), (DType::Bf16, DType::Bf16));
    assert!(allclose(half.astype(DType::F32), &x / 2, 1e-2, 0.0)?);
    assert!(x.equal(&x).all(..).item::<bool>()?);
    Ok(())
}

#[test]
fn auxiliary_results() -> Result<()> {
    setup();
    let f = jit(value_and_grad(|x: Array| (x.square().sum(..), x * 2)).has_aux());
    let ((loss, aux), gradient) = f.call(array([1.0f32, 2.0]))?;
    assert_eq!(loss.item::<f32>()?, 5.0);
    assert_eq!(aux.to_vec::<f32>()?, gradient.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn donated_arguments_are_gone() -> Result<()> {
    setup();
    let step = pmap(|x: Array| x + 1).donate_argnums([0]);
    let x = step.call(zeros([8, 4]))?;
    let y = step.call(&x)?;
    let error = (&x + 1).to_bytes().err().expect("donated");
    assert_eq!(error.kind(), ErrorKind::Deleted);
    assert!(error.to_string().contains("Array has been deleted") && error.to_string().contains("donated"), "{error}");
    assert_eq!(y.to_vec::<f32>()?, [2.0; 32]);
    let twice = pmap(|a: Array, b: Array| (a + 1, b + 2)).donate_argnums([0, 1]);
    assert!(twice.call((&y, &y)).is_err());
    Ok(())
}

#[test]
fn pmap_without_mapped_arguments_is_an_error() {
    setup();
    let error = pmap(|x: Array| x).in_axes(None).call(ones(4)).err().expect("nothing is mapped");
    assert!(error.to_string().contains("pmap requires at least one argument with a mapped axis"), "{error}");
    assert!(error.help_text().is_some_and(|h| h.contains("device_put")));
}

#[test]
fn blocks_keep_their_rank() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?;
    let f = shard_map(
        |x: Array, w: Array| {
            assert_eq!((x.shape(), w.shape()), (&[1, 128][..], &[128, 2][..]));
            x.squeeze(0).dot(w).expand_dims(0)
        },
        &mesh,
    )
    .in_specs((P!["x"], P![]))
    .out_specs(P!["x"]);
    assert_eq!(jit(f).call((ones([8, 128]), ones([128, 2])))?.shape(), [8, 2]);
    let moved = shard_map(|x: Array| x.dot(ones([3, 3])), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    let error = moved.call(ones([8, 128])).err().expect("ranks do not fit");
    assert!(error.to_string().contains("float32[1,128]"), "{error}");
    Ok(())
}

#[test]
fn meshes_print_their_kinds() -> Result<()> {
    setup();
    let text = make_mesh([("x", 4), ("y", 2)])?.to_string();
    assert_eq!(text, "Mesh('x': 4, 'y': 2, axis_types=(Explicit, Explicit))");
    Ok(())
}

#[test]
fn collectives_need_their_axis() {
    setup();
    let error = pmap(|x: Array| psum(x, "devices")).call(ones(8)).err().expect("the axis has another name");
    assert_eq!(error.kind(), ErrorKind::Name);
    assert!(error.to_string().contains("unbound axis name: devices"), "{error}");
}

#[test]
fn the_mean_of_three_vectors() -> Result<()> {
    setup();
    let x = array([[1.0f32, 2.0, 3.0], [1.5, 2.5, 3.5], [0.5, 1.5, 2.5]]);
    let y = pmap(|x: Array| pmean(x, "i")).axis_name("i").call(&x)?;
    assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    Ok(())
}

#[test]
fn accumulation_and_masks() -> Result<()> {
    setup();
    // Four micro-batches, one reduction.
    fn f(w: Array, x: Array) -> Array {
        (x * &w).square().mean(..)
    }
    let accumulated = pmap(move |w: Array, x: Array| -> Result<Array> {
        let (sum, _) = shardax::scan(
            |g: Array, x: Array| -> Result<(Array, ())> { Ok((g + grad(f).call((&w, x))?, ())) },
            zeros_like(&w),
            x.reshape([4, 2]),
        )?;
        Ok(pmean(sum / 4, "i"))
    })
    .axis_name("i")
    .in_axes((None, 0))
    .out_axes(None);
    let (w, x) = (array(2.0f32), arange(0..64).astype(DType::F32).reshape([8, 8]));
    let expected = grad(f).call((&w, &x))?;
    assert!(allclose(accumulated.call((&w, &x))?, expected, 1e-5, 0.0)?);

    // The mean over all real examples is psum(sum) / psum(count), not the mean of means.
    let masked = pmap(|x: Array, m: Array| psum((x * &m).sum(..), "i") / psum(m.sum(..), "i").maximum(1))
        .axis_name("i")
        .out_axes(None);
    let (x, m) = (array([[1.0f32, 2.0], [6.0, 9.0]]), array([[1.0f32, 1.0], [1.0, 0.0]]));
    assert_eq!(masked.call((&x, &m))?.item::<f32>()?, 3.0);
    assert_eq!(masked.call((&x, zeros([2, 2])))?.item::<f32>()?, 0.0);
    Ok(())
}

#[test]
fn mapped_functions_can_be_debugged() -> Result<()> {
    setup();
    let log = std::sync::Mutex::new(Vec::new());
    let f = pmap(|x: Array| -> Result<Array> {
        let doubled = x * 2;
        log.lock().expect("text").push(doubled.to_string());
        let total = psum(doubled.sum(..), "i");
        // What is the same everywhere can be read, and decides.
        Ok(if total.item::<i32>()? > 5 { doubled } else { total })
    })
    .axis_name("i");
    {
        let _values = disable_jit();
        assert_eq!(f.call(arange(0..4).reshape([2, 2]))?.to_vec::<i32>()?, [0, 2, 4, 6]);
    }
    let text = log.lock().expect("text").remove(0);
    assert!(text.contains("On devices at mesh coordinates (i=0):\n[0 2]"), "{text}");
    assert!(text.contains("On devices at mesh coordinates (i=1):\n[4 6]"), "{text}");
    // Compiled, the value is not known while the function is traced, and the error says what to do.
    let message = f.call(arange(0..4).reshape([2, 2])).unwrap_err().to_string();
    assert!(message.contains("disable_jit") && message.contains("basics.rs"), "{message}");
    Ok(())
}

/// The message of an array that could not be read.
fn read_error(read: Result<Vec<i32>>) -> Option<String> {
    read.err().map(|e| e.message().to_owned())
}

#[test]
fn transfers_are_guarded() -> Result<()> {
    use shardax::TransferGuardLevel::{Allow, Disallow, DisallowExplicit};
    use shardax::{transfer_guard, transfer_guard_device_to_device, transfer_guard_device_to_host};
    setup();
    let x = arange(0..4);
    let f = jit(|x: Array| x + 1);
    let moved = device_put(&x, &devices()?[1])?;
    {
        let _guard = transfer_guard(Disallow);
        assert_eq!(read_error(x.to_vec::<i32>()).as_deref(), Some("Disallowed device-to-host transfer: int32[4]"));
        // A plain number that is an argument is copied to the device.
        let error = f.call(1).err().map(|e| e.message().to_owned());
        assert_eq!(error.as_deref(), Some("Disallowed host-to-device transfer: int32[]~"));
        // What is asked for is allowed, and what stays where it is.
        assert_eq!(device_get(&f.call(&x)?)?.shape(), [4]);
        let _ = device_put(&array([1.0f32]), &devices()?[2])?;
        {
            let _guard = transfer_guard_device_to_host(Allow);
            assert_eq!(x.to_vec::<i32>()?, [0, 1, 2, 3]);
        }
        assert!(x.to_vec::<i32>().is_err());
        let _guard = transfer_guard(DisallowExplicit);
        assert!(device_get(&x).is_err() && array([1.0f32]).check().is_err());
        let _guard = transfer_guard_device_to_host(Allow);
        assert_eq!(x.to_vec::<i32>()?, [0, 1, 2, 3]);
    }
    assert_eq!(x.to_vec::<i32>()?, [0, 1, 2, 3]);
    let _guard = transfer_guard_device_to_device(DisallowExplicit);
    assert!(device_put(&moved, &devices()?[0]).is_err());
    // Guards are of a thread.
    let read = std::thread::spawn(move || device_put(&moved, &devices()?[0])?.to_vec::<i32>());
    assert_eq!(read.join().expect("no panic")?, [0, 1, 2, 3]);
    let error = config::update("jax_transfer_guard", "sometimes").err().map(|e| e.message().to_owned());
    assert!(error.is_some_and(|e| e.contains("allow, log, disallow")));
    Ok(())
}

#[test]
fn shapes_of_several_types() -> Result<()> {
    setup();
    let (x, n) = (ones([4, 3]), 6usize);
    assert_eq!(zeros((2, 3)).shape(), [2, 3]);
    assert_eq!(zeros((2usize, 3i64, 4isize, 5i32)).shape(), [2, 3, 4, 5]);
    assert_eq!(x.reshape((n, -1)).shape(), [6, 2]);
    assert_eq!(x.reshape((-1, n as i32, 1)).shape(), [2, 6, 1]);
    assert_eq!(random::normal(&random::key(0), (n, 2)).shape(), [6, 2]);
    assert_eq!(ones((1,)).broadcast_to((n, 2)).shape(), [6, 2]);
    // What rustc advises for -1.
    let error = x.reshape([n, usize::MAX]).check().expect_err("a size that no array has");
    assert!(error.message().contains("a size is larger than any array"), "{error}");
    assert!(error.help_text().is_some_and(|help| help.contains("`(n, -1)`")), "{error}");
    Ok(())
}

#[test]
fn axes_of_several_types() -> Result<()> {
    setup();
    let x = arange(0..6).reshape([2, 3]);
    let (zero, one) = (x.sum(0).to_vec::<i32>()?, x.sum(1).to_vec::<i32>()?);
    assert_eq!(x.sum(0usize).to_vec::<i32>()?, zero);
    assert_eq!(x.sum(-1isize).to_vec::<i32>()?, one);
    assert_eq!(x.sum(1i64).to_vec::<i32>()?, one);
    for total in [x.sum(&[0, 1]), x.sum((0, 1)), x.sum(vec![0, 1]), x.sum(&vec![0usize, 1]), x.sum([0i64, -1])] {
        assert_eq!(total.item::<i32>()?, 15);
    }
    assert_eq!(x.sum(over(1usize).keepdims(true)).shape(), [2, 1]);
    assert_eq!(concatenate([&x, &x], 1usize).shape(), [2, 6]);
    assert_eq!(stack([&x, &x], -1i64).shape(), [2, 3, 2]);
    assert_eq!(x.transpose([1usize, 0]).shape(), [3, 2]);
    assert_eq!(x.transpose(..).shape(), [3, 2]);
    assert_eq!(x.swapaxes(0usize, -1).shape(), [3, 2]);
    assert_eq!(x.sort(1usize).to_vec::<i32>()?, x.to_vec::<i32>()?);
    assert_eq!(vmap(|x: Array| all_gather(x, "i", 0usize)).axis_name("i").call(arange(0..2))?.shape(), [2, 2]);
    // Out of any range.
    assert!(x.sum(usize::MAX).check().is_err());
    Ok(())
}

#[test]
fn ranges_of_several_types() -> Result<()> {
    setup();
    let n = 4usize;
    assert_eq!(arange(0..n).type_name(), "int32[4]");
    assert_eq!(arange(n).to_vec::<i32>()?, [0, 1, 2, 3]);
    assert_eq!(arange(-1..n as isize).to_vec::<i32>()?, [-1, 0, 1, 2, 3]);
    assert_eq!(arange(2..5i64).to_vec::<i64>()?, [2, 3, 4]);
    assert_eq!(arange(250..255u8).to_vec::<u8>()?, [250, 251, 252, 253, 254]);
    assert_eq!(arange_step(n..0, -2.0).to_vec::<i32>()?, [4, 2]);
    assert_eq!(arange(0.0..2.0).type_name(), "float64[2]~");
    let error = arange(0..5_000_000_000usize).check().expect_err("more than int32");
    assert!(error.message().contains("do not fit"), "{error}");
    let error = arange(1i64 << 60..1 << 61).check().expect_err("more than float64");
    assert!(error.message().contains("do not fit"), "{error}");
    Ok(())
}

#[test]
fn arrays_from_lists_and_iterators() -> Result<()> {
    setup();
    let (x, y) = (ones(2), array([2.0f32, 3.0]));
    assert_eq!(Array::from(vec![1.0f32, 2.0]).to_vec::<f32>()?, [1.0, 2.0]);
    assert_eq!(Array::from([[1, 2], [3, 4]]).shape(), [2, 2]);
    assert_eq!(Array::from(&[1i32, 2][..]).to_vec::<i32>()?, [1, 2]);
    assert_eq!((0..3).map(|i| i as f32).collect::<Array>().to_vec::<f32>()?, [0.0, 1.0, 2.0]);
    assert_eq!((0..0).map(|i| i as f32).collect::<Array>().type_name(), "float32[0]");
    assert_eq!([&x, &y].into_iter().sum::<Array>().to_vec::<f32>()?, [3.0, 4.0]);
    assert_eq!([x, y].into_iter().product::<Array>().to_vec::<f32>()?, [2.0, 3.0]);
    assert_eq!(Vec::<Array>::new().iter().sum::<Array>().item::<i32>()?, 0);
    let (rows, x) = (vec![0usize, 2], arange(0..6).reshape([3, 2]));
    assert_eq!(x.get(&rows).to_vec::<i32>()?, [0, 1, 4, 5]);
    assert_eq!(x.get((.., [1usize])).to_vec::<i32>()?, [1, 3, 5]);
    assert_eq!(x.get(&vec![1i32]).to_vec::<i32>()?, [2, 3]);
    let [a, b] = random::split_n(random::key(0));
    assert!(a.not_equal(b).item::<bool>()?);
    Ok(())
}

#[test]
fn errors_of_the_standard_library() {
    fn read(path: &str) -> Result<f32> {
        let text = std::fs::read_to_string(path)?;
        Ok(text.trim().parse::<f32>()?)
    }
    let error = read("/no/such/file").expect_err("no such file");
    assert_eq!(error.kind(), shardax::ErrorKind::Runtime);
    assert!(error.message().contains("No such file or directory"), "{error}");
    assert!(error.location().is_some_and(|at| at.file().ends_with("basics.rs")), "{error}");
    fn number(text: &str) -> Result<(i32, f64)> {
        Ok((text.parse()?, text.parse()?))
    }
    let error = number("1.5").expect_err("no integer");
    assert_eq!(error.message(), "the text is not an integer: invalid digit found in string");
}

#[test]
fn argnums_as_several_numbers() -> Result<()> {
    setup();
    fn f(x: Array, y: Array, z: Array) -> Array {
        (x * y.square() * z).sum(..)
    }
    let (x, y, z) = (array(2.0f32), array(3.0f32), array(5.0f32));
    let (dx, dz) = grad(f).argnums((0, 2)).call((&x, &y, &z))?;
    assert_eq!((dx.item::<f32>()?, dz.item::<f32>()?), (45.0, 18.0));
    let (value, (dz, dy)) = value_and_grad(f).argnums((-1, 1)).call((&x, &y, &z))?;
    assert_eq!((value.item::<f32>()?, dz.item::<f32>()?, dy.item::<f32>()?), (90.0, 18.0, 60.0));
    let error = grad(f).argnums((0, 3)).call((&x, &y, &z)).expect_err("three arguments");
    assert!(error.message().contains("argnums 3 is out of bounds for a function of 3 arguments"), "{error}");
    Ok(())
}

#[test]
fn split_at_places_and_into_a_pattern() -> Result<()> {
    setup();
    let x = arange(0..6);
    let parts_of = |parts: Vec<Array>| parts.iter().map(|part| part.to_vec::<i32>()).collect::<Result<Vec<_>>>();
    // JAX's numbers of `jnp.split` and `jnp.array_split`.
    assert_eq!(parts_of(x.split([2, -1], 0)?)?, [vec![0, 1], vec![2, 3, 4], vec![5]]);
    assert_eq!(parts_of(x.split(vec![1, 9], -1)?)?, [vec![0], vec![1, 2, 3, 4, 5], vec![]]);
    assert_eq!(parts_of(x.split([-9], 0)?)?, [vec![], vec![0, 1, 2, 3, 4, 5]]);
    assert_eq!(parts_of(array_split(&x, [4], 0)?)?, [vec![0, 1, 2, 3], vec![4, 5]]);
    assert_eq!(parts_of(hsplit(&x, [x.size() - 1])?)?, [vec![0, 1, 2, 3, 4], vec![5]]);
    let [a, b, c] = x.split_n(0)?;
    assert_eq!(parts_of(vec![a, b, c])?, [vec![0, 1], vec![2, 3], vec![4, 5]]);
    let error = x.split_n::<4>(0).expect_err("six elements");
    assert!(error.message().contains("axis 0 of size 6 into 4 parts"), "{error}");
    let error = x.split(-2, 0).expect_err("a negative number of parts");
    assert!(error.message().contains("equal division"), "{error}");
    assert!(x.split([1], 3).is_err() && x.split_n::<0>(0).is_err());
    Ok(())
}

/// Functions of `lax` accept arrays, references and numbers, as operators do.
#[test]
fn lax_accepts_values_references_and_numbers() -> Result<()> {
    setup();
    let x = arange(0..4);
    let update = lax::dynamic_update_index_in_dim(x.clone(), array(9), 1, 0);
    assert_eq!(update.to_vec::<i32>()?, [0, 9, 2, 3]);
    assert_eq!(lax::dynamic_slice_in_dim(&x * 2, 1, 2, 0).to_vec::<i32>()?, [2, 4]);
    assert_eq!(lax::select(x.greater(1), &x, -&x).to_vec::<i32>()?, [0, -1, 2, 3]);
    assert_eq!(lax::cumsum(&x + 1, 0).to_vec::<i32>()?, [1, 3, 6, 10]);
    assert_eq!(lax::div(&x - 3, 2).to_vec::<i32>()?, [-1, -1, 0, 0]);
    assert_eq!(lax::top_k(-x.clone(), 1).0.to_vec::<i32>()?, [0]);
    assert_eq!(lax::pad(&x, 7, &[(1, 0, 0)]).to_vec::<i32>()?, [7, 0, 1, 2, 3]);
    assert_eq!(tril(ones([2, 2]), 0).to_vec::<f32>()?, [1.0, 0.0, 1.0, 1.0]);
    assert_eq!(nansum(x.astype(DType::F32), ..).item::<f32>()?, 6.0);
    assert_eq!(random::choice(random::key(0), x + 5, [3]).shape(), [3]);
    let weights = nn::initializers::ones().init(random::key(0), (2, 3), DType::F32);
    assert_eq!(weights.shape(), [2, 3]);
    Ok(())
}

#[test]
fn argnums_as_a_number() -> Result<()> {
    setup();
    fn f(x: Array, y: Array) -> Array {
        (x * y).sum(..)
    }
    let (x, y) = (array(2.0f32), array(3.0f32));
    assert_eq!(grad(f).argnums(1).call((&x, &y))?.item::<f32>()?, 2.0);
    assert_eq!(grad(f).argnums(0).call((&x, &y))?.item::<f32>()?, 3.0);
    assert_eq!(grad(f).argnums(-1).call((&x, &y))?.item::<f32>()?, 2.0);
    // Positions are part of the key of the compiled function.
    let mut slopes = Vec::new();
    for i in 0..2 {
        slopes.push(jit(grad(f).argnums(i)).call((&x, &y))?.item::<f32>()?);
    }
    assert_eq!(slopes, [3.0, 2.0]);
    assert_eq!(value_and_grad(f).argnums(1).call((&x, &y))?.1.item::<f32>()?, 2.0);
    assert_eq!(jacrev(f).argnums(1).call((&x, &y))?.item::<f32>()?, 2.0);
    assert_eq!(jacfwd(f).argnums(1).call((&x, &y))?.item::<f32>()?, 2.0);
    assert_eq!(hessian(|x: Array, y: Array| (x * y.pow(3)).sum(..)).argnums(1).call((&x, &y))?.item::<f32>()?, 36.0);
    let error = grad(f).argnums(2).call((&x, &y)).expect_err("two arguments");
    assert!(error.message().contains("argnums 2 is out of bounds for a function of 2 arguments"), "{error}");
    let scaled = custom_jvp(|x: Array, n: Array| x * n)
        .nondiff_argnums(1)
        .defjvp(|n: Array, (x, _): (Array, Array), (dx, _): (Array, Array)| (&x * &n, dx * n * 10));
    assert_eq!(grad(move |x: Array| scaled.call((x, 3.0f32))).call(2.0f32)?.item::<f32>()?, 30.0);
    Ok(())
}

/// Static fields and numbers have no arrays, so an entry for them may be left out.
#[test]
fn prefixes_of_structs() -> Result<()> {
    use shardax::prefix::Prefix;
    setup();
    #[derive(Tree, Clone)]
    struct Params {
        w: Array,
        rate: f64,
        #[tree(static)]
        name: String,
        b: Array,
    }
    fn params() -> Params {
        Params { w: array(2.0f32), rate: 0.5, name: "layer".to_owned(), b: array([0.0f32, 1.0]) }
    }
    fn f(p: Params, x: Array) -> Array {
        x * p.w * p.rate + p.b
    }
    let x = array([3.0f32, 4.0]);
    let expected = [3.0, 5.0];
    // By position, with and without entries for the fields that have no arrays; by name; and by leaf.
    assert_eq!(vmap(f).in_axes(([None, Some(0)], 0)).call((params(), &x))?.to_vec::<f32>()?, expected);
    assert_eq!(vmap(f).in_axes(([None, None, None, Some(0)], 0)).call((params(), &x))?.to_vec::<f32>()?, expected);
    let by_name = Prefix::named([("b", Some(0)), ("w", None)]);
    assert_eq!(vmap(f).in_axes((by_name, 0)).call((params(), &x))?.to_vec::<f32>()?, expected);
    let by_leaf = Prefix::for_leaves(&params(), |path, leaf| (path == ".b" && leaf.ndim() == 1).then_some(0));
    assert_eq!(vmap(f).in_axes((by_leaf, 0)).call((params(), &x))?.to_vec::<f32>()?, expected);

    let error = vmap(f).in_axes(([None, None, Some(0)], 0)).call((params(), &x)).expect_err("three entries");
    let children = "has 4 children: .w, .rate (without arrays), .name (without arrays), .b";
    assert!(error.message().contains(children), "{error}");
    let error = vmap(f).in_axes((Prefix::named([("w", None), ("bias", Some(0))]), 0)).call((params(), &x));
    assert!(error.is_err_and(|error| error.message().contains("has no entry .b")));
    Ok(())
}

/// JAX 0.10.2: `he_normal(in_axis=0, out_axis=(1, 2))(jax.random.key(0), (2, 3, 4))` and the like.
#[test]
fn initializers_of_several_axes() -> Result<()> {
    use shardax::nn::initializers::{Initializer, glorot_uniform, he_normal};
    setup();
    fn first(init: Initializer) -> Result<Vec<f32>> {
        init.init(&random::key(0), &[2, 3, 4], DType::F32).ravel().get(0..3).to_vec()
    }
    assert_eq!(first(he_normal().axes(0, (1, 2)))?, [1.655_203_2, 1.949_407_5, -0.469_148_84]);
    assert_eq!(first(glorot_uniform().axes((0, 1), 2))?, [0.693_522_75, 0.741_412_76, -0.259_812_92]);
    assert_eq!(first(he_normal().axes(1, 2).batch_axis(0))?, [1.351_467_7, 1.591_684_5, -0.383_058_43]);
    Ok(())
}

#[test]
fn tuples_of_references_and_numbers_are_arguments() -> Result<()> {
    setup();
    let (x, y) = (array([1.0f32, 2.0]), array([3.0f32, 4.0]));
    let weighted = jit(|w: Array, (x, y, bias): (Array, Array, Array)| w * x * y + bias);
    assert_eq!(weighted.call((2.0, (&x, y.clone(), 1)))?.to_vec::<f32>()?, [7.0, 17.0]);
    let doubled = |(x, i): (Array, Array)| (x * 2, i + 1);
    let (z, steps) = while_loop(|(_, i): (Array, Array)| i.less(3), doubled, (&x, 0))?;
    assert_eq!((z.to_vec::<f32>()?, steps.item::<i32>()?), (vec![8.0, 16.0], 3));
    let dot = |sum: Array, (x, y): (Array, Array)| (sum + x * y, ());
    assert_eq!(scan(dot, 0.5, (&x, &y))?.0.item::<f32>()?, 11.5);
    assert_eq!(associative_scan(|a: Array, b: Array| a + b, &y)?.to_vec::<f32>()?, [3.0, 7.0]);

    let device = &devices()?[0];
    let (x, y) = device_put((&x, &y), device)?;
    assert_eq!(device_put(x + y, device)?.to_vec::<f32>()?, [4.0, 6.0]);
    Ok(())
}
