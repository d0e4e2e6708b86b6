//! Exported functions over axes of type `Explicit`: their types keep shardings, in files of shardax and of JAX.

use shardax::export::{ExportOptions, Exported, export};
use shardax::lax::DotOptions;

use super::*;

fn f(x: Array, w: Array) -> (Array, Array) {
    (DotOptions::new().out_sharding(P!["x", None]).matmul(&x, &w).tanh(), (x * 2).sum(0))
}

type Pair = Exported<(Array, Array), (Array, Array)>;

fn arguments() -> (Array, Array) {
    (num(&[8, 4], 0.3, 0.0, P!["x", "y"]), num(&[4, 6], 0.2, 1.0, P!["y"]))
}

const TYPES: [&str; 4] = ["float32[8@x,4@y]", "float32[4@y,6]", "float32[8@x,6]", "float32[4@y]"];

fn avals<A, O>(of: &Exported<A, O>) -> Vec<String> {
    of.in_avals().chain(of.out_avals()).map(|(_, aval)| aval.to_string()).collect()
}

/// Checks a read function: types, values and gradients equal the results of `f`, for arguments of any sharding.
fn check(read: &Pair) -> Result<()> {
    assert_eq!(avals(read), TYPES);
    let (x, w) = arguments();
    let want = jit(f).call((&x, &w))?;
    let captured = read.clone();
    let typed_inside = jit(move |x: Array, w: Array| {
        let (y, z) = captured.call((x, w))?;
        assert_eq!([y.type_name(), z.type_name()], TYPES[2..]);
        Ok::<_, shardax::Error>((y, z))
    });
    let replicated = (reshard(x.clone(), P![]), reshard(w.clone(), P![None, "x"]));
    for args in [(x.clone(), w.clone()), replicated] {
        let (y, z) = typed_inside.call(args.clone())?;
        assert_eq!([typed(&y), typed(&z)], TYPES[2..]);
        same(&y, &host(&want.0));
        same(&z, &host(&want.1));
        let (y, _) = read.call(args)?;
        assert_eq!(typed(&y), TYPES[2]);
    }
    let slope = |f: &dyn Fn(Array, Array) -> Result<(Array, Array)>| {
        let loss = |x: Array, w: Array| -> Result<Array> {
            let (y, z) = f(x, w)?;
            Ok((&y * &y).sum(..) + z.sin().sum(..))
        };
        grad(loss).argnums((Arg::<0>, Arg::<1>)).call((&x, &w))
    };
    let (have, want_slope) = (slope(&|x, w| read.call((x, w)))?, slope(&|x, w| Ok(f(x, w)))?);
    assert_eq!([typed(&have.0), typed(&have.1)], TYPES[..2]);
    same(&have.0, &host(&want_slope.0));
    same(&have.1, &host(&want_slope.1));
    // Moved to another sharding, the operand gets its gradient there.
    let loss = |x: Array| -> Result<Array> { Ok(read.call((x, w.clone()))?.1.sin().sum(..)) };
    assert_eq!(typed(&grad(loss).call(reshard(x.clone(), P!["y"]))?), "float32[8@y,4]");
    Ok(())
}

#[test]
fn types_of_an_exported_function() -> Result<()> {
    let (_, _guard) = mesh(4);
    let exported = ExportOptions::new().vjp_order(1).export(f, arguments())?;
    check(&exported)?;
    let bytes = exported.serialize()?;
    let read = Pair::deserialize(&bytes)?;
    check(&read)?;
    assert_eq!(read.serialize()?, bytes);
    assert!(format!("{read:?}").contains("float32[8@x,4@y]"), "{read:?}");
    Ok(())
}

fn constant(n: usize, m: usize) -> Array {
    full([n, m], 0.5)
}

/// Without a context mesh the types of the results are over the mesh of the file; over an Auto mesh there are none.
#[test]
fn where_the_context_has_another_mesh() -> Result<()> {
    let bytes = {
        let (_, _guard) = mesh(4);
        export(f, arguments())?.serialize()?
    };
    let read = Pair::deserialize(&bytes)?;
    let (y, z) = read.call((constant(8, 4), constant(4, 6)))?;
    assert_eq!([typed(&y), typed(&z)], TYPES[2..]);
    same(&z, &[8.0; 4]);
    let auto = make_mesh([("a", 8)])?;
    let _guard = set_mesh(&auto)?;
    let inside = move |x: Array, w: Array| {
        let (y, z) = read.call((x, w))?;
        assert_eq!([y.type_name(), z.type_name()], ["float32[8,6]", "float32[4]"]);
        Ok::<_, shardax::Error>((y, z))
    };
    let (_, z) = jit(inside).call((constant(8, 4), constant(4, 6)))?;
    same(&z, &[8.0; 4]);
    Ok(())
}

#[test]
fn unreduced_results() -> Result<()> {
    let (_, _guard) = mesh(4);
    let (x, w) = (num(&[8, 4], 0.3, 0.0, P![None, "y"]), num(&[4, 6], 0.2, 1.0, P!["y"]));
    fn product(x: Array, w: Array) -> Array {
        DotOptions::new().out_sharding(P![].unreduced(["y"])).matmul(&x, &w)
    }
    let read = Exported::<(Array, Array), Array>::deserialize(&export(product, (&x, &w))?.serialize()?)?;
    assert_eq!(avals(&read)[2], "float32[8,6]{U:y}");
    let sum =
        jit(move |x: Array, w: Array| Ok::<_, shardax::Error>(reshard(read.call((x, w))?, P![]))).call((&x, &w))?;
    same(&sum, &host(&reshard(product(x, w), P![])));
    Ok(())
}

fn exported(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exported").join(name)
}

#[test]
fn functions_that_jax_exported() -> Result<()> {
    let (_, _guard) = mesh(4);
    let names = [
        "explicit.jax",
        "explicit.safetensors",
        "jax_0_11/explicit.jax",
        "jax_0_11/explicit.safetensors",
        "jax_0_12/explicit.jax",
        "jax_0_12/explicit.safetensors",
    ];
    for name in names.into_iter().step_by(common::quick::one_of(5)) {
        check(&Pair::load(exported(name))?).map_err(|e| e.context(name))?;
    }
    Ok(())
}

/// A file cannot say axes of types that there are not.
#[test]
fn damaged_types_of_axes() -> Result<()> {
    let (_, _guard) = mesh(4);
    let bytes = export(f, arguments())?.serialize()?;
    let position = bytes.windows(8).position(|part| part == b"Explicit").expect("its types");
    let mut damaged = bytes.clone();
    damaged[position] = b'X';
    assert!(Pair::deserialize(&damaged).unwrap_err().to_string().contains("not an exported function"));
    let file = std::fs::read(exported("explicit.jax")).expect("the artifact");
    for position in (0..file.len()).step_by(7 * common::quick::one_of(20)) {
        let mut damaged = file.clone();
        damaged[position] ^= 0x41;
        // An error or another function, never a panic.
        let _ = Pair::deserialize(&damaged).map(|read| avals(&read));
    }
    Ok(())
}
