//! Exported functions: lowered here, and called in another process, in another program or on another platform.
//!
//! [`export`] traces and lowers a function for arguments of certain types, as [`jit`] does. The result is one
//! safetensors file: StableHLO for each platform, the structures of arguments and results, their shardings, the
//! captured arrays, and a checksum. [`Exported::load`] reads the file. You do not need the function's code for this,
//! only the Rust types of its arguments and result. You can call the function, compile it into other functions,
//! vectorize it and, if it was exported with its derivative, differentiate it.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::export::{Exported, ExportOptions};
//!
//! let w = array([1.0f32, 2.0, 3.0]);
//! let f = move |x: Array| (x * &w).sin();
//! let bytes = ExportOptions::new().vjp_order(1).export(f, ones([3]))?.serialize()?;
//!
//! // In another program:
//! let g = Exported::<(Array,), Array>::deserialize(&bytes)?;
//! assert_eq!(g.call(zeros([3]))?.to_vec::<f32>()?, [0.0; 3]);
//! let slope = grad(|x: Array| Ok(g.call(x)?.sum(..))).call(zeros([3]))?;
//! assert_eq!(slope.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
//! # Ok::<(), shardax::Error>(())
//! ```
//!
//! You can also read the output of JAX's `Exported.serialize()`, including derivatives and functions for many devices.
//!
//! Differences from JAX's `export`: the file is safetensors instead of a flatbuffer (`tools/export` reads it into JAX),
//! you can vectorize an exported function (row by row), and symbolic sizes have bounds
//! ([`ExportOptions::symbolic_args_specs`]), because the function is traced for several sizes.

mod call;
mod file;
mod jax;
mod program;
mod symbolic;

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use call::CallExported;
use program::{Exchanged, type_of};
use symbolic::{Size, Symbols, Traced};

use crate::core::array::Array;
use crate::core::function::{Function, IntoArgs, function_name};
use crate::core::primitive::bind;
use crate::core::program::Aval;
use crate::core::tree::{Flat, Tree, TreeDef, same_structure};
use crate::error::{AtCaller, Error, Result, err};
use crate::ops::control_flow::custom_vjp;
use crate::ops::primitive::reshard::reshard;
use crate::runtime::aot::abstract_array;
use crate::runtime::load::Request;
use crate::source;
use crate::transform::{Arg, jit, vjp};

/// Returns the bounds of a size, which is an expression of symbols, over all sizes that an exported function accepts
/// (JAX's function of this name).
///
/// `constraints` are the same as for [`ExportOptions::symbolic_constraints`]; a symbol without a constraint is between
/// 1 and 65,536. The bounds are conservative, because each term of the expression is bounded separately.
///
/// ```
/// # use shardax::export::symbolic_dim_bounds;
/// assert_eq!(symbolic_dim_bounds("2*b + 1", ["b >= 2", "b <= 64"])?, (5, 129));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for text that is not such an expression, and for bounds beyond 64 bits.
#[track_caller]
pub fn symbolic_dim_bounds<S: Into<String>>(
    dimension: &str,
    constraints: impl IntoIterator<Item = S>,
) -> Result<(i64, i64)> {
    let constraints: Vec<String> = constraints.into_iter().map(Into::into).collect();
    Symbols::of(&[dimension.to_owned()], &constraints)
        .and_then(|symbols| {
            let size = Size::parse(dimension, &symbols.names).ok_or_else(|| {
                err!(Value, "{dimension:?} is not a size")
                    .help("write numbers, symbols, sums and products of both, such as \"2*b + 1\"")
            })?;
            size.bounds(&symbols.bounds).ok_or_else(|| {
                err!(Value, "the bounds of {dimension:?} are beyond 64 bits")
                    .help("add a constraint that bounds each of its symbols, such as \"b <= 64\"")
            })
        })
        .at_caller()
}

/// Exports a function for arguments of these types, for the platform of the default devices, without its derivative.
/// You can pass [`shape_dtype_struct`](crate::shape_dtype_struct)s instead of arrays.
///
/// # Errors
/// Returns an error if the function calls host functions, or runs on several meshes.
#[track_caller]
pub fn export<Args: Tree, F: Function<Args>>(f: F, args: impl IntoArgs<Args>) -> Result<Exported<Args, F::Output>> {
    ExportOptions::new().export(f, args)
}

/// Options of [`export`].
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    platforms: Vec<String>,
    vjp_order: usize,
    specs: Vec<String>,
    constraints: Vec<String>,
}

