//! Symbolic sizes of exported functions.

use shardax::export::{ExportOptions, Exported, export, symbolic_dim_bounds};
use shardax::nn;
use shardax::prelude::*;

use crate::common::quick::{one_of, setup};
use crate::same;

fn types(shape: &[usize]) -> Array {
    shape_dtype_struct(shape, DType::F32)
}

fn attention(x: &Array, w: &[Array; 3]) -> Array {
    let [q, k, v] = [0, 1, 2].map(|i| x.matmul(&w[i]));
    let scores = q.matmul(k.swapaxes(-1, -2)) / (q.shape()[2] as f32).sqrt();
    nn::softmax(scores, -1).matmul(v)
}

/// A layer over rows and positions: the program from the file is that for each size, and so is its gradient.
#[test]
fn export_open_sizes_equals_each_size() -> Result<()> {
    setup();
    let w = [0, 1, 2].map(|seed| random::normal(random::key(seed), [6, 6]));
    let bias = random::normal(random::key(3), [6]);
    let f = move |x: Array, scale: Array| {
        let (b, s) = (x.shape()[0], x.shape()[1]);
        let y = attention(&x, &w) * scale + &bias;
        let rows = nn::gelu(y.reshape([b * s, 6])).reshape([b, s, 6]);
        let padded = concatenate([&rows, &zeros([b, 1, 6])], 1);
        (padded.mean(1), rows.var(..), arange(0..b as i32))
    };
    let options = ExportOptions::new().vjp_order(1).symbolic_args_specs(["b, s, ...", "..."]);
    let bounded = options.symbolic_constraints(["s <= 300"]).export(&f, (types(&[1, 1, 6]), types(&[])))?;
    let text = format!("{bounded:?}");
    assert!(text.contains("argument[0]: float32[b,s,6]") && text.contains("result[0]: float32[b,6]"), "{text}");
    let bytes = bounded.serialize()?;
    type Read = Exported<(Array, Array), (Array, Array, Array)>;
    let read = Read::deserialize(&bytes)?;
    assert_eq!(read.serialize()?, bytes);
    assert_eq!(format!("{read:?}"), text);
    for (b, s) in [(1, 1), (3, 5), (2, 300)].into_iter().step_by(one_of(2)) {
        let x = random::normal(random::key(9), [b, s, 6]);
        let (want, got) = (jit(&f).call((&x, 0.5))?, read.call((&x, 0.5))?);
        assert!(allclose(&got.0, &want.0, 1e-5, 1e-6)? && allclose(&got.1, &want.1, 1e-5, 1e-6)?, "{b} {s}");
        same(&got.2, &want.2);
        fn slope(f: &dyn Fn(Array) -> Result<(Array, Array, Array)>, x: &Array) -> Result<Array> {
            let loss = |x: Array| f(x).map(|(mean, var, _)| mean.square().sum(..) + var);
            jit(grad(loss)).call(x)
        }
        let (want, got) = (slope(&|x| Ok(f(x, array(0.5f32))), &x), slope(&|x| read.call((x, 0.5)), &x));
        assert!(allclose(got?, want?, 1e-4, 1e-6)?, "{b} {s}");
    }
    // Rows of a batch, and within another function that is exported.
    let x = random::normal(random::key(9), [2, 3, 4, 6]);
    let rows = vmap(read.clone()).in_axes((0, None)).call((&x, 0.5))?;
    assert!(allclose(rows.0.get(1), read.call((x.get(1), 0.5))?.0, 1e-6, 1e-6)?);
    let again = export(move |x: Array| Ok(read.call((x * 2, 0.5))?.0), types(&[2, 3, 6]))?;
    assert_eq!(again.call(ones([2, 3, 6]))?.shape(), [2, 6]);
    Ok(())
}

