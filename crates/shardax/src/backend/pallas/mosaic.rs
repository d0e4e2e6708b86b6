//! Kernels for TPUs. Refs are memory on the chip; while the kernel runs at one position of the grid, the compiler fills
//! this memory with the blocks of the next position.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::equations::{Body, Memory};
use super::text::{Dialect, Text, Val};
use super::{check_block, next_position, symbol};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::pallas::primitive::{Block, Kernel};
use crate::ops::pallas::spec::BlockDim;
use crate::ops::state::{Access, Entries};

/// The version of the stable form of Mosaic's dialect that JAX 0.10.2 writes; newer compilers read older versions.
const VERSION: usize = 15;

/// The attributes of the call.
pub(super) fn call(kernel: &Kernel) -> Result<String> {
    let name = symbol(kernel);
    let body = STANDARD.encode(module(kernel, &name)?);
    let cost = kernel.cost.map_or_else(String::new, |cost| {
        format!(
            "\\22cost_estimate\\22: {{\\22flops\\22: {}, \\22transcendentals\\22: {}, \\22bytes_accessed\\22: {}, \
             \\22remote_bytes_transferred\\22: 0}}, ",
            cost.flops, cost.transcendentals, cost.bytes_accessed
        )
    });
    let attrs = format!(
        "call_target_name = \"tpu_custom_call\", api_version = 1 : i32, kernel_name = \"{name}\", \
         backend_config = \"{{\\22custom_call_config\\22: \
         {{\\22body\\22: \\22{body}\\22, {cost}\\22serialization_format\\22: 1, \\22needs_layout_passes\\22: true}}}}\""
    );
    Ok(attrs)
}

