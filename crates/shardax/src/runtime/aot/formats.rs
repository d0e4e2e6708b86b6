//! Formats of compiled programs' arguments and results: shardings with layouts in memory.

use shardax_pjrt as pjrt;

use super::{Compiled, CrossCompiled, LeafTree, LoweredFn};
use crate::core::tree::Flat;
use crate::error::{Result, err};
use crate::runtime::callable::CallConvention;
use crate::runtime::layouts;
use crate::sharding::{Format, Layout, LayoutOptions, Sharding};

/// The sharding and the layout as a public format.
fn format(layout: Option<Layout>, sharding: &Sharding) -> Format {
    Format::new(LayoutOptions::from(layout), sharding.in_layout(None))
}

impl LoweredFn {
    /// The format of each argument; `inputs` are the shardings of the program's inputs.
    fn input_formats(&self, inputs: &[Sharding], program: &pjrt::CompiledProgram) -> LeafTree<Option<Format>> {
        let CallConvention { captures, kept, .. } = &self.convention;
        LeafTree::new(
            &self.in_def,
            (0..self.in_avals.len())
                .map(|argument| {
                    let input = captures.len() + kept.iter().position(|k| *k == argument)?;
                    Some(format(layouts::layout_at(program.parameter_layouts(), input), inputs.get(input)?))
                })
                .collect(),
        )
    }

    /// The format of each result; `outputs` are their shardings.
    fn output_formats(&self, outputs: &[Sharding], program: &pjrt::CompiledProgram) -> LeafTree<Format> {
        let formats = outputs
            .iter()
            .enumerate()
            .map(|(i, sharding)| format(layouts::layout_at(program.output_layouts(), i), sharding));
        LeafTree::new(&self.convention.out_def, formats.collect())
    }
}

impl<Args, Out> Compiled<Args, Out> {
    /// Returns the format of each argument: the sharding, and the layout in memory as requested or as the compiler
    /// chose it. `None` for unused arguments.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::{Format, Layout};
    /// let device = &local_devices()?[0];
    /// let product = jit(|w: Array, x: Array| w.dot(x)).in_shardings(Format::new(Layout::AUTO, device));
    /// let types = (shape_dtype_struct([64, 32], DType::F32), shape_dtype_struct([32, 8], DType::F32));
    /// let compiled = product.lower(types)?.compile()?;
    /// // Put where and how the compiler wants it, once.
    /// let args = device_put(&(ones([64, 32]), ones([32, 8])), &compiled.input_formats())?;
    /// assert_eq!(compiled.call(args)?.to_vec::<f32>()?[0], 32.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn input_formats(&self) -> LeafTree<Option<Format>> {
        self.lowered.input_formats(&self.loaded.in_shardings, &self.loaded.executable)
    }

    /// Returns the format of each result: the sharding, and the layout in memory as requested or as the compiler chose
    /// it.
    pub fn output_formats(&self) -> LeafTree<Format> {
        self.lowered.output_formats(&self.loaded.out_shardings, &self.loaded.executable)
    }

    /// Fails for committed arguments with another layout in memory.
    pub(super) fn check_layouts(&self, flat: &Flat) -> Result<()> {
        if self.loaded.in_shardings.iter().all(|sharding| sharding.layout().is_none())
            && !flat.leaves.iter().any(|leaf| leaf.concrete_ref().is_some_and(|c| c.sharding.layout().is_some()))
        {
            return Ok(());
        }
        self.mismatches(flat, &|i, leaf| {
            let have = leaf.concrete_ref().filter(|c| c.committed)?;
            let want = self.in_sharding(i)?;
            if have.sharding.layout() == want.layout() {
                return None;
            }
            let formats = self.input_formats();
            let (have, want) = (have.layout().ok()??, formats.leaves().get(i)?.as_ref()?.layout()?.clone());
            (have != want).then(|| format!("of type {}: passed layout {have}, required layout {want}", leaf.aval()))
        })
        .map_or(Ok(()), |list| {
            Err(err!(
                Value,
                "Computation was compiled for input layouts that disagree with the layouts of arguments passed to it. The mismatches are:{list}"
            )
            .help("move the arguments to these formats with `device_put(&args, &compiled.input_formats())`"))
        })
    }
}

impl<Args, Out> CrossCompiled<Args, Out> {
    /// Returns the format of each argument: the sharding, and the layout in memory as requested or as the compiler
    /// chose it. `None` for unused arguments.
    pub fn input_formats(&self) -> LeafTree<Option<Format>> {
        self.lowered.input_formats(&self.program.in_shardings, &self.program.executable)
    }

    /// Returns the format of each result: the sharding, and the layout in memory as requested or as the compiler chose
    /// it.
    pub fn output_formats(&self) -> LeafTree<Format> {
        self.lowered.output_formats(&self.program.out_shardings, &self.program.executable)
    }
}
