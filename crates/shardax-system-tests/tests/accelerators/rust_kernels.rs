//! Kernels written in Rust, compiled for GPUs as Triton's and for TPUs as Mosaic's.

use shardax::control_flow::fori_loop;
use shardax::experimental::pallas::{self as pl, BlockSpec, CompilerParams, CostEstimate, Ref, SQUEEZED, ds};
use shardax::prelude::*;

use super::{flash, quick};

fn out<const N: usize>(shape: [usize; N], dtype: DType) -> Array {
    shape_dtype_struct(shape, dtype)
}

/// With a last block that reaches beyond the array.
fn vector_add(x: Array, y: Array) -> Result<Array> {
    fn tile() -> BlockSpec {
        BlockSpec::new([256], |[i]| [i])
    }
    let add = pl::pallas_call(|[x, y, o]: [Ref; 3]| o.set(x.get() + y.get()), out([1000], DType::F32));
    add.grid([4]).in_specs([tile(), tile()]).out_specs([tile()]).call([x, y])
}

fn softmax(x: Array) -> Result<Array> {
    fn kernel([x, o]: [Ref; 2]) -> Result<()> {
        let e = (x.get() - x.get().max_keepdims(-1)).exp();
        o.set(&e / e.sum_keepdims(-1))
    }
    fn rows() -> BlockSpec {
        BlockSpec::new([8, 128], |[i]| (i, 0))
    }
    let call = pl::pallas_call(kernel, out([60, 128], DType::F32)).grid([8]);
    call.in_specs([rows()]).out_specs([rows()]).call([x])
}

fn layer_norm(x: Array, w: Array) -> Result<Array> {
    fn kernel([x, w, o]: [Ref; 3]) -> Result<()> {
        let centred = x.get() - x.get().mean_keepdims(1);
        let variance = centred.square().mean_keepdims(1);
        o.set(centred * (variance + 1e-6).rsqrt() * w.get().tanh())
    }
    fn rows() -> BlockSpec {
        BlockSpec::new([8, 128], |[i]| (i, 0))
    }
    let call = pl::pallas_call(kernel, out([64, 128], DType::F32)).grid([8]).out_specs([rows()]);
    call.in_specs([rows(), BlockSpec::full()]).call([x, w])
}

/// With a sum in float32 over a loop, and an epilogue.
fn matmul(x: Array, y: Array, b: Array) -> Result<Array> {
    fn kernel([x, y, b, o]: [Ref; 4]) -> Result<()> {
        fn step(k: Array, sum: Array, x: &Ref, y: &Ref) -> Array {
            fn block(k: &Array) -> pl::Ds {
                ds(k * 32, 32)
            }
            sum + pl::dot(&x.at((.., block(&k))).get(), &y.at((block(&k), ..)).get())
        }
        let sum = fori_loop(0, 4, |k: Array, sum: Array| step(k, sum, &x, &y), zeros([64, 64]))?;
        pl::when(pl::program_id(0).equal(0), || o.set(0.0))?;
        o.set((sum + b.get()).maximum(0).astype(DType::Bf16))
    }
    pl::pallas_call(kernel, out([256, 128], DType::Bf16))
        .grid([4, 2])
        .in_specs([
            BlockSpec::new([64, 128], |[i, _]| (i, 0)),
            BlockSpec::new([128, 64], |[_, j]| (0, j)),
            BlockSpec::new([64], |[_, j]| [j]),
        ])
        .out_specs([BlockSpec::new([64, 64], |[i, j]| [i, j])])
        .call([x, y, b])
}

/// A masked range, and a result that starts with an operand.
fn masked(x: Array) -> Result<Array> {
    fn kernel([x, o]: [Ref; 2]) -> Result<()> {
        let mask = arange(0..8).less(5);
        o.at(ds(pl::program_id(0) * 8, 8)).store(x.at(ds(pl::program_id(0) * 8, 8)).load(&mask, 7.0) * 2, &mask)
    }
    pl::pallas_call(kernel, out([16], DType::F32)).input_output_aliases([(0, 0)]).grid([1]).call([x])
}

/// The targets of the custom calls.
const TRITON: &str = "__gpu$xla.gpu.triton";
const MOSAIC: &str = "tpu_custom_call";

