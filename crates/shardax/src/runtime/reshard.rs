//! Moving arrays between shardings, including those over devices of several processes.

use crate::backend::options::Effort;
use crate::compiler_options::CompilerOptions;
use crate::core::array::transfer;
use crate::core::array::{Array, Buffers, Concrete};
use crate::core::program::{Atom, Program, Var};
use crate::error::{Result, err};
use crate::runtime::input_names::InputNames;
use crate::runtime::layouts;
use crate::runtime::load::Request;
use crate::runtime::placement::Place;
use crate::sharding::Sharding;
use crate::sharding::device::check_current;
use crate::sharding::distributed::processes;
use crate::sharding::layout::RequestedLayout;

/// Returns the buffers of the array with sharding `want`; buffers already in place are shared.
///
/// An array moves to devices of several processes if every process has the entire array. Otherwise a program that all
/// processes run moves it.
pub(crate) fn reshard(array: &Concrete, want: &Sharding) -> Result<Buffers> {
    array.check_alive()?;
    let have = &array.sharding;
    if have.unreduced() != want.unreduced() {
        return Err(err!(
            Value,
            "an array of type {} cannot be moved to {want}: the sums over its unreduced axes differ",
            array.aval
        )
        .help("use `reshard(x, spec)`, which sums or creates the addends"));
    }
    // From here on the cheapest way that applies is taken: within this process, without any copy, from host memory, and
    // last by a program of all processes.
    if have.layout().is_some() || want.layout().is_some() {
        return relaid(array, want);
    }
    if have.is_fully_addressable() && want.is_fully_addressable() {
        return transfer::reshard(array, want);
    }
    if have.is_equivalent_to(want, array.aval.rank()) {
        return Ok(array.buffers.clone());
    }
    want.shard_shape(&array.aval.shape)?;
    if transfer::is_here(array) {
        return transfer::buffers_from_host(&transfer::to_host(array)?, &array.aval, want);
    }
    let Some(named) = want.as_named().filter(|_| have.devices() == want.devices()) else {
        let [have_ids, want_ids] = [have, want].map(|s| s.devices().iter().map(|d| d.id()).collect::<Vec<_>>());
        return Err(err!(
            Value,
            "For a cross-host reshard, input and target sharding should have the same set of devices in the same order. Got an array of type {} on the devices {have_ids:?} and a target sharding on the devices {want_ids:?}",
            array.aval
        )
        .help("move it to a sharding over the same devices, or read it with `multihost::process_allgather_tiled` first"));
    };
    relocated(array, want, Place::Mesh(named.mesh().clone()))
}

/// Begins the copies to the host that [`reshard`] waits for, if any, so that the copies of several arrays run
/// concurrently.
pub(crate) fn begin(array: &Concrete, want: &Sharding) -> Result<()> {
    let have = &array.sharding;
    let is_plain = have.layout().is_none() && want.layout().is_none() && have.unreduced() == want.unreduced();
    if is_plain && have.is_fully_addressable() && want.is_fully_addressable() {
        transfer::begin_reshard(array, want)
    } else {
        Ok(())
    }
}

/// Like [`reshard`], if one of the two shardings has a layout other than the default.
fn relaid(array: &Concrete, want: &Sharding) -> Result<Buffers> {
    let have = &array.sharding;
    let rank = array.aval.rank();
    if have.layout() == want.layout() && have.is_equivalent_to(want, rank) {
        return Ok(array.buffers.clone());
    }
    layouts::check(want, &array.aval.shape)?;
    // The array moves to the default layout first, then to the target's devices, then to the target's layout.
    let with_sharding =
        |sharding: &Sharding, buffers| Concrete::new(array.aval.clone(), sharding.clone(), true, buffers);
    let default = have.in_layout(None);
    let target = want.in_layout(None);
    let is_gone = have.devices().first().is_some_and(|device| check_current(device).is_err());
    let moved = match have.layout() {
        // The client of these devices failed, so no program can run on them.
        Some(_) if is_gone && transfer::is_here(array) => {
            transfer::buffers_from_host(&transfer::to_host(array)?, &array.aval, &target)?
        }
        Some(_) => reshard(&with_sharding(&default, relocated(array, &default, place_of(have))?), &target)?,
        None => reshard(&with_sharding(&default, array.buffers.clone()), &target)?,
    };
    match want.layout() {
        Some(_) => relocated(&with_sharding(&target, moved), want, place_of(want)),
        None => Ok(moved),
    }
}