/// The arguments of a function: the position in the grid, and refs.
fn position(text: &mut Text, grid: &[usize]) -> Result<Vec<Val>> {
    grid.iter().map(|_| text.fresh(DType::I32, &[])).collect()
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// `array<i64: 8, 128>`
fn sizes(items: impl IntoIterator<Item = usize>) -> String {
    let items_text = list(items);
    if items_text.is_empty() { "array<i64>".to_owned() } else { format!("array<i64: {items_text}>") }
}

/// An array in a memory of the chip, as an argument.
fn argument(text: &mut Text, aval: &Aval, shape: &[usize], space: &str) -> Result<Val> {
    if shape.is_empty() {
        return Err(
            err!(NotImplemented, "an array without dimensions is not supported").help("reshape the array to `[1]`")
        );
    }
    let element = text.ty(aval.dtype, &[])?;
    let sizes: String = shape.iter().map(|n| format!("{n}x")).collect();
    Ok(text.fresh_as(format!("memref<{sizes}{element}, #tpu.memory_space<{space}>>")))
}

/// A function of the module.
fn function(text: &mut Text, name: &str, arguments: &[Val], region: String, results: &str, attrs: &str) {
    let types = list(arguments.iter().map(|argument| argument.ty.clone()));
    let attrs = format!("function_type = ({types}) -> {results}, sym_name = \"{name}\"{attrs}");
    text.write("func.func", &[], &[region], &attrs, &[]);
}

/// Fails for blocks that cannot be cut out of an array, because its last two dimensions are tiled.
fn check_window(block: &Block) -> Result<()> {
    check_block(block)?;
    let dtype = block.array.dtype;
    if dtype.byte_size() > 4 {
        return Err(err!(NotImplemented, "{dtype} is not supported on TPUs: an array has type {}", block.array)
            .help("convert it to a type of at most 32 bits"));
    }
    let sizes: Vec<usize> = block.dims.iter().map(|dim| dim.size()).collect();
    let tile = match sizes.len() {
        1 => [1, 128 * 4 / dtype.byte_size()],
        _ => [8, 128],
    };
    // The tile is aligned with the last dimensions.
    let mut dims = (0..sizes.len()).rev().zip(tile.iter().rev());
    if dims.all(|(d, tile)| sizes[d].is_multiple_of(*tile) || sizes[d] == block.array.shape[d]) {
        return Ok(());
    }
    let tiles = if sizes.len() == 1 { format!("a multiple of {}", tile[1]) } else { "multiples of 8 and 128".into() };
    Err(err!(
        NotImplemented,
        "a block of {sizes:?} of an array of type {}: on TPUs its last dimensions must be {tiles}, or the array's own",
        block.array
    ))
}

/// The module: the kernel, and a function for the index map of each block.
fn module(kernel: &Kernel, name: &str) -> Result<String> {
    kernel.blocks.iter().try_for_each(check_window)?;
    // The kernel runs once without a grid.
    let grid = if kernel.grid.is_empty() { vec![1] } else { kernel.grid.clone() };
    let mut text = Text::new(Dialect::Mosaic);
    let mut windows = Vec::new();
    for (number, block) in kernel.blocks.iter().enumerate() {
        let ids = position(&mut text, &grid)?;
        let mut arguments = ids.clone();
        let refs = scalar_refs(&mut text, &kernel.scalars, &mut arguments)?;
        let region = text.region(&arguments, |text| {
            let ids = &ids[..kernel.grid.len()];
            let index = Body { text: &mut *text, refs: &refs, ids: &[] }.program(&block.index, ids)?;
            let index = index.iter().map(|index| text.convert(index, DType::I32)).collect::<Result<Vec<_>>>()?;
            text.write("func.return", &index.iter().collect::<Vec<_>>(), &[], "", &[]);
            Ok(())
        })?;
        let results = format!("({})", list(block.dims.iter().map(|_| "i32")));
        function(&mut text, &format!("transform_{number}"), &arguments, region, &results, "");
        let bounds = sizes(block.dims.iter().map(|dim| dim.size()));
        windows.push(format!("{{transform_indices = @transform_{number}, window_bounds = {bounds}}}"));
    }

    let ids = position(&mut text, &grid)?;
    let mut arguments = ids.clone();
    let mut refs = scalar_refs(&mut text, &kernel.scalars, &mut arguments)?;
    for block in &kernel.blocks {
        let shape: Vec<usize> = block.dims.iter().map(|dim| dim.size()).collect();
        let memref = argument(&mut text, &block.array, &shape, "vmem")?;
        arguments.push(memref.clone());
        let squeezed = block.dims.iter().map(|dim| matches!(dim, BlockDim::Squeezed)).collect();
        refs.push(Box::new(OnChip { memref, shape, squeezed }));
    }
    for aval in &kernel.scratch {
        let memref = argument(&mut text, aval, &aval.shape, "vmem")?;
        arguments.push(memref.clone());
        refs.push(Box::new(OnChip { memref, shape: aval.shape.to_vec(), squeezed: vec![false; aval.rank()] }));
    }
    let region = text.region(&arguments, |text| {
        let ids = &ids[kernel.vmapped.min(ids.len())..];
        Body { text: &mut *text, refs: &refs, ids }.program(&kernel.program, &[])?;
        text.write("func.return", &[], &[], "", &[]);
        Ok(())
    })?;
    let mut attrs = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        attrs,
        ", dimension_semantics = [{}], iteration_bounds = {}, scalar_prefetch = {} : i64, scratch_operands = {} : i64, \
         tpu.core_type = #tpu.core_type<tc>, window_params = [{}]",
        list(grid.iter().map(|_| "#tpu.dimension_semantics<arbitrary>")),
        sizes(grid.iter().copied()),
        kernel.prefetch(),
        kernel.scratch.len(),
        windows.join(", ")
    );
    function(&mut text, name, &arguments, region, "()", &attrs);
    let functions = text.finish();
    Ok(format!("\"builtin.module\"() ({{\n{functions}}}) {{stable_mosaic.version = {VERSION} : i64}} : () -> ()\n"))
}

