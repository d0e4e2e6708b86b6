//! Kernels of Pallas that JAX exported, compiled with what a program has around them.

use shardax::control_flow::platform_dependent;
use shardax::export::Exported;
use shardax::prelude::*;

/// The kernel for a platform, with a plain form for the others.
pub fn all(topology: &Topology, target: &str) -> Result<()> {
    let platform = topology.platform();
    let file = format!("{}/../shardax/tests/exported/kernel_{platform}.jax", env!("CARGO_MANIFEST_DIR"));
    let kernel = Exported::<(Array,), Array>::load(file)?;
    let name = if platform == "tpu" { "tpu" } else { "cuda" };
    let silu = move |x: Array| -> Result<Array> {
        let kernel = kernel.clone();
        platform_dependent(
            [name, "default"],
            (move |x: Array| kernel.call(x), |x: Array| &x * (1 / (1 + (-&x).exp()))),
            x,
        )
    };
    let loss = {
        let silu = silu.clone();
        move |x: Array| -> Result<Array> { Ok(silu(x)?.square().sum(..)) }
    };
    let device = topology.devices().swap_remove(0);
    let x = shape_dtype_struct_on([128, 256], DType::F32, &device);
    for lowered in [jit(silu.clone()).lower(&x)?, jit(grad(loss)).lower(&x)?] {
        assert!(lowered.as_text().contains(target), "{}", lowered.as_text());
        lowered.compile_for(topology)?;
    }

    // Each device on its part; of split operands otherwise it is an error, because they would be gathered.
    let mesh = topology.mesh([("x", 8)])?;
    let x = shape_dtype_struct_on([1024, 256], DType::F32, NamedSharding::new(&mesh, P!["x"]));
    let mapped = shard_map(silu.clone(), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    let compiled = jit(mapped).lower(&x)?.compile_for(topology)?;
    assert_eq!(compiled.collectives()?.count(), 0);
    let x = shape_dtype_struct_on([128, 256], DType::F32, NamedSharding::new(&mesh, P!["x"]));
    let error = jit(silu).lower(&x).err().expect("it cannot be split").to_string();
    assert!(error.contains("cannot be automatically partitioned") && error.contains("shard_map"), "{error}");
    Ok(())
}
