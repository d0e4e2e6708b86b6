//! Placement of programs: the devices, and the sharding of each argument and result.

use crate::core::lower::Platform;
use crate::core::program::{Aval, Eqn, Program};
use crate::error::{Result, err};
use crate::sharding::context::mesh_with_devices;
use crate::sharding::device::{Device, uncommitted_device};
use crate::sharding::{AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding};

/// The devices of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Single(Device),
    Mesh(Mesh),
}

impl Place {
    pub fn of(sharding: &Sharding) -> Place {
        match sharding {
            Sharding::Single(s) => Place::Single(s.device().clone()),
            Sharding::Named(s) => Place::Mesh(s.mesh().clone()),
        }
    }

    pub fn devices(&self) -> &[Device] {
        match self {
            Place::Single(d) => std::slice::from_ref(d),
            Place::Mesh(m) => m.devices(),
        }
    }

    /// Returns the platform of the devices.
    pub fn platform(&self) -> Platform {
        self.devices().first().map_or(Platform::Other, |device| Platform::named(device.platform()))
    }

    /// This sharding over the devices of the place, in their order.
    fn with_devices_of(&self, sharding: Sharding) -> Sharding {
        match (self, &sharding) {
            (Place::Mesh(mesh), Sharding::Named(named)) => named.on_devices_of(mesh).into(),
            _ => sharding,
        }
    }

    /// Returns the replicated sharding.
    pub fn replicated(&self) -> Sharding {
        match self {
            Place::Single(d) => Sharding::Single(SingleDeviceSharding::new(d.clone())),
            Place::Mesh(m) => Sharding::Named(NamedSharding::new(m, PartitionSpec::default())),
        }
    }
}

/// The placement of an argument before its program is placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Input {
    /// The sharding of its array, if it is committed.
    pub committed: Option<Sharding>,
    /// The sharding given to `jit`.
    pub requested: Option<Sharding>,
}

/// A program to be placed, with the requested shardings.
pub(crate) struct Placing<'a> {
    pub program: &'a Program,
    /// The function's name, for errors.
    pub function: &'a str,
    pub inputs: &'a [Input],
    /// The name of an input in errors: `argument[0].w`.
    pub input_name: &'a dyn Fn(usize) -> String,
    /// The requested sharding of each output; empty if there are none.
    pub outputs: &'a [Option<Sharding>],
    /// The name of an output in errors: `output[0]`.
    pub output_name: &'a dyn Fn(usize) -> String,
}

/// The devices of a program, and the shardings of its arguments and results.
pub(crate) struct Placed {
    pub place: Place,
    pub in_shardings: Vec<Sharding>,
    /// `None` leaves it to the compiler.
    pub out_shardings: Vec<Option<NamedSharding>>,
    /// `true` if results are committed.
    pub committed: bool,
}

