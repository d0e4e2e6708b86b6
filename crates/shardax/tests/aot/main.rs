//! Lowering and compiling ahead of time, and what a compiled program says of itself.

#[path = "../common/mod.rs"]
mod common;
mod communication;

use common::setup;
use common::snapshot::snapshot;
use common::values::{assert_says, error};
use shardax::ErrorKind;
use shardax::prelude::*;

fn split(mesh: &Mesh, spec: PartitionSpec) -> NamedSharding {
    NamedSharding::new(mesh, spec)
}

fn float_range(n: i32) -> Array {
    arange(0..n).astype(DType::F32)
}

/// JAX: `testLowerCompile`.
#[test]
fn compiled_pmap_equals_the_call() -> Result<()> {
    setup();
    let f = pmap(|x: Array| &x - psum(x.clone(), "i")).axis_name("i");
    let x = float_range(8);
    let expected = f.call(&x)?;
    let lowered = f.lower(&x)?;
    let compiled = lowered.compile()?;
    assert_eq!(compiled.call(&x)?.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    assert_eq!(lowered.args_info().leaves()[0].aval.to_string(), "float32[8]");
    assert_eq!(lowered.out_info().leaves()[0].to_string(), "float32[8]");
    assert_eq!(lowered.args_info(), compiled.args_info());
    assert_eq!(compiled.input_shardings().leaves()[0].as_ref().map(|s| s.spec()).transpose()?, Some(&P!["i"]));
    assert_eq!(compiled.output_shardings().leaves()[0].spec()?, &P!["i"]);
    Ok(())
}

/// JAX: `testLowerCompileInTreeMismatch`.
#[test]
fn compiled_pmap_rejects_another_tree_structure() -> Result<()> {
    setup();
    let f = pmap(|xs: Vec<Array>| &xs[0] - psum(xs[0].clone(), "i")).axis_name("i");
    let x = float_range(8);
    let compiled = f.lower(vec![x.clone()])?.compile()?;
    let wrong = error(compiled.call(vec![x.clone(), x]));
    assert_eq!(wrong.kind(), ErrorKind::Type);
    assert_says(
        &wrong,
        &["Function compiled with input pytree does not match the input pytree it was called with", "`[0]`"],
    );
    Ok(())
}

/// JAX: `testLowerHasReplicaAttributes`.
#[test]
fn lowered_pmap_has_n_partitions_and_one_replica() -> Result<()> {
    setup();
    let f = pmap(|x: Array| &x - psum(x.clone(), "i")).axis_name("i");
    let text = f.lower(float_range(4))?.as_text().to_owned();
    assert!(text.contains("mhlo.num_partitions = 4") && text.contains("mhlo.num_replicas = 1"), "{text}");
    Ok(())
}

/// JAX: `test_lowered_args_info`.
#[test]
fn lowered_pmap_reports_types_and_donations() -> Result<()> {
    setup();
    let f = pmap(|x: Array, (y,): (Array,)| &x - psum(x.clone(), "i") + y).axis_name("i");
    let x = float_range(8);
    let info = f.lower((&x, (x.astype(DType::I32),)))?.args_info();
    assert_eq!(info.to_string(), "[0]: float32[8]\n[1][0]: int32[8]\n");
    assert!(info.leaves().iter().all(|info| !info.donated));
    assert_eq!(info.get("[1][0]").map(|info| (info.shape(), info.dtype())), Some((&[8][..], DType::I32)));
    let donating = f.donate_argnums([0]).lower((&x, (x.clone(),)))?.args_info();
    assert_eq!(donating.to_string(), "[0]: float32[8] donated\n[1][0]: float32[8]\n");
    Ok(())
}

#[derive(Tree, Clone)]
struct Params {
    w: Array,
    b: Array,
}

#[test]
fn wrong_arguments_are_named() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let f = jit(|p: Params, x: Array, scale: f32| (x * p.w + p.b) * scale);
    let p = Params { w: float_range(16), b: zeros(()) };
    let x = device_put(&float_range(16), split(&mesh, P!["i"]))?;
    let compiled = f.lower((&p, &x, 2.0f32))?.compile()?;
    assert_eq!(compiled.call((&p, &x, 2.0f32))?.get(3).item::<f32>()?, 18.0);

    let wide = Params { w: float_range(32), b: array(1) };
    let wrong = error(compiled.call((&wide, &x, 2.0f32)));
    assert_eq!(wrong.kind(), ErrorKind::Type);
    assert_says(
        &wrong,
        &[
            "Argument types differ from the types for which this computation was compiled",
            "argument[0].w compiled with float32[16] and called with float32[32]",
            "argument[0].b compiled with float32[] and called with int32[]",
        ],
    );

    let elsewhere = device_put(&x, &devices()?[1])?;
    let wrong = error(compiled.call((&p, &elsewhere, 2.0f32)));
    assert_eq!(wrong.kind(), ErrorKind::Value);
    assert_says(
        &wrong,
        &[
            "Computation was compiled for input shardings that disagree",
            "argument[1] of type float32[16]: passed sharding SingleDeviceSharding(device=CpuDevice(id=1)), required sharding NamedSharding(mesh=Mesh('i': 8, axis_types=(Auto,)), spec=P('i',))",
        ],
    );
    // Host data is copied to the requested devices.
    assert_eq!(compiled.call((&p, float_range(16), 2.0f32))?.sharding()?.spec()?, &P!["i"]);

    let wrong = error(compiled.call((&p, &x, 3.0f32)));
    assert_says(
        &wrong,
        &["does not match the input pytree", "at `[2]` one has the number 2.0, the other the number 3.0"],
    );

    let wrong = error(grad(|x: Array| -> Result<Array> { compiled.call((&p, x, 2.0f32)) }).call(&x));
    assert_says(&wrong, &["lowered and compiled for a particular signature", "argument[1]"]);
    Ok(())
}

