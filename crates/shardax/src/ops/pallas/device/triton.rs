//! Kernels for GPUs: refs are pointers, and positions of the grid run at the same time.

use std::fmt::Write as _;

use super::equations::{Body, Memory};
use super::text::{Dialect, Text, Val};
use super::{HELP, check_block, escaped, symbol};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::pallas::primitive::{Block, Kernel};
use crate::ops::pallas::spec::BlockDim;
use crate::ops::state::{Access, Entries};

/// The warps of a block of threads, and the stages of a pipelined loop: Pallas' defaults.
const NUM_WARPS: usize = 4;
const NUM_STAGES: usize = 3;

/// The attributes of the call.
pub(super) fn call(kernel: &Kernel) -> Result<String> {
    check(kernel)?;
    let [x, y, z] = grid(kernel)?;
    let name = symbol(kernel);
    let attrs = format!(
        "call_target_name = \"__gpu$xla.gpu.triton\", backend_config = \"\", \
         mhlo.backend_config = {{name = \"{name}\", ir = \"{}\", num_warps = {NUM_WARPS} : i32, \
         num_stages = {NUM_STAGES} : i32, grid_x = {x} : i32, grid_y = {y} : i32, grid_z = {z} : i32, debug = false}}",
        escaped(&module(kernel, &name)?)
    );
    Ok(attrs)
}

