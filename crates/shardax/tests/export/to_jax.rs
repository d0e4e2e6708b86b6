//! Functions that shardax exports for JAX. These tests need a Python that has JAX.

use shardax::export::ExportOptions;
use shardax::prelude::*;

use crate::common::quick::setup;

/// JAX runs functions that shardax exported, with their gradients.
#[test]
#[ignore = "needs the Python of tools/golden"]
fn jax_runs_exported_functions() -> Result<()> {
    setup();
    let w = random::normal(random::key(0), [3]);
    let f = move |x: Array, n: Array| ((&x * &w).sin() * n).cumsum(1);
    let (x, n) = (random::normal(random::key(1), [4, 3]), array([2, 3, 4]));
    let want = f(x.clone(), n.clone());
    let slope = grad(|x: Array| f(x, n.clone()).square().sum(..)).call(&x)?;
    let folder = std::env::temp_dir().join(format!("shardax-export-jax-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    ExportOptions::new().vjp_order(1).export(f, (&x, &n))?.save(folder.join("f"))?;
    // Functions for eight devices: one that the compiler partitions, and a `shard_map`.
    let mesh = make_mesh([("data", 4), ("model", 2)])?.auto();
    fn over(spec: PartitionSpec, mesh: &Mesh) -> NamedSharding {
        NamedSharding::new(mesh, spec)
    }
    let (y, w) = (random::normal(random::key(2), [8, 4]), random::normal(random::key(3), [4, 6]));
    let sharded =
        jit(|y: Array, w: Array| with_sharding_constraint(y.matmul(w), &over(P!["data", "model"], &mesh)).tanh())
            .in_shardings((over(P!["data"], &mesh), over(P![None, "model"], &mesh)));
    fn body(y: Array, w: Array) -> Array {
        psum(y.matmul(w).sin().sum(0), "data")
    }
    let mapped = shard_map(body, &mesh).in_specs((P!["data"], P![None, "model"])).out_specs(P!["model"]);
    let (of_sharded, of_mapped) = (sharded.call((&y, &w))?, mapped.call((&y, &w))?);
    let loss = |w: Array| Ok(mapped.call((&y, w))?.square().sum(..));
    let of_w = grad(loss).call(&w)?;
    ExportOptions::new().vjp_order(1).export(sharded, (&y, &w))?.save(folder.join("sharded"))?;
    ExportOptions::new().vjp_order(1).export(mapped, (&y, &w))?.save(folder.join("mapped"))?;
    // A function of any number of rows.
    fn open(x: Array, n: Array) -> (Array, Array) {
        (x.mean(0) * n, concatenate([&x, &x], 0).reshape([-1]))
    }
    let types = (shape_dtype_struct([2, 3], DType::F32), shape_dtype_struct([3], DType::I32));
    let options = ExportOptions::new().vjp_order(1).symbolic_args_specs(["b, _", "..."]);
    options.export(open, types)?.save(folder.join("open"))?;
    let arrays = [("x", &x), ("want", &want), ("slope", &slope), ("y", &y), ("w", &w), ("of_w", &of_w)];
    for (name, values) in arrays.into_iter().chain([("of_sharded", &of_sharded), ("of_mapped", &of_mapped)]) {
        std::fs::write(folder.join(name), values.to_bytes()?).unwrap();
    }
    let program = r#"
import os, sys; sys.path.insert(0, sys.argv[1])
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import exchange, jax, jax.numpy as jnp, numpy as np
f = jax.jit(exchange.load(sys.argv[2] + "/f"))
x, want, slope = (np.fromfile(f"{sys.argv[2]}/{name}", np.float32).reshape(4, 3) for name in ["x", "want", "slope"])
n = np.array([2, 3, 4], np.int32)
np.testing.assert_allclose(f(x, n)[0], want, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(jax.grad(lambda x: (f(x, n)[0] ** 2).sum())(x), slope, rtol=1e-5, atol=1e-6)
g = exchange.load(sys.argv[2] + "/open")
for rows in [1, 4, 700]:
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    mean, twice = jax.jit(g)(x, n)
    np.testing.assert_allclose(mean, x.mean(0) * n, rtol=1e-5)
    np.testing.assert_array_equal(twice, np.concatenate([x, x]).reshape(-1))
    slope = jax.grad(lambda x: g(x, n)[0].sum())(x)
    np.testing.assert_allclose(slope, np.broadcast_to(n / np.float32(rows), x.shape), rtol=1e-5)
for wrong in [(0, 3), (65537, 3), (4, 4), (4,)]:
    try:
        g(np.zeros(wrong, np.float32), n)
    except ValueError as error:
        assert "takes" in str(error)
    else:
        raise AssertionError(wrong)
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
over = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
read = lambda name, *shape: np.fromfile(f"{sys.argv[2]}/{name}", np.float32).reshape(shape)
y, w = jax.device_put(read("y", 8, 4), over("data")), jax.device_put(read("w", 4, 6), over(None, "model"))
for name, want in [("sharded", read("of_sharded", 8, 6)), ("mapped", read("of_mapped", 6))]:
    f = jax.jit(exchange.load(f"{sys.argv[2]}/{name}"))
    out = f(y, w)[0]
    assert len(out.sharding.device_set) == 8, out.sharding
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
slope = jax.jit(jax.grad(lambda w: (f(y, w)[0] ** 2).sum()))(w)
np.testing.assert_allclose(slope, read("of_w", 4, 6), rtol=1e-4, atol=1e-5)
"#;
    let python =
        std::env::var("SHARDAX_TEST_GOLDEN_PYTHON").expect("SHARDAX_TEST_GOLDEN_PYTHON names a Python that has JAX");
    let tools = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/export");
    let status = std::process::Command::new(python).args(["-c", program]).arg(tools).arg(&folder).status().unwrap();
    assert!(status.success());
    std::fs::remove_dir_all(&folder).unwrap();
    Ok(())
}

#[test]
#[ignore = "needs a Python that has JAX"]
fn attributes_of_vhlo_equal_mlir() {
    let python =
        std::env::var("SHARDAX_TEST_GOLDEN_PYTHON").expect("SHARDAX_TEST_GOLDEN_PYTHON names a Python that has JAX");
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/export/vhlo.py");
    let status = std::process::Command::new(python).arg(script).status().expect("Python starts");
    assert!(status.success(), "the table in src/export/jax/operation.rs differs");
}
