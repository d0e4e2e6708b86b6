//! The layouts in memory of a program's arguments and results: the layouts of the passed arrays, requested layouts, or
//! the compiler's choice.

use shardax_pjrt as pjrt;

use super::load::Request;
use super::multi_process;
use crate::core::array::Array;
use crate::core::lower::Platform;
use crate::core::lower::module::Layouts;
use crate::core::program::{Atom, Aval, Program};
use crate::core::sharding_like::RequestedSharding;
use crate::error::{Error, Result, err};
use crate::sharding::Sharding;
use crate::sharding::layout::{KnownLayout, Layout, RequestedLayout};
use crate::sharding::memory::MemoryKind;

/// Returns `true` if this is the default layout of the platform. On platforms other than CPU only the compiler knows
/// the default.
pub(crate) fn is_default(layout: &Layout, platform: Platform) -> bool {
    platform != Platform::Tpu && layout.is_row_major()
}

/// Returns `true` if the order and the tiles are equal. The dtype determines the size of elements, so it is not
/// compared.
fn same_layout(a: &Layout, b: &Layout) -> bool {
    a.major_to_minor() == b.major_to_minor() && a.tiling() == b.tiling()
}

/// Returns the sharding without its layout, if the layout is the default.
pub(crate) fn canonical(sharding: &Sharding) -> Sharding {
    let platform = sharding.devices().first().map_or(Platform::Other, |device| Platform::named(device.platform()));
    match sharding.layout() {
        Some(known) if is_default(known.get(), platform) => sharding.in_layout(None),
        _ => sharding.clone(),
    }
}

/// Fails for a layout that arrays of this shape cannot have on the devices of this sharding.
pub(crate) fn check(sharding: &Sharding, shape: &[usize]) -> Result<()> {
    let Some(known) = sharding.layout() else { return Ok(()) };
    known.get().check(shape)?;
    let devices = sharding.devices();
    let platform = devices.first().map_or(Platform::Other, |device| Platform::named(device.platform()));
    check_platform(known.get(), platform)?;
    check_memory(known.get(), sharding.kind(), platform)?;
    if sharding.is_fully_addressable() { Ok(()) } else { Err(over_processes(known.get())) }
}

/// The CPU plugin (xla-cpu-pjrt 0.0.1) copies to another memory as if the layout were row-major.
fn check_memory(layout: &dyn std::fmt::Display, kind: Option<MemoryKind>, platform: Platform) -> Result<()> {
    if platform == Platform::Cpu && !MemoryKind::is_default(kind) {
        Err(platform.lacks(
            &format!("a layout in other memory than the device's, {layout},"),
            "leave out the layout, or the memory kind",
        ))
    } else {
        Ok(())
    }
}

/// The requested layout of an argument or a result, if there is one.
fn layout_of(layouts: &[Option<RequestedLayout>], i: usize) -> Option<RequestedLayout> {
    layouts.get(i).copied().flatten()
}

/// The text of each requested layout in a program. Default layouts have none.
fn modes(requested: Vec<Option<RequestedLayout>>, platform: Platform) -> Vec<Option<String>> {
    let modes = requested.into_iter().map(|requested| match requested? {
        RequestedLayout::Auto => Some("auto".to_owned()),
        RequestedLayout::As(known) if is_default(known.get(), platform) => None,
        RequestedLayout::As(known) => Some(known.get().mode()),
    });
    modes.collect()
}

/// CPU memory is read in place, so tiled layouts are not supported.
fn check_platform(layout: &Layout, platform: Platform) -> Result<()> {
    if platform == Platform::Cpu && !layout.tiling().is_empty() {
        Err(platform.lacks(
            &format!("a layout with tiles, {layout},"),
            "leave the tiles out: `Layout::new(major_to_minor)`; programs for TPUs take them",
        ))
    } else {
        Ok(())
    }
}

fn over_processes(what: &dyn std::fmt::Display) -> Error {
    err!(NotImplemented, "layouts of arrays over devices of several processes are not supported. Got {what}")
        .help("pass only the sharding, without a layout")
}

