//! Negative axes count from the end, in every public function that takes an axis: axis `k - rank` does what `k` does.

mod common;

use common::quick::{is_complete, setup};
use shardax::prelude::*;
use shardax::{ErrorKind, nn};

/// A function of one axis, of so many.
struct Row {
    name: String,
    /// The number of axes that it can be given.
    axes: i32,
    run: Box<dyn Fn(i32) -> Result<Vec<Array>>>,
}

struct Table(Vec<Row>);

impl Table {
    fn row<R: Tree>(&mut self, name: &str, axes: i32, run: impl Fn(i32) -> Result<R> + 'static) {
        let run = Box::new(move |axis| Ok(tree::leaves(&run(axis)?)));
        self.0.push(Row { name: name.to_owned(), axes, run });
    }

    fn array(&mut self, name: &str, axes: i32, run: impl Fn(i32) -> Array + 'static) {
        self.row(name, axes, move |axis| Ok(run(axis)));
    }
}

/// Numbers of no order, all different.
fn numbers() -> Array {
    (arange(0..24) * 7 % 24 - 9).reshape([2, 3, 4])
}

fn floats() -> Array {
    numbers().astype(DType::F32) / 8
}

fn ones_of_size_one() -> Array {
    ones([1, 1, 1])
}

macro_rules! methods {
    ($table:ident, $x:expr, $($name:ident)*) => {$(
        $table.array(concat!("Array::", stringify!($name)), 3, |a| $x.$name(a));
    )*};
}

macro_rules! functions {
    ($table:ident, $x:expr, $($name:ident)*) => {$(
        $table.array(stringify!($name), 3, |a| $name($x, a));
    )*};
}

fn reductions(t: &mut Table) {
    methods!(t, floats(), sum prod mean var std max min all any logsumexp sum_keepdims prod_keepdims mean_keepdims
        var_keepdims std_keepdims max_keepdims min_keepdims all_keepdims any_keepdims logsumexp_keepdims);
    methods!(t, floats(), argmax argmin sort argsort sort_descending argsort_descending cumsum cumprod cummax cummin);
    functions!(t, floats(), sum mean prod var std logsumexp argmax argmin sort argsort cumsum cumprod flip);
    t.array("Array::var_ddof", 3, |a| floats().var_ddof(a, 1));
    t.array("Array::std_ddof", 3, |a| floats().std_ddof(a, 1));
    t.array("sum: list", 3, |a| numbers().sum([a, if a.rem_euclid(3) == 0 { -1 } else { 0 }]));
    t.array("sum: slice", 3, |a| numbers().sum(&[a][..]));
    t.array("lax::cumsum", 3, |a| lax::CumulativeOptions::new().reverse(true).cumsum(&floats(), a));
    t.array("lax::cumprod", 3, |a| lax::cumprod(&floats(), a));
    t.array("lax::cummax", 3, |a| lax::CumulativeOptions::new().reverse(true).cummax(&floats(), a));
    t.array("lax::cummin", 3, |a| lax::cummin(&floats(), a));
    t.array("lax::cumlogsumexp", 3, |a| lax::cumlogsumexp(&floats(), a));
    t.row("lax::sort", 3, |a| lax::sort(&[numbers(), floats()], a, 1));
    t.row("associative_scan", 3, |a| {
        AssociativeScanOptions::new().reverse(true).axis(a).associative_scan(|x: Array, y: Array| x + y, numbers())
    });
    t.array("nn::softmax", 3, |a| nn::softmax(floats(), a));
    t.array("nn::log_softmax", 3, |a| nn::log_softmax(floats(), a));
    t.array("nn::glu", 2, |a| nn::glu(floats().reshape([4, 6]), a));
}

