//! The table of attention in docs/kernels.md: memory and traffic of its implementations on each platform.

use std::fmt::Write as _;
use std::path::PathBuf;

use shardax::nn::attention::{Attention, Implementation, Operands, Window, attention as attend};
use shardax::prelude::*;

use super::flash;

/// Sequences, positions, heads, features.
const SHAPE: [usize; 4] = [8, 4096, 32, 128];

type Attend = fn(Array, Array, Array) -> Result<Array>;

fn by(implementation: Implementation, q: Array, k: Array, v: Array) -> Result<Array> {
    let scale = 1.0 / (SHAPE[3] as f64).sqrt();
    let causal = Attention::default().window(Window { before: usize::MAX, after: 0 }).scale(scale);
    Ok(attend(&causal.implementation(Some(implementation)), &Operands::new(&q, &k, &v))[0].clone())
}

/// The kernel that JAX exported, of this name, in the folder of the table.
fn by_jax(name: &str, q: Array, k: Array, v: Array) -> Result<Array> {
    let out = std::env::var_os("SHARDAX_TEST_ATTENTION_OUT").map(PathBuf::from).unwrap_or_default();
    config::set_attention_kernels(out.with_file_name(name));
    by(Implementation::Flash, q, k, v)
}

/// The kernels in Rust that are the default of TPUs.
fn by_default_of_tpus(q: Array, k: Array, v: Array) -> Result<Array> {
    config::set_attention_kernels("");
    by(Implementation::Flash, q, k, v)
}

/// The kernel takes heads before positions.
fn by_kernel<const B: usize>(q: Array, k: Array, v: Array) -> Result<Array> {
    let [n, t, h, d] = SHAPE;
    let heads = |x: Array| x.swapaxes(1, 2).reshape([n * h, t, d]);
    Ok(flash::attention::<B>(heads(q), heads(k), heads(v))?.reshape([n, h, t, d]).swapaxes(1, 2))
}

/// Writes the table to the file that SHARDAX_TEST_ATTENTION_OUT names.
pub fn attention() -> Result<()> {
    let platforms = [
        ("H100", Topology::gpu(GpuSpec::H100)?),
        ("v5e", Topology::tpu("v5e:2x4")?),
        ("v5p", Topology::tpu("v5p:2x2x1")?),
    ];
    // Of blockwise attention the loops over keys have unknown trip counts, and count once.
    let on_tpus = |call: Attend| [None, Some(call), Some(call)];
    let rows: [(&str, &str, [Option<Attend>; 3]); 7] = [
        ("XLA's operations", "", [Some(|q, k, v| by(Implementation::Xla, q, k, v)); 3]),
        ("blockwise", "> ", [Some(|q, k, v| by(Implementation::Blockwise, q, k, v)); 3]),
        ("cuDNN", "", [Some(|q, k, v| by(Implementation::Cudnn, q, k, v)), None, None]),
        ("flash attention in Rust", "", on_tpus(by_default_of_tpus)),
        ("flash attention of JAX", "", on_tpus(|q, k, v| by_jax("flash", q, k, v))),
        ("splash attention of JAX", "", on_tpus(|q, k, v| by_jax("splash", q, k, v))),
        (
            "a kernel of an example, in Rust",
            "",
            [Some(by_kernel::<64>), Some(by_kernel::<512>), Some(by_kernel::<512>)],
        ),
    ];
    let mut text = String::from("| implementation |");
    platforms.iter().for_each(|(name, _)| {
        let _ = write!(text, " {name}: temporaries | traffic |");
    });
    text += "\n|---|";
    text += &"--:|".repeat(2 * platforms.len());
    for (name, bound, calls) in rows {
        let _ = write!(text, "\n| {name} |");
        for ((_, topology), call) in platforms.iter().zip(calls) {
            text += &match call {
                Some(call) => cells(topology, call, bound)?,
                None => "  |  |".to_owned(),
            };
        }
    }
    println!("{text}");
    if let Some(path) = std::env::var_os("SHARDAX_TEST_ATTENTION_OUT") {
        std::fs::write(path, text + "\n").expect("the file can be written");
    }
    Ok(())
}

/// The temporaries and the traffic of a call with its gradient on one device.
fn cells(topology: &Topology, call: Attend, bound: &str) -> Result<String> {
    let loss =
        move |q: Array, k: Array, v: Array| -> Result<Array> { Ok(call(q, k, v)?.astype(DType::F32).square().sum(..)) };
    let x = shape_dtype_struct_on(SHAPE, DType::Bf16, &topology.devices()[0]);
    let lowered = jit(grad(loss).argnums((Arg::<0>, Arg::<1>, Arg::<2>))).lower((&x, &x, &x))?;
    match lowered.compile_for(topology) {
        Ok(compiled) => {
            let temporaries = compiled.memory_analysis()?.temporaries as f64;
            Ok(format!(" {} | {bound}{} |", bytes(temporaries), bytes(compiled.bytes_accessed()? as f64)))
        }
        Err(error) if error.message().contains("RESOURCE_EXHAUSTED") => Ok(" does not fit | |".to_owned()),
        Err(error) => Err(error),
    }
}

/// Bytes with three digits.
fn bytes(n: f64) -> String {
    let (n, unit) = if n >= 1e9 { (n / 1e9, "GB") } else { (n / 1e6, "MB") };
    let digits = if n >= 100.0 {
        0
    } else if n >= 10.0 {
        1
    } else {
        2
    };
    format!("{n:.digits$} {unit}")
}
