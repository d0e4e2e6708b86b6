//! Kernels for GPUs: refs are pointers, and positions of the grid run concurrently.

use std::fmt::Write as _;

use super::carried::Carried;
use super::equations::{Body, Memory};
use super::text::{Dialect, Text, Val};
use super::{HELP, check_block, escaped, next_position, symbol};
use crate::core::program::Aval;
use crate::core::program::trace::trace;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::ops::pallas::primitive::{Block, Kernel};
use crate::ops::pallas::spec::BlockDim;
use crate::ops::state::{Access, Entries};

/// The attributes of the call.
pub(super) fn call(kernel: &Kernel) -> Result<String> {
    let carried = Carried::of(kernel)?;
    check(kernel, &carried)?;
    let [x, y, z] = grid(&kernel.grid[..carried.axis])?;
    let name = symbol(kernel);
    let params = kernel.params;
    let attrs = format!(
        "call_target_name = \"__gpu$xla.gpu.triton\", backend_config = \"\", \
         mhlo.backend_config = {{name = \"{name}\", ir = \"{}\", num_warps = {} : i32, \
         num_stages = {} : i32, grid_x = {x} : i32, grid_y = {y} : i32, grid_z = {z} : i32, debug = false}}",
        escaped(&module(kernel, &carried, &name)?),
        params.num_warps,
        params.num_stages
    );
    Ok(attrs)
}