pub fn on_gpus(topology: &Topology) -> Result<()> {
    let device = topology.devices().swap_remove(0);
    fn on(shape: &[usize], dtype: DType, device: &Device) -> Array {
        shape_dtype_struct_on(shape, dtype, device)
    }
    let bf16 = DType::Bf16;
    let x = on(&[60, 128], f32, &device);
    compiles(
        topology,
        TRITON,
        "vector_add",
        jit(vector_add).lower((on(&[1000], f32, &device), on(&[1000], f32, &device)))?,
    )?;
    compiles(topology, TRITON, "softmax", jit(softmax).lower(&x)?)?;
    compiles(topology, TRITON, "softmax, batched", jit(vmap(softmax)).lower(on(&[3, 60, 128], f32, &device))?)?;
    compiles(
        topology,
        TRITON,
        "layer_norm",
        jit(layer_norm).lower((on(&[64, 128], f32, &device), on(&[128], f32, &device)))?,
    )?;
    let args = (on(&[256, 128], bf16, &device), on(&[128, 128], bf16, &device), on(&[128], bf16, &device));
    compiles(topology, TRITON, "matmul", jit(matmul).lower(args)?)?;
    flash_attention::<64>(topology, TRITON)?;
    compiles(topology, TRITON, "masked", jit(masked).lower(on(&[16], f32, &device))?)?;
    // Scratch memory, and a result that positions share: the last axis of the grid is a loop.
    let args = (on(&[256, 256], bf16, &device), on(&[256, 256], bf16, &device), on(&[1, 256], bf16, &device));
    compiles(topology, TRITON, "matmul on a grid", jit(matmul_on_grid).lower(args)?)?;
    compiles(
        topology,
        TRITON,
        "cumulative",
        jit(cumulative).lower((on(&[64, 128], bf16, &device), on(&[64, 128], f32, &device)))?,
    )?;
    let args = (on(&[4], DType::I32, &device), on(&[512, 128], f32, &device), on(&[8, 128, 128], f32, &device));
    compiles(topology, TRITON, "ragged_matmul", jit(ragged_matmul).lower(args)?)?;

    on_parts(topology)
}

/// Sums over the blocks of rows of cumulative sums, plus a result that starts with the second operand.
fn cumulative(x: Array, y: Array) -> Result<Array> {
    let kernel = |[x, _, o]: [Ref; 3]| o.add((x.get().cumsum(0) + x.get().cummax(1)).astype(DType::F32));
    fn rows() -> BlockSpec {
        BlockSpec::new([16, 128], |[i]| (i, 0))
    }
    fn first() -> BlockSpec {
        BlockSpec::new([16, 128], |[_]| (0, 0))
    }
    pl::pallas_call(kernel, out([64, 128], DType::F32))
        .grid([4])
        .in_specs([rows(), first()])
        .out_specs([first()])
        .compiler_params(CompilerParams { num_warps: 8, num_stages: 2 })
        .input_output_aliases([(1, 0)])
        .call([x, y])
}

/// The kernels that a slice compiles: batched, over a grid with scratch memory, with prefetched scalars.
const SLICE: [&str; 3] = ["softmax, batched", "matmul on a grid", "ragged_matmul"];

fn compiles<A: Tree, R: Tree>(topology: &Topology, target: &str, name: &str, lowered: Lowered<A, R>) -> Result<()> {
    assert!(lowered.as_text().contains(target), "{}", lowered.as_text());
    if quick::is_complete() || SLICE.contains(&name) {
        lowered.compile_for(topology).map_err(|e| e.context(name))?;
    }
    Ok(())
}

/// Attention and its gradient: the scores, of 4 heads and 512 x 512 positions, are never in memory as a whole.
fn flash_attention<const B: usize>(topology: &Topology, target: &str) -> Result<()> {
    let loss = |q: Array, k: Array, v: Array| -> Result<Array> {
        Ok(flash::attention::<B>(q, k, v)?.astype(DType::F32).square().sum(..))
    };
    let x = shape_dtype_struct_on([4, 512, 128], DType::Bf16, &topology.devices()[0]);
    let lowered = jit(grad(loss).argnums((Arg::<0>, Arg::<1>, Arg::<2>))).lower((&x, &x, &x))?;
    let text = lowered.as_text();
    assert_eq!(text.matches(target).count(), 3, "forward, dq, dk and dv: {text}");
    let compiled = lowered.compile_for(topology)?;
    // Of each block of queries with those of keys that are not later: 2, 3 and 4 matmuls.
    let blocks = 512 / B;
    let matmul = 4 * blocks * (blocks + 1) / 2 * 2 * B * B * 128;
    assert_eq!(compiled.matmul_flops()?, (9 * matmul) as f64);
    let memory = compiled.memory_analysis()?;
    assert!(memory.temporaries < 4 * 4 * 512 * 512, "{memory:?}");
    Ok(())
}

