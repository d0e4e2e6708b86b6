//! Properties of random programs on random meshes: however an array is split and however the transformations nest, what
//! comes out is what one device computes. Seeded: every run sees the same programs.

use proptest::prelude::*;
// Not `shardax::prelude::any`, the reduction.
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::DimSpec;

use crate::common::quick::{one_of, setup};

/// Both dimensions of the matrix, and the weights'.
const SIZE: usize = 16;

/// One step of a program on a matrix, whose size it keeps.
#[derive(Clone, Copy, Debug)]
enum Step {
    Sin,
    Square,
    WithEarlier,
    /// Minus the mean along a dimension.
    Centre(usize),
    /// Minus the maximum along a dimension.
    Max(usize),
    /// Times the weights, where columns are gathered first.
    GatherColumns,
    /// Times the weights, where each device has a part of the sums.
    ScatterColumns,
    /// The split moves from the columns to the rows, and back.
    ThereAndBack,
    /// Each part of the rows from the neighbour before, in a ring, and back.
    AroundAndBack,
    /// Steps in a loop.
    Loop,
}

const STEPS: [Step; 12] = [
    Step::Sin,
    Step::Square,
    Step::WithEarlier,
    Step::Centre(0),
    Step::Centre(1),
    Step::Max(0),
    Step::Max(1),
    Step::GatherColumns,
    Step::ScatterColumns,
    Step::ThereAndBack,
    Step::AroundAndBack,
    Step::Loop,
];

/// The mesh axes that rows and columns are split over; none on one device.
type Split = [Vec<AxisName>; 2];

fn parts(axes: &[AxisName]) -> Result<usize> {
    axes.iter().map(|name| axis_size(*name)).product()
}

/// The part of the weights that belongs to this device's columns.
fn own(w: &Array, axes: &[AxisName], dim: i32) -> Result<Array> {
    let size = SIZE / parts(axes)?;
    Ok(if axes.is_empty() { w.clone() } else { lax::dynamic_slice_in_dim(w, axis_index(axes) * size, size, dim) })
}

fn apply(step: Step, split: &Split, x: &Array, earlier: &Array, w: &Array) -> Result<Array> {
    let columns = split[1].as_slice();
    // Without a split, a step is the plain operation; with one, it is the same computation on parts, with a
    // collective.
    Ok(match step {
        Step::Sin => (x * 1.3).sin(),
        Step::Square => x.square() * 0.5 + 0.1,
        Step::WithEarlier => x * 0.7 + earlier * x.cos(),
        Step::Centre(d) => {
            let sum = x.sum_keepdims(d as i32);
            x - if split[d].is_empty() { sum } else { psum(sum, split[d].as_slice()) } / SIZE as f32
        }
        Step::Max(d) => {
            let max = x.max_keepdims(d as i32);
            x - if split[d].is_empty() { max } else { pmax(max, split[d].as_slice()) }
        }
        Step::GatherColumns if columns.is_empty() => x.matmul(w),
        Step::GatherColumns => all_gather_tiled(x.clone(), columns, 1).matmul(own(w, columns, 1)?),
        Step::ScatterColumns if columns.is_empty() => x.matmul(w),
        Step::ScatterColumns => psum_scatter_tiled(x.matmul(own(w, columns, 0)?), columns, 1),
        Step::ThereAndBack => match columns {
            [axis] if x.shape()[0].is_multiple_of(axis_size(*axis)?) => {
                let rows = all_to_all_tiled(x.clone(), *axis, 0, 1);
                all_to_all_tiled(rows.tanh(), *axis, 1, 0)
            }
            _ => x.tanh(),
        },
        Step::AroundAndBack => match split[0].as_slice() {
            [axis] => {
                let n = axis_size(*axis)?;
                let forward: Vec<_> = (0..n).map(|i| (i, (i + 1) % n)).collect();
                let back: Vec<_> = forward.iter().map(|(i, j)| (*j, *i)).collect();
                ppermute(ppermute(x.clone(), *axis, forward).sin(), *axis, back)
            }
            _ => x.sin(),
        },
        Step::Loop => {
            let step = |x: Array| -> Result<(Array, ())> {
                Ok((apply(Step::Centre(1), split, &(x * 0.9), earlier, w)?.sin(), ()))
            };
            scan_n(step, x.clone(), 2)?.0
        }
    })
}

