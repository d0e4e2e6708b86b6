//! Kernels in Rust, apart from their numbers, which `golden.rs` compares with JAX's: errors, transformations, devices, programs,
//! and their texts for GPUs and TPUs.

#[path = "../common/mod.rs"]
mod common;
mod devices;
#[path = "../common/flash.rs"]
mod flash;

use std::sync::Mutex;

use common::setup;
use shardax::experimental::pallas::{self as pl, BlockSpec, CompilerParams, CostEstimate, Ref, SQUEEZED, ds};
use shardax::prelude::*;

fn of(shape: [usize; 1]) -> Array {
    shape_dtype_struct(shape, DType::F32)
}

fn tile(size: usize) -> BlockSpec {
    BlockSpec::new([size], |[i]| [i])
}

fn copy([x, o]: [Ref; 2]) -> Result<()> {
    o.set(x.get())
}

/// `2 x`, in blocks of 4 rows, with a derivative.
fn double(x: Array) -> Result<Array> {
    fn kernel(x: Array) -> Result<Array> {
        let n = x.shape()[0];
        let call = pl::pallas_call(|[x, o]| o.set(x.get() * 2), of([n])).grid([pl::cdiv(n, 4)]);
        call.in_specs([tile(4)]).out_specs([tile(4)]).call([x])
    }
    custom_vjp(kernel).defvjp(move |x: Array| Ok((kernel(x)?, ())), |(), ct: Array| (ct * 2,)).call(x)
}

fn message<T>(result: Result<T>) -> String {
    let text = result.err().expect("an error").to_string();
    assert!(text.contains("tests/pallas/main.rs:"), "no line of this file: {text}");
    text
}

#[track_caller]
fn says<T>(result: Result<T>, words: &[&str]) {
    let text = message(result);
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is missing in: {text}"));
}

#[test]
fn specs_that_do_not_fit_are_errors() {
    setup();
    let x = ones([8]);
    let call = || pl::pallas_call(copy, of([8])).grid([2]);
    says(call().in_specs([]).call([&x]), &["in_specs has 0 specs, but there are 1 inputs", "help:"]);
    says(call().out_specs([tile(4), tile(4)]).call([&x]), &["out_specs has 2 specs, but there are 1 outputs"]);
    let two = BlockSpec::new([4, 4], |[i]| [i.clone(), i]);
    says(call().in_specs([two]).call([&x]), &["copy, input 0", "same number of dimensions", "[8]", "SQUEEZED"]);
    let map = BlockSpec::new([4], |[i, j]| [i + j]);
    says(call().out_specs([map]).call([&x]), &["copy, output 0", "takes 2 indices, but the grid has 1 dimensions"]);
    let many = BlockSpec::new([4], |[i]| (i, 0));
    says(call().in_specs([many]).call([&x]), &["must return 1 values", "returned 2"]);
    let float = BlockSpec::new([4], |[i]| [i * 0.5]);
    says(call().in_specs([float]).call([&x]), &["must return integer scalars", "float32"]);
    says(call().in_specs([BlockSpec::new([0], |[i]| [i])]).call([&x]), &["dimension 0 of the block", "empty"]);
    says(call().call([&x, &x]), &["copy takes 2 refs", "2 operands, 1 results and 0 scratch shapes", "help:"]);
    says(call().num_scalar_prefetch(3).call([&x]), &["num_scalar_prefetch is 3, but there are 1 operands"]);
    says(call().input_output_aliases([(1, 0)]).call([&x]), &["input_output_aliases (1, 0)", "1 operands"]);
    says(call().input_output_aliases([(0, 0)]).call([ones([6])]), &["float32[6]", "the result float32[8]"]);
    says(call().input_output_aliases([(0, 0), (0, 0)]).call([&x]), &["twice"]);
    says(call().grid([1 << 20, 1 << 20]).call([&x]), &["at most 2147483647 are possible"]);
}