/// Each device on its part; of split operands otherwise it is an error, because they would be gathered.
fn on_parts(topology: &Topology) -> Result<()> {
    let mesh = topology.mesh([("x", 8)])?;
    fn split(shape: [usize; 2], spec: PartitionSpec, mesh: &Mesh) -> Array {
        shape_dtype_struct_on(shape, DType::F32, NamedSharding::new(mesh, spec))
    }
    let mapped = shard_map(softmax, &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    let compiled = jit(mapped).lower(split([480, 128], P!["x"], &mesh))?.compile_for(topology)?;
    assert_eq!(compiled.collectives()?.count(), 0);
    let error =
        jit(softmax).lower(split([60, 128], P![None, "x"], &mesh)).err().expect("it cannot be split").to_string();
    assert!(error.contains("cannot be automatically partitioned") && error.contains("shard_map"), "{error}");
    Ok(())
}

/// As `vector_add`, of matrices: a TPU's memory has two dimensions.
fn matrix_add(x: Array, y: Array) -> Result<Array> {
    fn tile() -> BlockSpec {
        BlockSpec::new([8, 128], |[i]| (i, 0))
    }
    let add = pl::pallas_call(|[x, y, o]: [Ref; 3]| o.set(x.get() + y.get()), out([60, 128], DType::F32));
    add.grid([8]).in_specs([tile(), tile()]).out_specs([tile()]).call([x, y])
}

/// With a sum in scratch memory over the last dimension of the grid, and an epilogue.
fn matmul_on_grid(x: Array, y: Array, b: Array) -> Result<Array> {
    fn kernel([x, y, b, o, sum]: [Ref; 5]) -> Result<()> {
        let k = pl::program_id(2);
        pl::when(k.equal(0), || sum.set(0.0))?;
        sum.add(pl::dot(&x.get(), &y.get()))?;
        pl::when(k.equal(pl::num_programs(2) - 1), || o.set((sum.get() + b.get()).maximum(0).astype(o.dtype())))
    }
    pl::pallas_call(kernel, out([256, 256], DType::Bf16))
        .grid([2, 2, 2])
        .in_specs([
            BlockSpec::new([128, 128], |[i, _, k]| [i, k]),
            BlockSpec::new([128, 128], |[_, j, k]| [k, j]),
            BlockSpec::new([1, 128], |[_, j, _]| (0, j)),
        ])
        .out_specs([BlockSpec::new([128, 128], |[i, j, _]| [i, j])])
        .scratch_shapes([out([128, 128], DType::F32)])
        .cost_estimate(CostEstimate { flops: 2 << 24, transcendentals: 0, bytes_accessed: 3 << 17 })
        .call([x, y, b])
}

/// Rows in groups, each with its own matrix; a tile of rows belongs to one group, which is prefetched.
fn ragged_matmul(groups: Array, x: Array, w: Array) -> Result<Array> {
    fn kernel([_groups, x, w, o]: [Ref; 4]) -> Result<()> {
        o.set(pl::dot(&x.get(), &w.get()))
    }
    pl::pallas_call(kernel, out([512, 128], DType::F32))
        .num_scalar_prefetch(1)
        .grid([4])
        .in_specs([
            BlockSpec::new([128, 128], |[i]| (i, 0)),
            BlockSpec::prefetched((SQUEEZED, 128, 128), |[i], refs| (refs[0].at(&i).get(), 0, 0)),
        ])
        .out_specs([BlockSpec::new([128, 128], |[i]| (i, 0))])
        .call([groups, x, w])
}

pub fn on_tpus(topology: &Topology) -> Result<()> {
    let device = topology.devices().swap_remove(0);
    let on = |shape: &[usize], dtype| shape_dtype_struct_on(shape, dtype, &device);
    let bf16 = DType::Bf16;
    let x = || on(&[60, 128], f32);
    compiles(topology, MOSAIC, "matrix_add", jit(matrix_add).lower((x(), x()))?)?;
    compiles(topology, MOSAIC, "softmax", jit(softmax).lower(x())?)?;
    compiles(topology, MOSAIC, "softmax, batched", jit(vmap(softmax)).lower(on(&[3, 60, 128], f32))?)?;
    compiles(topology, MOSAIC, "layer_norm", jit(layer_norm).lower((on(&[64, 128], f32), on(&[128], f32)))?)?;
    let args = (on(&[256, 256], bf16), on(&[256, 256], bf16), on(&[1, 256], bf16));
    compiles(topology, MOSAIC, "matmul on a grid", jit(matmul_on_grid).lower(args)?)?;
    flash_attention::<128>(topology, MOSAIC)?;
    let args = (on(&[4], DType::I32), on(&[512, 128], f32), on(&[8, 128, 128], f32));
    compiles(topology, MOSAIC, "ragged_matmul", jit(ragged_matmul).lower(args)?)?;
    on_parts(topology)
}
