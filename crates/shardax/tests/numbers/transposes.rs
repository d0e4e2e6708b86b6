//! Transposes by the CPU kernel.

use shardax::numpy;

use super::common::child;
use super::*;

/// The permutations of the dimensions of an array that are compared.
const PERMUTATIONS: [(&[usize], &[i32]); 6] = [
    (&[9, 21], &[1, 0]),
    (&[2, 3, 4, 40], &[0, 2, 1, 3]),
    (&[2, 17, 3, 18], &[0, 2, 3, 1]),
    (&[2, 5, 7, 3], &[0, 3, 1, 2]),
    (&[2, 3, 2, 4, 2, 8], &[0, 1, 3, 2, 4, 5]),
    (&[3, 1, 4], &[2, 1, 0]),
];

const DTYPES: [DType; 12] = [
    DType::F32,
    DType::F64,
    DType::Bf16,
    DType::F16,
    DType::I8,
    DType::U16,
    DType::I32,
    DType::I64,
    DType::Bool,
    DType::F8E4M3Fn,
    DType::Complex64,
    DType::Complex128,
];

fn integers_of_shape(shape: &[usize], dtype: DType) -> Array {
    let size: usize = shape.iter().product();
    (arange(0..size as i32) % 7).astype(dtype).reshape(shape)
}

fn numbers(x: &Array) -> Vec<f64> {
    floats(&if x.dtype().is_complex() { x.real() } else { x.astype(DType::F64) })
}

/// Computes the transpose on the host.
fn by_elements(x: &Array, permutation: &[i32]) -> Vec<f64> {
    let (shape, elements) = (x.shape().to_vec(), numbers(x));
    let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
    let element = |mut index: usize| {
        let mut source = 0;
        for d in permutation.iter().rev().map(|d| *d as usize) {
            source += index % shape[d] * strides[d];
            index /= shape[d];
        }
        elements[source]
    };
    (0..elements.len()).map(element).collect()
}

fn calls(text: &str) -> usize {
    text.matches("\"shardax_transpose\"").count()
}

/// Every dtype, and batches and gradients of all permutations.
fn permuted_dimensions() -> Result<()> {
    fn transposed(xs: Vec<Array>) -> Vec<Array> {
        let permutations = PERMUTATIONS.iter().map(|(_, permutation)| permutation.to_vec()).cycle();
        xs.iter().zip(permutations).map(|(x, permutation)| x.transpose(permutation)).collect()
    }
    let xs: Vec<Array> =
        DTYPES.iter().flat_map(|dtype| PERMUTATIONS.map(|(shape, _)| integers_of_shape(shape, *dtype))).collect();
    let program = jit(transposed);
    let text = program.lower(xs.clone())?.as_text().to_string();
    assert_eq!(calls(&text), xs.len(), "{text}");
    for ((x, y), (_, permutation)) in xs.iter().zip(program.call(xs.clone())?).zip(PERMUTATIONS.iter().cycle()) {
        assert_eq!(y.dtype(), x.dtype());
        assert_eq!(numbers(&y), by_elements(x, permutation), "{permutation:?} of {x:?}");
    }
    let rows: Vec<Array> = PERMUTATIONS.iter().map(|(shape, _)| integers_of_shape(shape, DType::F32)).collect();
    let stacked: Vec<Array> = rows.iter().map(|x| numpy::stack(&[x, &(x + 1)], 1)).collect();
    let mapped = jit(|xs: Vec<Array>| vmap(transposed).in_axes(1).call(xs)).call(stacked)?;
    let slopes = jit(|xs: Vec<Array>| {
        fn loss(xs: Vec<Array>) -> Array {
            let weighted = transposed(xs).into_iter().map(|y| {
                let weights = arange(0..y.size() as i32).astype(DType::F32).reshape(y.shape());
                (y * weights).sum(..)
            });
            weighted.fold(zeros(()), |sum, y| sum + y)
        }
        grad(loss).call(xs)
    });
    for (((x, y), slope), (_, permutation)) in rows.iter().zip(mapped).zip(slopes.call(rows.clone())?).zip(PERMUTATIONS)
    {
        assert_eq!(floats(&y.get(0)), by_elements(x, permutation), "{permutation:?}");
        assert_eq!(floats(&y.get(1)), by_elements(&(x + 1), permutation), "{permutation:?}");
        // The gradient moves the weights back.
        let weights: Vec<f64> = (0..x.size()).map(|i| i as f64).collect();
        assert_eq!(by_elements(&slope, permutation), weights, "{permutation:?}");
    }
    Ok(())
}