impl ExportOptions {
    /// Creates options for the platform of the default devices, without derivatives.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the target platforms: "cpu", "cuda", "rocm", "tpu". Their devices need not be present.
    pub fn platforms<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.platforms = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the order of reverse-mode derivatives to include: 1 for gradients, 2 for gradients of gradients.
    pub fn vjp_order(mut self, order: usize) -> Self {
        self.vjp_order = order;
        self
    }

    /// Sets the symbolic sizes of arguments: one spec for each argument, which applies to all its arrays (JAX's
    /// `symbolic_args_specs`).
    ///
    /// A spec contains sizes between commas: numbers, symbols such as `b`, and sums and products such as `2*b + 1` or
    /// `b*s`. `_` is the size of the argument that you pass to [`export`](ExportOptions::export), and a last `...` is
    /// all its further sizes. The exported function accepts arrays of all sizes that match. A symbol is between 1 and
    /// 65,536, unless [`symbolic_constraints`](ExportOptions::symbolic_constraints) specify other bounds.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::export::ExportOptions;
    ///
    /// let w = ones([4, 2]);
    /// let model = move |x: Array| x.matmul(&w).mean(0);
    /// let model = ExportOptions::new()
    ///     .symbolic_args_specs(["b, _"])
    ///     .symbolic_constraints(["b <= 512"])
    ///     .export(model, shape_dtype_struct([1, 4], DType::F32))?;
    /// for batch in [1, 7, 512] {
    ///     assert_eq!(model.call(ones([batch, 4]))?.to_vec::<f32>()?, [4.0, 4.0]);
    /// }
    /// assert!(model.call(ones([513, 4])).is_err());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// The function is traced for about ten sizes of each symbol, including the bounds. Its programs can differ only in
    /// numbers that are sums and products of the symbols: sizes, and constants such as the divisor of a mean. If they
    /// differ otherwise, for example because of a loop over the rows or a decision that depends on the number of rows,
    /// [`export`](ExportOptions::export) fails with the line. For a size of 1 only the types of the results are
    /// compared, because, as in JAX, the program of the other sizes computes it.
    pub fn symbolic_args_specs<S: Into<String>>(mut self, specs: impl IntoIterator<Item = S>) -> Self {
        self.specs = specs.into_iter().map(Into::into).collect();
        self
    }

    /// Sets bounds of symbols: `"b >= 2"`, `"b <= 512"`. If a size must be divisible by eight, write `8*b` in the spec
    /// instead.
    pub fn symbolic_constraints<S: Into<String>>(mut self, constraints: impl IntoIterator<Item = S>) -> Self {
        self.constraints = constraints.into_iter().map(Into::into).collect();
        self
    }

    /// Calls [`export`] with these options.
    ///
    /// # Errors
    /// Returns an error if `f` fails, if it calls host functions, if it uses several meshes, or if its program differs
    /// between symbolic sizes in more than the sizes.
    #[track_caller]
    pub fn export<Args: Tree, F: Function<Args>>(
        &self,
        f: F,
        args: impl IntoArgs<Args>,
    ) -> Result<Exported<Args, F::Output>> {
        let _line = source::enter();
        let flat = Flat::from_arguments(&args.into_args());
        let out_def = RefCell::new(TreeDef::default());
        // The structure of the result is known only after a trace.
        let trace = |args: Vec<Array>| -> Result<Traced> {
            let mut requests = Vec::new();
            let mut program = self.exchanged(
                &|leaves: Vec<Array>| -> Result<Vec<Array>> {
                    let args = Flat { leaves: leaves.into(), def: flat.def.clone() }.build::<Args>()?;
                    let out = Flat::of(&f.apply(args)?);
                    out_def.replace(out.def);
                    Ok(out.leaves.into_vec())
                },
                args,
                self.vjp_order,
                &mut requests,
            )?;
            program.rename(function_name::<F>());
            let out_def = out_def.borrow();
            (program.in_tree, program.out_tree) = (flat.def.to_json(), out_def.to_json());
            (program.in_paths, program.out_paths) = (flat.def.paths(), out_def.paths());
            Ok((program, requests))
        };
        let program = if self.specs.is_empty() {
            trace(flat.leaves.to_vec()).map(|(program, _)| program)
        } else {
            Symbols::of(&self.specs, &self.constraints).and_then(|symbols| {
                let sizes = symbols.argument_sizes(&self.specs, &flat)?;
                symbolic::exported(&symbols, &sizes, &|values| {
                    trace(symbolic::arguments(&flat.leaves, &sizes, values)?)
                })
            })
        };
        Ok(Exported { program: Arc::new(program.and_then(Exchanged::digested).at_caller()?), types: PhantomData })
    }

