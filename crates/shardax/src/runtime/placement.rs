//! Deciding where a program runs: the devices and the sharding of each argument and result.

use smallvec::SmallVec;

use super::{Device, default_device};
use crate::array::Concrete;
use crate::error::{Result, err};
use crate::program::{Atom, Program};
use crate::sharding::{Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding};
use crate::spmd::shard_map::ShardMap;

/// Where a program runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Single(Device),
    Mesh(Mesh),
}

impl Place {
    pub fn devices(&self) -> &[Device] {
        match self {
            Place::Single(d) => std::slice::from_ref(d),
            Place::Mesh(m) => m.devices(),
        }
    }

    /// The sharding of a value that every device has whole.
    pub fn replicated(&self) -> Sharding {
        match self {
            Place::Single(d) => Sharding::Single(SingleDeviceSharding(d.clone())),
            Place::Mesh(m) => Sharding::Named(NamedSharding::new(m, PartitionSpec::default())),
        }
    }
}

/// How arguments are named in the error of arguments on different devices.
pub(crate) struct ArgNames<'a> {
    pub function: &'a str,
    pub name: &'a dyn Fn(usize) -> String,
}

/// Where `program` runs with these arguments: on the devices of those that are committed and of its `shard_map`s.
///
/// All must agree, order included; otherwise the error of JAX is returned, with both arguments.
pub(crate) fn place(program: &Program, args: &[std::sync::Arc<Concrete>], names: &ArgNames<'_>) -> Result<Place> {
    let mut found: Option<(Place, String)> = None;
    let mut meet = |place: Place, what: &dyn Fn() -> String| -> Result<()> {
        match &found {
            None => found = Some((place, what())),
            Some((first, first_what)) if first.devices() != place.devices() => {
                return Err(err!(
                    Value,
                    "Received incompatible devices for jitted computation. Got {first_what} and {}",
                    what()
                )
                .help("move one of them with `device_put(x, sharding)`, so that all lie on the same devices in the same order"));
            }
            Some(_) => {}
        }
        Ok(())
    };
    for (i, arg) in args.iter().enumerate() {
        if !arg.committed {
            continue;
        }
        let place = match &arg.sharding {
            Sharding::Single(s) => Place::Single(s.0.clone()),
            Sharding::Named(s) => Place::Mesh(s.mesh().clone()),
        };
        meet(place, &|| {
            let ids: Vec<_> = arg.sharding.devices().iter().map(Device::id).collect();
            format!(
                "argument {} of {} with shape {} and with device ids {ids:?} on platform {}",
                (names.name)(i),
                names.function,
                arg.aval,
                arg.sharding.devices()[0].platform().to_uppercase()
            )
        })?;
    }
    let mut result = Ok(());
    program.for_each_eqn(&mut |eqn| {
        if let Some(sm) = eqn.primitive.as_any().downcast_ref::<ShardMap>()
            && result.is_ok()
        {
            result = meet(Place::Mesh(sm.mesh.clone()), &|| {
                let ids: Vec<_> = sm.mesh.devices().iter().map(Device::id).collect();
                format!("shard_map inside jit with device ids {ids:?}")
            });
        }
    });
    result?;
    match found {
        Some((place, _)) => Ok(place),
        None => Ok(Place::Single(default_device()?.clone())),
    }
}

/// The sharding that each input should have where the caller leaves it open: what its first `shard_map` takes,
/// else whole on every device.
pub(crate) fn preferred_inputs(program: &Program, place: &Place) -> SmallVec<[Sharding; 8]> {
    program
        .inputs
        .iter()
        .map(|input| {
            program
                .eqns
                .iter()
                .find_map(|eqn| {
                    let sm = eqn.primitive.as_any().downcast_ref::<ShardMap>()?;
                    let at = eqn.inputs.iter().position(|a| *a == Atom::Var(*input))?;
                    Some(Sharding::Named(NamedSharding::new(&sm.mesh, sm.in_specs[at].clone())))
                })
                .unwrap_or_else(|| place.replicated())
        })
        .collect()
}

/// The shardings of outputs that are known before compilation: results of `shard_map`.
pub(crate) fn known_outputs(program: &Program) -> Vec<Option<NamedSharding>> {
    program
        .outputs
        .iter()
        .map(|output| {
            let Atom::Var(var) = output else { return None };
            program.eqns.iter().find_map(|eqn| {
                let sm = eqn.primitive.as_any().downcast_ref::<ShardMap>()?;
                let at = eqn.outputs.iter().position(|v| v == var)?;
                Some(NamedSharding::new(&sm.mesh, sm.out_specs[at].clone()))
            })
        })
        .collect()
}
