//! Attention by cuDNN's kernels, compiled for GPUs, and by flash attention, compiled for TPUs.

use shardax::export::ExportOptions;
use shardax::nn::attention::{Attention, Implementation, Operands, Window, attention};
use shardax::prelude::*;

use crate::quick;

const SHAPE: [usize; 4] = [8, 4096, 8, 128];
/// The bytes of the scores in float32.
const SCORES: u64 = 4 * 8 * 8 * 4096 * 4096;

fn loss(of: Attention) -> impl Fn(Array, Array, Array) -> Array + Clone {
    move |q, k, v| attention(&of, &Operands::new(&q, &k, &v))[0].astype(DType::F32).square().sum(..)
}

/// `target` is the name of the platform's kernels; a gradient must have this number of `calls` of it.
pub fn all(topology: &Topology, target: &str, calls: usize) -> Result<()> {
    fn causal() -> Attention {
        Attention::default().window(Window { before: usize::MAX, after: 0 }).scale(0.088)
    }
    let argnums = (Arg::<0>, Arg::<1>, Arg::<2>);
    let device = topology.devices().swap_remove(0);
    let x = shape_dtype_struct_on(SHAPE, DType::Bf16, &device);

    // A gradient without a wish for an implementation: kernels, and nothing of the scores' size.
    let fused = jit(grad(loss(causal())).argnums(argnums)).lower((&x, &x, &x))?;
    assert_eq!(fused.as_text().matches(target).count(), calls, "{}", fused.as_text());
    let memory = fused.compile_for(topology)?.memory_analysis()?;
    assert!((memory.temporaries as u64) < SCORES / 8, "{memory:?}");

    if quick::is_complete() {
        // In blocks: a block of scores. By plain operations: several tensors of their size.
        let lower = |implementation| {
            let chosen = causal().implementation(Some(implementation));
            jit(grad(loss(chosen)).argnums(argnums)).lower((&x, &x, &x))?.compile_for(topology)?.memory_analysis()
        };
        let blocks = lower(Implementation::Blockwise)?;
        assert!((blocks.temporaries as u64) < SCORES / 4, "{blocks:?}");
        let plain = lower(Implementation::Xla)?;
        assert!((plain.temporaries as u64) > SCORES / 2, "{plain:?}");
        eprintln!(
            "temporaries of a gradient: {target} {}, blocks {}, plain {}",
            memory.temporaries, blocks.temporaries, plain.temporaries
        );
    }

    // Split over batch and heads: each device calls the kernel, and nothing is gathered.
    let mesh = topology.mesh([("data", 4), ("model", 2)])?;
    let spec = NamedSharding::new(&mesh, P!["data", None, "model"]);
    let x = shape_dtype_struct_on(SHAPE, DType::Bf16, &spec);
    let sharded = causal().sharding(Some(spec.clone()));
    let lowered = jit(grad(loss(sharded)).argnums(argnums)).lower((&x, &x, &x))?;
    assert_eq!(lowered.as_text().matches(target).count(), calls, "{}", lowered.as_text());
    let compiled = lowered.compile_for(topology)?;
    let report = compiled.collectives()?;
    assert_eq!(report.count(), 0, "{report}");
    assert!(compiled.memory_analysis()?.temporaries as u64 <= memory.temporaries as u64);

    // Where it is not known how they are split, the compiler has operations that it can split.
    let unknown = jit(grad(loss(causal())).argnums(argnums)).lower((&x, &x, &x))?;
    assert!(!unknown.as_text().contains(target), "{}", unknown.as_text());
    Ok(())
}

/// The masks and sizes of flash attention: grouped heads, heads that are not packed, padding, lengths, segments, a window, a
/// soft cap, float32.
pub fn masks(topology: &Topology) -> Result<()> {
    let device = topology.devices().swap_remove(0);
    fn on(shape: &[usize], dtype: DType, device: &Device) -> Array {
        shape_dtype_struct_on(shape, dtype, device)
    }
    fn attend(q: Array, k: Array, lengths: Array, segments: Array) -> Result<Array> {
        let keys = segments.get((.., ..1100));
        let near = Window { before: 700, after: 0 };
        let chosen = Attention::default().window(near).soft_cap(Some(30.0)).implementation(Some(Implementation::Flash));
        let operands = Operands {
            query_lengths: Some(lengths.clone()),
            key_lengths: Some(lengths),
            segments: Some([segments, keys]),
            ..Operands::new(&q, &k, &k)
        };
        Ok(attention(&chosen, &operands)[0].astype(DType::F32).square().sum(..))
    }
    for (depth, dtype) in [(64, DType::Bf16), (128, DType::F32)].into_iter().step_by(quick::one_of(2)) {
        let (q, k) = (on(&[2, 1200, 4, depth], dtype, &device), on(&[2, 1100, 2, depth], dtype, &device));
        let (lengths, segments) = (on(&[2], DType::I32, &device), on(&[2, 1200], DType::I32, &device));
        let lowered = jit(grad(attend).argnums((Arg::<0>, Arg::<1>))).lower((&q, &k, &lengths, &segments))?;
        assert_eq!(lowered.as_text().matches("tpu_custom_call").count(), 3, "{}", lowered.as_text());
        if quick::is_complete() {
            lowered.compile_for(topology)?;
        }
    }
    Ok(())
}

/// A function in a file takes the place of the kernels in Rust for the shapes that its name has; other shapes have these.
pub fn files(topology: &Topology) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("attention-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    fn x(heads: usize, topology: &Topology) -> Array {
        shape_dtype_struct_on([1, 2048, heads, 64], DType::Bf16, &topology.devices()[0])
    }
    fn first(q: Array, _: Array, _: Array) -> (Array, Array) {
        (q, zeros([1, 4, 2048]))
    }
    let exported =
        ExportOptions::new().platforms(["tpu"]).export(first, (x(4, topology), x(4, topology), x(4, topology)))?;
    let name = folder.join("attention_bfloat16_1x2048x4x64_2048x4_causal.jax");
    std::fs::write(name, exported.serialize()?).expect("a file");
    config::set_attention_kernels(&folder);
    let causal = Attention::default().window(Window { before: usize::MAX, after: 0 }).scale(0.125);
    let gradient = jit(grad(loss(causal)).argnums((Arg::<0>, Arg::<1>, Arg::<2>)));
    // The gradient has no file: its two kernels are in Rust.
    for (heads, kernels) in [(4, 2), (8, 3)] {
        let text = gradient.lower((x(heads, topology), x(heads, topology), x(heads, topology)))?.as_text().to_string();
        assert_eq!(text.matches("tpu_custom_call").count(), kernels, "{text}");
    }
    config::set_attention_kernels("");
    std::fs::remove_dir_all(&folder).expect("the folder");
    Ok(())
}