#[test]
fn lower_for_types_alone() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let x = shape_dtype_struct([16, 4], DType::F32);
    assert_eq!((x.shape(), x.is_traced()), (&[16, 4][..], false));
    let f = jit(|x: Array, w: Array| x.dot(w).sum(0)).in_shardings((split(&mesh, P!["i"]), P![]));
    let wrong = error(f.lower((&x, shape_dtype_struct([4, 2], DType::F32))));
    assert_says(&wrong, &["jit in_shardings requires a non-empty mesh in context"]);
    let _mesh = set_mesh(&mesh)?;
    let compiled = f.lower((&x, shape_dtype_struct([4, 2], DType::F32)))?.compile()?;
    assert_eq!(compiled.call((ones([16, 4]), ones([4, 2])))?.to_vec::<f32>()?, [64.0, 64.0]);
    assert_says(&error(x.to_vec::<f32>()), &["that is only a type (shape_dtype_struct)"]);
    assert_says(&error((&x + 1).check()), &["that is only a type (shape_dtype_struct)"]);

    let out = eval_shape(|x: Array| (x.sum(1), vec![x.astype(DType::I32)]), &x)?;
    assert_eq!((out.0.type_name().as_str(), out.1[0].type_name().as_str()), ("float32[16]", "int32[16,4]"));
    Ok(())
}

#[test]
fn shard_map_lowers_too() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?.auto();
    let f = shard_map(|x: Array| psum(x, "i"), &mesh).in_specs(P!["i", "j"]).out_specs(P![None, "j"]);
    let compiled = f.lower(float_range(16).reshape([4, 4]))?.compile()?;
    assert_eq!(compiled.call(float_range(16).reshape([4, 4]))?.to_vec::<f32>()?, [24.0, 28.0, 32.0, 36.0]);
    let report = compiled.collectives()?;
    assert_eq!(report.to_string(), "all-reduce over 'i', 8 bytes on each device, ×1");
    assert_eq!(report[0].participants, 4);
    Ok(())
}

#[test]
fn the_peak_of_memory_holds_all_that_a_call_needs() -> Result<()> {
    setup();
    let x = shape_dtype_struct([256, 256], DType::F32);
    fn chain(x: Array) -> Array {
        let (a, b) = (x.dot(&x), x.dot(x.dot(&x)));
        b.dot(&a).dot(&b).sum(..)
    }
    let memory = jit(chain).lower(&x)?.compile()?.memory_analysis()?;
    assert!(memory.temporaries >= 2 * 256 * 256 * 4, "{memory:?}");
    assert_eq!(memory.peak, memory.arguments + memory.outputs + memory.temporaries, "{memory:?}");
    // What a result takes over counts once.
    let donated = jit(|x: Array| x.dot(&x).dot(&x)).donate_argnums([0]).lower(&x)?.compile()?.memory_analysis()?;
    assert_eq!(
        (donated.aliased, donated.peak),
        (256 * 256 * 4, donated.arguments + donated.temporaries),
        "{donated:?}"
    );
    Ok(())
}