/// Adds the arguments of prefetched operands, and returns their refs.
fn scalar_refs(text: &mut Text, scalars: &[Aval], arguments: &mut Vec<Val>) -> Result<Vec<Box<dyn Memory>>> {
    let mut refs: Vec<Box<dyn Memory>> = Vec::new();
    for aval in scalars {
        let memref = argument(text, aval, &aval.shape, "smem")?;
        arguments.push(memref.clone());
        refs.push(Box::new(Scalars(memref)));
    }
    Ok(refs)
}

/// An operand as an index of memory.
fn index(text: &mut Text, operand: &Val) -> Val {
    text.write("arith.index_cast", &[operand], &[], "", &[Val::other("", "index")]).swap_remove(0)
}

/// A ref of a prefetched operand. It is read element by element.
struct Scalars(Val);

impl Memory for Scalars {
    fn load(&self, text: &mut Text, access: &Access, place: &[Val], masked: Option<(&Val, &Val)>) -> Result<Val> {
        if masked.is_some() || !access.part.shape.is_empty() {
            return Err(err!(NotImplemented, "prefetched operands are read one element at a time"));
        }
        let indices: Vec<Val> = place.iter().map(|operand| index(text, operand)).collect();
        let operands: Vec<&Val> = std::iter::once(&self.0).chain(&indices).collect();
        text.op("memref.load", &operands, "", access.part.dtype, &[])
    }

    fn store(&self, _: &mut Text, _: &Access, _: &Val, _: &[Val], _: Option<&Val>) -> Result<()> {
        Err(err!(NotImplemented, "prefetched operands cannot be written"))
    }
}

/// A ref of a block, or of scratch memory.
struct OnChip {
    memref: Val,
    /// Includes squeezed dimensions.
    shape: Vec<usize>,
    squeezed: Vec<bool>,
}

impl OnChip {
    /// The first index in each dimension, and the number of entries.
    fn part(&self, text: &mut Text, access: &Access, place: &[Val]) -> Result<(Vec<Val>, Vec<usize>)> {
        if access.padded {
            return Err(err!(NotImplemented, "load and store with a mask are not supported")
                .help("read the entire block, and select values with `where_`"));
        }
        let (mut entries, mut place) = (access.place.entries().iter(), place.iter());
        let (mut at, mut sizes) = (Vec::new(), Vec::new());
        for squeezed in &self.squeezed {
            let entry = if *squeezed { Some(&Entries::Range(0, 1)) } else { entries.next() };
            let (first, size) = match entry {
                Some(Entries::Range(start, n)) => (text.number(*start)?, *n),
                Some(Entries::Single) => (next_position(&mut place)?.clone(), 1),
                Some(Entries::Window(n)) => (next_position(&mut place)?.clone(), *n),
                _ => return Err(err!(NotImplemented, "an index of a ref that is an array is not supported")),
            };
            at.push(index(text, &first));
            sizes.push(size);
        }
        Ok((at, sizes))
    }
}

impl Memory for OnChip {
    fn load(&self, text: &mut Text, access: &Access, place: &[Val], _: Option<(&Val, &Val)>) -> Result<Val> {
        let (at, sizes) = self.part(text, access, place)?;
        if access.part.shape.is_empty() {
            return Err(err!(NotImplemented, "a single element of a block of shape {:?} cannot be read", self.shape)
                .help("read a range of one element, or pass the numbers as prefetched operands"));
        }
        let operands: Vec<&Val> = std::iter::once(&self.memref).chain(&at).collect();
        let loaded = text.op("vector.load", &operands, "", access.part.dtype, &sizes)?;
        text.reshape(&loaded, &access.part.shape)
    }

    fn store(&self, text: &mut Text, access: &Access, value: &Val, place: &[Val], _: Option<&Val>) -> Result<()> {
        let (at, sizes) = self.part(text, access, place)?;
        let value = text.reshape(value, &sizes)?;
        let operands: Vec<&Val> = [&value, &self.memref].into_iter().chain(&at).collect();
        let attrs =
            format!("add = false, operandSegmentSizes = array<i32: 1, 1, {}, 0>, strides = array<i32>", at.len());
        text.write("tpu.vector_store", &operands, &[], &attrs, &[]);
        Ok(())
    }
}
