//! The cases once more inside `jit` with operands that are split over meshes, so that the compiler partitions every
//! primitive, its gradient, its tangent and its batches. What comes out is what JAX has on one device.

use std::time::Instant;

use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::DimSpec;

use super::check::{Check, checks_of, run};
use super::quick::QUICK;
use super::read::{cases, golden_dir};
use super::{Case, Fun, Host};

/// Programs are partitioned for several devices each: fewer checks in one than where there is one device.
const CHUNK: usize = 32;

/// Mesh axes in the order of their names.
pub const MESHES: [&[(&str, usize)]; 3] = [&[("a", 2), ("b", 4)], &[("a", 2), ("b", 3)], &[("a", 8)]];

/// Ways to split the operands over a mesh: which dimension gets the first axis, whether operands differ in it, and
/// whether a dimension may get two.
pub const WAYS: [(usize, usize, bool); 3] = [(0, 0, false), (1, 1, false), (0, 1, true)];

type Family = (&'static str, fn(&Case) -> Option<Fun>);

/// Functions whose gradient does not grow with the cotangent, so that cotangents of other sizes have other answers; and
/// cases that differ from JAX only by their dtype, also on one device.
const LEFT_OUT: [&str; 2] = ["transform/custom_vjp_clip_gradient", "sort/argsort_f64"];

/// Compares one check in `every`, of these families, with what JAX has. `known` are beginnings of paths
/// `mesh/family/case/what` that are known to differ, each with the reason; one that passes fails.
pub fn check_split(families: &[Family], every: usize, known: &[(String, String)]) {
    let start = Instant::now();
    let of_these = |path: &str| families.iter().any(|(name, _)| path.split('/').nth(1) == Some(name));
    // A known difference that disappears must be removed from the list, so it fails too.
    let pending: Vec<_> = known.iter().filter(|(path, _)| of_these(path)).collect();
    let mut failures = Vec::new();
    let mut counts = Vec::new();
    let mut differ: Vec<String> = Vec::new();
    for (m, axes) in MESHES.iter().enumerate() {
        let mesh = make_mesh(axes.iter().copied()).expect("a mesh").auto();
        let label = axes.iter().map(|(_, n)| n.to_string()).collect::<Vec<_>>().join("x");
        let mut count = 0;
        for (name, function) in families {
            let cases = cases(&golden_dir().join(format!("{name}.safetensors")), name);
            let functions: Vec<_> = cases.iter().map(|case| (case, function(case))).collect();
            let mut split = Vec::new();
            let runnable = functions.iter().filter_map(|(case, f)| Some((*case, f.as_ref()?)));
            for (case, f) in runnable.filter(|(case, _)| !LEFT_OUT.contains(&case.path().as_str())) {
                let rows = axes.iter().map(|(_, n)| n).product();
                for (c, check) in checks_of(case, f).iter().enumerate() {
                    for (w, way) in WAYS.iter().enumerate() {
                        let path = format!("{label}/{} way {w}", check.path());
                        let chosen = (hash(&case.path()) + c * 5 + w * 3 + m).is_multiple_of(every);
                        if !chosen && !pending.iter().any(|(p, _)| path.starts_with(p.as_str())) {
                            continue;
                        }
                        for check in with_rows(check, rows) {
                            if let Some(inputs) = place(&check, &mesh, *way) {
                                split.push(Check { what: format!("{} way {w}", check.what), inputs, ..check });
                            }
                        }
                    }
                }
            }
            count += split.len();
            for chunk in split.chunks(CHUNK) {
                differ.extend(run(chunk, &QUICK).into_iter().map(|failure| format!("{label}/{failure}")));
            }
        }
        counts.push(format!("{count} over {label}"));
    }
    failures.extend(differ.iter().filter(|d| !pending.iter().any(|(p, _)| d.starts_with(p.as_str()))).cloned());
    for (path, why) in &pending {
        if !differ.iter().any(|d| d.starts_with(path.as_str())) {
            failures.push(format!("{path} is known to differ ({why}), but it passes, or there is none"));
        }
    }
    eprintln!(
        "split operands: {} checks, {} differ, {:.1} s",
        counts.join(", "),
        differ.len(),
        start.elapsed().as_secs_f64()
    );
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn hash(text: &str) -> usize {
    text.bytes().fold(7, |h: usize, b| h.wrapping_mul(31).wrapping_add(b as usize)) >> 3
}

/// The operands over the mesh; `None` where nothing can be split.
pub fn place(check: &Check, mesh: &Mesh, (first, turn, both): (usize, usize, bool)) -> Option<Vec<Array>> {
    let mut any = false;
    let placed = check.inputs.iter().enumerate().map(|(i, x)| {
        let rank = x.ndim();
        let mut dims: Vec<Vec<AxisName>> = vec![Vec::new(); rank];
        for (k, (name, size)) in mesh.axes().iter().enumerate() {
            let fits = (0..rank).map(|d| (d + first + i * turn + k) % rank).find(|&d| {
                let parts: usize = dims[d].iter().map(|n| axis(mesh, *n)).product();
                (both || dims[d].is_empty()) && x.shape()[d] > 0 && x.shape()[d].is_multiple_of(parts * size)
            });
            if let Some(d) = fits {
                dims[d].push(*name);
                any = true;
            }
        }
        let spec = PartitionSpec::new(dims.into_iter().map(DimSpec::from_iter));
        device_put(x, &NamedSharding::new(mesh, spec)).expect("an operand over the mesh")
    });
    let placed: Vec<Array> = placed.collect();
    any.then_some(placed)
}

fn axis(mesh: &Mesh, name: AxisName) -> usize {
    mesh.axes().iter().find(|(n, _)| *n == name).map_or(1, |(_, size)| *size)
}

/// The check, and one with a row for each device: a batch has its rows again and again, a gradient is taken of
/// cotangents of several sizes at once.
fn with_rows<'a>(check: &Check<'a>, rows: usize) -> Vec<Check<'a>> {
    let axes = &check.case.meta[format!("{}_in_axes", check.what)];
    if let Some(axes) = axes.as_array() {
        let inputs = check.inputs.iter().zip(axes).map(|(x, axis)| match axis.as_u64() {
            Some(axis) => repeat(&host(x), axis as usize, rows).array(),
            None => x.clone(),
        });
        let expected = check.wanted.iter().map(|(key, want)| (key.clone(), repeat(want, 0, rows)));
        return vec![Check { inputs: inputs.collect(), wanted: expected.collect(), ..check.clone() }];
    }
    if check.what != "vjp" {
        return vec![check.clone()];
    }
    let ins = check.case.count("ins");
    // At the largest numbers only the sign may change, or what comes between overflows.
    let sizes: [f64; 5] =
        if check.case.family == "edges" { [1.0, -1.0, -1.0, 1.0, -1.0] } else { [1.0, -2.0, 0.5, -1.0, 4.0] };
    let sizes: Vec<f64> = (0..rows).map(|r| sizes[r % 5]).collect();
    let inputs = check
        .inputs
        .iter()
        .enumerate()
        .map(|(i, x)| if i < ins { stacked(x, &vec![1.0; rows]) } else { stacked(x, &sizes) });
    let expected = check.wanted.iter().map(|(key, want)| (key.clone(), host(&stacked(&want.array(), &sizes))));
    let inner = check.run.clone();
    let batched = Check {
        case: check.case,
        what: "vjp rows".into(),
        inputs: inputs.collect(),
        wanted: expected.collect(),
        tol: check.tol,
        run: std::rc::Rc::new(move |xs| vmap(|xs: Vec<Array>| inner(&xs)).call(xs.to_vec())),
    };
    vec![check.clone(), batched]
}

