//! Every rejection, as a snapshot (`tests/snapshots/explicit_rejected.txt`): the operands' types, the cause, the line, the fix.
//! The line of each is checked here and left out of the text.

use std::fmt::Write as _;
use std::panic::Location;

use shardax::lax::DotOptions;
use shardax::primitive::{Aval, Lowering, Primitive, Value, bind1};

use super::*;

/// The error of a program that must be rejected.
trait Rejected {
    fn message(self) -> Option<String>;
}

impl Rejected for Array {
    fn message(self) -> Option<String> {
        self.error().map(|e| e.to_string())
    }
}

impl<T> Rejected for Result<T> {
    fn message(self) -> Option<String> {
        self.err().map(|e| e.to_string())
    }
}

#[derive(Default)]
struct Rejections(String, Vec<String>);

impl Rejections {
    #[track_caller]
    fn row(&mut self, name: &str, rejected: impl Rejected) {
        let caller = Location::caller();
        let Some(text) = rejected.message() else {
            return self.1.push(format!("{name} is not rejected (line {})", caller.line()));
        };
        let line = format!("{}:{}:", caller.file(), caller.line());
        let column = text.split_once(&line).and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
        match column {
            Some(column) => {
                if !text.contains("\n  help: ") {
                    self.1.push(format!("{name}: no help in {text}"));
                }
                let text = text.replace(&format!("{line}{column}"), "rejected.rs");
                let _ = write!(self.0, "== {name}\n{text}\n\n");
            }
            None => self.1.push(format!("{name}: {line} is not in {text}")),
        }
    }
}

fn at(spec: PartitionSpec) -> Array {
    ramp(&[8, 8], spec)
}

fn u(axes: &[&'static str]) -> PartitionSpec {
    P![].unreduced(axes.iter().copied())
}

fn to(spec: PartitionSpec) -> DotOptions {
    DotOptions::new().out_sharding(spec)
}

/// A primitive without a sharding rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Twice;

impl Primitive for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn infer(&self, args: &[Aval]) -> Result<shardax::primitive::Avals> {
        Ok([args[0].clone()].into_iter().collect())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| Ok(vec![&args[0] * 2]))
    }
}

#[test]
fn every_rejection_has_types_line_and_fix() -> Result<()> {
    let mut t = Rejections::default();
    elementwise_and_products(&mut t);
    shapes(&mut t);
    meshes(&mut t)?;
    transforms(&mut t)?;
    modes(&mut t)?;
    assert!(t.1.is_empty(), "{}", t.1.join("\n\n"));
    common::snapshot::snapshot("explicit_rejected", &t.0);
    Ok(())
}

#[rustfmt::skip]
fn elementwise_and_products(t: &mut Rejections) {
    let (_, _mesh) = mesh(4);
    fn r(spec: PartitionSpec) -> Array {
        at(spec.reduced(["x"]))
    }
    t.row("1 two shardings of one dimension", at(P!["x", None]) * at(P!["y", None]));
    t.row("2 more axes of one dimension", at(P![("x", "y")]) * at(P!["x"]));
    t.row("3 one axis of two dimensions", at(P!["x", None]) * at(P![None, "x"]));
    t.row("4 an ambiguous product", at(P!["x", "y"]).matmul(at(P!["y", None])));
    t.row("5 an inconsistent contraction", at(P!["x", "y"]).matmul(at(P!["x", "y"])));
    t.row("6 batches of two shardings", ramp(&[8, 4, 4], P!["x"]).matmul(ramp(&[8, 4, 4], P!["y"])));
    t.row("7 a product split twice over an axis", at(P!["x", None]).matmul(at(P![None, "x"])));
    t.row("8 unreduced over more than the contraction", to(u(&["x", "y"])).matmul(at(P![None, "y"]), at(P!["y", None])));
    t.row("9 unreduced with one side whole", to(u(&["y"])).matmul(at(P![None, "y"]), at(P![])));
    t.row("10 a product of addends", at(u(&["x"])).matmul(at(P![])));
    t.row("11 addends over two axes", at(u(&["x"])) + at(u(&["y"])));
    t.row("12 addends and a value", at(u(&["x"])) + at(P![]));
    t.row("13 addends times a number", at(u(&["x"])) * 2.0);
    t.row("14 reduced times replicated", r(P![]) * at(P![]));
    t.row("14 reduced times split", r(P![]) * at(P!["x"]));
    t.row("15 cases of select", where_(at(P!["x"]).greater(0), at(P!["x"]), at(P![])));
    t.row("16 the predicate of select", where_(at(P!["y"]).greater(0), at(P!["x"]), at(P!["x"])));
    t.row("31 a convolution of split features", lax::conv(ramp(&[8, 4, 16], P![None, "y"]), ramp(&[2, 4, 3], P![]), &[1], lax::Padding::Same));
    t.row("32 a sum with addends over another axis", at(P!["x"]).sum(over(0).out_sharding(u(&["y"]))));
    t.row("57 a primitive without a rule", bind1(Twice, &[at(P!["x"])]));
}