fn shapes(t: &mut Table) {
    t.array("Array::squeeze", 3, |a| ones_of_size_one().squeeze(a));
    t.array("Array::squeeze: list", 3, |a| ones([1, 1, 1]).squeeze([a, if a.rem_euclid(3) == 1 { -1 } else { 1 }]));
    t.array("Array::expand_dims", 4, |a| numbers().expand_dims(a));
    t.array("Array::flatten_from", 3, |a| numbers().flatten_from(a));
    t.array("Array::flip", 3, |a| numbers().flip(a));
    t.array("Array::roll", 3, |a| numbers().roll(1, a));
    t.array("roll", 3, |a| roll(numbers(), -1, a));
    // The other axes of a permutation follow from the first one, so that no axis occurs twice.
    t.array("Array::transpose", 3, |a| numbers().transpose(&[a, (a.rem_euclid(3) + 1) % 3, (a.rem_euclid(3) + 2) % 3]));
    t.array("Array::swapaxes: first", 3, |a| numbers().swapaxes(a, 1));
    t.array("Array::swapaxes: second", 3, |a| numbers().swapaxes(1, a));
    t.array("Array::moveaxis: from", 3, |a| numbers().moveaxis(a, 1));
    t.array("Array::moveaxis: to", 3, |a| numbers().moveaxis(0, a));
    t.row("Array::split", 3, |a| ones([2, 4, 6]).split(2, a));
    t.row("Array::split_at", 3, |a| numbers().split_at(&[1], a));
    t.array("concatenate", 3, |a| concatenate(&[numbers(), numbers() + 1], a));
    t.array("stack", 4, |a| stack(&[numbers(), numbers() + 1], a));
    t.array("repeat", 3, |a| repeat(&numbers(), 2, a));
    t.array("Array::diagonal: axis1", 3, |a| numbers().diagonal(0, a, if a.rem_euclid(3) == 2 { 0 } else { 2 }));
    t.array("Array::diagonal: axis2", 3, |a| numbers().diagonal(1, if a.rem_euclid(3) == 0 { 1 } else { 0 }, a));
    t.array("tensordot: left", 3, |a| tensordot(ones([4, 4, 4]), ones([4, 4]), ([a], [0])));
    t.array("tensordot: right", 3, |a| tensordot(ones([4, 4]), ones([4, 4, 4]), ([0], [a])));
    t.array("lax::slice_in_dim", 3, |a| lax::slice_in_dim(&numbers(), 1, 2, a));
    t.array("lax::concatenate", 3, |a| lax::concatenate(&[numbers(), numbers() + 1], a));
    t.array("lax::rev", 3, |a| lax::rev(&numbers(), &[a]));
    t.array("lax::broadcasted_iota", 3, |a| lax::broadcasted_iota(DType::I32, [2, 3, 4], a));
}

fn indexing(t: &mut Table) {
    t.array("Array::take", 3, |a| numbers().take([1, 0, 1], a));
    t.array("Array::take_mode", 3, |a| numbers().take_mode([1, 9], a, lax::GatherScatterMode::Clip));
    t.array("take", 3, |a| take(numbers(), 1, a));
    t.array("Array::take_along_axis", 3, |a| numbers().take_along_axis(&numbers().argsort(a), a));
    t.array("take_along_axis", 3, |a| take_along_axis(numbers(), &zeros([1, 1, 1]).astype(DType::I32), a));
    t.array("lax::dynamic_slice_in_dim", 3, |a| lax::dynamic_slice_in_dim(&numbers(), 1, 1, a));
    t.array("lax::dynamic_index_in_dim", 3, |a| lax::dynamic_index_in_dim(&numbers(), 1, a));
    fn update(a: i32) -> Array {
        numbers().take([0], a) * 0
    }
    t.array("lax::dynamic_update_slice_in_dim", 3, move |a| {
        lax::dynamic_update_slice_in_dim(&numbers(), &update(a), 1, a)
    });
    t.array("lax::dynamic_update_index_in_dim", 3, move |a| {
        lax::dynamic_update_index_in_dim(&numbers(), &update(a).squeeze(a), 1, a)
    });
}

fn randoms(t: &mut Table) {
    fn key() -> Array {
        random::key(7)
    }
    t.array("random::categorical", 3, move |a| random::categorical(&key(), &floats(), a));
    t.array("random::categorical_shape", 3, move |a| {
        let mut shape = vec![2, 3, 4];
        shape.remove(a.rem_euclid(3) as usize);
        random::categorical_shape(&key(), &floats(), a, Some(&shape))
    });
    t.array("random::permutation_axis", 3, move |a| {
        random::PermutationOptions::new().axis(a).permutation(&key(), &numbers())
    });
    t.array("random::permutation_axis: independent", 3, move |a| {
        random::PermutationOptions::new().axis(a).independent(true).permutation(key(), &numbers())
    });
    let init =
        |input, output| nn::initializers::he_normal().axes(input, output).init(&random::key(1), &[2, 3, 4], DType::F32);
    t.array("Initializer::axes: in", 3, move |a| init(a, if a.rem_euclid(3) == 0 { 1 } else { 0 }));
    t.array("Initializer::axes: out", 3, move |a| init(if a.rem_euclid(3) == 0 { 1 } else { 0 }, a));
}

/// 8 × 8 × 8, so that every axis can be split over eight devices.
fn cube() -> Array {
    (arange(0..512) * 7 % 512).reshape([8, 8, 8])
}