impl Placing<'_> {
    /// Places the program: on the devices of the requested shardings, of committed arguments, and
    /// of primitives inside it that name devices. All must agree, including their order.
    pub fn place(&self) -> Result<Placed> {
        self.check_inputs()?;
        // Explicit requests decide first, then arguments, then the context mesh, then defaults.
        let mut agreed: Option<(Place, String)> = None;
        for (i, (input, aval)) in self.inputs.iter().zip(self.program.in_avals()).enumerate() {
            let Some(sharding) = input.requested.as_ref().or(input.committed.as_ref()) else { continue };
            agree(&mut agreed, Place::of(sharding), &|| {
                (format!("{} of {} with shape {aval} and", (self.input_name)(i), self.function), String::new())
            })?;
        }
        for sharding in self.outputs.iter().flatten() {
            agree(&mut agreed, Place::of(sharding), &|| ("explicit output sharding".to_owned(), String::new()))?;
        }
        let mut result = Ok(());
        self.program.for_each_distinct_eqn(&mut |eqn| {
            if result.is_err() {
                return;
            }
            if let Some(sharding) = eqn.primitive.placed_on() {
                result = agree(&mut agreed, Place::of(&sharding), &|| description(eqn));
            }
        });
        result?;
        if !matches!(agreed, Some((Place::Mesh(_), _)))
            && let Some(mesh) = self.mesh_of_types()?
        {
            agree(&mut agreed, Place::Mesh(mesh), &|| ("the context mesh".to_owned(), String::new()))?;
        }
        let committed = agreed.is_some();
        self.place_by_default(&mut agreed)?;
        let place = match agreed {
            Some((place, _)) => place,
            None => Place::Single(uncommitted_device()?),
        };
        let in_shardings = self
            .inputs
            .iter()
            .zip(&self.program.inputs)
            .zip(self.program.in_shardings())
            .map(|((input, var), needed)| {
                let fixed = input.requested.clone().or_else(|| input.committed.clone()).or_else(|| {
                    match (&place, self.program.aval_of(*var).sharding()) {
                        (Place::Mesh(mesh), Some(typed)) => {
                            Some(NamedSharding::new(&mesh.with_shape(typed.mesh()), typed.spec()).into())
                        }
                        _ => None,
                    }
                });
                let needed = needed.map(|sharding| place.with_devices_of(sharding));
                fixed.or(needed).unwrap_or_else(|| place.replicated())
            })
            .collect();
        let out_shardings = self.place_outputs(&place)?;
        Ok(Placed { place, in_shardings, out_shardings, committed })
    }

    /// Uses the default devices of equations if nothing names other devices. Fails if another place has a different
    /// number of devices.
    fn place_by_default(&self, found: &mut Option<(Place, String)>) -> Result<()> {
        let mut result = Ok(());
        self.program.for_each_distinct_eqn(&mut |eqn| {
            let Some(default) = eqn.primitive.placed_by_default().filter(|_| result.is_ok()) else { return };
            let is_enough = found.as_ref().is_some_and(|(place, _)| place.devices().len() == default.devices().len());
            if !is_enough {
                result = agree(found, Place::of(&default), &|| description(eqn));
            }
        });
        result
    }

    /// The mesh of a program whose types have shardings: the context mesh if it has devices, otherwise the types' mesh
    /// on the first devices.
    fn mesh_of_types(&self) -> Result<Option<Mesh>> {
        let mut types = self.program.avals.iter().filter_map(Aval::sharding);
        let Some(first) = types.next() else { return Ok(None) };
        match mesh_with_devices() {
            Some(mesh) => Ok(Some(mesh)),
            None => first.mesh().on_first_devices().map(Some),
        }
    }

    fn check_inputs(&self) -> Result<()> {
        for (i, (input, aval)) in self.inputs.iter().zip(self.program.in_avals()).enumerate() {
            let Some(requested) = &input.requested else { continue };
            let name = || format!("{} of {} with shape {aval}", (self.input_name)(i), self.function);
            requested.shard_shape(&aval.shape).map_err(|e| e.context(name()))?;
            requested.check_memory().map_err(|e| e.context(name()))?;
            if input.committed.is_none() && requested.unreduced().is_some() {
                return Err(err!(Value, "host data has no addends to be the unreduced {requested} of {}", name())
                    .help("move it there with `device_put(x, sharding)`, or use `reshard(x, spec)` in the function"));
            }
            if let Some(have) = &input.committed {
                check_split(have, requested, aval, &name)?;
            }
        }
        Ok(())
    }

    fn place_outputs(&self, place: &Place) -> Result<Vec<Option<NamedSharding>>> {
        let Place::Mesh(mesh) = place else { return Ok(vec![None; self.program.outputs.len()]) };
        let mut out = self.program.out_shardings();
        for sharding in out.iter_mut().flatten() {
            *sharding = sharding.on_devices_of(mesh);
        }
        for (out, aval) in out.iter_mut().zip(self.program.out_avals()) {
            let Some(typed) = aval.sharding().filter(|typed| !typed.mesh().axis_types().contains(&AxisType::Auto))
            else {
                continue;
            };
            *out = Some(NamedSharding::new(&mesh.with_shape(typed.mesh()), typed.spec()));
        }
        for (i, (given, aval)) in self.outputs.iter().zip(self.program.out_avals()).enumerate() {
            let Some(given) = given else { continue };
            let type_unreduced =
                aval.sharding().map(|typed| (typed.unreduced(), typed.kind())).filter(|(axes, _)| !axes.is_empty());
            if given.unreduced() != type_unreduced {
                return Err(err!(
                    Value,
                    "{} of {} with type {aval} cannot be given the sharding {given}: the sums over its unreduced axes differ",
                    (self.output_name)(i),
                    self.function
                )
                .help("use `reshard(x, spec)` in the function, which adds up or spreads the addends"));
            }
            given
                .shard_shape(&aval.shape)
                .and_then(|_| given.check_memory())
                .map_err(|e| e.context(format!("{} of {} with shape {aval}", (self.output_name)(i), self.function)))?;
            out[i] = Some(match given {
                Sharding::Named(named) => named.clone(),
                // A single device is equivalent to a mesh of this one device.
                Sharding::Single(_) => NamedSharding::new(mesh, PartitionSpec::default()).in_memory(given.kind()),
            });
        }
        Ok(out)
    }
}

