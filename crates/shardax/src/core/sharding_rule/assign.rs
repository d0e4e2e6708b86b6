//! Assigns shardings to the types of results, by the sharding rules of primitives.

use std::sync::Arc;

use super::ShardingRule;
use crate::core::primitive::{Avals, Primitive};
use crate::core::program::Aval;
use crate::error::{Result, err};
use crate::sharding::abstract_mesh::any_explicit;
use crate::sharding::{AbstractMesh, AxisType, Typed, context, no_collectives};

/// Assigns shardings to the types of the results of `primitive`.
pub(crate) fn assign(primitive: &dyn Primitive, args: &[Aval], outs: &mut Avals) -> Result<()> {
    if any_explicit() { assign_typed(primitive, args, outs) } else { Ok(()) }
}

/// Fails for operands on another mesh than the context mesh. It is checked first, because it explains later errors of
/// such operands.
pub(crate) fn check_context(name: &str, args: &[Aval]) -> Result<()> {
    match any_explicit().then(context::get_abstract_mesh).flatten() {
        Some(mesh) if !context::adopts() => check_mesh(name, args, &mesh, true),
        _ => Ok(()),
    }
}

/// Fails for operands on another mesh than `mesh`, which belongs to the context or to the first operand.
fn check_mesh(name: &str, args: &[Aval], mesh: &AbstractMesh, of_context: bool) -> Result<()> {
    // If all axes are manual, a replicated value is valid on any mesh.
    let manual = of_context && mesh.is_all(AxisType::Manual);
    let mut sharded = args.iter().filter_map(|a| Some((a, a.sharding()?)));
    let mismatch = sharded.find(|(_, t)| t.mesh() != mesh && !(manual && t.is_replicated()));
    let Some((other, typed)) = mismatch else { return Ok(()) };
    let (whose, help) = match of_context {
        true if manual => (
            "the context mesh",
            "pass it to the mapped function as an argument: what is captured keeps the mesh outside",
        ),
        true => ("the context mesh", "pass it as an argument, or move it with `reshard(x, spec)`"),
        false => ("that of another operand", "put the operands on one mesh, or set it with `set_mesh(&mesh)`"),
    };
    Err(err!(Value, "{name}: the mesh of an operand of type {other} is {}, which is not {whose}, {mesh}", typed.mesh())
        .help(help))
}

fn assign_typed(primitive: &dyn Primitive, args: &[Aval], outs: &mut Avals) -> Result<()> {
    let mut operands = args.iter().filter(|a| a.sharding.is_some());
    let first_operand = operands.next();
    let enters = primitive.enters_mesh();
    let requested_mesh = primitive.requested_sharding().map(Typed::mesh);
    if first_operand.is_none() && !context::is_explicit() && enters.is_none() && requested_mesh.is_none() {
        return Ok(());
    }
    // The mesh of the operation: the one that it enters, then the context mesh, then the mesh of an operand.
    let context = context::get_abstract_mesh();
    let operand_mesh = first_operand.and_then(Aval::sharding).map(Typed::mesh);
    let Some(mesh) = enters.as_ref().or(context.as_ref()).or(operand_mesh).or(requested_mesh).cloned() else {
        return Ok(());
    };
    if enters.is_none() && !context::adopts() {
        check_mesh(primitive.name(), args, &mesh, context.is_some())?;
    }
    let partial = args.iter().filter_map(Aval::sharding).any(Typed::is_partial);
    // If all axes are manual, types can only have unreduced and reduced axes.
    let manual = mesh.is_all(AxisType::Manual);
    if !mesh.has_explicit() && !(manual && (partial || enters.is_some())) {
        // Either the compiler chooses the shardings of the results, or each device has its own value.
        outs.iter_mut().for_each(|out| out.sharding = None);
        return Ok(());
    }
    let rule = ShardingRule { name: primitive.name(), mesh, args, outs };
    let mut shardings = primitive.sharding_rule(&rule)?;
    if partial && enters.is_none() {
        add_partial_axes(primitive, &rule, &mut shardings)?;
    }
    // Operations inside of a sub-program are checked separately.
    if !manual && primitive.programs().is_empty() {
        let operands = args.iter().filter_map(Aval::sharding);
        no_collectives::check_types(primitive.name(), operands, &shardings, primitive.name() == "reshard")?;
    }
    let operands = rule.types();
    let name = primitive.name();
    for (out, typed) in outs.iter_mut().zip(shardings) {
        if typed.rank() != out.rank() {
            return Err(err!(
                Type,
                "the sharding rule of '{name}' gave {} entries for a result of type {out}",
                typed.rank()
            )
            .help("return one entry for each dimension of a result from the sharding rule"));
        }
        let repeated = typed.repeats();
        out.sharding = (!manual || typed.is_partial()).then(|| Arc::new(typed));
        if repeated.is_some() {
            return Err(err!(
                Sharding,
                "{name} operation with inputs: {operands} produces an illegally sharded result: {out}"
            )
            .help("an axis can split one dimension: give an operand another sharding with `reshard(x, spec)`"));
        }
        if let Some(typed) = out.sharding() {
            typed.check_divides(&out.shape).map_err(|e| e.context(name))?;
        }
    }
    Ok(())
}

/// Adds the unreduced and reduced axes of operands to the shardings of the results.
fn add_partial_axes(primitive: &dyn Primitive, rule: &ShardingRule<'_>, shardings: &mut [Typed]) -> Result<()> {
    let kind = rule.kind_of_operands(|kind| primitive.keeps_unreduced(kind) || !primitive.programs().is_empty())?;
    let (unreduced, reduced) = primitive.partial_rule(rule)?;
    for typed in shardings {
        // A rule that got a sharding for the result has chosen its kind.
        let kind = if typed.unreduced().is_empty() { kind } else { typed.kind() };
        let (unreduced, reduced) = (typed.unreduced().union(&unreduced), typed.reduced().union(&reduced));
        *typed = typed.clone().with_kind(kind).with_partial(unreduced, reduced);
    }
    Ok(())
}

/// Returns `true` if values of these types are interchangeable: their shardings are equal, or one has none. If all axes
/// are manual, a type without a sharding is neither unreduced nor reduced.
pub(crate) fn agrees(a: &Aval, b: &Aval) -> bool {
    match (a.sharding(), b.sharding()) {
        (Some(a), Some(b)) => a == b,
        (Some(typed), None) | (None, Some(typed)) => !typed.mesh().is_all(AxisType::Manual),
        (None, None) => true,
    }
}