fn mapped(t: &mut Table) {
    t.row("vmap in_axes", 3, |a| vmap(|x: Array| x.sum(0)).in_axes(a).call(numbers()));
    t.row("vmap in_axes: tuple", 3, |a| {
        vmap(|(x, y): (Array, Array), z: Array| (x * z.sum(..), y))
            .in_axes(((a, None), -1))
            .call(((cube(), cube()), cube()))
    });
    t.row("vmap out_axes", 4, |a| vmap(|x: Array| x).in_axes(1).out_axes(a).call(ones([2, 3, 4, 5])));
    t.row("pmap in_axes", 3, |a| pmap(|x: Array| x.sum(0)).in_axes(a).call(cube()));
    t.row("pmap in_axes: tuple", 3, |a| {
        let f = pmap(|(x, y): (Array, Array), z: Array| x.sum(..) + y + z).in_axes(((a, 0), None));
        f.call(((cube(), cube()), 1))
    });
    t.row("pmap out_axes", 3, |a| pmap(|x: Array| x * 2).out_axes(a).call(cube()));
    t.row("pmap out_axes: tuple", 3, |a| pmap(|x: Array| (&x * 2, x)).out_axes((a, -1)).call(cube()));
    t.row("pmap in jit", 3, |a| {
        let f = pmap(|x: Array| x.sum(1)).in_axes(a).out_axes(-1);
        jit(move |x: Array| f.call(x)).call(cube())
    });
    t.row("smap in_axes", 3, |a| {
        // `smap` maps over an axis of the context mesh.
        let _mesh = set_mesh(&make_mesh([("i", 8)])?.auto());
        smap(|x: Array| psum(x.sum(..), "i").expand_dims(0), "i").in_axes(a).out_axes(None).call(cube())
    });
    t.row("smap out_axes", 3, |a| {
        let _mesh = set_mesh(&make_mesh([("i", 8)])?.auto());
        smap(|x: Array| x * 2, "i").in_axes(0).out_axes(a).call(cube())
    });
}

fn collectives(t: &mut Table) {
    type Collective = fn(Array, i32) -> Array;
    let collectives: [(&str, i32, Collective); 11] = [
        ("all_gather", 3, |x, a| all_gather(x, "i", a)),
        ("all_gather_tiled", 2, |x, a| all_gather_tiled(x, "i", a)),
        ("all_gather_invariant", 2, |x, a| all_gather_invariant(x, "i", a)),
        ("psum_scatter", 2, |x, a| psum_scatter(x, "i", a)),
        ("psum_scatter_tiled", 2, |x, a| psum_scatter_tiled(x, "i", a)),
        ("all_to_all: split", 2, |x, a| all_to_all(x, "i", a, 0)),
        ("all_to_all: concat", 2, |x, a| all_to_all(x, "i", 0, a)),
        ("all_to_all: concat behind", 2, |x, a| all_to_all(x, "i", 1, a)),
        ("all_to_all_tiled: split", 2, |x, a| all_to_all_tiled(x, "i", a, 0)),
        ("all_to_all_tiled: concat", 2, |x, a| all_to_all_tiled(x, "i", 0, a)),
        ("pswapaxes", 2, |x, a| pswapaxes(x, "i", a)),
    ];
    for (name, axes, f) in collectives {
        // The results differ from device to device, or not; none loses its place.
        t.row(&format!("{name} in pmap"), axes, move |a| pmap(move |x: Array| f(x, a)).axis_name("i").call(cube()));
        t.row(&format!("{name} in shard_map"), axes, move |a| {
            let mesh = make_mesh([("i", 8)])?.auto();
            let body = move |x: Array| f(x.squeeze(0), a).expand_dims(0);
            shard_map(body, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(false).call(cube())
        });
        if name != "all_gather_invariant" {
            t.row(&format!("{name} in vmap"), axes, move |a| vmap(move |x: Array| f(x, a)).axis_name("i").call(cube()));
        }
    }
}

fn table() -> Table {
    let mut t = Table(Vec::new());
    reductions(&mut t);
    shapes(&mut t);
    indexing(&mut t);
    randoms(&mut t);
    mapped(&mut t);
    collectives(&mut t);
    t
}

fn type_texts(list: &[(String, Vec<u8>)]) -> Vec<String> {
    list.iter().map(|x| x.0.clone()).collect::<Vec<_>>()
}

#[test]
fn negative_axes_count_from_the_end_everywhere() {
    setup();
    let mut wrong = Vec::new();
    for (number, Row { name, axes, run }) in table().0.into_iter().enumerate() {
        // Each function at one of its axes, or at all of them.
        let axes_to_compare = if is_complete() { 0..axes } else { number as i32 % axes..number as i32 % axes + 1 };
        for axis in axes_to_compare {
            let results_for = |axis: i32| -> Result<Vec<(String, Vec<u8>)>> {
                run(axis)?.iter().map(|x| Ok((x.type_name(), x.to_bytes()?))).collect()
            };
            match (results_for(axis), results_for(axis - axes)) {
                (Ok(a), Ok(b)) if a == b => {}
                (Ok(a), Ok(b)) => {
                    wrong.push(format!(
                        "{name}: {axis} gives {:?}, {} gives {:?}",
                        type_texts(&a),
                        axis - axes,
                        type_texts(&b)
                    ));
                }
                (a, b) => wrong.push(format!("{name}: {axis}, {}: {:?} {:?}", axis - axes, a.err(), b.err())),
            }
        }
        // Outside of what there is: an error, not another axis.
        for axis in [axes + 1, -axes - 1, i32::MAX, i32::MIN] {
            match run(axis).and_then(|leaves| leaves.iter().try_for_each(Array::check)) {
                Err(e) if matches!(e.kind(), ErrorKind::Index | ErrorKind::Value | ErrorKind::Type) => {}
                Err(e) => wrong.push(format!("{name}: {axis} fails with {e}")),
                Ok(()) => wrong.push(format!("{name}: {axis} does not fail")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