    fn exchanged(
        &self,
        f: &dyn Fn(Vec<Array>) -> Result<Vec<Array>>,
        args: Vec<Array>,
        order: usize,
        requests: &mut Vec<Request>,
    ) -> Result<Exchanged> {
        let lowered = jit(f).lower(args.clone())?;
        let mut program = Exchanged::of(lowered.lowered_fn(), &self.platforms)?;
        requests.push(lowered.lowered_fn().request.clone());
        if order > 0 {
            let inexact: Vec<bool> = args.iter().map(|x| x.dtype().is_inexact()).collect();
            let cotangents = program.out_avals.iter().filter(|aval| aval.dtype.is_inexact());
            let cotangents = cotangents.map(|aval| abstract_array(aval.cotangent().strip_weak_type()));
            let vjp_args: Vec<Array> = args.into_iter().chain(cotangents).collect();
            // The derivative is exported like the function itself, so that it can have a derivative too.
            program.vjp = Some(Arc::new(self.exchanged(
                &|vjp_args| pull_back(f, &inexact, &vjp_args),
                vjp_args,
                order - 1,
                requests,
            )?));
        }
        Ok(program)
    }
}

/// The cotangents of the inexact arguments of `f`, for all its arguments and the cotangents of its inexact results.
fn pull_back(
    f: &dyn Fn(Vec<Array>) -> Result<Vec<Array>>,
    inexact: &[bool],
    primals_and_cotangents: &[Array],
) -> Result<Vec<Array>> {
    let (primals, cotangents) = primals_and_cotangents.split_at(inexact.len());
    let moving = primals.iter().zip(inexact).filter(|(_, inexact)| **inexact).map(|(x, _)| x.clone());
    Ok(vjp(
        |moving: Vec<Array>| -> Result<Vec<Array>> {
            let mut moving = moving.into_iter();
            let args = primals.iter().zip(inexact).map(|(x, inexact)| {
                let replacement = if *inexact { moving.next() } else { None };
                replacement.unwrap_or_else(|| x.clone())
            });
            let outs = f(args.collect())?;
            Ok(outs.into_iter().filter(|out| out.dtype().is_inexact()).collect())
        },
        moving.collect::<Vec<_>>(),
    )?
    .1
    .call(cotangents.to_vec())?
    .0)
}

/// Reads the bytes of an exported function, as [`Exported::deserialize`] does. `Args` and `Out` follow from a type
/// annotation or a later use.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::export::{self, Exported};
/// let bytes = export::export(|x: Array| x * 2, ones(3))?.serialize()?;
/// let double: Exported<(Array,), Array> = export::deserialize(&bytes)?;
/// assert_eq!(double.call(ones(3))?.to_vec::<f32>()?, [2.0; 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error in the same cases as [`Exported::deserialize`].
#[track_caller]
pub fn deserialize<Args, Out>(bytes: &[u8]) -> Result<Exported<Args, Out>> {
    Exported::deserialize(bytes)
}

/// An [exported](export) function from arguments `Args`, a tuple of trees, to the tree `Out`.
pub struct Exported<Args, Out> {
    program: Arc<Exchanged>,
    types: PhantomData<fn(Args) -> Out>,
}

impl<Args, Out> Clone for Exported<Args, Out> {
    fn clone(&self) -> Self {
        Exported { program: self.program.clone(), types: PhantomData }
    }
}

/// One line for each argument and result, and the platforms.
impl<Args, Out> fmt::Debug for Exported<Args, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.program;
        let platforms: Vec<_> = self.platforms().collect();
        writeln!(f, "{} for {} on {}", program.name, devices(program.devices()), platforms.join(", "))?;
        let symbolic = program.symbolic.as_ref();
        for (what, paths, avals, sizes) in [
            ("argument", &program.in_paths, &program.in_avals, symbolic.map(|symbolic| &symbolic.in_sizes)),
            ("result", &program.out_paths, &program.out_avals, symbolic.map(|symbolic| &symbolic.out_sizes)),
        ] {
            for (i, (path, aval)) in paths.iter().zip(avals).enumerate() {
                match sizes {
                    Some(sizes) => writeln!(f, "  {what}{path}: {}", type_of(aval, &sizes[i]))?,
                    None => writeln!(f, "  {what}{path}: {aval}")?,
                }
            }
        }
        Ok(())
    }
}

