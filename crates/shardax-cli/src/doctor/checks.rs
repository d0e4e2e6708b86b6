//! The checks, in the order of the report.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use shardax::error::{Error, ErrorKind, Result};
use shardax::export::{Exported, export};
use shardax::prelude::*;
use shardax::{Format, Layout, profiler};

use super::{kernels, reference};

type Check = fn() -> Result<String>;

/// The checks by their names.
pub const CHECKS: [(&str, Check); 18] = [
    ("plugin", plugin),
    ("devices", devices_found),
    ("arithmetic", arithmetic),
    ("dtypes", dtypes),
    ("matmul", matmul),
    ("functions", || reference::FUNCTIONS.run()),
    ("products", || reference::PRODUCTS.run()),
    ("attention", kernels::attention),
    ("kernels", kernels::kernels),
    ("collectives", collectives),
    ("donation", donation),
    ("memories", memories),
    ("layouts", layouts),
    ("callbacks", callbacks),
    ("ffi", ffi),
    ("profiler", records),
    ("export", exports),
    ("speed", speed),
];

/// Runs a check by its name.
pub fn run(name: &str) -> std::result::Result<String, String> {
    let check = CHECKS.iter().find(|(known, _)| *known == name).ok_or_else(|| format!("there is no check {name:?}"))?;
    check.1().map_err(|error| error.to_string())
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Check, message.into())
}

/// Returns the largest error of the values. It is relative to expected values above 1, and otherwise absolute.
///
/// # Errors
/// Returns an error if a value differs from the expected one by more than `tolerance`.
pub fn check_close(got: &[f32], want: impl IntoIterator<Item = f64>, tolerance: f64) -> Result<f64> {
    let mut worst = 0.0f64;
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs() / want.abs().max(1.0);
        // The comparison is negated so that an error of NaN fails too.
        if !(error <= tolerance) {
            return Err(wrong(format!("element {index} is {got}, but should be {want} within {tolerance:e}")));
        }
        worst = worst.max(error);
    }
    Ok(worst)
}

fn plugin() -> Result<String> {
    let platform = std::env::var("SHARDAX_PLATFORM").unwrap_or_else(|_| "cpu".to_owned());
    let plugin = match platform.as_str() {
        "cpu" => shardax_pjrt::Plugin::cpu(),
        other => shardax_pjrt::Plugin::find(other),
    };
    let plugin = plugin.map_err(|error| Error::new(ErrorKind::Plugin, error.to_string()))?;
    let (major, minor) = plugin.api_version();
    let bytes = std::fs::metadata(plugin.path()).map_or(0, |file| file.len());
    Ok(format!("{}, {bytes} bytes, PJRT {major}.{minor}", plugin.path().display()))
}

fn devices_found() -> Result<String> {
    let local = local_devices()?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    local.iter().for_each(|device| *counts.entry(device.kind()).or_default() += 1);
    let memory = match local[0].memory_stats() {
        Ok(stats) => format!("{stats:?}"),
        Err(_) => "no memory statistics".to_owned(),
    };
    Ok(format!(
        "{}; {} in all, process {} of {}; {memory}",
        counts.iter().map(|(kind, count)| format!("{count} × {kind}")).collect::<Vec<_>>().join(", "),
        devices()?.len(),
        process_index(),
        process_count(),
    ))
}

fn arithmetic() -> Result<String> {
    let x: Vec<f32> = (0..4096).map(|i| i as f32 / 512.0 - 4.0).collect();
    let f = jit(|x: Array| x.sin() * x.exp() + x.tanh());
    let got = f.call(array(x.clone()))?.to_vec::<f32>()?;
    let want = x.iter().map(|x| f64::from(*x)).map(|x| x.sin() * x.exp() + x.tanh());
    Ok(format!("largest error {:.1e}", check_close(&got, want, 1e-4)?))
}