/// The sharding that the program requires for an argument: the requested sharding, or the argument's current one if it
/// must stay. `name` is the argument's name in errors.
pub(super) fn input_sharding(
    leaf: &Array,
    requested: Option<RequestedLayout>,
    platform: Platform,
    name: &dyn Fn() -> String,
) -> Result<Option<RequestedLayout>> {
    // Fails for a committed array in another layout, because it must not be moved silently.
    let have = leaf.committed_sharding().and_then(Sharding::layout);
    let Some(requested) = requested else { return Ok(have.map(RequestedLayout::As)) };
    if let RequestedLayout::As(known) = requested {
        known.get().check(leaf.shape()).map_err(|e| {
            e.context(format!(
                "One of jit arguments, {}, is incompatible with its layout annotation {}",
                name(),
                known.get()
            ))
        })?;
    }
    let passed = match leaf.concrete_ref().filter(|c| c.committed) {
        Some(c) => c.layout()?,
        None => have.map(|known| known.get().clone()),
    };
    if let Some(passed) =
        passed.filter(|passed| !matches!(requested, RequestedLayout::As(known) if same_layout(known.get(), passed)))
    {
        let (text, help) = match requested {
            RequestedLayout::Auto => (
                "AUTO".to_owned(),
                "the layout of a committed array is fixed; pass a `shape_dtype_struct` to `lower`, compile, and move the array with `device_put(x, format)` to the format that `input_formats` returns",
            ),
            RequestedLayout::As(known) => (
                known.get().to_string(),
                "committed arrays are not moved silently; move the array with `device_put(x, format)`",
            ),
        };
        return Err(err!(
            Value,
            "Layout passed to jit does not match the layout on the respective arg. Got jit layout: {text}, arg layout: {passed} for {} of type {}",
            name(),
            leaf.aval()
        )
        .help(help));
    }
    Ok(Some(requested)
        .filter(|requested| !matches!(requested, RequestedLayout::As(known) if is_default(known.get(), platform))))
}

/// The requested layout of each result of a program; empty if there are none. `name` names a result in errors.
pub(super) fn requested_results(
    requested: &[RequestedSharding],
    avals: &[Aval],
    platform: Platform,
    name: &dyn Fn(usize) -> String,
) -> Result<Vec<Option<RequestedLayout>>> {
    if requested.iter().all(|requested| requested.layout.is_none()) {
        return Ok(Vec::new());
    }
    let layouts = requested.iter().zip(avals).enumerate().map(|(i, (requested, aval))| match requested.layout {
        Some(RequestedLayout::As(known)) => {
            known.get().check(&aval.shape).map_err(|e| {
                e.context(format!(
                    "One of jit outputs, {}, is incompatible with its layout annotation {}",
                    name(i),
                    known.get()
                ))
            })?;
            Ok(requested.layout.filter(|_| !is_default(known.get(), platform)))
        }
        other => Ok(other),
    });
    layouts.collect()
}

/// The layout of an argument or a result of a compiled program.
pub(super) fn layout_at(layouts: Option<&[pjrt::Layout]>, at: usize) -> Option<Layout> {
    layouts?.get(at).map(Layout::from_pjrt)
}

impl Request {
    /// The requested layout of each argument; empty if there are none.
    fn requested_inputs(&self) -> Vec<Option<RequestedLayout>> {
        list((0..self.in_shardings.len()).map(|i| match self.auto_inputs.binary_search(&i) {
            Ok(_) => Some(RequestedLayout::Auto),
            Err(_) => self.in_shardings[i].layout().map(RequestedLayout::As),
        }))
    }

    /// The requested layout of each result, empty if there are none. A layout that a constraint requests is left to the
    /// compiler, which follows the constraint.
    fn requested_outputs(&self) -> Vec<Option<RequestedLayout>> {
        let constrained = constrained_results(&self.program);
        if constrained.is_empty() {
            return list((0..self.program.outputs.len()).map(|i| self.out_layouts.get(i).copied().flatten()));
        }
        list(constrained.into_iter().enumerate().map(|(i, constrained)| {
            if constrained { Some(RequestedLayout::Auto) } else { self.out_layouts.get(i).copied().flatten() }
        }))
    }

    /// Returns the layouts in the program's text.
    pub fn layouts(&self, platform: Platform) -> Layouts {
        Layouts { inputs: modes(self.requested_inputs(), platform), outputs: modes(self.requested_outputs(), platform) }
    }

    /// Checks the layouts of arguments and results.
    ///
    /// # Errors
    /// Returns an error for layouts that its devices do not support.
    pub fn check_layouts(&self) -> Result<()> {
        let (inputs, outputs) = (self.requested_inputs(), self.requested_outputs());
        let in_kinds = (0..inputs.len()).map(|i| self.in_shardings[i].kind());
        let out_kinds = (0..outputs.len()).map(|i| self.requested_kind(i));
        let kinds = in_kinds.chain(out_kinds);
        for (requested, kind) in inputs.iter().chain(&outputs).zip(kinds) {
            let Some(requested) = requested else { continue };
            match requested {
                RequestedLayout::Auto => check_memory(&"`Layout::AUTO`", kind, self.place.platform())?,
                RequestedLayout::As(known) => {
                    check_platform(known.get(), self.place.platform())?;
                    check_memory(known.get(), kind, self.place.platform())?;
                }
            }
            if multi_process::processes_of(self.place.devices()).is_some() {
                return Err(over_processes(&self.name));
            }
        }
        Ok(())
    }

    /// Returns a predicate that is `true` if an argument and a result have the same layout, so that the result can
    /// reuse the argument's memory.
    pub fn same_layouts(&self) -> impl Fn(usize, usize) -> bool + use<> {
        let (inputs, outputs) = (self.requested_inputs(), self.requested_outputs());
        move |input, output| inputs.get(input).copied().flatten() == outputs.get(output).copied().flatten()
    }