/// The number of fusions in a program's text.
fn count_fusions(text: &str) -> usize {
    text.matches("fusion(").count()
}

#[test]
fn compiled_programs_describe_themselves() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let x = device_put(&float_range(1024), split(&mesh, P!["i"]))?;
    let f = jit(|x: Array, unused: Array| {
        let _ = unused;
        x.sin() * 2
    });
    let lowered = f.lower((&x, &x))?;
    assert_eq!(lowered.program().to_string().lines().count(), 4);
    assert!(lowered.cost_analysis()?["flops"] > 0.0);
    let compiled = lowered.compile()?;
    assert!(compiled.cost_analysis()?["bytes accessed"] >= 1024.0);
    let memory = compiled.memory_analysis()?;
    assert_eq!((memory.arguments, memory.outputs), (512, 512));
    let shardings = compiled.input_shardings();
    assert_eq!(shardings.get("[0]"), Some(&Some(split(&mesh, P!["i"]).into())));
    assert_eq!(shardings.get("[1]"), Some(&None));
    let text = compiled.as_text()?;
    assert!(text.starts_with("HloModule lambda") && text.contains("ENTRY") && text.contains("f32[128]"), "{text}");
    // Its parameters are called what the arguments are.
    assert!(text.contains("parameter(), metadata={op_name=\"argument[0]\""), "{text}");
    assert!(lowered.compile_with_options(&[("xla_cpu_use_fusion_emitters", false.into())]).is_ok());
    assert!(lowered.compile_with_options(&[("no_such_option", true.into())]).is_err());
    // With a negative count the compiler would end the process.
    let negative = error(lowered.compile_with_options(&[("xla_cpu_parallel_codegen_split_count", (-1i64).into())]));
    assert_says(&negative, &["xla_cpu_parallel_codegen_split_count is -1, but must be between 1 and 4096"]);

    // What is asked of a function's programs is asked of each, and what other platforms know is left out.
    fn scaled_sine(x: Array) -> Array {
        x.sin() * 2 + 1
    }
    let fused = jit(scaled_sine).lower(ones([64, 64]))?.compile()?.as_text()?;
    let options = [("xla_disable_hlo_passes", "fusion"), ("xla_tpu_no_such_option", "1")];
    let apart = jit(scaled_sine).compiler_options(options).lower(ones([64, 64]))?.compile()?.as_text()?;
    assert!(count_fusions(&fused) == 1 && count_fusions(&apart) > 1, "{fused}\n{apart}");
    let unknown = error(jit(scaled_sine).compiler_options([("xla_no_such_option", true)]).call(ones(3)));
    assert_says(&unknown, &["xla_no_such_option", "its name must be a flag"]);
    let inner = jit(scaled_sine).compiler_options(options);
    let nested = error(jit(|x: Array| inner.call(x)).call(ones(3)));
    assert_says(&nested, &["`compiler_options` can only be passed to top-level `jit`", "xla_disable_hlo_passes"]);

    let with_unused = jit(|x: Array, unused: Array| {
        let _ = unused;
        x.sin() * 2
    })
    .keep_unused(true);
    let compiled = with_unused.lower((&x, &x))?.compile()?;
    assert_eq!(compiled.memory_analysis()?.arguments, 1024);
    assert!(compiled.input_shardings().get("[1]").is_some_and(Option::is_some));
    assert_eq!(compiled.call((&x, &x))?.shape(), [1024]);
    Ok(())
}

fn loss(p: Params, x: Array, y: Array) -> Array {
    (x.dot(&p.w) + p.b - y).square().mean(..)
}

/// The name in the first line of a lowered program.
fn module_name(lowered: &str) -> Option<String> {
    lowered.split(' ').nth(1).map(str::to_owned)
}

