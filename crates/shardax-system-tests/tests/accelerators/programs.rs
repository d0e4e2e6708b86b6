//! Programs of every form, compiled for a topology of eight or more devices.

use std::sync::Mutex;

use shardax::prelude::*;

use crate::quick;
use shardax::{ErrorKind, fft, lax};

use super::explicit_programs;

fn split(mesh: &Mesh, spec: PartitionSpec) -> NamedSharding {
    NamedSharding::new(mesh, spec)
}

fn on(mesh: &Mesh, shape: &[usize], spec: PartitionSpec) -> Array {
    shape_dtype_struct_on(shape, DType::F32, split(mesh, spec))
}

/// The names of a collective's axes.
fn axis_names(c: &Collective) -> Vec<String> {
    c.axes.iter().map(|axis| axis.to_string()).collect()
}

/// The collectives with the axes that they run over, each once.
fn over(compiled: &CrossCompiled<impl Tree, impl Tree>) -> Result<Vec<(CollectiveKind, Vec<String>)>> {
    let report = compiled.collectives()?;
    let mut collectives: Vec<_> = report.iter().map(|c| (c.kind, axis_names(c))).collect();
    collectives.sort();
    collectives.dedup();
    Ok(collectives)
}

/// A training step of a small network, its batch over `data`.
pub fn data_parallel(topology: &Topology, mesh: &Mesh) -> Result<()> {
    fn loss((w, b): (Array, Array), x: Array) -> Array {
        (x.dot(w) + b).tanh().square().mean(..)
    }
    let step = jit(move |p: (Array, Array), x: Array| -> Result<(Array, Array)> {
        let grads = grad(loss).call((p.clone(), x))?;
        tree::map2(|p, g| p - g * 0.1, p, grads)
    })
    .donate_argnums([0]);
    let batch = 8 * mesh.axis_size("data").unwrap_or(1);
    let p = (on(mesh, &[64, 10], P![]), on(mesh, &[10], P![]));
    let compiled = step.lower((p, on(mesh, &[batch, 64], P!["data"])))?.compile_for(topology)?;
    let report = compiled.collectives()?;
    assert!(report.count() > 0, "{report}");
    // Over slices a TPU goes in steps of its own.
    if mesh.devices().iter().all(|d| d.slice_index() == mesh.devices()[0].slice_index()) {
        let reduced = report.iter().find(|c| c.kind == CollectiveKind::AllReduce);
        let reduction = reduced.map(|c| (c.axes.clone(), c.participants, c.runs));
        let expected = (vec!["data".into()], mesh.axis_size("data").unwrap_or(1), Some(1));
        assert_eq!(reduction, Some(expected), "{report}");
    }
    // Both parameters' memory is taken over.
    let memory = compiled.memory_analysis()?;
    assert!(memory.aliased >= 4 * (640 + 10) && memory.arguments >= 4 * (640 + 10 + 8 * 64), "{memory:?}");
    // Newer plugins tell more; what there is of it agrees with the rest.
    let total_and_peak = memory.total_allocation.zip(memory.peak_unpadded_heap).expect("figures of C API 0.104");
    assert!(total_and_peak.0 >= total_and_peak.1 && total_and_peak.1 >= memory.arguments / 2, "{memory:?}");
    assert_eq!(compiled.output_shardings().leaves()[0].num_devices(), mesh.size());
    assert!(compiled.output_shardings().leaves().iter().all(|s| s.is_fully_replicated()));
    Ok(())
}