fn run(steps: &[Step], split: &Split, x: Array, w: Array) -> Result<Array> {
    let (mut now, mut earlier) = (x.clone(), x);
    for step in steps {
        let next = apply(*step, split, &now, &earlier, &w)?;
        earlier = std::mem::replace(&mut now, next);
    }
    Ok(now)
}

/// The transformation around the body of the `shard_map`, inside of it.
#[derive(Clone, Copy, Debug)]
enum Inside {
    Plain,
    Jit,
    Vmap,
    Checkpoint,
}

/// The transformation around the `shard_map`.
#[derive(Clone, Copy, Debug)]
enum Outside {
    Plain,
    Grad,
    GradOfGrad,
    Jvp,
    Vmap,
    VmapOfGrad,
}

#[derive(Clone, Debug)]
struct Nest {
    inside: Inside,
    outside: Outside,
    jit: bool,
    check_vma: bool,
}

/// Returns the body with the inner transformations.
fn body(steps: &[Step], split: &Split, inside: Inside, x: Array, w: Array) -> Result<Array> {
    let plain = |x: Array, w: Array| run(steps, split, x, w);
    match inside {
        Inside::Plain => plain(x, w),
        Inside::Jit => jit(plain).call((x, w)),
        Inside::Vmap => vmap(plain).in_axes((0, None)).call((stack(&[x.clone(), x * 0.5], 0), w)).map(|y| y.sum(0)),
        Inside::Checkpoint => checkpoint(plain).call((x, w)),
    }
}

/// Returns a function of the matrix and the weights with the outer transformations.
fn outside(nest: &Nest, f: impl Fn(Array, Array) -> Result<Array>, x: &Array, w: &Array) -> Result<Vec<Array>> {
    let total = |x: Array, w: Array| -> Result<Array> { Ok((f(x, w)? * 0.3).sin().sum(..)) };
    let gradients = |x: Array, w: Array| grad(total).argnums((Arg::<0>, Arg::<1>)).call((x, w));
    let curve = |x: Array, w: Array| -> Result<Array> {
        let (gx, gw) = gradients(x, w)?;
        Ok(gx.square().sum(..) + gw.square().sum(..))
    };
    fn two(x: &Array) -> Array {
        stack(&[x.clone(), x * 0.8], 0)
    }
    fn pair(g: (Array, Array)) -> Vec<Array> {
        vec![g.0, g.1]
    }
    // A macro, because the functions have different types.
    macro_rules! call {
        ($f:expr, $args:expr) => {
            if nest.jit { jit($f).call($args)? } else { Function::call(&$f, $args)? }
        };
    }
    Ok(match nest.outside {
        Outside::Plain => vec![call!(|x: Array, w: Array| f(x, w), (x, w))],
        Outside::Grad => pair(call!(|x: Array, w: Array| gradients(x, w), (x, w))),
        Outside::GradOfGrad => pair(call!(grad(curve).argnums((Arg::<0>, Arg::<1>)), (x, w))),
        Outside::Jvp => {
            let along = |x: Array, w: Array| jvp(|x: Array| f(x, w.clone()), &x, &x.cos());
            pair(call!(along, (x, w)))
        }
        Outside::Vmap => vec![call!(vmap(|x: Array, w: Array| f(x, w)).in_axes((0, None)), (two(x), w))],
        Outside::VmapOfGrad => pair(call!(vmap(gradients).in_axes((0, None)), (two(x), w))),
    })
}