/// Sums and products as sizes, structures, other dtypes, integers and a symbol in several arguments.
#[test]
fn sizes_are_sums_and_products_of_symbols() -> Result<()> {
    setup();
    fn f((x, y): (Array, Array), n: Array) -> (Array, Array) {
        (x.reshape([2, -1]).sum(0) + y.get(..-1), n.sum(..))
    }
    let specs = ["n + 1", "4*n"];
    fn args() -> ((Array, Array), Array) {
        ((types(&[6]), types(&[4])), shape_dtype_struct([4], DType::I32))
    }
    // The size of the first argument must determine `n`: these types require two different values of it.
    let mixed = ExportOptions::new().symbolic_args_specs(specs).export(f, args()).unwrap_err();
    assert!(mixed.to_string().contains("n = 2"), "{mixed}");
    fn g(x: Array, y: Array, n: Array) -> (Array, Array) {
        (x.reshape([2, -1]).sum(0) + y.get(..-1), n.sum(..))
    }
    let args = (types(&[6]), types(&[4]), shape_dtype_struct([4], DType::I32));
    let exported = ExportOptions::new().symbolic_args_specs(["2*n", "n + 1", "4*n"]).export(g, args)?;
    for n in [1usize, 5, 1000] {
        let [x, y] = [2 * n, n + 1].map(|size| random::normal(random::key(0), [size]));
        let ints = arange(0..4 * n as i32);
        let (want, got) = (g(x.clone(), y.clone(), ints.clone()), exported.call((x, y, ints))?);
        assert!(allclose(got.0, want.0, 1e-6, 1e-6)?);
        same(&got.1, &want.1);
    }
    let cube = ExportOptions::new().vjp_order(1).symbolic_args_specs(["a, b, c"]);
    let cube = cube.export(|x: Array| (x.mean(..), x.reshape([-1])), types(&[2, 2, 2]))?;
    let x = random::normal(random::key(0), [3, 4, 5]);
    let (mean, flat) = cube.call(&x)?;
    assert!(allclose(mean, x.mean(..), 1e-6, 1e-6)?);
    same(&flat, &x.reshape([60]));
    // The message states the value that the sizes imply, and the argument that contradicts it.
    let error = exported.call((types_of(7), types_of(5), zeros([12]).astype(DType::I32))).unwrap_err();
    assert!(error.to_string().contains("7 where the function was exported for 2*n"), "{error}");
    let error = exported.call((types_of(8), types_of(6), zeros([16]).astype(DType::I32))).unwrap_err();
    assert!(error.to_string().contains("n = 4") && error.to_string().contains("6 where"), "{error}");
    Ok(())
}

fn types_of(size: usize) -> Array {
    zeros([size])
}

/// Over the devices of a mesh, a size that they divide.
#[test]
fn open_sizes_over_devices() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 4)])?;
    let over = NamedSharding::new(&mesh, P!["data"]);
    let w = random::normal(random::key(1), [4, 3]);
    let f =
        move |x: Array| with_sharding_constraint(x.matmul(&w).tanh(), &NamedSharding::new(&mesh, P!["data"])).sum(0);
    let x = shape_dtype_struct_on([8, 4], DType::F32, &over);
    let exported = ExportOptions::new().symbolic_args_specs(["4*b, _"]).export(&f, x)?;
    for rows in [4, 64] {
        let x = device_put(&random::normal(random::key(2), [rows, 4]), &over)?;
        assert!(allclose(exported.call(&x)?, jit(&f).call(&x)?, 1e-5, 1e-6)?);
    }
    Ok(())
}

fn with_specs(spec: &str) -> ExportOptions {
    ExportOptions::new().symbolic_args_specs([spec])
}

/// The line and the text of the error of exporting a function for these sizes.
fn rejected(f: &dyn Fn(Array) -> Array, spec: &str) -> (Option<u32>, String) {
    let error = with_specs(spec).export(f, types(&[4, 4])).expect_err(spec);
    let text = error.to_string();
    assert!(text.contains("tests/export/sizes.rs") && text.contains("help:"), "{text}");
    (error.location().map(|at| at.line()), text)
}