fn dtypes() -> Result<String> {
    let (mut supported, mut unsupported) = (Vec::new(), Vec::new());
    // float8_e8m0fnu is left out because it cannot represent 0.
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_complex() && *dtype != DType::F8E8M0Fnu) {
        // The values use every bit of integers of 2 bits.
        let values = match dtype {
            DType::Bool => [0.0, 1.0, 1.0],
            _ if dtype.is_signed() => [0.0, 1.0, -1.0],
            _ => [0.0, 1.0, 2.0],
        };
        let times_one = jit(move |x: Array| (x * ones_dtype((), dtype)).astype(DType::F32));
        let products = block_until_ready(array(values).astype(dtype)).and_then(|x| times_one.call(x)?.to_vec::<f32>());
        match products {
            Ok(got) if got == values => supported.push(dtype.to_string()),
            Ok(got) => return Err(wrong(format!("{dtype}: {values:?} times 1 is {got:?}"))),
            Err(error) => {
                let reason = error.message().lines().next().unwrap_or_default();
                unsupported.push(format!("{dtype} ({reason})"));
            }
        }
    }
    let failures = if unsupported.is_empty() { String::new() } else { format!("; not: {}", unsupported.join(", ")) };
    // A platform may lack narrow types, but programs need float32.
    if supported.contains(&DType::F32.to_string()) {
        Ok(format!("{}{failures}", supported.join(", ")))
    } else {
        Err(wrong(format!("float32 does not work{failures}")))
    }
}

fn matmul() -> Result<String> {
    const N: usize = 128;
    let indices = (0..N * N).map(|index| (index / N, index % N));
    let a = Array::from_vec(indices.clone().map(|(i, j)| matmul_value(i, j) as f32).collect(), &[N, N])?;
    let b = Array::from_vec(indices.clone().map(|(i, j)| matmul_value(j, i) as f32).collect(), &[N, N])?;
    let product = jit(|(a, b): (Array, Array)| a.matmul(&b)).call((a, b))?.to_vec::<f32>()?;
    let expected = indices.map(|(i, j)| (0..N).map(|k| matmul_value(i, k) * matmul_value(j, k)).sum());
    Ok(format!(
        "{N} × {N}, float32: largest error {:.1e}",
        check_close(&product, expected, reference::PRODUCT.here()?)?
    ))
}

/// An element of the left matrix, and of the transposed right one.
fn matmul_value(i: usize, j: usize) -> f64 {
    ((i * 7 + j * 3) % 17) as f64 / 17.0 - 0.5
}

/// Runs each collective on the rows of a square matrix with the elements 0, 1, …, one row on each device, so that this function
/// can compute the expected results itself.
fn collectives() -> Result<String> {
    let n = local_device_count();
    let mesh = Mesh::new(local_devices()?, [("x", n)])?;
    let collectives = shard_map(
        move |x: Array| {
            let row = x.reshape([n]);
            let neighbours: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
            [
                psum(row.clone(), "x"),
                ppermute(row.clone(), "x", neighbours),
                all_gather_tiled(row.clone(), "x", 0).sum_keepdims(0),
                psum_scatter(row.clone(), "x", 0).reshape([1]),
                all_to_all(row, "x", 0, 0),
            ]
        },
        &mesh,
    );
    let x = arange(0..(n * n) as i32).astype(DType::F32).reshape([n, n]);
    let results = jit(collectives.in_specs(P!["x"]).out_specs(P!["x"])).call(x)?;
    let column_sums: Vec<f32> = (0..n).map(|j| (0..n).map(|i| i * n + j).sum::<usize>() as f32).collect();
    // In the order of `COLLECTIVES`.
    let expected: [Vec<f32>; 5] = [
        column_sums.repeat(n),
        (0..n * n).map(|index| ((index / n + n - 1) % n * n + index % n) as f32).collect(),
        vec![(0..n * n).sum::<usize>() as f32; n],
        column_sums,
        (0..n * n).map(|index| (index % n * n + index / n) as f32).collect(),
    ];
    for (name, (result, expected)) in COLLECTIVES.iter().zip(results.iter().zip(expected)) {
        let result = result.to_vec::<f32>()?;
        if result != expected {
            return Err(wrong(format!("{name} over {n} devices is {result:?}, but should be {expected:?}")));
        }
    }
    Ok(format!("{} over {n} devices", COLLECTIVES.join(", ")))
}