#[test]
fn invalid_kernels_are_errors() {
    setup();
    let x = ones([8]);
    fn run(x: &Array, kernel: impl Fn(&Ref, &Ref) -> Result<()>) -> Result<Array> {
        pl::pallas_call(|[x, o]: [Ref; 2]| kernel(&x, &o), of([8])).call([x])
    }
    says(run(&x, |_, o| o.set(zeros([3]))), &["set of type float32[3]", "[8]"]);
    says(run(&x, |_, o| o.set(arange(0..8))), &["takes a value of its dtype, got int32[8]", "astype(DType::F32)"]);
    says(run(&x, |x, o| o.set(x.at((0, 0)).get())), &["too many indices: 2"]);
    says(run(&x, |x, o| o.set(x.at(8).get())), &["index 8 is out of bounds", "size 8"]);
    says(run(&x, |x, o| o.set(x.at(ds(6, 4)).get())), &["ds(6, 4) reaches beyond", "size 8"]);
    says(run(&x, |x, o| o.set(x.at(ds(0.5, 4)).get())), &["start of ds must be an integer"]);
    says(run(&x, |x, o| o.set(x.at(NewAxis).get())), &["cannot have new axes"]);
    says(run(&x, |x, o| o.at(0).store(x.at(0).get(), 1)), &["a mask must be boolean"]);
    says(run(&x, |_, o| o.set(pl::program_id(0))), &["program_id(0)", "out of bounds for the grid []"]);
    let outside = array([1.0f32; 8]);
    says(run(&x, |x, o| o.set(x.get() + &outside)), &["captures an array of type float32[8]", "pass it as an operand"]);
    says(run(&x, |x, o| o.set(double(x.get())?)), &["was called in a kernel"]);
    let huge = BlockSpec::new([1 << 40], |[i]| [i]);
    let call = pl::pallas_call(copy, of([8])).grid([1]).in_specs([huge]);
    says(call.call([&x]), &["copy, input 0", "1.100e12 elements", "help:"]);
    let params = CompilerParams { num_warps: 3, num_stages: 2 };
    says(pl::pallas_call(copy, of([8])).compiler_params(params).call([&x]), &["num_warps must be", "got 3 and 2"]);
    // An error whose value nobody uses.
    fn unused(x: &Ref, o: &Ref) -> Result<()> {
        let _ = o.set(zeros([3]));
        o.set(x.get())
    }
    says(run(&x, unused), &["set of type float32[3]"]);
}

#[test]
fn scalars_that_a_kernel_captures_are_numbers() -> Result<()> {
    setup();
    let x = arange(0.0f32..8.0);
    let two = array(2.0f32);
    let kernel = |[x, o]: [Ref; 2]| o.set(x.get() * &two + array(1.0f32));
    let y = pl::pallas_call(kernel, of([8])).call([&x])?;
    assert!(allclose(y, 2 * &x + 1, 0.0, 0.0)?);
    // Of a traced one the value is not known.
    fn traced(x: Array, n: Array) -> Result<Array> {
        pl::pallas_call(|[x, o]: [Ref; 2]| o.set(x.get() * &n), of([8])).call([x])
    }
    says(jit(traced).call((&x, &two)), &["captures an array of type float32", "pass it as an operand"]);
    Ok(())
}

#[test]
fn refs_belong_to_their_kernel() -> Result<()> {
    setup();
    let stolen = Mutex::new(None);
    let kernel = |[x, o]: [Ref; 2]| {
        *stolen.lock().expect("not poisoned") = Some(x.clone());
        o.set(x.get())
    };
    let _ = pl::pallas_call(kernel, of([8])).call([ones([8])])?;
    let stolen = stolen.into_inner().expect("not poisoned").expect("a ref");
    let words = ["a ref of type float32[8] was used outside of the kernel", "help:"];
    let read = stolen.get();
    says(read.check(), &words);
    says(stolen.set(0.0), &words);
    let stolen_read = pl::pallas_call(|[_x, o]: [Ref; 2]| o.set(stolen.get()), of([8])).call([ones([8])]);
    says(stolen_read, &words);
    says(pl::program_id(0).check(), &["program_id(0) was called outside of a kernel"]);
    says(jit(|_x: Array| stolen.get()).call(ones([8])), &words);
    Ok(())
}

#[test]
fn derivatives_of_pallas_calls_need_custom_vjp() -> Result<()> {
    setup();
    fn plain(x: Array) -> Result<Array> {
        pl::pallas_call(copy, of([8])).call([x])
    }
    let loss = move |x: Array| -> Result<Array> { Ok(plain(x)?.sum(..)) };
    says(grad(loss).call(ones([8])), &["pallas_call copy has no derivative", "custom_vjp"]);
    says(jvp(plain, ones([8]), ones([8])), &["pallas_call copy has no derivative"]);
    let loss = |x: Array| -> Result<Array> { Ok(double(x)?.square().sum(..)) };
    let x = random::normal(random::key(0), [10]);
    assert!(allclose(grad(loss).call(&x)?, 8 * &x, 1e-6, 1e-6)?);
    let rows = random::normal(random::key(1), [3, 10]);
    assert!(allclose(vmap(jit(grad(loss))).call(&rows)?, 8 * &rows, 1e-6, 1e-6)?);
    Ok(())
}

/// The kernels that `accelerators/rust_kernels.rs` compiles for GPUs and TPUs.
#[test]
fn flash_attention_has_the_numbers_of_attention() -> Result<()> {
    setup();
    fn x(n: i32) -> Array {
        random::normal(random::key(n), [2, 32, 8])
    }
    fn plain(q: Array, k: Array, v: Array) -> Array {
        let scores = q.matmul(&k.swapaxes(1, 2)) / (8f32).sqrt();
        let visible = arange(0..32).expand_dims(1).greater_equal(arange(0..32));
        shardax::nn::softmax(where_(visible, scores, f32::NEG_INFINITY), -1).matmul(v)
    }
    fn flash(q: Array, k: Array, v: Array) -> Result<Array> {
        flash::attention::<8>(q, k, v).map(|o| o.sin().sum(..))
    }
    fn expected(q: Array, k: Array, v: Array) -> Array {
        plain(q, k, v).sin().sum(..)
    }
    let argnums = (Arg::<0>, Arg::<1>, Arg::<2>);
    let got = jit(value_and_grad(flash).argnums(argnums)).call((x(0), x(1), x(2)))?;
    let reference = jit(value_and_grad(expected).argnums(argnums)).call((x(0), x(1), x(2)))?;
    fn close(a: &Array, b: &Array) -> Result<bool> {
        allclose(a, b, 1e-4, 1e-5)
    }
    assert!(close(&got.0, &reference.0)? && close(&got.1.0, &reference.1.0)?);
    assert!(close(&got.1.1, &reference.1.1)? && close(&got.1.2, &reference.1.2)?);
    Ok(())
}