/// A transformed function is called as the one it was made from.
#[test]
fn names_of_programs() -> Result<()> {
    setup();
    let args = (Params { w: zeros(5), b: zeros(()) }, ones([16, 5]), ones(16));
    assert_eq!(module_name(jit(loss).lower(args.clone())?.as_text()).as_deref(), Some("@loss"));
    assert_eq!(module_name(jit(value_and_grad(&loss)).lower(args.clone())?.as_text()).as_deref(), Some("@loss"));
    assert_eq!(module_name(jit(|p: Params| p.w).lower(args.0.clone())?.as_text()).as_deref(), Some("@lambda"));
    let pointer: fn(Params, Array, Array) -> Array = loss;
    assert_eq!(module_name(jit(grad(pointer)).lower(args)?.as_text()).as_deref(), Some("@lambda"));
    let mapped = pmap(vmap(|x: Array| x.sin()));
    assert_eq!(module_name(mapped.lower(ones([8, 2]))?.as_text()).as_deref(), Some("@pmap_lambda"));
    Ok(())
}

#[test]
fn donation_in_the_lowered_program() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let x = device_put(&float_range(1024), split(&mesh, P!["i"]))?;
    let f = jit(|x: Array, y: Array| (x + 1, y.sum(0))).donate_argnums([0, 1]);
    let lowered = f.lower((&x, ones([2, 8])))?;
    assert_eq!(lowered.unused_donations(), ["argument[1] of type float32[2,8]"]);
    // The compiler chooses the sharding of the result, and finds the result that reuses the memory.
    assert!(lowered.as_text().contains("jax.buffer_donor = true"), "{}", lowered.as_text());
    assert_eq!(lowered.compile()?.memory_analysis()?.aliased, 512);
    let single = f.lower((float_range(1024), ones([2, 8])))?;
    assert!(single.as_text().contains("tf.aliasing_output = 0 : i32"), "{}", single.as_text());
    Ok(())
}

#[test]
fn text_of_lowered_programs() -> Result<()> {
    setup();
    let f = jit(|x: Array, y: Array| (x.dot(&y) + 1.5, y.sum(..)));
    let lowered = f.lower((shape_dtype_struct([4, 8], DType::F32), shape_dtype_struct([8, 2], DType::F32)))?;
    snapshot("lowered_dot", &format!("{}\n\n{}", lowered.program(), lowered.as_text()));

    let f = pmap(|x: Array| psum(x.sin(), "i")).axis_name("i").out_axes(None).donate_argnums([0]);
    let lowered = f.lower(shape_dtype_struct([8, 4], DType::F32))?;
    snapshot("lowered_pmap", &format!("{}\n\n{}", lowered.program(), lowered.as_text()));

    let mesh = make_mesh([("i", 4), ("j", 2)])?.auto();
    let rows = split(&mesh, P!["i"]);
    let f = jit(move |x: Array| grad(|x: Array| with_sharding_constraint(x.tanh(), &rows).sum(..)).call(x))
        .in_shardings(split(&mesh, P!["i", "j"]))
        .out_shardings(split(&mesh, P![None, "j"]));
    let lowered = f.lower(shape_dtype_struct([8, 4], DType::F32))?;
    snapshot("lowered_constraint", &format!("{}\n\n{}", lowered.program(), lowered.as_text()));

    let inner = jit(|x: Array| x * 2 + 1);
    let f = jit(|x: Array| -> Result<Array> { Ok(inner.call(&x)? + inner.call(x)?.sum(..)) });
    let lowered = f.lower(shape_dtype_struct([3], DType::F32))?;
    snapshot("lowered_call", &format!("{}\n\n{}", lowered.program(), lowered.as_text()));
    Ok(())
}

