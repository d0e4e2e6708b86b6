//! The module around a program: its meshes, and its `main` with argument and result shardings.

use std::fmt::Write as _;

use super::function::Functions;
use super::location::MAIN;
use super::{Lowering, Platform, PlatformRules, Value, attr};
use crate::core::program::Program;
use crate::error::Result;
use crate::sharding::memory::MemoryKind;
use crate::sharding::{NamedSharding, axis_text};

/// The description of a module's `main`.
pub(crate) struct Module<'a> {
    pub name: &'a str,
    pub program: &'a Program,
    /// A sharding for each input; `None` in a program for one device.
    pub in_shardings: &'a [Option<NamedSharding>],
    /// A sharding for each output; `None` leaves it to the compiler.
    pub out_shardings: &'a [Option<NamedSharding>],
    pub memory: &'a Memory,
    pub layouts: &'a Layouts,
    /// The donation of each input.
    pub donations: &'a [Donation],
    pub num_partitions: usize,
    pub platform: Platform,
    /// The names of the inputs if locations are written; inputs beyond the names are
    /// anonymous.
    pub locations: Option<Vec<String>>,
    /// `true` if the text is to be exported.
    pub portable: bool,
}

/// The memory kinds of arguments and results. All lists are empty if all values of the program are in the devices'
/// default memory.
#[derive(Default)]
pub(crate) struct Memory {
    pub inputs: Vec<MemoryKind>,
    pub outputs: Vec<MemoryKind>,
    /// The memory kinds that the user requested for results. Results are moved there.
    pub asked: Vec<Option<MemoryKind>>,
}

/// The layouts of arguments and results, in XLA's notation; empty if unspecified.
#[derive(Default)]
pub(crate) struct Layouts {
    pub inputs: Vec<Option<String>>,
    pub outputs: Vec<Option<String>>,
}

/// The donation of an input's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Donation {
    None,
    /// The output at this position reuses it.
    To(usize),
    /// The compiler finds an output that reuses it after it has chosen the outputs' shardings.
    ToAny,
}

impl Module<'_> {
    /// Writes the StableHLO text.
    pub fn text(&self) -> Result<String> {
        // The body is written first, because only then the meshes and the functions that it refers to are known.
        let mut cx = Lowering::of(self.name, self.locations.is_some(), self.platform);
        cx.other_memory = !self.memory.inputs.is_empty() || !self.memory.outputs.is_empty();
        cx.portable = self.portable;
        cx.many_devices = self.num_partitions > 1;
        cx.functions = Functions::of(self.program);
        let mut shardings = self.in_shardings.iter().chain(self.out_shardings).flatten();
        cx.auto_mesh = shardings.next().map(|sharding| sharding.mesh().clone());
        let args: Vec<Value> = self
            .program
            .in_avals()
            .map(|aval| {
                let name = cx.fresh();
                cx.define(name, None, aval)
            })
            .collect();
        let mut outs = cx.program(self.program, &args)?;
        for (out, kind) in outs.iter_mut().zip(&self.memory.asked) {
            if let Some(kind) = kind.filter(|_| cx.moves_memory()) {
                *out = cx.in_memory(*out, kind);
            }
        }
        cx.op_with("func.return", &outs, "", Vec::new(), &[]);
        let body = std::mem::take(&mut cx.text);

        let main = self.signature(&mut cx);

        let name: String = self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let mut text = format!(
            "module @{name} attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}} {{\n",
            self.num_partitions
        );
        for (i, mesh) in cx.meshes.iter().enumerate() {
            let names = mesh.iter().map(|(name, _)| *name);
            let axes: Vec<_> = mesh.iter().map(|(n, s)| format!("{}={s}", axis_text(names.clone(), *n))).collect();
            let suffix = if i == 0 { String::new() } else { format!("_{i}") };
            let _ = writeln!(text, "  sdy.mesh @mesh{suffix} = <[{}]>", axes.join(", "));
        }
        text.push_str(&main);
        text.push_str(&body);
        text.push_str("  }\n");
        cx.functions.texts().for_each(|function| text.push_str(function));
        text.push_str("}\n");
        PlatformRules::check_text(&cx, &text, self.num_partitions)?;
        cx.locations.write(&mut text);
        Ok(text)
    }

    /// Writes the signature of `main`, whose attributes say how arguments and results are stored and sharded.
    fn signature(&self, cx: &mut Lowering) -> String {
        let mut main = String::from(MAIN);
        // The attributes of an argument are its donation, layout, memory kind and sharding; a result has no donation.
        for (i, aval) in self.program.in_avals().enumerate() {
            let _ = write!(main, "{}%{i}: ", if i > 0 { ", " } else { "" });
            attr::write_type(&mut main, aval.dtype, &aval.shape);
            let mut attrs = Vec::new();
            match self.donations.get(i) {
                Some(Donation::To(output)) => attrs.push(format!("tf.aliasing_output = {output} : i32")),
                Some(Donation::ToAny) => attrs.push("jax.buffer_donor = true".to_owned()),
                Some(Donation::None) | None => {}
            }
            attrs.extend(layout_attr(&self.layouts.inputs, i));
            attrs.extend(kind_attr(&self.memory.inputs, i, cx.platform));
            if let Some(Some(sharding)) = self.in_shardings.get(i) {
                let mesh = cx.mesh_name(sharding.mesh());
                attrs.push(format!("sdy.sharding = {}", sharding.sdy(&mesh, aval.rank())));
            }
            write_attrs(&mut main, &attrs);
            if let Some(name) = self.locations.as_ref().and_then(|names| names.get(i)) {
                cx.locations.mark_input(&mut main, name);
            }
        }
        main.push_str(") -> (");
        for (i, aval) in self.program.out_avals().iter().enumerate() {
            if i > 0 {
                main.push_str(", ");
            }
            attr::write_type(&mut main, aval.dtype, &aval.shape);
            let mut attrs: Vec<String> = layout_attr(&self.layouts.outputs, i).into_iter().collect();
            attrs.extend(kind_attr(&self.memory.outputs, i, cx.platform));
            if let Some(Some(sharding)) = self.out_shardings.get(i) {
                let mesh = cx.mesh_name(sharding.mesh());
                attrs.push(format!("sdy.sharding = {}", sharding.sdy(&mesh, aval.rank())));
            }
            write_attrs(&mut main, &attrs);
        }
        main.push_str(") {\n");
        main
    }
}

fn kind_attr(kinds: &[MemoryKind], i: usize, platform: Platform) -> Option<String> {
    let kind = kinds.get(i).filter(|_| platform.has_memories())?;
    Some(format!("mhlo.memory_kind = {:?}", kind.as_str()))
}

fn layout_attr(modes: &[Option<String>], i: usize) -> Option<String> {
    let mode = modes.get(i)?.as_ref()?;
    Some(format!("mhlo.layout_mode = {mode:?}"))
}

fn write_attrs(text: &mut String, attrs: &[String]) {
    if !attrs.is_empty() {
        let _ = write!(text, " {{{}}}", attrs.join(", "));
    }
}