const COLLECTIVES: [&str; 5] = ["psum", "ppermute", "all_gather", "psum_scatter", "all_to_all"];

fn donation() -> Result<String> {
    let x = ones([1 << 16]);
    block_until_ready(&x)?;
    let y = jit(|x: Array| x + 1.0).donate_argnums([0]).call(&x)?;
    if y.get(5).item::<f32>()? != 2.0 {
        return Err(wrong("1 + 1 is not 2 in donated memory"));
    }
    if x.is_deleted() {
        Ok("the result uses the memory of the donated argument".to_owned())
    } else {
        Err(wrong("the donated argument was not deleted"))
    }
}

fn memories() -> Result<String> {
    let device = &local_devices()?[0];
    let kinds: Vec<&str> = device.addressable_memories()?.iter().map(|memory| memory.kind()).collect();
    let x = arange(0..1000);
    let on_host = device_put(&x, Space::Host)?;
    let read = jit(|x: Array| Ok::<_, Error>(device_put(&x, Space::Device)? + 1)).call(&on_host)?;
    let back = device_put(&on_host, Space::Device)?;
    if (back.to_vec::<i32>()?, read.to_vec::<i32>()?) == (x.to_vec::<i32>()?, (x + 1).to_vec::<i32>()?) {
        Ok(format!("{}; to the host, into a program, and back", kinds.join(", ")))
    } else {
        Err(wrong("values changed when they were moved to the host's memory and back"))
    }
}

fn layouts() -> Result<String> {
    let device = &local_devices()?[0];
    let x = arange(0..1024 * 8).astype(DType::F32).reshape([1024, 8]);
    let column_major = device_put(&x, Format::new(Layout::new([1, 0]), device))?;
    let step = jit(|x: Array| x.t() * 2.0).in_shardings(Format::new(Layout::AUTO, device));
    let compiled = step.lower(shape_dtype_struct([1024, 8], DType::F32))?.compile()?;
    let chosen = compiled.input_formats();
    let chosen =
        chosen.leaves()[0].clone().ok_or_else(|| wrong("the plugin does not report the layout that it chose"))?;
    let placed = device_put(&x, &chosen)?;
    let want = (&x.t() * 2.0).to_vec::<f32>()?;
    for (what, got) in [
        ("column-major", jit(|x: Array| x.t() * 2.0).call(&column_major)?),
        ("the compiler's choice", compiled.call(&placed)?),
    ] {
        if got.to_vec::<f32>()? != want {
            return Err(wrong(format!("x.t() * 2 of an array whose layout is {what} has wrong values")));
        }
    }
    if column_major.to_vec::<f32>()? == x.to_vec::<f32>()? {
        Ok(format!("column-major, and the compiler's choice: {chosen:?}"))
    } else {
        Err(wrong("an array whose layout is column-major is read with wrong values"))
    }
}

/// Checks the result of a host function, and the order in which host functions with effects are called.
fn callbacks() -> Result<String> {
    let host = pure_callback(
        |args, results| results[0].write(args[0].values::<f32>()?.map(|x| 2.0 * x)),
        shape_dtype_struct([4], DType::F32),
    );
    // The ordered function records its arguments. The lock is necessary because XLA calls it on its own threads.
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let record = recorded.clone();
    let show = io_callback(
        move |args, _| {
            record.lock().unwrap_or_else(PoisonError::into_inner).push(args[0].item::<i32>()?);
            Ok(())
        },
        (),
    )
    .ordered();
    let program = jit(move |x: Array| {
        let n = fori_loop(0, 3, |i: Array, n: Array| show.call(&i).map(|()| n + i), array(0))?;
        Ok::<_, Error>(host.call(x + 1.0)? + n.astype(DType::F32))
    });
    match program.call(zeros([4])).and_then(|x| x.to_vec::<f32>()) {
        Ok(got) => {
            shardax::effects_barrier()?;
            let calls = recorded.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if got == [5.0; 4] && calls == [0, 1, 2] {
                Ok("a program called host functions in order".to_owned())
            } else {
                Err(wrong(format!("host functions returned {got:?}, and were called with {calls:?}")))
            }
        }
        Err(error) if error.kind() == ErrorKind::NotImplemented => {
            Ok(format!("not on this platform: {}", error.message()))
        }
        Err(error) => Err(error),
    }
}

