//! Collectives over one or more named axes, on arrays and trees. They fail if no enclosing `pmap`, `vmap` or
//! `shard_map` binds the name.

mod gathers;
mod permutations;
mod plain_numbers;
mod reductions;

pub use gathers::{
    all_gather, all_gather_invariant, all_gather_tiled, all_to_all, all_to_all_tiled, psum_scatter, psum_scatter_tiled,
};
pub use permutations::{SourceTarget, pbroadcast, ppermute, pshift, pshuffle, pswapaxes};
pub use reductions::{pmax, pmean, pmin, psum};

use crate::choice::IntoChoice;
use crate::core::array::{Array, Repr};
use crate::core::program::trace::{bind1, record_error};
use crate::core::tree;
use crate::core::tree::{IntoTree, Tree};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::ops::collective::axes::Axes;
use crate::ops::collective::permute::AxisIndex;
use crate::ops::collective::reduce::{CastTo, Pcast};
use crate::shape::IntoAxisNames;
use crate::sharding::{AxisType, axis_env};
use crate::source;

/// Applies a collective to every leaf. If it fails, the leaves carry the error.
#[track_caller]
fn on_leaves<T: Tree>(x: T, axis: impl IntoAxisNames, name: &str, f: impl Fn(&Array, &Axes) -> Result<Array>) -> T {
    let location = std::panic::Location::caller();
    let _line = source::enter_at(location);
    let groups = axis.groups();
    let axes = Axes::bound(&axis.into_axis_names(), name)
        .and_then(|axes| axes.with_groups(groups))
        // A cast moves no data, so `no_collectives` allows it.
        .and_then(|axes| if name == "pcast" { Ok(axes) } else { axes.allowed(name) })
        .map_err(|e| e.at(location));
    // A tree without arrays has no leaf to carry the error.
    let _ = axes.as_ref().inspect_err(|e| record_error(e));
    let with_numbers = axes.as_ref().ok().map(|axes| plain_numbers::with_numbers(x.clone(), name, axes));
    let x = match with_numbers {
        Some(Ok(x)) => x,
        Some(Err(e)) => {
            record_error(&e.at(location));
            x
        }
        None => x,
    };
    let unchanged = x.clone();
    tree::map(
        |leaf: Array| {
            let result = axes.clone().and_then(|axes| {
                leaf.check()?;
                f(&leaf, &axes)
            });
            Array::from_result(result.map_err(|e| e.at(location)), &leaf)
        },
        x,
    )
    .unwrap_or(unchanged)
}

/// Looks up axes that must not be split into groups.
fn ungrouped_axes(axis: impl IntoAxisNames, name: &str) -> Result<Axes> {
    let groups = axis.groups();
    let axes = Axes::bound(&axis.into_axis_names(), name)?.with_groups(groups)?;
    axes.no_groups(name)?;
    Ok(axes)
}

/// Returns `true` if tracing knows the value, so that all participants have the same value.
fn is_constant(x: &Array) -> bool {
    matches!(x.0, Repr::Literal(_) | Repr::Concrete(_))
}

/// Returns this participant's index along the axis, as int32. Over several axes the first is the major one; over none
/// the index is 0.
///
/// ```text
/// device        0   1   2
/// x            10  10  10
/// axis_index    0   1   2
/// sum          10  11  12
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| x + axis_index("i")).axis_name("i");
/// assert_eq!(f.call(array([10, 10, 10]))?.to_vec::<i32>()?, [10, 11, 12]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn axis_index(axis: impl IntoAxisNames) -> Array {
    let _line = source::enter();
    let zero = Array::literal(Scalar::Int(0), DType::I32, false);
    let index = ungrouped_axes(axis, "axis_index")
        .map(|axes| if axes.names.is_empty() { zero.clone() } else { bind1(AxisIndex { axes }, &[]) });
    Array::from_result(index, &zero)
}

/// Returns the number of participants of the axis.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| Ok(x * axis_size("i")?)).axis_name("i");
/// assert_eq!(f.call(array([1, 2, 3]))?.to_vec::<i32>()?, [3, 6, 9]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if no enclosing `vmap`, `pmap`, `shard_map` or mesh has an axis of this name.
#[track_caller]
pub fn axis_size(axis: impl IntoAxisNames) -> Result<usize> {
    ungrouped_axes(axis, "axis_size").map(|axes| axes.size).at_caller()
}