/// Adds a place, which must agree with the earlier places; `what` describes it for errors.
fn agree(found: &mut Option<(Place, String)>, place: Place, what: &dyn Fn() -> (String, String)) -> Result<()> {
    match found {
        None => *found = Some((place.clone(), place_text(&place, what()))),
        Some((first, first_what)) if first.devices() != place.devices() => {
            return Err(err!(
                Value,
                "Received incompatible devices for jitted computation. Got {first_what} and {}",
                place_text(&place, what())
            )
            .help(
                "move one of them with `device_put(x, sharding)`, so that all are on the same devices in the same order",
            ));
        }
        // A mesh of one device has more information than the device, so the mesh replaces it.
        Some((first @ Place::Single(_), _)) => *first = place,
        Some(_) => {}
    }
    Ok(())
}

fn place_text(place: &Place, (what, source): (String, String)) -> String {
    let devices = place.devices();
    let ids: Vec<_> = devices.iter().map(Device::id).collect();
    let platform = devices.first().map(|d| d.platform().to_uppercase()).unwrap_or_default();
    format!("{what} with device ids {ids:?} on platform {platform}{source}")
}

/// Describes a primitive that names devices, and where it is in the source.
fn description(eqn: &Eqn) -> (String, String) {
    (format!("{} inside jit", eqn.primitive.name()), format!(" (at {})", eqn.source))
}

/// Fails if a committed array is split differently than requested, because it must not be moved silently. Arrays with
/// an equal split on other devices, or in another order, are copied.
pub(crate) fn check_split(have: &Sharding, want: &Sharding, aval: &Aval, name: &dyn Fn() -> String) -> Result<()> {
    if !have.is_same_memory(want) {
        let [want_kind, have_kind] = [want, have].map(|sharding| sharding.memory_kind().unwrap_or("the default"));
        return Err(err!(
            Value,
            "Memory kinds passed to jit does not match memory kind on the respective arg. Got jit memory kind: {want_kind}, arg memory kind: {have_kind} for {}",
            name()
        )
        .help("committed arrays are not moved silently: move it with `device_put(x, sharding)`, outside or inside of jit"));
    }
    if splits_alike(have, want, aval.rank()) {
        return Ok(());
    }
    Err(err!(
        Value,
        "Sharding passed to jit does not match the sharding on the respective arg. Got jit sharding: {want}, arg sharding: {have} for {}",
        name()
    )
    .help("committed arrays are not moved silently: move it with `device_put(x, sharding)`, or pass host data"))
}

/// Returns `true` if both shardings split an array of this rank into the same shards in the same order. The devices may
/// differ.
pub(crate) fn splits_alike(a: &Sharding, b: &Sharding, rank: usize) -> bool {
    if a.is_fully_replicated() && b.is_fully_replicated() {
        return true;
    }
    let count = a.devices().len();
    // A shape that every product of axis sizes divides, so that both shardings are possible.
    let shape = vec![count * count; rank];
    count == b.devices().len()
        && match (a.shard_shape(&shape), b.shard_shape(&shape)) {
            (Ok(x), Ok(y)) => x == y && (0..count).all(|i| a.index_at(i, &shape) == b.index_at(i, &shape)),
            _ => false,
        }
}