#[rustfmt::skip]
fn shapes(t: &mut Rejections) {
    let (_, _mesh) = mesh(4);
    // Operations that would have to choose a sharding for the result ask for it instead.
    let x = at(P!["x", "y"]);
    let column = ramp(&[8], P!["x"]);
    t.row("17 concatenate", concatenate(&[at(P!["x"]), at(P![None, "y"])], 0));
    t.row("18 reshape", ramp(&[6, 8], P![None, "y"]).reshape([48]));
    t.row("19 a slice of a split dimension", x.get((.., 0..6)));
    t.row("20 parts of unequal size", jit(|x: Array| x.split_at(&[1], 0)).call(ramp(&[8], P!["x"])));
    t.row("21 pad", lax::pad(&column, &Array::from(0.0f32), &[(0, 3, 0)]));
    t.row("22 an entry of a split dimension", x.get(0));
    t.row("22 an entry at a traced position", jit(|x: Array, i: Array| x.get(&i)).call((&x, &array(1))));
    t.row("23 tile", tile(&x, &[1, 2]));
    t.row("24 unstack", ramp(&[2, 8], P!["x"]).unstack::<2>());
    t.row("25 sort", sort(&x, 0));
    t.row("26 top_k", lax::top_k(&x, 2).0);
    t.row("27 cumsum", x.cumsum(0));
    t.row("27 cumsum of a flat array", x.cumsum(..));
    t.row("28 dynamic_update_slice", lax::dynamic_update_slice(&column, &ramp(&[4], P!["y"]), &[Array::from(1)]));
    t.row("29 gather", ramp(&[16, 8], P![None, "y"]).get(&device_put(&array([[0, 1], [2, 3]]), P!["x"]).unwrap()));
    t.row("30 scatter", x.at(&array([1, 3])).add(1.0));
    t.row("33 qr", linalg::qr(&x).0);
    t.row("33 svd", linalg::svd(&x).1);
    t.row("33 det", linalg::det(&x));
    t.row("33 lu", lax::linalg::lu(&x).0);
    t.row("34 bincount", bincount_sharded(device_put(&array([1, 1, 0, 1]), P!["x"]).unwrap(), 2, P!["x"]));
    t.row("39 an axis that does not divide", reshard(ones([6, 4]), P!["y"]));
}