#[test]
fn a_compiled_program_is_loaded_from_its_bytes() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    fn rows(mesh: &Mesh) -> Array {
        shape_dtype_struct_on([16, 4], DType::F32, split(mesh, P!["i"]))
    }
    let sums = jit(|x: Array| (x.sum(0), &x * 2)).donate_argnums([0]);
    let lowered = sums.lower(rows(&mesh))?;
    let bytes = lowered.compile()?.serialize()?;
    let loaded = Compiled::load(&lowered, &bytes)?;
    let x = device_put(&ones([16, 4]), split(&mesh, P!["i"]))?;
    let (sum, twice) = loaded.call(&x)?;
    assert_eq!((sum.to_vec::<f32>()?, twice.sum(..).item::<f32>()?), (vec![16.0; 4], 128.0));
    assert_eq!(twice.sharding()?.spec()?, &P!["i"]);
    assert!(x.is_deleted());

    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    assert_says(
        &error(Compiled::load(&lowered, &damaged)),
        &["these bytes are not a compiled program, or are damaged"],
    );
    let other_types = sums.lower(shape_dtype_struct_on([32, 4], DType::F32, split(&mesh, P!["i"])))?;
    let wrong = error(Compiled::load(&other_types, &bytes));
    assert_says(&wrong, &["the compiled program takes (f32[2,4] donated), but the signature is (f32[4,4] donated)"]);
    // Of the same types: only its constant differs.
    let thrice = jit(|x: Array| (x.sum(0), &x * 3)).donate_argnums([0]).lower(rows(&mesh))?;
    assert_says(
        &error(Compiled::load(&thrice, &bytes)),
        &["the bytes are of another program than", "with arguments of the same types"],
    );
    assert_says(&error(Compiled::load(&lowered, &bytes[10..])), &["these bytes are not a compiled program"]);
    let calling = jit(|x: Array| -> Result<Array> {
        debug_print!("{}", &x);
        Ok(x * 2)
    });
    let wrong = error(calling.lower(ones(2))?.compile()?.serialize());
    assert_says(&wrong, &["cannot be serialized: it calls functions of this process"]);
    Ok(())
}

#[test]
fn shape_dtype_structs_can_have_shardings() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let x = shape_dtype_struct_on([16, 4], DType::F32, split(&mesh, P!["i"]));
    let lowered = jit(|x: Array, y: Array| (x + y).sum(..)).lower((&x, shape_dtype_struct([4], DType::F32)))?;
    assert!(lowered.as_text().contains("sdy.sharding = #sdy.sharding<@mesh, [{\"i\"}, {}]>"), "{}", lowered.as_text());
    // An abstract mesh takes its devices from the arguments.
    let abstract_mesh = AbstractMesh::new([("i", 8)]);
    let total = shard_map(|x: Array| psum(x, "i"), &abstract_mesh).in_specs(P!["i"]).out_specs(P![]);
    assert_eq!(jit(total).lower(&x)?.out_info().leaves()[0].shape.as_slice(), [2, 4]);
    let uneven = shape_dtype_struct_on([15, 4], DType::F32, split(&mesh, P!["i"]));
    assert_says(&error(uneven.check()), &["partitioned 8 times, but the dimension size is 15"]);
    Ok(())
}

/// Gradients of so many layers of a transformer without attention, which are added to `[1, 64, 128]`.
fn residual(layers: usize) -> Result<shardax::Lowered<(Vec<[Array; 4]>, Array), Vec<[Array; 4]>>> {
    fn layer(x: Array, [scale, up, down, bias]: &[Array; 4]) -> Array {
        let centred = &x - x.mean_keepdims(-1);
        let normed = &centred * (centred.square().mean_keepdims(-1) + 1e-6).rsqrt() * scale;
        &x + normed.matmul(up).tanh().matmul(down) + bias
    }
    fn loss(weights: Vec<[Array; 4]>, x: Array) -> Array {
        weights.iter().fold(x, layer).square().sum(..)
    }
    let weights = [ones([128]), ones([128, 512]), ones([512, 128]), ones([128])];
    jit(grad(loss)).lower((vec![weights; layers], ones([1, 64, 128])))
}

/// Values that fusion would recompute in the loops of all earlier layers are computed once: loops do
/// not grow with the depth.
#[test]
fn loops_of_sums_do_not_grow_with_the_depth() -> Result<()> {
    setup();
    fn longest(layers: usize) -> Result<usize> {
        let text = residual(layers)?.compile()?.as_text()?;
        let functions = text.split("\n}\n").filter(|f| !f.contains("ENTRY"));
        Ok(functions.map(|f| f.matches(" = ").count()).max().unwrap_or(0))
    }
    let (few, many) = (longest(3)?, longest(9)?);
    assert!(many <= few + 4, "{few} instructions with 3 layers, {many} with 9");
    // What is read once, or small, is left to fusion.
    let plain = jit(|x: Array| (shardax::nn::gelu(&x), x.sin().cos().exp())).lower(ones([64, 256]))?;
    assert!(!plain.as_text().contains("inlineable"));
    let small = jit(grad(|x: Array| (0..9).fold(x, |x, _| &x + x.sin() * x.mean(..)).sum(..))).lower(ones([64]))?;
    assert!(!small.as_text().contains("inlineable"));
    Ok(())
}