/// TPUs write asynchronous collectives several times, and a reduce-scatter as an all-reduce: here one large gradient
/// is scattered, and each of two weights gathered, one of them during the product with the other.
pub fn fully_sharded_on_tpus(topology: &Topology) -> Result<()> {
    let mesh = topology.mesh([("fsdp", 8)])?;
    fn loss((up, down): (Array, Array), x: Array) -> Array {
        x.matmul(&up).tanh().matmul(&down).square().sum(..)
    }
    let step = jit(move |p: (Array, Array), x: Array| -> Result<(Array, Array)> {
        let grads = grad(loss).call((p.clone(), x))?;
        tree::map2(|p, g| p - g * 0.1, p, grads)
    });
    fn rows(mesh: &Mesh) -> NamedSharding {
        split(mesh, P!["fsdp"])
    }
    let weights = (on(&mesh, &[1024, 4096], P!["fsdp"]), on(&mesh, &[4096, 1024], P!["fsdp"]));
    let step = step.out_shardings((rows(&mesh), rows(&mesh)));
    let compiled = step.lower((weights, on(&mesh, &[512, 1024], P!["fsdp"])))?.compile_for(topology)?;
    assert!(
        compiled.as_text()?.contains("AsyncCollectiveStart"),
        "no collective runs during another operation: look for another program"
    );
    let report = compiled.collectives()?;
    let count_of =
        |kind, bytes| report.iter().filter(|c| (c.kind, c.bytes) == (kind, bytes)).map(|c| c.count).sum::<usize>();
    // 4,194,304 weights each: gradients of float32, gathered as bfloat16, which is what TPUs multiply.
    assert_eq!(count_of(CollectiveKind::ReduceScatter, 4 << 22), 1, "{report}");
    assert_eq!(count_of(CollectiveKind::AllGather, 2 << 22), 2, "{report}");
    assert_eq!(report.count_of(CollectiveKind::AllReduce), 0, "{report}");
    Ok(())
}