#[rustfmt::skip]
fn meshes(t: &mut Rejections) -> Result<()> {
    let types = [AxisType::Explicit; 2];
    let (_, guard) = mesh(4);
    let x = at(P!["x"]);
    let other_mesh = make_mesh([("a", 2), ("b", 4)])?.with_axis_types(types)?;
    t.row("36 out_sharding of another mesh", to(P![]).matmul(&x, out_of(&other_mesh)));
    t.row("36 out_sharding over another mesh", DotOptions::new().out_sharding(NamedSharding::new(&other_mesh, P![])).matmul(&x, &x));
    t.row("45 an axis both unreduced and reduced", reshard(x.clone(), u(&["x"]).reduced(["x"])));
    t.row("45 an unknown axis", reshard(x.clone(), u(&["z"])));
    t.row("45 an axis twice", reshard(x.clone(), P!["x"].unreduced(["x"])));
    t.row("46 a constraint is an assertion", with_sharding_constraint(x.clone(), P!["y"]));
    t.row("48 in_shardings of a committed argument", jit(|x: Array| x * 2).in_shardings(P!["y"]).call(&x));
    t.row("49 a compiled function", jit(|x: Array| x * 2).lower(&x)?.compile()?.call(&at(P!["y"])));
    t.row("50 an abstract mesh of another size", use_abstract_mesh(&AbstractMesh::new([("a", 4)]), || ()));
    drop(guard);
    t.row("38 a spec without a mesh", reshard(ones(8), P!["x"]));
    let _mesh = set_mesh(&other_mesh)?;
    t.row("35 an operand of another mesh", &x * 2);
    let mixed = make_mesh([("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit, AxisType::Auto])?;
    let _mesh = set_mesh(&mixed)?;
    t.row("37 an axis of type Auto", reshard(ones([8, 8]), P!["y"]));
    t.row("37 an axis of type Auto for a result", out_sharding(P!["y"], || zeros(8)));
    t.row("45 addends over an axis of type Auto", reshard(ones([8, 8]), u(&["y"])));
    Ok(())
}

fn out_of(mesh: &Mesh) -> Array {
    device_put(&ones([8, 8]), &NamedSharding::new(mesh, P!["a"])).unwrap()
}

#[rustfmt::skip]
fn transforms(t: &mut Rejections) -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = at(P!["x", "y"]);
    t.row("40 scan along a split dimension", shardax::scan(|c: Array, x: Array| Ok((c + x.sum(..), ())), Array::from(0.0f32), at(P!["x"])));
    t.row("41 mapped dimensions of two shardings", vmap(|a: Array, b: Array| a + b).call((at(P!["x"]), at(P!["y"]))));
    t.row("42 an axis that the mapped dimension has", vmap(|a: Array, b: Array| a + b).in_axes((0, None)).call((at(P!["x"]), ramp(&[8], P!["x"]))));
    t.row("43 spmd_axis_name", vmap(|a: Array| a).spmd_axis_name("y").call(&at(P!["x"])));
    t.row("47 a cotangent of another sharding", vjp(|x: Array| x.sin(), &x)?.1.call(&at(P!["y"])));
    let pulled = custom_vjp(|x: Array| x.sin()).defvjp(|x: Array| (x.sin(), ()), |(): (), ct: Array| (reshard(ct, P!["y", "x"]),));
    t.row("47 a rule's cotangent", grad(move |x: Array| pulled.call(x).map(|y| y.sum(..))).call(&x));
    t.row("47 a tangent of another sharding", jvp(|x: Array| x.sin(), &x, &at(P!["y"])));
    t.row("51 a carry of scan", shardax::scan_n(|x: Array| Ok((reshard(x, P!["y", "x"]), ())), x.clone(), 3));
    t.row("51 a carry of while", while_loop(|x: Array| x.sum(..).less(10), |x: Array| reshard(x, P!["y", "x"]), x.clone()));
    t.row("52 branches", cond(x.sum(..).greater(0), |x: Array| reshard(x, P!["y", "x"]), |x: Array| x, x.clone()));
    t.row("53 a collective outside of a map", psum(x.clone(), "x"));
    Ok(())
}

#[rustfmt::skip]
fn modes(t: &mut Rejections) -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, outer) = (at(P!["x", "y"]), at(P!["x", "y"]));
    t.row("37 an axis of type Manual", shard_map(|a: Array| a + out_sharding(P!["x"], || zeros([4, 2])), None).out_specs(P!["x", "y"]).call(&x));
    t.row("44 in_specs of another sharding", shard_map(|a: Array| a, None).in_specs(P!["y"]).out_specs(P!["y"]).call(&x));
    t.row("54 auto_axes inside of a map", shard_map(|a: Array| auto_axes(|a: Array| a * 2).out_sharding(P![]).call(a), None).out_specs(P!["x", "y"]).call(&x));
    t.row("55 a captured array in a map", shard_map(move |a: Array| a + &outer, None).out_specs(P!["x", "y"]).call(&x));
    t.row("56 addends and part of the axes", shard_map(|a: Array| a, None).axis_names("x").out_specs(P![]).call(&ramp(&[8], u(&["x"]))));
    t.row("56 addends out of part of the axes", shard_map(|a: Array| a.sum(0), None).axis_names("x").out_specs(u(&["x"])).call(&x));
    t.row("auto_axes without a sharding", auto_axes(|a: Array| a * 2).call(&x));
    t.row("addends read", at(u(&["x"])).to_vec::<f32>());
    Ok(())
}