fn devices(count: usize) -> String {
    if count == 1 { "one device".to_owned() } else { format!("{count} devices") }
}

impl<Args, Out> Exported<Args, Out> {
    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// Returns an error if the function contains arrays that cannot be read, for example because they were deleted.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.program.to_bytes()
    }

    /// Reads the bytes of a file, or the bytes from `jax.export.Exported.serialize()`.
    ///
    /// # Errors
    /// Returns an error for damaged bytes and other versions. JAX's files have no checksum, so damage is found only if
    /// the contents are invalid. Also returns an error for JAX's functions with effects, or with types that shardax
    /// does not have. `Args` and `Out` are checked against the function's types when you call it.
    #[track_caller]
    pub fn deserialize(bytes: &[u8]) -> Result<Self> {
        Ok(Exported { program: Arc::new(Exchanged::from_bytes(bytes).at_caller()?), types: PhantomData })
    }

    /// Writes the file. It is written to a temporary file first, so that it appears complete or not at all.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        std::fs::write(&partial, self.serialize()?)
            .and_then(|()| std::fs::rename(&partial, path))
            .map_err(|e| {
                err!(Runtime, "cannot write {}: {e}", path.display())
                    .help("pass a path in a directory that exists and that you can write to")
            })
            .at_caller()
    }

    /// Reads such a file; see [`deserialize`](Exported::deserialize).
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is damaged, or contains a function of other types than `Args`
    /// and `Out`.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path)
            .map_err(|e| {
                err!(Runtime, "cannot read {}: {e}", path.display())
                    .help("pass the path of a file that `Exported::save` wrote")
            })
            .at_caller()?;
        Self::deserialize(&bytes).map_err(|e| e.context(path.display().to_string())).at_caller()
    }

    /// Returns the function's name.
    pub fn name(&self) -> &str {
        &self.program.name
    }

    /// Returns the target platforms.
    pub fn platforms(&self) -> impl Iterator<Item = &str> {
        self.program.texts.keys().map(String::as_str)
    }

    /// Returns the number of devices that it runs on.
    pub fn device_count(&self) -> usize {
        self.program.devices()
    }

    /// Returns the types of the arguments' leaves, with their key paths. A symbolic size is 0 here; `Debug` prints its
    /// name.
    pub fn in_avals(&self) -> impl Iterator<Item = (&str, &Aval)> {
        self.program.in_paths.iter().map(String::as_str).zip(&self.program.in_avals)
    }

    /// Returns the types of the result's leaves, with their key paths. A symbolic size is 0 here; `Debug` prints its
    /// name.
    pub fn out_avals(&self) -> impl Iterator<Item = (&str, &Aval)> {
        self.program.out_paths.iter().map(String::as_str).zip(&self.program.out_avals)
    }

    /// Returns the StableHLO for a platform; its first arguments are the captured arrays. `None` if the function was
    /// not exported for the platform, and if it has symbolic sizes.
    pub fn mlir_module(&self, platform: &str) -> Option<&str> {
        self.program.texts.get(platform).map(|text| &**text).filter(|_| self.program.symbolic.is_none())
    }

    /// Calls the function with the leaves of its arguments in the order of [`in_avals`](Exported::in_avals), and
    /// returns the leaves of its result in the order of [`out_avals`](Exported::out_avals). Use it in programs that
    /// know the types only at run time.
    ///
    /// # Errors
    /// Returns an error if the number of arrays, a shape or a dtype differs from [`in_avals`](Exported::in_avals).
    #[track_caller]
    pub fn call_leaves(&self, leaves: &[Array]) -> Result<Vec<Array>> {
        let _line = source::enter();
        self.on_leaves(leaves).at_caller()
    }

    fn on_leaves(&self, leaves: &[Array]) -> Result<Vec<Array>> {
        let program = &self.program;
        if leaves.len() != program.in_avals.len() {
            let message = err!(Type, "{} takes {} arrays, got {}", program.name, program.in_avals.len(), leaves.len());
            return Err(message.help(format!("{self:?}").trim_end().to_owned()));
        }
        let program = &program.sized(leaves)?;
        let expected = program.in_paths.iter().zip(&program.in_avals);
        let leaves = leaves.iter().zip(expected).map(|(leaf, (path, aval))| fitting(leaf, path, aval));
        let outs = call(program, leaves.collect::<Result<_>>()?)?;
        outs.iter().try_for_each(Array::check)?;
        Ok(outs)
    }

    /// Returns `true` if the function can be differentiated.
    pub fn has_vjp(&self) -> bool {
        self.program.vjp.is_some()
    }
}