/// Usual programs over axes of type `Explicit`: their collectives are over the axes that the types name.
pub fn explicit(topology: &Topology) -> Result<()> {
    let mesh = topology.mesh([("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit; 2])?;
    let _mesh = set_mesh(&mesh)?;
    for program in explicit_programs::PROGRAMS.iter().step_by(quick::one_of(6)) {
        let arguments = (program.arguments)(&|shape, _, _, spec| Ok(on(&mesh, shape, spec)))?;
        let compiled = jit(program.run).lower(arguments)?.compile_for(topology).map_err(|e| e.context(program.name))?;
        assert!(over(&compiled)?.iter().any(|(_, axes)| !axes.is_empty()), "{}: nothing is sent", program.name);
        assert!(compiled.output_shardings().leaves().iter().all(Sharding::is_fully_replicated), "{}", program.name);
    }
    Ok(())
}

/// The specs of named shardings.
fn specs_of(all: &[Sharding]) -> Vec<Option<PartitionSpec>> {
    all.iter().map(|s| s.as_named().map(|s| s.spec().clone())).collect::<Vec<_>>()
}

/// A training step that names no platform: run on the CPU, and the same lowering compiled for each topology. Parameters
/// are split over `model`, the batch over `data`; a `shard_map` sums what each device has.
pub fn on_all_three(topologies: &[Topology]) -> Result<()> {
    let mesh = make_mesh([("data", 2), ("model", 4)])?.auto();
    let inner = mesh.clone();
    let loss = move |(w1, w2): (Array, Array), x: Array, y: Array| -> Result<Array> {
        let error = x.dot(w1).tanh().dot(w2) - y;
        let rows = shard_map(|e: Array| psum(e.square().sum(..), "data"), &inner).in_specs(P!["data"]).out_specs(P![]);
        Ok(rows.call(error)? / 64.0)
    };
    let step = jit(move |p: (Array, Array), x: Array, y: Array| -> Result<((Array, Array), Array)> {
        let (value, grads) = value_and_grad(&loss).call((p.clone(), x, y))?;
        Ok((tree::map2(|p, g| p - g * 0.1, p, grads)?, value))
    });
    let key = random::key(0);
    fn normal(n: u32, shape: [usize; 2], key: &Array) -> Array {
        random::normal(&random::fold_in(key, n), shape)
    }
    let p = (normal(1, [16, 32], &key) * 0.2, normal(2, [32, 4], &key) * 0.2);
    let p = device_put(&p, (split(&mesh, P![None, "model"]), split(&mesh, P!["model"])))?;
    let (x, y) = device_put(&(normal(3, [64, 16], &key), normal(4, [64, 4], &key)), split(&mesh, P!["data"]))?;

    let lowered = step.lower((&p, &x, &y))?;
    // Run it on the CPU first: a program that does not learn could still compile.
    let (mut now, mut values) = (p, Vec::new());
    for _ in 0..5 {
        let (next, value) = step.call((&now, &x, &y))?;
        values.push(value.item::<f32>()?);
        now = next;
    }
    assert!(values.windows(2).all(|pair| pair[1] < pair[0]), "it does not learn: {values:?}");

    // Every topology must communicate over both axes and place the results like the CPU.
    let local_shardings = lowered.compile()?.output_shardings();
    for topology in topologies {
        let compiled = lowered.compile_for(topology)?;
        let report = compiled.collectives()?;
        let over = over(&compiled)?;
        for axis in ["data", "model"] {
            assert!(over.iter().any(|(_, axes)| axes.contains(&axis.to_owned())), "nothing over {axis}: {report}");
        }
        assert_eq!(
            specs_of(compiled.output_shardings().leaves()),
            specs_of(local_shardings.leaves()),
            "for {topology}"
        );
        assert!(compiled.serialize()?.len() > 1000);
    }
    Ok(())
}

/// All programs, for a platform without row-major results and with groups by axes.
pub fn all(topology: &Topology) -> Result<()> {
    let mesh = topology.mesh([("data", 2), ("model", 4)])?;
    data_parallel(topology, &mesh)?;

    // A product over a split dimension, with results in the layout that the platform chooses.
    let (x, w) = (on(&mesh, &[32, 512], P!["data", "model"]), on(&mesh, &[512, 10], P!["model"]));
    let product = jit(|x: Array, w: Array| x.dot(w)).lower((x, w))?.compile_for(topology)?;
    assert_eq!(over(&product)?, [(CollectiveKind::AllReduce, vec!["model".into()])], "{}", product.as_text()?);
    let out = product.output_shardings();
    assert_eq!(out.leaves()[0].shard_shape(&[32, 10])?.as_slice(), [16, 10]);
    assert!(product.serialize()?.len() > 1000);

    // A collective in a loop counts as often as the loop runs.
    let summed = shard_map(
        |x: Array| -> Result<Array> {
            fn step(carry: Array, _: Array) -> Result<(Array, ())> {
                Ok((psum(carry, "model").sin(), ()))
            }
            Ok(scan(step, x, zeros(12))?.0)
        },
        &mesh,
    )
    .check_vma(false)
    .in_specs(P!["data"])
    .out_specs(P!["data"]);
    let looped = jit(summed).lower(on(&mesh, &[16, 256], P!["data"]))?.compile_for(topology)?;
    let report = looped.collectives()?;
    let runs: usize = report.iter().filter(|c| c.kind == CollectiveKind::AllReduce).filter_map(|c| c.runs).sum();
    assert_eq!(runs, 12, "{report}\n{}", looped.as_text()?);

    // `pmap` over the devices themselves.
    let mean = pmap(|x: Array| pmean(x, "i")).axis_name("i").devices(topology.devices()).out_axes(None);
    let mean = mean.lower(shape_dtype_struct([8, 128], DType::F32))?.compile_for(topology)?;
    assert_eq!(over(&mean)?, [(CollectiveKind::AllReduce, vec!["i".into()])]);

    // Every collective, by axis.
    let f = shard_map(
        |x: Array| {
            let gathered = all_gather_tiled(x, "data", 0);
            let scattered = psum_scatter_tiled(gathered, "model", 0);
            let moved = ppermute(scattered, "model", [(0, 1), (1, 2), (2, 3), (3, 0)]);
            let swapped = all_to_all_tiled(moved, "model", 0, 0);
            pmax(swapped, ("data", "model"))
        },
        &mesh,
    )
    .in_specs(P![("data", "model")])
    .out_specs(P![]);
    let x = on(&mesh, &[256, 256], P![("data", "model")]);
    let collectives = jit(f).lower(&x)?;
    // The maximum is computed directly, and not by a maximum of integers.
    assert!(collectives.as_text().contains("stablehlo.maximum") && !collectives.as_text().contains("bitcast_convert"));
    let counts = over(&collectives.compile_for(topology)?)?;
    fn has(kind: CollectiveKind, axes: &[&str], counts: &Vec<(CollectiveKind, Vec<String>)>) {
        assert!(
            counts.contains(&(kind, axes.iter().map(|a| (*a).to_owned()).collect())),
            "{kind} over {axes:?}: {counts:?}"
        );
    }
    has(CollectiveKind::AllGather, &["data"], &counts);
    has(CollectiveKind::ReduceScatter, &["model"], &counts);
    has(CollectiveKind::AllToAll, &["model"], &counts);
    has(CollectiveKind::CollectivePermute, &["model"], &counts);
    has(CollectiveKind::AllReduce, &["data", "model"], &counts);

    one_device(topology)?;
    lowered_for_others(topology)
}

/// A program that the CPU gets rewritten, as it is.
fn one_device(topology: &Topology) -> Result<()> {
    let device = topology.devices().swap_remove(0);
    fn on(shape: &[usize], device: &Device) -> Array {
        shape_dtype_struct_on(shape, DType::F32, device)
    }
    let net = jit(|x: Array, k: Array, a: Array, b: Array| -> Result<(Array, Array, Array)> {
        let layout = lax::ConvOptions::new().channels_last(2);
        let features = lax::conv_general_dilated(x, k, [1, 1], lax::Padding::Same, layout);
        let pooled = shardax::nn::max_pool(features.exp(), [2, 2], [2, 2]);
        let triangular = lax::Triangular { left_side: true, lower: true, ..Default::default() };
        let solved = lax::triangular_solve(&a, &b, triangular);
        Ok((pooled, a.max(0), solved))
    });
    let lowered = net.lower((
        on(&[8, 8, 8, 3], &device),
        on(&[3, 3, 3, 32], &device),
        on(&[16, 16], &device),
        on(&[16, 4], &device),
    ))?;
    for operation in ["stablehlo.convolution", "stablehlo.reduce_window", "stablehlo.triangular_solve"] {
        assert!(lowered.as_text().contains(operation), "{operation} is not in {}", lowered.as_text());
    }
    let compiled = lowered.compile_for(topology)?;
    assert!(compiled.collectives()?.is_empty());

    // A product whose operand is transposed on the way, of which the CUDA compiler finds no tiles.
    let mapped = jit(vmap(|a: Array, b: Array| a.matmul(&b)).in_axes((3, None)));
    mapped.lower((on(&[5, 2, 3, 3], &device), on(&[3, 4], &device)))?.compile_for(topology)?;

    // Decompositions are calls that the compiler expands: one that is left over would fail when it runs.
    // Their loops compile slowly, so a slice has one of them.
    let decomposed = jit(|a: Array| (linalg::qr(&a), linalg::eigh(&a), linalg::cholesky(&a)));
    let of_slice = jit(|a: Array| linalg::qr(&a));
    let text = if quick::is_complete() {
        decomposed.lower(on(&[6, 6], &device))?.compile_for(topology)?.as_text()?
    } else {
        of_slice.lower(on(&[6, 6], &device))?.compile_for(topology)?.as_text()?
    };
    for call in ["\"Qr\"", "\"Eigh\"", "\"ProductOfElementaryHouseholderReflectors\""] {
        assert!(!text.contains(call), "{call} is left in {text}");
    }
    Ok(())
}

/// A program of another topology's devices is rewritten for this one's.
fn lowered_for_others(topology: &Topology) -> Result<()> {
    let mesh = topology.mesh([("x", 2), ("y", 4)])?;
    let x = on(&mesh, &[64, 64], P!["x", "y"]);
    let f = jit(|x: Array| x.max(1));
    let small = f.lower(&x)?;
    let other_topology = match topology.platform() {
        "tpu" => Topology::tpu("v5e:4x4")?,
        _ => Topology::gpu(GpuTopology { gpus_per_host: 16, ..GpuTopology::new(GpuSpec::A100) })?,
    };
    let moved = small.compile_for(&other_topology)?;
    let devices = moved.mesh().map(|mesh| mesh.devices().to_vec()).unwrap_or_default();
    assert!(devices.len() == 8 && devices.iter().all(|d| other_topology.devices().contains(d)), "{devices:?}");
    let large = f.lower(on(&other_topology.mesh([("x", 16)])?, &[64, 64], P!["x"]))?;
    let error = large.compile_for(topology).err().expect("too many");
    assert!(
        error.message().contains("is for 16 devices, but Topology(") && error.message().contains("has 8"),
        "{error}"
    );
    Ok(())
}

/// An operation that the platform lacks is an error before the compiler sees it.
pub fn rejected(topology: &Topology) -> Result<()> {
    let device = topology.devices().swap_remove(0);
    let x = shape_dtype_struct_on([4], DType::F32, &device);
    let callback = jit(|x: Array| -> Result<Array> {
        debug_print!("{}", &x);
        Ok(x * 2)
    });
    match (callback.lower(&x), topology.platform()) {
        (Ok(lowered), "cuda") => drop(lowered.compile_for(topology)?),
        (Err(error), "tpu") => {
            assert_eq!(error.kind(), ErrorKind::NotImplemented);
            assert!(error.message().contains("debug_callback of "), "{error}");
            assert!(error.message().contains("is not implemented on TPU"), "{error}");
            assert!(error.to_string().contains("compute this part of the program on the CPU's devices"), "{error}");
        }
        (result, platform) => panic!("on {platform}: {:?}", result.err()),
    }

    // A Fourier transform of 64 bits, which TPUs do not have.
    for dtype in [DType::F64, DType::Complex128] {
        let transform = jit(move |x: Array| if dtype.is_complex() { fft::fft(x) } else { fft::rfft(x) });
        match (transform.lower(shape_dtype_struct_on([8], dtype, &device)), topology.platform()) {
            (Ok(lowered), "cuda") => drop(lowered.compile_for(topology)?),
            (Err(error), "tpu") => {
                assert!(error.message().contains(&format!("fft of {dtype} is not implemented on TPU")), "{error}");
                assert!(error.to_string().contains("convert the operand to "), "{error}");
            }
            (result, platform) => panic!("on {platform}: {:?}", result.err()),
        }
    }

    // A convolution of integers, which cuDNN does not have and TPUs do.
    let convolution = jit(|x: Array, k: Array| lax::conv(x, k, [1, 1], lax::Padding::Valid));
    fn ints(shape: &[usize], device: &Device) -> Array {
        shape_dtype_struct_on(shape, DType::I32, device)
    }
    match (convolution.lower((ints(&[1, 2, 8, 8], &device), ints(&[2, 2, 3, 3], &device))), topology.platform()) {
        (Ok(lowered), "tpu") => drop(lowered.compile_for(topology)?),
        (Err(error), "cuda") => {
            assert!(error.message().contains("conv_general_dilated of int32 is not implemented on GPU"), "{error}");
            assert!(error.to_string().contains("convert the operands to float32"), "{error}");
        }
        (result, platform) => panic!("on {platform}: {:?}", result.err()),
    }
    fn complex(shape: &[usize], device: &Device) -> Array {
        shape_dtype_struct_on(shape, DType::Complex64, device)
    }
    convolution.lower((complex(&[1, 2, 8, 8], &device), complex(&[2, 2, 3, 3], &device)))?.compile_for(topology)?;

    // Maxima of 64 bits, and sums of them in parts, over devices.
    let mesh = topology.mesh([("x", 8)])?;
    let on = |dtype| shape_dtype_struct_on([64], dtype, split(&mesh, P!["x"]));
    let largest = shard_map(|x: Array| pmax(x, "x"), &mesh).in_specs(P!["x"]).out_specs(P![]);
    let parts = shard_map(|x: Array| psum_scatter_tiled(x, "x", 0), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    for (lowered, operation) in [
        (largest.lower(on(DType::F64)), "pmax of float64"),
        (largest.lower(on(DType::I64)), "pmax of int64"),
        (parts.lower(on(DType::Complex128)), "complex128 over several devices"),
        (parts.lower(on(DType::F64)), "psum_scatter of float64"),
        (parts.lower(on(DType::Complex64)), "psum_scatter of complex64"),
    ] {
        match (lowered, topology.platform()) {
            (Ok(lowered), "cuda") => drop(lowered.compile_for(topology)?),
            (Err(error), "tpu") => {
                assert!(error.message().contains(&format!("{operation} is not implemented on TPU")), "{error}");
            }
            (result, platform) => panic!("{operation} on {platform}: {:?}", result.err()),
        }
    }
    largest.lower(on(DType::I32))?.compile_for(topology)?;
    parts.lower(on(DType::I64))?.compile_for(topology)?;
    Ok(())
}

/// Nothing can be stored or run on devices that are only described; every way is an error that says so.
pub fn nothing_runs_there(topology: &Topology) -> Result<()> {
    let mesh = topology.mesh([("x", 8)])?;
    let rows = split(&mesh, P!["x"]);
    let lowered = jit(|x: Array| x * 2).lower(shape_dtype_struct_on([8], DType::F32, &rows))?;
    let error = lowered.compile().err().expect("nothing to compile for");
    assert!(error.message().contains("it is only a description"), "{error}");
    assert!(error.to_string().contains("compile for it with `lowered.compile_for(&topology)`"), "{error}");
    fn part(_: &shardax::sharding::Index) -> Result<Array> {
        Ok(zeros([1]))
    }
    let error = shardax::make_array_from_callback([8], DType::F32, &rows, part).expect_err("no memory");
    assert!(error.message().contains("it is only a description"), "{error}");
    Ok(())
}

/// The warnings that were printed so far.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Removes and returns the warnings that were printed so far.
fn take_lines() -> Vec<String> {
    std::mem::take(&mut *SAID.lock().expect("lines"))
}

/// `SHARDAX_COMPILE_ALSO_FOR` names a TPU, a GPU, and an unknown platform.
pub fn elsewhere() -> Result<()> {
    config::set_warning_hook(|text| SAID.lock().expect("lines").push(text.to_owned()));

    let x = arange(0..8).astype(DType::F32);
    take_lines();
    let (y, counts) = shardax::count(|| jit(|x: Array| x.sin()).call(&x));
    y?.block_until_ready()?;
    assert_eq!(counts.compilations, 1);
    let lines = take_lines();
    assert_eq!(lines[..2], ["lambda compiles for v5e:2x4", "lambda compiles for h100:1x1x8"]);
    assert!(lines[2].starts_with("lambda does not compile for abacus: ") && lines.len() == 3, "{lines:?}");

    // Arguments on the devices of another mesh than results.
    let mesh = make_mesh([("x", 8)])?;
    let mapped = pmap(|x: Array| x * 2).call(&x)?;
    let split = device_put(&x, NamedSharding::new(&mesh, P!["x"]))?;
    take_lines();
    jit(|x: Array, y: Array| x + y).call((&mapped, &split))?.block_until_ready()?;
    assert!(take_lines().iter().all(|line| line.contains(" compiles for ") || line.contains("abacus")));

    // What a TPU lacks.
    let groups = [vec![0, 1], vec![2, 3, 4, 5, 6, 7]];
    let sum = pmap(move |x: Array| psum(x, axis_index_groups("i", groups.clone()))).axis_name("i");
    take_lines();
    assert_eq!(sum.call(&x)?.to_vec::<f32>()?, [1.0, 1.0, 27.0, 27.0, 27.0, 27.0, 27.0, 27.0]);
    let lines = take_lines();
    let lacks = "does not compile for v5e:2x4: psum over groups of different sizes is not implemented on TPU";
    assert!(lines.iter().any(|line| line.contains(lacks)), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(" compiles for h100")), "{lines:?}");
    Ok(())
}