    /// Checks the layouts of donated arguments and of the results that reuse their memory.
    ///
    /// # Errors
    /// Returns an error if the compiler chooses the layout of a donated argument but not of the result that would reuse
    /// its memory, or vice versa.
    pub fn check_donated_layouts(&self) -> Result<()> {
        let (inputs, outputs) = (self.requested_inputs(), self.requested_outputs());
        if inputs.is_empty() && outputs.is_empty() {
            return Ok(());
        }
        let outs = self.program.out_avals();
        for (i, aval) in self.program.in_avals().enumerate().filter(|(i, _)| self.donated[*i]) {
            let in_layout = layout_of(&inputs, i);
            let mut candidates =
                (0..outs.len()).filter(|&o| (outs[o].dtype, &outs[o].shape) == (aval.dtype, &aval.shape));
            // A result with an equal layout can reuse the memory.
            if candidates.clone().any(|o| layout_of(&outputs, o) == in_layout) {
                continue;
            }
            let is_auto = in_layout == Some(RequestedLayout::Auto);
            // `out_layouts` has only the user's requests, without the constraints inside the program.
            let mismatch =
                candidates.find(|&o| is_auto != (layout_of(&self.out_layouts, o) == Some(RequestedLayout::Auto)));
            if let Some(o) = mismatch {
                let to_change = if is_auto { "output" } else { "input" };
                return Err(err!(
                    Value,
                    "Input layout being donated was {} while output layout was {}. Did you mean to set the {to_change} layout to AUTO?",
                    layout_text(in_layout),
                    layout_text(layout_of(&self.out_layouts, o))
                )
                .help(format!("with `Layout::AUTO` for both, the compiler chooses one layout, so that the result, of type {aval}, can reuse the memory of the argument")));
            }
        }
        Ok(())
    }

    /// Returns the shardings of its arguments, with the layouts that the compiler chose.
    pub fn canonical_inputs(&self, executable: &pjrt::CompiledProgram) -> Result<Vec<Sharding>> {
        let requested = self.requested_inputs();
        self.in_shardings
            .iter()
            .enumerate()
            .map(|(i, sharding)| {
                let requested = requested.get(i).copied().flatten();
                Ok(sharding.in_layout(self.chosen(requested, executable.parameter_layouts(), i)?))
            })
            .collect()
    }

    /// Returns the shardings of results, with the layouts of the compiled program.
    pub fn with_layouts(
        &self,
        shardings: Vec<Option<Sharding>>,
        executable: &pjrt::CompiledProgram,
    ) -> Result<Vec<Option<Sharding>>> {
        let requested = self.requested_outputs();
        if requested.is_empty() {
            return Ok(shardings);
        }
        shardings
            .into_iter()
            .enumerate()
            .map(|(i, sharding)| {
                let layout = self.chosen(requested.get(i).copied().flatten(), executable.output_layouts(), i)?;
                Ok(sharding.map(|sharding| sharding.in_layout(layout)))
            })
            .collect()
    }

    /// The layout in the compiled program; `None` for the default.
    fn chosen(
        &self,
        requested: Option<RequestedLayout>,
        layouts: Option<&[pjrt::Layout]>,
        at: usize,
    ) -> Result<Option<KnownLayout>> {
        let Some(requested) = requested else { return Ok(None) };
        let layout = match (requested, layout_at(layouts, at)) {
            (RequestedLayout::As(known), Some(actual)) if !same_layout(known.get(), &actual) => {
                KnownLayout::new(&actual)
            }
            (RequestedLayout::As(known), _) => known,
            (RequestedLayout::Auto, Some(actual)) => KnownLayout::new(&actual),
            (RequestedLayout::Auto, None) => {
                return Err(self.place.platform().lacks(
                    "a layout of the compiler's choice (`Layout::AUTO`)",
                    "request a specific layout, because the plugin does not report the layouts that it chose",
                ));
            }
        };
        Ok(Some(layout).filter(|known| !is_default(known.get(), self.place.platform())))
    }
}

/// A requested layout as JAX's messages show it.
fn layout_text(requested: Option<RequestedLayout>) -> String {
    match requested {
        None => "None".to_owned(),
        Some(RequestedLayout::Auto) => "AUTO".to_owned(),
        Some(RequestedLayout::As(known)) => known.get().to_string(),
    }
}

/// Collects the list, or an empty list if there are no requests.
fn list(requests: impl Iterator<Item = Option<RequestedLayout>> + Clone) -> Vec<Option<RequestedLayout>> {
    if requests.clone().any(|requests| requests.is_some()) { requests.collect() } else { Vec::new() }
}

/// Marks the results whose layout a constraint sets; empty if there are none.
fn constrained_results(program: &Program) -> Vec<bool> {
    let vars: Vec<_> =
        program.eqns.iter().filter(|eqn| eqn.primitive.layout().is_some()).flat_map(|eqn| &eqn.outputs).collect();
    if vars.is_empty() {
        return Vec::new();
    }
    program.outputs.iter().map(|atom| matches!(atom, Atom::Var(var) if vars.contains(&var))).collect()
}