/// Fails for operations that positions cannot do, because they run concurrently without common memory.
fn check(kernel: &Kernel, carried: &Carried) -> Result<()> {
    // Positions run at the same time, so two of them must not write to one block.
    let written = kernel.written();
    let steps = kernel.grid[carried.axis..].iter().fold(1usize, |a, b| a.saturating_mul(*b));
    if i32::try_from(steps).is_err() {
        return Err(err!(
            NotImplemented,
            "the loop over the last axes of the grid {:?} has {steps} steps",
            kernel.grid
        )
        .help("use larger blocks, so that the grid has fewer positions"));
    }
    for (number, block) in kernel.blocks.iter().enumerate() {
        check_block(block)?;
        if block.array.size() > i32::MAX as usize {
            return Err(err!(NotImplemented, "an array of type {} has too many elements for int32", block.array)
                .help(format!("call the kernel on parts of it; or {HELP}")));
        }
        let used_axes = block.index.used_inputs();
        match kernel.grid[..carried.axis].iter().zip(used_axes).position(|(size, used_axes)| *size > 1 && !used_axes) {
            Some(axis) if written[kernel.prefetch() + number] => {
                return Err(err!(
                    NotImplemented,
                    "positions along axis {axis} of the grid {:?} write to one block of array {number}, and run at the same time",
                    kernel.grid
                )
                .help(format!("make it one of the last axes, and let no result's block depend on it, because such axes run as a loop; or {HELP}")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The grid as one of three dimensions: all but the last two are one.
fn grid(axes: &[usize]) -> Result<[usize; 3]> {
    let mut grid = axes.to_vec();
    while grid.len() > 3 {
        let leading = grid.remove(0);
        grid[0] = grid[0].saturating_mul(leading);
    }
    grid.resize(3, 1);
    let [x, y, z] = [grid[0], grid[1], grid[2]];
    if x > i32::MAX as usize || y > 65535 || z > 65535 || [x, y, z].contains(&0) {
        return Err(err!(
            NotImplemented,
            "the grid {axes:?} is empty or too large: its last two dimensions have at most 65,535 positions"
        )
        .help("reorder the grid so that its largest dimension is first"));
    }
    Ok([x, y, z])
}

/// The position in a grid of these axes.
fn position(axes: &[usize], text: &mut Text) -> Result<Vec<Val>> {
    let mut ids = Vec::new();
    for axis in ["x", "y", "z"].into_iter().take(axes.len()) {
        let id = text.fresh(DType::I32, &[])?;
        text.line(&format!("{} = tt.get_program_id {axis} : i32", id.name));
        ids.push(id);
    }
    if axes.len() <= 3 {
        return Ok(ids);
    }
    // The first program id counts the positions of all leading axes.
    let mut position = unraveled(&ids[0], &axes[..axes.len() - 2], text)?;
    position.extend(ids.split_off(1));
    Ok(position)
}

/// The position on these axes for a number that counts along all of them.
fn unraveled(number: &Val, axes: &[usize], text: &mut Text) -> Result<Vec<Val>> {
    let (mut outer, mut position) = (number.clone(), Vec::new());
    for &size in axes[axes.len().min(1)..].iter().rev() {
        let size = text.number(size)?;
        position.insert(0, text.same("arith.remsi", &[&outer, &size]));
        outer = text.same("arith.divsi", &[&outer, &size]);
    }
    if !axes.is_empty() {
        position.insert(0, outer);
    }
    Ok(position)
}

/// The module with one function: the kernel.
fn module(kernel: &Kernel, carried: &Carried, name: &str) -> Result<String> {
    let mut text = Text::new(Dialect::Triton);
    let mut arguments = Vec::new();
    let scalars = kernel.scalars.iter().map(|aval| Ok((entire_block(aval)?, pointer(aval, &text, &mut arguments)?)));
    let scalars: Vec<(Block, Val)> = scalars.collect::<Result<_>>()?;
    let blocks = kernel.blocks.iter().map(|block| Ok((block, pointer(&block.array, &text, &mut arguments)?)));
    let blocks: Vec<(&Block, Val)> = blocks.collect::<Result<_>>()?;
    let position = position(&kernel.grid[..carried.axis], &mut text)?;
    let loop_axes = &kernel.grid[carried.axis..];
    let zero = text.number(0)?;
    let first_position = [position.clone(), vec![zero.clone(); loop_axes.len()]].concat();
    let body = KernelBody { kernel, carried, scalars, blocks, zero };

    let first_refs = body.refs(&mut text, &first_position)?;
    let state = body.first_values(&mut text, &first_refs)?;
    let steps: usize = loop_axes.iter().product();
    let end = match steps {
        1 => body.write(&mut text, &first_position, &state)?,
        _ => {
            let [zero, steps, one] = [0, steps, 1].map(|n| text.number(n));
            let (zero, steps, one) = (zero?, steps?, one?);
            let inner = text.fresh_like(&state);
            let step = text.fresh(DType::I32, &[])?;
            let region = text.region(&[std::slice::from_ref(&step), &inner].concat(), |text| {
                let ids = unraveled(&step, loop_axes, text)?;
                let outs = body.write(text, &[position.clone(), ids].concat(), &inner)?;
                text.write("scf.yield", &outs.iter().collect::<Vec<_>>(), &[], "", &[]);
                Ok(())
            })?;
            let operands: Vec<&Val> = [&zero, &steps, &one].into_iter().chain(&state).collect();
            text.write("scf.for", &operands, &[region], "", &state)
        }
    };
    // The carried values are stored once, after the last position.
    for ((&number, aval), value) in carried.refs.iter().zip(&carried.types).zip(&end) {
        if let Some(block) = body.block_of(&first_refs, number) {
            block.store(&mut text, &Access::entire(number, aval), value, &[], None)?;
        }
    }
    let mut module = String::from("module {\n");
    // Writing to a string cannot fail.
    let _ = writeln!(module, "  tt.func public @{name}({}) {{", arguments.join(", "));
    Ok(module + &text.finish() + "    tt.return\n  }\n}\n")
}

/// A kernel whose operands have pointers.
struct KernelBody<'a> {
    kernel: &'a Kernel,
    carried: &'a Carried,
    /// The prefetched operands.
    scalars: Vec<(Block, Val)>,
    blocks: Vec<(&'a Block, Val)>,
    zero: Val,
}

impl KernelBody<'_> {
    /// The refs of the kernel at a position of the grid: prefetched operands, then the blocks of this position.
    fn refs(&self, text: &mut Text, position: &[Val]) -> Result<Vec<Box<dyn Memory>>> {
        let index_refs: Vec<Box<dyn Memory>> = self.prefetched().collect();
        let mut refs: Vec<Box<dyn Memory>> = self.prefetched().collect();
        for (block, pointer) in &self.blocks {
            let index = Body { text: &mut *text, refs: &index_refs, ids: &[] }.program(&block.index, position)?;
            let starts = starts(block, &index, text)?;
            refs.push(Box::new(Pointer { pointer: pointer.clone(), block: (*block).clone(), starts }));
        }
        Ok(refs)
    }

    fn prefetched(&self) -> impl Iterator<Item = Box<dyn Memory>> {
        self.scalars.iter().map(|(block, pointer)| {
            let starts = vec![self.zero.clone(); block.dims.len()];
            Box::new(Pointer { pointer: pointer.clone(), block: block.clone(), starts }) as Box<dyn Memory>
        })
    }

    /// Writes the kernel's program for a position.
    fn write(&self, text: &mut Text, position: &[Val], state: &[Val]) -> Result<Vec<Val>> {
        let refs = self.refs(text, position)?;
        Body { text, refs: &refs, ids: &position[self.kernel.vmapped..] }.program(&self.carried.program, state)
    }

    /// The block of a carried ref, unless it is scratch memory.
    fn block_of<'r>(&self, refs: &'r [Box<dyn Memory>], number: usize) -> Option<&'r dyn Memory> {
        let is_block = number < self.kernel.prefetch() + self.kernel.blocks.len();
        refs.get(number).filter(|_| is_block).map(|memory| &**memory)
    }

    /// The values of carried refs before the first position. An alias of an operand has the values of this operand.
    fn first_values(&self, text: &mut Text, refs: &[Box<dyn Memory>]) -> Result<Vec<Val>> {
        let kernel = self.kernel;
        let mut values = Vec::new();
        for (&number, aval) in self.carried.refs.iter().zip(&self.carried.types) {
            let output = number.checked_sub(kernel.prefetch() + kernel.num_inputs());
            let is_alias = output.is_some_and(|output| kernel.aliases.iter().any(|(_, to)| *to == output));
            values.push(match self.block_of(refs, number).filter(|_| is_alias) {
                Some(block) => block.load(text, &Access::entire(number, aval), &[], None)?,
                None => uninitialized(text, aval)?,
            });
        }
        Ok(values)
    }
}

/// A prefetched operand as one block.
fn entire_block(aval: &Aval) -> Result<Block> {
    let dims = aval.shape.iter().map(|&size| BlockDim::Blocked(size)).collect();
    Ok(Block { dims, array: aval.clone(), index: trace(&[], |_| Ok(Vec::new()))?.program })
}

/// The index of the first entry of a block in each dimension.
fn starts(block: &Block, index: &[Val], text: &mut Text) -> Result<Vec<Val>> {
    let starts = block.dims.iter().zip(index).map(|(dim, index)| {
        let index = text.convert(index, DType::I32)?;
        Ok(match dim {
            BlockDim::Blocked(size) => {
                let size = text.number(*size)?;
                text.same("arith.muli", &[&index, &size])
            }
            _ => index,
        })
    });
    starts.collect()
}

/// The value of memory before the first write.
fn uninitialized(text: &mut Text, aval: &Aval) -> Result<Val> {
    let value = match aval.dtype.category() {
        Category::Float => Scalar::float(f64::NAN),
        Category::Signed | Category::Unsigned => Scalar::Int(aval.dtype.integer_range().map_or(0, |(low, _)| low)),
        _ => Scalar::Int(0),
    };
    let value = text.constant(value.converted(aval.dtype), aval.dtype)?;
    text.broadcast(&value, &[], &aval.shape)
}

/// A ref: a pointer to the array, and the first entry of the block in each of its dimensions.
struct Pointer {
    pointer: Val,
    block: Block,
    starts: Vec<Val>,
}

impl Pointer {
    /// The addresses of a part, and a mask of the addresses that are inside the array and not masked; `None` if all
    /// are.
    fn addresses(
        &self,
        text: &mut Text,
        access: &Access,
        place: &[Val],
        mask: Option<&Val>,
    ) -> Result<(Val, Option<Val>)> {
        let shape = access.part.shape.clone();
        let (mut entries, mut place, mut out) = (access.place.entries().iter(), place.iter(), 0);
        let mut stride: usize = self.block.array.shape.iter().product();
        let (mut offset, mut mask) = (text.number(0)?, mask.cloned());
        offset = text.broadcast(&offset, &[], &shape)?;
        for (d, (dim, &size)) in self.block.dims.iter().zip(&self.block.array.shape).enumerate() {
            stride /= size.max(1);
            let mut position = text.broadcast(&self.starts[d], &[], &shape)?;
            if !matches!(dim, BlockDim::Squeezed) {
                let (start, count, computed) = match entries.next() {
                    Some(Entries::Single) => (next_position(&mut place)?.clone(), None, true),
                    Some(Entries::Window(n)) => (next_position(&mut place)?.clone(), Some(*n), true),
                    Some(Entries::Range(start, n)) => (text.number(*start)?, Some(*n), false),
                    _ => return Err(err!(NotImplemented, "an index of a ref that is an array is not supported")),
                };
                let mut start = text.convert(&start, DType::I32)?;
                if computed && !access.padded {
                    // A computed range is moved so that it is inside the block.
                    let last_start = text.number(dim.size().saturating_sub(count.unwrap_or(1)))?;
                    let zero = text.number(0)?;
                    start = text.same("arith.minsi", &[&start, &last_start]);
                    start = text.same("arith.maxsi", &[&start, &zero]);
                }
                let start = text.broadcast(&start, &[], &shape)?;
                position = text.same("arith.addi", &[&position, &start]);
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
                let default = match masked {
                    Some((default, _)) => default.clone(),
                    None => text.full_like(&out, Scalar::Int(0))?,
                };
                format!(", {}, {}", mask.name, default.name)
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

/// Adds an argument to the function, a pointer to the elements of `array`.
fn pointer(array: &Aval, text: &Text, arguments: &mut Vec<String>) -> Result<Val> {
    let element = format!("!tt.ptr<{}>", text.ty(array.dtype, &[])?);
    let pointer = Val::other(format!("%arg{}", arguments.len()), element);
    arguments.push(format!("{}: {} {{tt.divisibility = 16 : i32}}", pointer.name, pointer.ty));
    Ok(pointer)
}