fn meshes() -> impl Strategy<Value = Vec<usize>> {
    prop::sample::select(vec![vec![8], vec![4], vec![1], vec![2, 4], vec![4, 2], vec![2, 2], vec![2, 2, 2], vec![1, 8]])
}

fn nests() -> impl Strategy<Value = Nest> {
    let inside = prop::sample::select(vec![Inside::Plain, Inside::Jit, Inside::Vmap, Inside::Checkpoint]);
    let outside = prop::sample::select(vec![
        Outside::Plain,
        Outside::Grad,
        Outside::GradOfGrad,
        Outside::Jvp,
        Outside::Vmap,
        Outside::VmapOfGrad,
    ]);
    (inside, outside, any::<bool>(), any::<bool>()).prop_map(|(inside, outside, jit, check_vma)| Nest {
        inside,
        outside,
        jit,
        check_vma,
    })
}

fn close(got: &[Array], want: &[Array]) -> Result<(), TestCaseError> {
    for (got, want) in got.iter().zip(want) {
        let (got, want) = (got.to_f64_vec().map_err(fail)?, want.to_f64_vec().map_err(fail)?);
        let scale = want.iter().fold(1.0f64, |m, w| m.max(w.abs()));
        let far = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
        prop_assert!(got.len() == want.len() && far <= 2e-4 * scale, "off by {far} of {scale}");
    }
    Ok(())
}

fn fail(error: shardax::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// The number of programs: a third in a slice, more with `SHARDAX_TEST_PROPERTY_CASES`.
fn cases() -> u32 {
    let requested = std::env::var("SHARDAX_TEST_PROPERTY_CASES").ok();
    requested.and_then(|n| n.parse().ok()).unwrap_or(24 / one_of(3) as u32)
}

#[test]
fn sharded_and_nested_programs_equal_one_device() {
    setup();
    let steps = prop::collection::vec(prop::sample::select(&STEPS[..]), 1..5);
    // The dimension that each mesh axis splits: rows, columns, or none.
    let places = prop::array::uniform3(0..3usize);
    let config = Config { cases: cases(), failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let x = random::normal(&random::key(0), [SIZE, SIZE]);
    let w = random::normal(&random::key(1), [SIZE, SIZE]) * 0.25;
    let test = |(shape, places, steps, nest): (Vec<usize>, [usize; 3], Vec<Step>, Nest)| {
        let names: Vec<&str> = ["i", "j", "k"].into_iter().take(shape.len()).collect();
        let mesh = make_mesh(names.iter().copied().zip(shape)).map_err(fail)?;
        fn axes_of(dim: usize, names: &Vec<&str>, places: &[usize; 3]) -> Vec<AxisName> {
            names.iter().zip(*places).filter(|(_, place)| *place == dim).map(|(name, _)| AxisName::new(name)).collect()
        }
        let split = [axes_of(0, &names, &places), axes_of(1, &names, &places)];
        fn spec(split: &[Vec<AxisName>; 2]) -> PartitionSpec {
            PartitionSpec::new(split.iter().map(|axes| DimSpec::from_iter(axes.iter().copied())))
        }
        let sharded = shard_map(|x: Array, w: Array| body(&steps, &split, nest.inside, x, w), &mesh)
            .in_specs((spec(&split), P![]))
            .out_specs(spec(&split))
            .check_vma(nest.check_vma);
        let unsplit = |x: Array, w: Array| body(&steps, &Split::default(), nest.inside, x, w);
        let want = outside(&Nest { jit: true, ..nest.clone() }, unsplit, &x, &w).map_err(fail)?;
        let got = outside(&nest, |x, w| sharded.call((x, w)), &x, &w).map_err(fail)?;
        close(&got, &want)
    };
    let values = (meshes(), places, steps, nests());
    if let Err(failure) = TestRunner::new_with_rng(config, rng).run(&values, test) {
        panic!("{failure}");
    }
}
