//! Mesh axes over which a part of a program must not communicate.

use super::axis_env::{self, AxisKind};
use super::{DimSpec, Typed};
use crate::error::{Result, err};
use crate::forbidden_axes::Forbidden;
use crate::local::Guard;
use crate::shape::{AxisName, IntoAxisNames};

/// Allows the collectives again when it is dropped; see [`no_collectives`].
#[must_use = "collectives are forbidden only while the guard lives"]
pub struct NoCollectivesGuard {
    _guard: Guard<Forbidden>,
}

/// Forbids communication over these mesh axes on this thread until the guard is dropped (JAX's context manager of this name).
///
/// Over axes of type [`Explicit`](crate::AxisType::Explicit), operations that lose an axis from the type of their
/// operands are errors, because the compiler would communicate. With [`unreduced`](crate::PartitionSpec::unreduced)
/// axes the addends stay on their devices instead. In a [`shard_map`](crate::shard_map), collectives over these axes
/// are errors. Axes of type `Auto` are not checked. An inner guard replaces the axes of the outer one.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 4)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let x = reshard(ones([8, 8]), P!["x"]);
/// let _local = shardax::no_collectives("x");
/// assert_eq!(x.sum(1).type_name(), "float32[8@x]");
/// let error = x.sum(0).check().unwrap_err().to_string();
/// assert!(error.contains("forbidden by `no_collectives`"), "{error}");
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn no_collectives(axes: impl IntoAxisNames) -> NoCollectivesGuard {
    NoCollectivesGuard { _guard: Forbidden::guard(axes.into_axis_names().into_vec()) }
}

const HELP: &str =
    "compute it where the axis may communicate, or keep the axis in the result's type: split or `unreduced`";

/// Fails for a collective over forbidden mesh axes. Axes of `vmap` do not communicate.
pub(crate) fn check_names(names: &[AxisName], operation: &str) -> Result<()> {
    for name in Forbidden::current().axes().iter().filter(|name| names.contains(name)) {
        let mapped = axis_env::lookup(*name, operation).is_ok_and(|axis| axis.kind == AxisKind::Mapped);
        if !mapped {
            return Err(err!(
                Sharding,
                "Collective across axis '{name}' is forbidden by `no_collectives`, but `{operation}` was called over it"
            )
            .help(HELP));
        }
    }
    Ok(())
}

/// Returns `true` if an axis splits a dimension in a type.
fn splits(typed: &Typed, axis: AxisName) -> bool {
    !dimensions(typed, axis).is_empty()
}

/// The dimensions that an axis splits in a type.
fn dimensions(typed: &Typed, axis: AxisName) -> Vec<usize> {
    (0..typed.rank()).filter(|&d| DimSpec::axes(&typed.dims()[d]).contains(&axis)).collect()
}

/// Fails for an operation if its types show that the compiler would communicate over a forbidden axis, because results
/// lose the axis, or because `resharded` values have it in another dimension.
pub(crate) fn check_types<'t>(
    operation: &str,
    operands: impl Iterator<Item = &'t Typed> + Clone,
    results: &[Typed],
    resharded: bool,
) -> Result<()> {
    for &axis in Forbidden::current().axes() {
        let kept_partial = results.iter().any(|typed| typed.unreduced().contains(axis));
        // The compiler has to communicate if a sum over an axis does not stay unreduced, or if a result loses the axis.
        let problem = if operands.clone().any(|typed| typed.unreduced().contains(axis)) && !kept_partial {
            format!("consumes unreduced axis '{axis}' without keeping it unreduced in the output")
        } else if operands.clone().any(|typed| splits(typed, axis))
            && !kept_partial
            && !results.iter().any(|typed| splits(typed, axis))
        {
            format!("loses sharding axis '{axis}' in the output without marking it unreduced")
        } else if resharded
            && let (Some(from), Some(to)) = (operands.clone().next(), results.first())
            && splits(from, axis)
            && splits(to, axis)
            && dimensions(from, axis) != dimensions(to, axis)
        {
            format!("changes the sharded dimension of axis '{axis}'")
        } else {
            continue;
        };
        return Err(err!(
            Sharding,
            "Collective across axis '{axis}' is forbidden by `no_collectives`, but `{operation}` {problem}"
        )
        .help(HELP));
    }
    Ok(())
}