impl<Args: Tree, Out: Tree> Function<Args> for Exported<Args, Out> {
    type Output = Out;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<Out> {
        let program = &self.program;
        let flat = Flat::of(&args);
        let context = |e: Error| e.context(format!("argument of {}, which was exported for others", program.name));
        let expected = TreeDef::from_json(&program.in_tree, &flat.def).map_err(context)?;
        let leaves = match expected.leaves_by_name(&flat.def) {
            Some(positions) => positions.into_iter().map(|i| flat.leaves[i].clone()).collect::<Vec<_>>(),
            None => {
                return Err(same_structure(&expected, &flat.def)
                    .map_err(context)
                    .err()
                    .unwrap_or_else(|| context(err!(Type, "trees of different structure"))));
            }
        };
        let leaves = self.on_leaves(&leaves)?.into();
        Flat { leaves, def: TreeDef::from_json(&program.out_tree, &flat.def)? }.build()
    }
}

/// Converts an argument for the program: plain numbers become arrays of its dtype.
fn fitting(leaf: &Array, path: &str, want: &Aval) -> Result<Array> {
    let have = leaf.aval();
    if leaf.is_number() && want.shape.is_empty() {
        return Ok(leaf.astype(want.dtype));
    }
    if (have.dtype, &have.shape) != (want.dtype, &want.shape) {
        return Err(err!(Type, "argument{path} must have type {want}, got {have}").help(
            "an exported function is for the types it was exported for; export it for these, or convert the argument",
        ));
    }
    match (have.sharding(), want.sharding()) {
        (Some(a), Some(b)) if a != b && a.mesh() == b.mesh() => Ok(reshard(leaf.clone(), b)),
        _ => Ok(leaf.clone()),
    }
}

/// Returns the results' leaves for the leaves of the arguments.
fn call(program: &Arc<Exchanged>, leaves: Vec<Array>) -> Result<Vec<Array>> {
    let Some(derivative) = &program.vjp else { return run(program, &leaves) };
    let (moving, fixed): (Vec<_>, Vec<_>) = leaves.iter().cloned().partition(|leaf| leaf.dtype().is_inexact());
    let (primal, forward, backward) = (program.clone(), program.clone(), derivative.clone());
    let f =
        custom_vjp(move |fixed: Vec<Array>, moving: Vec<Array>| run(&primal, &merge_leaves(&primal, &moving, &fixed)))
            .nondiff_argnums(Arg::<0>)
            .defvjp(
                move |fixed: Vec<Array>, moving: Vec<Array>| {
                    Ok((call(&forward, merge_leaves(&forward, &moving, &fixed))?, moving))
                },
                move |fixed: Vec<Array>, moving: Vec<Array>, cts: Vec<Array>| {
                    let mut args = merge_leaves(&backward, &moving, &fixed);
                    args.extend(cts.into_iter().filter(|ct| ct.dtype().is_inexact()));
                    // JAX's derivative returns an entry for every argument. Entries for arguments that are not
                    // differentiable have dtype float0.
                    let slopes = call(&backward, args)?.into_iter().filter(|ct| ct.dtype().is_inexact());
                    Ok((slopes.collect::<Vec<_>>(),))
                },
            );
    f.call((fixed, moving))
}

/// The leaves of the arguments in order, from the inexact ones (`moving`) and the others. `program` has the types of
/// all of them first, so it can also be the derivative.
fn merge_leaves(program: &Exchanged, moving: &[Array], fixed: &[Array]) -> Vec<Array> {
    let (mut moving, mut fixed) = (moving.iter(), fixed.iter());
    let inexact = program.in_avals.iter().map(|aval| aval.dtype.is_inexact());
    inexact.map_while(|inexact| if inexact { moving.next() } else { fixed.next() }).cloned().collect()
}

/// Runs `main`.
fn run(program: &Arc<Exchanged>, leaves: &[Array]) -> Result<Vec<Array>> {
    let arguments = program.kept.iter().map(|&i| leaves[i].clone());
    let operands: Vec<Array> = program.captures.iter().cloned().chain(arguments).collect();
    let (mesh, has_devices) = program.mesh(leaves)?;
    Ok(bind(CallExported { program: program.clone(), mesh, has_devices }, &operands).into_vec())
}