/// Calls a Rust function on XLA's buffers. On a GPU the host cannot read the buffers, so the function only checks that the call
/// has a stream, and returns an error with a known message.
fn ffi() -> Result<String> {
    let scaled = ffi_call(
        |args, results| results[0].write(args[0].values::<f32>()?.map(|x| 3.0 * x)),
        shape_dtype_struct([4], DType::F32),
    );
    let scaled = scaled.cuda(|call| {
        call.stream()?;
        Err(wrong("the call has a stream"))
    });
    match jit(move |x: Array| scaled.call(x + 1.0)).call(zeros([4])).and_then(|x| x.to_vec::<f32>()) {
        Ok(got) if got == [3.0; 4] => Ok("a Rust function computed on XLA's buffers".to_owned()),
        Ok(got) => Err(wrong(format!("a Rust function that triples XLA's buffer of ones returned {got:?}"))),
        Err(error) if error.message().contains("the call has a stream") => Ok("called with its stream".to_owned()),
        Err(error) if error.kind() == ErrorKind::NotImplemented => {
            Ok(format!("not on this platform: {}", error.message()))
        }
        Err(error) => Err(error),
    }
}

fn records() -> Result<String> {
    let folder = std::env::temp_dir().join(format!("shardax-doctor-{}", std::process::id()));
    let recording = profiler::trace(&folder)?;
    jit(|x: Array| x.sum(..)).call(ones([1000]))?.block_until_ready()?;
    recording.stop()?;
    let _ = std::fs::remove_dir_all(&folder);
    Ok("a trace of a computation".to_owned())
}

fn exports() -> Result<String> {
    let bytes = export(|x: Array| x.cos(), zeros([4]))?.serialize()?;
    let got = Exported::<(Array,), Array>::deserialize(&bytes)?.call(zeros([4]))?.to_vec::<f32>()?;
    if got == [1.0; 4] {
        Ok(format!("{} bytes, read and run", bytes.len()))
    } else {
        Err(wrong(format!("an exported cos(0) is {got:?}")))
    }
}

/// Returns the seconds of the fastest of several runs, after one run that is not timed.
fn shortest_time(times: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let mut best = f64::INFINITY;
    for _ in 0..times {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn speed() -> Result<String> {
    let n = if local_devices()?[0].platform().eq_ignore_ascii_case("cpu") { 1024 } else { 8192 };
    let (step, small) = (jit(|x: Array| x + 1.0), zeros([8]));
    let dispatch = shortest_time(1000, || step.call(&small)?.block_until_ready())?;
    let (product, large) = (jit(|x: Array| x.matmul(&x)), ones([n, n]).astype(DType::Bf16));
    let matmul = shortest_time(5, || product.call(&large)?.block_until_ready())?;
    let data = vec![0f32; 1 << 24];
    let copy = shortest_time(5, || Array::from_slice(&data, &[1 << 24])?.block_until_ready())?;
    Ok(format!(
        "a call {:.1} µs; bfloat16 {n}³ {:.2} TFLOP/s; host to device {:.1} GB/s",
        dispatch * 1e6,
        2.0 * (n as f64).powi(3) / matmul * 1e-12,
        (data.len() * 4) as f64 / copy * 1e-9
    ))
}