/// Fails for what positions that run at the same time, without common memory, cannot do.
fn check(kernel: &Kernel) -> Result<()> {
    if kernel.prefetch() > 0 {
        return Err(err!(NotImplemented, "prefetched operands are not supported"));
    }
    if !kernel.scratch.is_empty() {
        return Err(
            err!(NotImplemented, "there is no scratch memory").help(format!("carry the values in a loop; or {HELP}"))
        );
    }
    let written = kernel.written();
    for (number, block) in kernel.blocks.iter().enumerate() {
        check_block(block)?;
        if block.array.size() > i32::MAX as usize {
            return Err(err!(NotImplemented, "an array of type {} has too many elements for int32", block.array));
        }
        let used = block.index.used_inputs();
        match kernel.grid.iter().zip(used).position(|(size, used)| *size > 1 && !used) {
            Some(axis) if written[number] => {
                return Err(err!(
                    NotImplemented,
                    "positions along axis {axis} of the grid {:?} write to one block of array {number}, and run at the same time",
                    kernel.grid
                )
                .help(format!("loop over that axis in the kernel; or {HELP}")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The grid as one of three dimensions: all but the last two are one.
fn grid(kernel: &Kernel) -> Result<[usize; 3]> {
    let mut grid = kernel.grid.clone();
    while grid.len() > 3 {
        let first = grid.remove(0);
        grid[0] = grid[0].saturating_mul(first);
    }
    grid.resize(3, 1);
    let [x, y, z] = [grid[0], grid[1], grid[2]];
    if x > i32::MAX as usize || y > 65535 || z > 65535 || [x, y, z].contains(&0) {
        return Err(err!(
            NotImplemented,
            "the grid {:?} is empty or too large: its last two dimensions have at most 65,535 positions",
            kernel.grid
        ));
    }
    Ok([x, y, z])
}

/// The position in the grid.
fn position(kernel: &Kernel, text: &mut Text) -> Result<Vec<Val>> {
    let rank = kernel.grid.len();
    let mut axes = Vec::new();
    for axis in ["x", "y", "z"].into_iter().take(rank) {
        let id = text.fresh(DType::I32, &[])?;
        text.line(&format!("{} = tt.get_program_id {axis} : i32", id.name));
        axes.push(id);
    }
    if rank <= 3 {
        return Ok(axes);
    }
    let (mut rest, mut all) = (axes[0].clone(), axes.split_off(1));
    for &size in kernel.grid[..rank - 2].iter().rev() {
        let size = text.number(size)?;
        all.insert(0, text.same("arith.remsi", &[&rest, &size]));
        rest = text.same("arith.divsi", &[&rest, &size]);
    }
    Ok(all)
}

/// The module with one function: the kernel.
fn module(kernel: &Kernel, name: &str) -> Result<String> {
    let mut text = Text::new(Dialect::Triton);
    let position = position(kernel, &mut text)?;
    let mut refs: Vec<Box<dyn Memory>> = Vec::new();
    let mut arguments = Vec::new();
    for (number, block) in kernel.blocks.iter().enumerate() {
        let index = Body { text: &mut text, refs: &[], ids: &[] }.program(&block.index, &position)?;
        let mut starts = Vec::new();
        for (dim, index) in block.dims.iter().zip(&index) {
            let index = text.convert(index, DType::I32)?;
            starts.push(match dim {
                BlockDim::Blocked(size) => {
                    let size = text.number(*size)?;
                    text.same("arith.muli", &[&index, &size])
                }
                _ => index,
            });
        }
        let element = format!("!tt.ptr<{}>", text.ty(block.array.dtype, &[])?);
        let pointer = Val::other(format!("%arg{number}"), element);
        arguments.push(format!("{}: {} {{tt.divisibility = 16 : i32}}", pointer.name, pointer.ty));
        refs.push(Box::new(Pointer { pointer, block: block.clone(), starts }));
    }
    Body { text: &mut text, refs: &refs, ids: &position[kernel.vmapped..] }.program(&kernel.program, &[])?;
    let mut module = String::from("module {\n");
    // Writing to a string cannot fail.
    let _ = writeln!(module, "  tt.func public @{name}({}) {{", arguments.join(", "));
    Ok(module + &text.finish() + "    tt.return\n  }\n}\n")
}

/// A ref: a pointer to the array, and the first entry of the block in each of its dimensions.
struct Pointer {
    pointer: Val,
    block: Block,
    starts: Vec<Val>,
}

impl Pointer {
    /// The addresses of a part, and which of them lie in the array and are not masked; `None` if all do.
    fn addresses(
        &self,
        text: &mut Text,
        access: &Access,
        place: &[Val],
        mask: Option<&Val>,
    ) -> Result<(Val, Option<Val>)> {
        let shape = access.part.shape.clone();
        let (mut entries, mut place, mut out) = (access.place.entries().iter(), place.iter(), 0);
        let mut next = || place.next().cloned().ok_or_else(|| err!(Runtime, "a position of a ref is missing"));
        let mut stride: usize = self.block.array.shape.iter().product();
        let (mut offset, mut mask) = (text.number(0)?, mask.cloned());
        offset = text.broadcast(&offset, &[], &shape)?;
        for (d, (dim, &size)) in self.block.dims.iter().zip(&self.block.array.shape).enumerate() {
            stride /= size.max(1);
            let mut position = text.broadcast(&self.starts[d], &[], &shape)?;
            if !matches!(dim, BlockDim::Squeezed) {
                let (first, count, computed) = match entries.next() {
                    Some(Entries::At) => (next()?, None, true),
                    Some(Entries::From(n)) => (next()?, Some(*n), true),
                    Some(Entries::Range(start, n)) => (text.number(*start)?, Some(*n), false),
                    _ => return Err(err!(NotImplemented, "an index of a ref that is an array is not supported")),
                };
                let mut first = text.convert(&first, DType::I32)?;
                if computed && !access.padded {
                    // A computed range is moved to lie inside of the block.
                    let last = text.number(dim.size().saturating_sub(count.unwrap_or(1)))?;
                    let zero = text.number(0)?;
                    first = text.same("arith.minsi", &[&first, &last]);
                    first = text.same("arith.maxsi", &[&first, &zero]);
                }
                let first = text.broadcast(&first, &[], &shape)?;
                position = text.same("arith.addi", &[&position, &first]);
                if count.is_some() {
                    let range = text.range(&shape, out)?;
                    position = text.same("arith.addi", &[&position, &range]);
                    out += 1;
                }
            }
            if size % dim.size() != 0 || access.padded {
                let size = text.full_like(&position, Scalar::Int(size as i128))?;
                let inside = text.compare("lt", &position, &size)?;
                mask = Some(match mask {
                    Some(mask) => text.same("arith.andi", &[&mask, &inside]),
                    None => inside,
                });
            }
            let step = text.full_like(&position, Scalar::Int(stride as i128))?;
            let part = text.same("arith.muli", &[&position, &step]);
            offset = text.same("arith.addi", &[&offset, &part]);
        }
        let ty = text.type_of(&self.pointer.ty, &shape)?;
        let mut base = self.pointer.clone();
        if !shape.is_empty() {
            base = text.write("tt.splat", &[&base], &[], "", &[Val::other("", ty.as_str())]).swap_remove(0);
        }
        Ok((text.write("tt.addptr", &[&base, &offset], &[], "", &[Val::other("", ty)]).swap_remove(0), mask))
    }
}

impl Memory for Pointer {
    fn load(&self, text: &mut Text, access: &Access, place: &[Val], masked: Option<(&Val, &Val)>) -> Result<Val> {
        let (pointers, mask) = self.addresses(text, access, place, masked.map(|(_, mask)| mask))?;
        let out = text.fresh(access.part.dtype, &access.part.shape)?;
        let mask = match mask {
            None => String::new(),
            Some(mask) => {
                let other = match masked {
                    Some((other, _)) => other.clone(),
                    None => text.full_like(&out, Scalar::Int(0))?,
                };
                format!(", {}, {}", mask.name, other.name)
            }
        };
        text.line(&format!("{} = tt.load {}{mask} : {}", out.name, pointers.name, pointers.ty));
        Ok(out)
    }

    fn store(&self, text: &mut Text, access: &Access, value: &Val, place: &[Val], mask: Option<&Val>) -> Result<()> {
        let (pointers, mask) = self.addresses(text, access, place, mask)?;
        let mask = mask.map_or_else(String::new, |mask| format!(", {}", mask.name));
        text.line(&format!("tt.store {}, {}{mask} : {}", pointers.name, value.name, pointers.ty));
        Ok(())
    }
}