/// A call breaks no fusion: the user of a transpose must read memory.
fn transposes_that_are_read_from_memory() -> Result<()> {
    let x = integers_of_shape(&[64, 1024], DType::F32);
    let programs: [(usize, fn(Array) -> Array); 12] = [
        (1, |x| x.t()),
        (1, |x| stop_gradient(x.t())),
        (1, |x| x.t().reshape([32, 2048])),
        (1, |x| x.reshape([64, 4, 256]).transpose([1, 0, 2]).reshape([4, 16_384]).matmul(ones([16_384, 2]))),
        (1, |x| numpy::cumsum(x.t(), 0)),
        (1, |x| x.t() + x.reshape([1024, 64])),
        // XLA reduces over other dimensions, multiplies transposes in place, leaves none if an operation is between two of them, and computes
        // operands in its loop over rows.
        (0, |x| x.t().sum(1)),
        (0, |x| x.t().argmin(0)),
        // XLA reads only the elements of the slice.
        (0, |x| lax::dynamic_slice_in_dim(x.t(), x.get((0, 0)).astype(DType::I32), 1, 0)),
        (0, |x| (x.t() * 2).matmul(&x)),
        (0, |x| x.t().sin().t()),
        (0, |x| (x.reshape([64, 4, 256]) * 2).transpose([1, 0, 2])),
    ];
    for (i, (count, program)) in programs.into_iter().enumerate() {
        let program = jit(program);
        let text = program.lower(&x)?.as_text().to_string();
        assert_eq!(calls(&text), count, "{i}: {text}");
    }
    Ok(())
}

/// The transpose of an array over devices is the compiler's; each device calls the kernel for its own part.
fn transposes_over_devices() -> Result<()> {
    let mesh = make_mesh([("x", 4)])?.auto();
    let x = integers_of_shape(&[64, 160], DType::F32);
    let split = device_put(&x, &NamedSharding::new(&mesh, P!["x"]))?;
    let program = jit(|x: Array| x.t());
    assert_eq!(floats(&program.call(&split)?), by_elements(&x, &[1, 0]));
    assert_eq!(calls(program.lower(&split)?.as_text()), 0);
    let parts = jit(shard_map(|x: Array| x.t(), &mesh).in_specs(P!["x"]).out_specs(P![None, "x"]));
    assert_eq!(floats(&parts.call(&split)?), by_elements(&x, &[1, 0]));
    assert_eq!(calls(parts.lower(&split)?.as_text()), 1);
    Ok(())
}

/// Transposes inside of loops, of what the loop changes and of what it does not.
fn transposes_in_loops() -> Result<()> {
    let (xs, w) = (integers_of_shape(&[3, 20, 20], DType::F32), integers_of_shape(&[20, 20], DType::F32));
    let program = jit(|xs: Array, w: Array| -> Result<Array> {
        let step = |sum: Array, x: Array| {
            let moved = numpy::cumsum(x.t(), 0) + numpy::cumsum(w.t(), 0);
            (sum.t() + &moved, moved)
        };
        Ok(scan(step, zeros([20, 20]), xs)?.0)
    });
    let mut sum = zeros([20, 20]);
    for step in 0..3 {
        sum = sum.t() + numpy::cumsum(xs.get(step).t(), 0) + numpy::cumsum(w.t(), 0);
    }
    assert_eq!(floats(&program.call((&xs, &w))?), floats(&sum));
    Ok(())
}

/// Run in a process of its own, where the CPU kernel computes them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    permuted_dimensions()?;
    transposes_that_are_read_from_memory()?;
    transposes_over_devices()?;
    transposes_in_loops()
}

#[test]
fn transposes_by_cpu_kernels() {
    let mut command = child::command("transposes::in_a_process_with_cpu_kernels");
    child::run(command.env("SHARDAX_CPU_KERNELS", "all"));
}