/// Casts a value that is equal on all participants to one that can vary over these axes. You need it for the initial
/// carry of a loop whose body makes the carry vary. The cast needs no communication.
///
/// The result carries an error if the value already varies over one of the axes.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 2)])?;
/// let _mesh = set_mesh(&mesh)?;
/// // A loop carry of zeros is equal on all devices, and its body makes it vary.
/// let f = shard_map(|x: Array| fori_loop(0, 3, move |_, sum: Array| sum + &x, pcast(zeros([2]), "i")), None);
/// assert_eq!(f.in_specs(P!["i"]).out_specs(P!["i"]).call(array([1.0f32; 4]))?.to_vec::<f32>()?, [3.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pcast<T: IntoTree>(x: T, axis: impl IntoAxisNames) -> T::Tree {
    pcast_to(x, axis, CastTo::Varying)
}

/// Casts a value to a state over these axes. A value that is equal on all participants becomes varying or reduced, a
/// reduced value becomes varying, and a varying value becomes unreduced (the addends of a sum). The cast needs no
/// communication.
///
/// To cast to unreduced or reduced, the axes must be of type [`Explicit`](crate::AxisType::Explicit) outside of the
/// `shard_map`, and the `shard_map` must be over all axes of its mesh. The cotangent of a reduced value is unreduced,
/// and the cotangent of an unreduced value is reduced.
///
/// Other casts fail.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// use shardax::lax::{CastTo, pcast_to};
/// let mesh = make_mesh([("x", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let f = shard_map(|x: Array| {
///     let sums = pcast_to(x.sum(0), "x", CastTo::Unreduced);
///     assert_eq!(sums.type_name(), "float32[4]{U:x}");
///     psum(sums, "x")
/// }, None);
/// let x = device_put(&ones([16, 4]), P!["x"])?;
/// assert_eq!(f.out_specs(P![]).call(x)?.to_vec::<f32>()?, [16.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pcast_to<T: IntoTree>(x: T, axis: impl IntoAxisNames, to: impl IntoChoice<CastTo>) -> T::Tree {
    let to = to.into_choice();
    on_leaves(x.into_tree(), axis, "pcast", |x, axes| {
        let to = to.value("pcast")?;
        axes.no_groups("pcast")?;
        if !axes.checked {
            return Ok(x.clone());
        }
        // The cast is one operation over all axes, so each of them must support it.
        let aval = x.aval();
        for name in axes.names.iter().copied() {
            let state = match aval.sharding() {
                _ if aval.vma.contains(name) => "varying",
                Some(typed) if typed.unreduced().contains(name) => "unreduced",
                Some(typed) if typed.reduced().contains(name) => "reduced",
                _ => "invarying",
            };
            let is_supported = matches!(
                (state, to),
                ("invarying", CastTo::Varying | CastTo::Reduced)
                    | ("reduced", CastTo::Varying)
                    | ("varying", CastTo::Unreduced)
            );
            if !is_supported {
                let to = format!("{to:?}").to_lowercase();
                let help = match state == to {
                    true => format!("leave the cast out: the value is {to} already"),
                    false if state == "unreduced" => "sum it with `psum`".to_owned(),
                    false => "a varying value becomes unreduced, and one that is equal on all participants varying or reduced".to_owned(),
                };
                return Err(err!(
                    Value,
                    "Unsupported pcast from={state}, to='{to}', over {name:?}, of a value of type {aval}"
                )
                .help(help));
            }
        }
        if to != CastTo::Varying {
            explicit_outside(axes)?;
        }
        Ok(Pcast { axes: axes.names.clone(), to }.apply(x))
    })
}

/// Returns an error if the types outside of the `shard_map` cannot record unreduced and reduced axes.
fn explicit_outside(axes: &Axes) -> Result<()> {
    let Some((mesh, manual)) = axis_env::manual() else { return Ok(()) };
    let explicit = axes.names.iter().all(|name| mesh.abstract_mesh().axis_type(*name) == Some(AxisType::Explicit));
    if explicit && mesh.axis_names().all(|name| manual.contains(name)) {
        return Ok(());
    }
    Err(err!(
        NotImplemented,
        "pcast to unreduced or reduced over {:?}: the axes must be of type Explicit outside of a shard_map over all axes of the mesh {mesh}",
        axes.names
    )
    .help("make the axes Explicit: `mesh.explicit()`, and leave axis_names out"))
}