/// Functions that are not one program of all sizes are rejected with the user's line, and so are sizes that nothing was
/// traced for.
#[test]
fn programs_that_are_not_of_all_sizes_are_rejected() -> Result<()> {
    setup();
    let first = line!() + 2;
    fn loops(x: Array) -> Array {
        (0..x.shape()[0]).fold(zeros([4]), |sum, i| sum + x.get(i))
    }
    let (line, text) = rejected(&loops, "b, _");
    assert!(line == Some(first) && text.contains("b = 2") && text.contains("b = 3"), "{line:?} {first} {text}");
    let first = line!() + 2;
    fn parity(x: Array) -> Array {
        if x.shape()[0].is_multiple_of(64) { x.sin() } else { x.cos() }
    }
    let (line, text) = rejected(&parity, "b, _");
    assert!(line == Some(first) && text.contains("cosine") && text.contains("b = 64"), "{line:?} {text}");
    fn limit(x: Array) -> Array {
        x.sum(0) * x.shape()[0].min(1000) as f32
    }
    assert!(rejected(&limit, "b, _").1.contains("b = 65535"));
    fn roots(x: Array) -> Array {
        x.sum(0) / (x.shape()[0] as f32).sqrt()
    }
    assert!(rejected(&roots, "b, _").1.contains("b = 2"));
    // Fails for some sizes.
    assert!(rejected(&|x: Array| x + ones([4, 4]), "b, _").1.contains("with b = 2"));
    // Of other types for 1.
    fn squeezed(x: Array) -> Array {
        if x.shape()[0] == 1 { x.squeeze(0) } else { x }
    }
    assert!(rejected(&squeezed, "b, _").1.contains("b = 1"));
    let table = ones([4]);
    let shifted = move |x: Array| x + &table;
    assert_eq!(with_specs("b, _").export(&shifted, types(&[1, 4]))?.call(ones([7, 4]))?.shape(), [7, 4]);
    for (specs, constraints, said) in [
        (vec!["b"], vec![], "has 1 sizes"),
        (vec!["b, _", "_"], vec![], "2 specs"),
        (vec!["b, 2.5"], vec![], "has the size"),
        (vec!["(b, _"], vec![], "has the size \"(b\""),
        (vec!["b, 3"], vec![], "has the size 3 for 4"),
        (vec!["-b, _"], vec![], "is negative"),
        (vec!["b, c/2"], vec![], "has the size"),
        (vec!["b*c, _"], vec![], "do not determine b and c"),
        (vec!["b, _"], vec!["b > 4"], "not a constraint"),
        (vec!["b, _"], vec!["c <= 4"], "not a constraint"),
        (vec!["b, _"], vec!["b <= 4"], "1 to 4"),
        (vec!["a*b*c*d*e, _"], vec![], "5 symbols"),
    ] {
        let with_specs = ExportOptions::new().symbolic_args_specs(specs).symbolic_constraints(constraints);
        let error = with_specs.export(|x: Array| x.sin(), types(&[4, 4])).unwrap_err();
        assert!(error.to_string().contains(said) && error.help_text().is_some(), "{said}: {error}");
    }
    let result =
        with_specs("b, _").symbolic_constraints(["b >= 2", "b <= 64"]).export(|x: Array| x.sin(), types(&[4, 4]))?;
    for (shape, said) in [
        (vec![1, 4], "b is 1"),
        (vec![65, 4], "b is 65"),
        (vec![0, 4], "b is 0"),
        (vec![4, 5], "float32[b,4]"),
        (vec![4], "float32[b,4]"),
    ] {
        let error = result.call(zeros(shape)).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
    Ok(())
}

/// The largest sizes are traced as types: a gradient at 2³² elements takes no memory for them.
#[test]
fn the_largest_open_sizes_take_no_memory() -> Result<()> {
    setup();
    let options = ExportOptions::new().vjp_order(1).symbolic_args_specs(["b, s"]);
    options.export(|x: Array| (x.mean(0), x.reshape([-1]).sin()), types(&[2, 2]))?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    assert!(peak.is_none_or(|kib: u64| kib < 6 << 20), "{peak:?} KiB");
    Ok(())
}

/// Files with changed sizes or texts are errors, because of their digest and because their contents are checked.
#[test]
fn damaged_files_of_open_sizes() -> Result<()> {
    setup();
    fn f(x: Array) -> Array {
        x.mean(0)
    }
    let bytes = ExportOptions::new().symbolic_args_specs(["b, _"]).export(f, types(&[4, 4]))?.serialize()?;
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        if let Ok(read) = Exported::<(Array,), Array>::deserialize(&changed) {
            assert!(read.call(ones([2, 4])).is_ok(), "byte {at}");
        }
    }
    Ok(())
}

/// Bounds that JAX 0.12's `symbolic_dim_bounds` returns for the same symbols.
#[test]
fn symbolic_dim_bounds_equal_jax() -> Result<()> {
    let constraints = ["b >= 2", "b <= 64", "s <= 10"];
    for (size, bounds) in [
        ("2*b + 1", (5, 129)),
        ("b*s - 3", (-1, 637)),
        ("s - b", (-63, 8)),
        ("b*b", (4, 4096)),
        ("-2*b*s + 5*b", (-1270, 316)),
    ] {
        let named: Vec<&str> = constraints.into_iter().filter(|text| size.contains(&text[..1])).collect();
        assert_eq!(symbolic_dim_bounds(size, named)?, bounds, "{size}");
    }
    assert_eq!(symbolic_dim_bounds("7", [""; 0])?, (7, 7));
    assert_eq!(symbolic_dim_bounds("b", [""; 0])?, (1, 65_536));
    let error = symbolic_dim_bounds("b/2", [""; 0]).unwrap_err().to_string();
    assert!(error.contains("\"b/2\" is not a size") && error.contains("sizes.rs"), "{error}");
    let error = symbolic_dim_bounds("b*b*b*b", ["b <= 9000000000000000000"]).unwrap_err().to_string();
    assert!(error.contains("beyond 64 bits"), "{error}");
    Ok(())
}