fn host(x: &Array) -> Host {
    Host { dtype: x.dtype(), shape: x.shape().to_vec(), bytes: x.to_bytes().expect("an operand's bytes") }
}

/// The entries along an axis again and again, until there are this many.
fn repeat(x: &Host, axis: usize, rows: usize) -> Host {
    let inner = x.shape[axis + 1..].iter().product::<usize>() * x.dtype.byte_size();
    let mut shape = x.shape.clone();
    let outer: usize = shape[..axis].iter().product();
    let have = std::mem::replace(&mut shape[axis], rows);
    let mut bytes = Vec::new();
    for o in 0..outer {
        for r in 0..rows {
            let start = (o * have + r % have) * inner;
            bytes.extend_from_slice(&x.bytes[start..start + inner]);
        }
    }
    Host { dtype: x.dtype, shape, bytes }
}

/// A row for each factor: the values times it. Factors are powers of two, so that nothing is rounded.
fn stacked(x: &Array, factors: &[f64]) -> Array {
    let mut shape = vec![1; x.ndim() + 1];
    shape[0] = factors.len();
    if factors.iter().all(|f| *f == 1.0) {
        return x.expand_dims(0).broadcast_to([&[factors.len()], x.shape()].concat());
    }
    fn times(x: Array, shape: &[usize], factors: &[f64]) -> Array {
        x.expand_dims(0) * array(factors.to_vec()).astype(x.dtype()).reshape(shape)
    }
    if x.dtype().is_complex() {
        // A complex factor, though its imaginary part is 0, makes infinities NaN.
        shardax::numpy::complex(times(x.real(), &shape, factors), times(x.imag(), &shape, factors))
    } else {
        times(x.clone(), &shape, factors)
    }
}
