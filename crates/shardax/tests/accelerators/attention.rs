//! Attention by cuDNN's kernels, compiled for GPUs.

use shardax::nn::attention::{Attention, Implementation, Operands, Window, attention};
use shardax::prelude::*;

const SHAPE: [usize; 4] = [8, 4096, 8, 128];
/// The bytes of the scores in float32.
const SCORES: u64 = 4 * 8 * 8 * 4096 * 4096;

fn loss(of: Attention) -> impl Fn(Array, Array, Array) -> Array + Clone {
    move |q, k, v| attention(&of, &Operands::new(&q, &k, &v))[0].astype(DType::F32).square().sum(..)
}

pub fn all(topology: &Topology) -> Result<()> {
    let causal = || Attention::default().window(Window { before: usize::MAX, after: 0 }).scale(0.088);
    let all = (Arg::<0>, Arg::<1>, Arg::<2>);
    let device = topology.devices().swap_remove(0);
    let x = shape_dtype_struct_on(SHAPE, DType::Bf16, &device);

    // A gradient without a wish for an implementation: two calls, and nothing of the scores' size.
    let fused = jit(grad(loss(causal())).argnums(all)).lower((&x, &x, &x))?;
    assert_eq!(fused.as_text().matches("__cudnn$fmhaSoftmax").count(), 2, "{}", fused.as_text());
    let memory = fused.compile_for(topology)?.memory_analysis()?;
    assert!((memory.temporaries as u64) < SCORES / 8, "{memory:?}");

    // In blocks: a block of scores. By plain operations: several tensors of their size.
    let of = |implementation| {
        let chosen = causal().implementation(Some(implementation));
        jit(grad(loss(chosen)).argnums(all)).lower((&x, &x, &x))?.compile_for(topology)?.memory_analysis()
    };
    let (blocks, plain) = (of(Implementation::Blockwise)?, of(Implementation::Xla)?);
    assert!((blocks.temporaries as u64) < SCORES / 4, "{blocks:?}");
    assert!((plain.temporaries as u64) > SCORES / 2, "{plain:?}");
    eprintln!(
        "temporaries of a gradient: cuDNN {}, blocks {}, plain {}",
        memory.temporaries, blocks.temporaries, plain.temporaries
    );

    // Split over batch and heads: each device calls the kernel, and nothing is gathered.
    let mesh = topology.mesh([("data", 4), ("model", 2)])?;
    let spec = NamedSharding::new(&mesh, P!["data", None, "model"]);
    let x = shape_dtype_struct_on(SHAPE, DType::Bf16, &spec);
    let known = causal().sharding(Some(spec.clone()));
    let lowered = jit(grad(loss(known)).argnums(all)).lower((&x, &x, &x))?;
    assert_eq!(lowered.as_text().matches("__cudnn$fmhaSoftmax").count(), 2, "{}", lowered.as_text());
    let compiled = lowered.compile_for(topology)?;
    let report = compiled.collectives()?;
    assert_eq!(report.count(), 0, "{report}");
    assert!(compiled.memory_analysis()?.temporaries as u64 <= memory.temporaries as u64);

    // Where it is not known how they are split, the compiler has operations that it can split.
    let unknown = jit(grad(loss(causal())).argnums(all)).lower((&x, &x, &x))?;
    assert!(!unknown.as_text().contains("__cudnn"), "{}", unknown.as_text());
    Ok(())
}