fn place_of(sharding: &Sharding) -> Place {
    match sharding {
        Sharding::Single(single) => Place::Single(single.device().clone()),
        Sharding::Named(named) => Place::Mesh(named.mesh().clone()),
    }
}

/// Copies the array's shards, with their layout.
pub(crate) fn copied(array: &Concrete) -> Result<Buffers> {
    let plain = reshard(array, &array.sharding.in_layout(None))?;
    let plain = Concrete::new(array.aval.clone(), array.sharding.in_layout(None), true, plain);
    reshard(&plain, &array.sharding)
}

/// Reshards by running a program that returns its argument.
fn relocated(array: &Concrete, want: &Sharding, place: Place) -> Result<Buffers> {
    let identity = Program {
        avals: vec![array.aval.clone()],
        inputs: vec![Var(0)],
        eqns: Vec::new(),
        outputs: vec![Atom::Var(Var(0))],
    };
    let request = Request {
        name: "reshard".to_owned(),
        program: identity,
        place,
        in_shardings: vec![array.sharding.clone()],
        out_shardings: vec![want.in_layout(None).as_named().cloned()],
        out_kinds: vec![want.kind()],
        auto_inputs: Vec::new(),
        out_layouts: want.layout().map(|known| Some(RequestedLayout::As(known))).into_iter().collect(),
        donated: vec![false],
        effort: Effort::Full,
        compiler_options: CompilerOptions::process_defaults(),
        input_names: InputNames::default(),
    };
    let outs: Vec<Array> = request.load_cached()?.run(&[array], true)?;
    let moved = outs.first().and_then(Array::concrete_ref).map(|c| c.buffers.clone());
    moved.ok_or_else(|| err!(Runtime, "internal error: a reshard has no result; please report this"))
}

/// Returns `true` if an array of this process only moves to devices of several processes.
pub(crate) fn spans(array: &Concrete, want: &Sharding) -> bool {
    !want.is_fully_addressable() && array.sharding.is_fully_addressable()
}

/// Fails if an argument of a compiled function cannot move to the function's sharding. An array of this process only
/// can move to devices of several processes only if each of them receives the entire array.
pub(crate) fn check_argument(array: &Concrete, want: &Sharding) -> Result<()> {
    if spans(array, want) && !want.is_fully_replicated() {
        return Err(err!(
            Value,
            "Passing non-trivial shardings for host local inputs is not allowed. Got an array of type {} at {}, for {want}",
            array.aval,
            array.sharding
        )
        .help("use the sharding P![] if all processes have the same value, or make it a global array with `make_array_from_process_local_data`, `make_array_from_callback` or `device_put`"));
    }
    Ok(())
}

/// Fails on all processes if a value for devices of several processes is not equal on each process. Also fails if the
/// user put the value on devices of this process.
pub(crate) fn check_same(array: &Concrete, want: &Sharding) -> Result<()> {
    if processes().is_none() || want.is_fully_addressable() || !array.sharding.is_fully_addressable() {
        return Ok(());
    }
    if array.committed {
        return Err(err!(
            Value,
            "device_put's second argument must be a Device or a Sharding which represents addressable devices, but got {want}: the array of type {} was put on devices of this process",
            array.aval
        )
        .help("make it a global array of which this is the process's part, with `make_array_from_process_local_data`; a value that is the same on all processes can be put where it was not placed before"));
    }
    transfer::check_same("device_put", &transfer::to_host(array)?, &array.aval.clone().strip_weak_type(), want)
}