/// The loop that adds up the cotangents of overlapping windows would find the place of a maximum again for each of them.
#[test]
fn places_of_maxima_are_computed_once() -> Result<()> {
    setup();
    fn gradient(stride: usize, size: usize) -> Result<String> {
        let loss = move |x: Array| nn::max_pool(x, [3, 3], [stride, stride]).square().sum(..);
        Ok(jit(grad(loss)).lower(ones([1, size, size, 8]))?.as_text().to_string())
    }
    assert!(gradient(2, 64)?.contains("inlineable"));
    assert!(gradient(1, 64)?.contains("inlineable"));
    assert!(!gradient(2, 8)?.contains("inlineable"));
    Ok(())
}

/// The words of a block are computed in one loop, also if each element has a key of its own.
#[test]
fn blocks_of_a_cipher_are_computed_at_once() -> Result<()> {
    setup();
    let draws = jit(vmap(|k: Array| random::bits(&k, ()))).lower(random::split(random::key(0), 4096))?;
    assert!(!draws.as_text().contains("inlineable"));
    Ok(())
}

/// Loops of gathers and of reversed reshapes have no vectors.
#[test]
fn operands_of_loops_without_vectors_are_computed_before() -> Result<()> {
    setup();
    let draw =
        |size: usize| jit(move |x: Array| x.at(random::randint(random::key(0), [size], 0, 8)).get()).lower(ones(8));
    assert!(draw(4096)?.as_text().contains("inlineable"));
    assert!(!draw(64)?.as_text().contains("inlineable"));
    let simple = jit(|(x, i): (Array, Array)| x.at(i * 2).get()).lower((ones(8), zeros(4096).astype(DType::I32)))?;
    assert!(!simple.as_text().contains("inlineable"));
    let mirrored = jit(|x: Array| shardax::numpy::flip(shardax::numpy::tile(x, [2, 2]), 1)).lower(ones([50, 50]))?;
    assert!(mirrored.as_text().contains("inlineable"));
    let in_memory = jit(|x: Array| shardax::numpy::flip(x.reshape([64, 64]), 1)).lower(ones([4096]))?;
    assert!(!in_memory.as_text().contains("inlineable"));
    Ok(())
}

#[test]
fn several_programs_are_compiled_at_once() -> Result<()> {
    setup();
    let f = jit(|x: Array| (&x * 2).sum(..));
    let lowered = (1..=9).map(|n| f.lower(ones([n]))).collect::<Result<Vec<_>>>()?;
    for (i, compiled) in compile_all(&lowered)?.iter().enumerate() {
        assert_eq!(compiled.call(ones([i + 1]))?.item::<f32>()?, 2.0 * (i + 1) as f32);
    }
    assert!(compile_all::<Array, Array>(&[])?.is_empty());
    Ok(())
}

/// JAX: `jit(f).trace(x).jaxpr`, `.lower()` and `.eval_shape`.
#[test]
fn jit_trace_has_the_program_and_lowers() -> Result<()> {
    setup();
    let f = jit(|x: Array, y: Array| x.sin() * y);
    let traced = f.trace((ones(3), ones(3)))?;
    assert_eq!(traced.to_string(), traced.jaxpr().to_string());
    assert!(traced.to_string().contains("sin"), "{traced}");
    assert_eq!(traced.out_info().leaves()[0].to_string(), "float32[3]");
    assert_eq!(traced.args_info().leaves().len(), 2);
    let lowered = traced.lower()?;
    assert_eq!(lowered.as_text(), f.lower((ones(3), ones(3)))?.as_text());
    assert_eq!(lowered.compile()?.call((zeros(3), ones(3)))?.to_vec::<f32>()?, [0.0; 3]);

    let outside = new_ref(zeros(3))?;
    let writes = jit(move |x: Array| -> Result<Array> {
        outside.set(&x)?;
        Ok(x)
    });
    assert_eq!(error(writes.trace(ones(3))?.lower()).kind(), ErrorKind::Value);
    Ok(())
}

#[test]
fn jit_eval_shape_has_types_without_values() -> Result<()> {
    setup();
    let x = shape_dtype_struct((2, 3), DType::I32);
    let y = jit(|x: Array, y: Array| 2 * x + y).eval_shape((&x, &x))?;
    assert_eq!(y.aval().to_string(), "int32[2,3]");
    assert!(y.to_vec::<i32>().is_err());
    Ok(())
}