#[test]
fn devices_run_kernels_on_their_shards() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 4), ("y", 2)])?.auto();
    let x = random::normal(random::key(0), [40]);
    for check in [true, false] {
        let mapped = shard_map(double, &mesh).in_specs(P!["x"]).out_specs(P!["x"]).check_vma(check);
        assert!(allclose(mapped.call(&x)?, 2 * &x, 1e-6, 1e-6)?);
        assert!(allclose(jit(mapped).call(&x)?, 2 * &x, 1e-6, 1e-6)?);
    }
    let mapped = shard_map(double, &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    let loss = move |x: Array| -> Result<Array> { Ok(mapped.call(x)?.square().sum(..)) };
    assert!(allclose(jit(grad(loss)).call(&x)?, 8 * &x, 1e-6, 1e-6)?);
    // Split by the compiler.
    let split = device_put(&x, &NamedSharding::new(&mesh, P!["x"]))?;
    assert!(allclose(jit(double).call(&split)?, 2 * &x, 1e-6, 1e-6)?);
    Ok(())
}

#[test]
fn costs_and_programs_tell_of_the_grid() -> Result<()> {
    setup();
    fn kernel([x, y, o]: [Ref; 3]) -> Result<()> {
        let k = pl::program_id(1);
        pl::when(k.equal(0), || o.set(0.0))?;
        o.add(pl::dot(&x.get(), &y.get()))
    }
    let call = || {
        pl::pallas_call(kernel, shape_dtype_struct([16, 4], DType::F32))
            .grid([2, 3])
            .in_specs([BlockSpec::new([8, 8], |[i, k]| [i, k]), BlockSpec::new([8, 4], |[_, k]| (k, 0))])
            .out_specs([BlockSpec::new([8, 4], |[i, _]| (i, 0))])
            .name("product")
    };
    let f = move |x: Array, y: Array| call().call([x, y]);
    fn args() -> (Array, Array) {
        (ones([16, 24]), ones([24, 4]))
    }
    let program = make_program(f, args())?;
    assert_eq!(program.flops().matmuls, (2 * 16 * 24 * 4) as f64);
    let text = program.to_string();
    for word in ["pallas_call[name=product grid=[2, 3]", "program_id[axis=1]", "get[ref=0", "swap[ref=2", "cond["] {
        assert!(text.contains(word), "{word} is missing in {text}");
    }
    let cost = CostEstimate { flops: 100, transcendentals: 10, bytes_accessed: 1 };
    let g = move |x: Array, y: Array| call().cost_estimate(cost).call([x, y]);
    let batched = make_program(move |x: Array, y: Array| vmap(g).in_axes((0, None)).call((x, y)), {
        (ones([5, 16, 24]), ones([24, 4]))
    })?;
    assert_eq!((batched.flops().matmuls, batched.flops().elementwise), (500.0, 50.0));

    // The same kernel is compiled once.
    let (_, counted) = shardax::count(|| (0..3).map(|_| f(args().0, args().1)).collect::<Result<Vec<_>>>());
    assert!(counted.compilations <= 1, "{counted:?}");
    Ok(())
}

#[test]
fn empty_grids_and_batches() -> Result<()> {
    setup();
    let none = pl::pallas_call(copy, of([8])).grid([0]).in_specs([tile(4)]).out_specs([tile(4)]).call([ones([8])])?;
    assert!(none.isnan().all(..).item::<bool>()?);
    assert_eq!(vmap(double).call(zeros([0, 8]))?.shape(), [0, 8]);
    // A block of one entry for each dimension, and a scalar.
    let scalar = pl::pallas_call(copy, shape_dtype_struct((), DType::F32)).call([Array::from(2.0f32)])?;
    assert_eq!(scalar.item::<f32>()?, 2.0);
    fn element() -> BlockSpec {
        BlockSpec::new((SQUEEZED, SQUEEZED), |[i, j]| (i, j))
    }
    let call = pl::pallas_call(|[x, o]| o.set(x.get() + pl::program_id(1)), shape_dtype_struct([2, 3], DType::I32));
    let y = call.grid([2, 3]).in_specs([element()]).out_specs([element()]).call([array([[0, 0, 0], [10, 10, 10]])])?;
    assert_eq!(y.to_vec::<i32>()?, [0, 1, 2, 10, 11, 12]);
    Ok(())
}
