//! `scan` and the functions based on it: `map` and `associative_scan`.

use std::panic::Location;
use std::sync::Arc;

use super::conditionals::FlatFn;
use super::{Carry, converted};
use crate::core::array::Array;
use crate::core::function::{IntoArg, IntoOutput};
use crate::core::primitive::{Outputs, Primitive};
use crate::core::program::Aval;
use crate::core::program::trace::{bind_at, check_usable, with_source};
use crate::core::tree::{Flat, Tree, TreeDef, same_structure};
use crate::error::{Result, err};
use crate::interpret::batching::move_batch;
use crate::interpret::flat::{avals_of, trace_flat};
use crate::interpret::higher_order::{bind_checked, drop_unused_captures};
use crate::ops::lax;
use crate::ops::primitive::scan::Scan;
use crate::shape::{AxisNumber, normalize_axis};
use crate::sharding::DimSpec;
use crate::source;

/// Loops over the leading axis of `xs` and carries a state.
///
/// Use it instead of a Rust loop for many equal steps, such as the layers of a network: a Rust loop is unrolled while it
/// is traced, so that the program and its compilation grow with the number of steps. For a few steps, a Rust loop can run
/// faster, because XLA fuses its steps.
///
/// `f` receives the carry and one slice of `xs`, and returns the next carry and an output. The result is the last carry
/// and the outputs, stacked along a new leading axis. `f` is traced once, whatever the number of steps, and the loop is
/// differentiable in both modes. You can pass `init` and `xs` by reference, and a number for an array.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::scan;
/// let (sum, partial) = scan(|sum: Array, x: Array| (&sum + x, sum), 0.0, array([1.0f32, 2.0, 3.0]))?;
/// assert_eq!(sum.item::<f32>()?, 6.0);
/// assert_eq!(partial.to_vec::<f32>()?, [0.0, 1.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the leaves of `xs` differ in the size of their leading axis, or if a step changes the structure,
/// a dtype or a shape of the carry.
#[track_caller]
pub fn scan<C, X, Y, R>(f: impl Fn(C, X) -> R, init: impl IntoArg<C>, xs: impl IntoArg<X>) -> Result<(C, Y)>
where
    C: Tree,
    X: Tree,
    Y: Tree,
    R: IntoOutput<Output = (C, Y)>,
{
    ScanOptions::new().scan(f, init, xs)
}

/// Like [`scan`] without `xs`: runs `length` steps of `f`, which receives only the carry.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::scan_n;
/// let (last, powers) = scan_n(|x: Array| (&x * 2, x), array(1), 4)?;
/// assert_eq!(last.item::<i32>()?, 16);
/// assert_eq!(powers.to_vec::<i32>()?, [1, 2, 4, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `f` fails, or if it changes the structure, a dtype or a shape of the carry.
#[track_caller]
pub fn scan_n<C, Y, R>(f: impl Fn(C) -> R, init: impl IntoArg<C>, length: usize) -> Result<(C, Y)>
where
    C: Tree,
    Y: Tree,
    R: IntoOutput<Output = (C, Y)>,
{
    ScanOptions::new().length(length).scan(|carry, ()| f(carry), init, ())
}

/// Applies `f` to each slice of `xs` along the leading axis, one after another, and stacks the results.
///
/// Unlike `vmap`, it needs the memory of only one step at a time. [`MapOptions`](crate::MapOptions) can compute
/// several steps at once, which is usually faster.
///
/// ```
/// # use shardax::prelude::*;
/// let rows = shardax::control_flow::map(|row: Array| &row / row.sum(..), array([[1.0f32, 3.0], [2.0, 2.0]]))?;
/// assert_eq!(rows.to_vec::<f32>()?, [0.25, 0.75, 0.5, 0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `f` fails, if `xs` has no arrays, or if its arrays differ in the size of their leading axis.
#[track_caller]
pub fn map<X, Y, R>(f: impl Fn(X) -> R, xs: impl IntoArg<X>) -> Result<Y>
where
    X: Tree,
    Y: Tree,
    R: IntoOutput<Output = Y>,
{
    Ok(ScanOptions::new().scan(|(), x| -> Result<((), Y)> { Ok(((), f(x).into_output()?)) }, (), xs)?.1)
}

/// Options of [`scan`].
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::ScanOptions;
/// let (_, suffix_sums): (_, Array) = ScanOptions::new().reverse(true).scan(
///     |sum: Array, x: Array| (&sum + &x, sum + x),
///     Array::from(0),
///     array([1, 2, 3]),
/// )?;
/// assert_eq!(suffix_sums.to_vec::<i32>()?, [6, 5, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    length: Option<usize>,
    reverse: bool,
    unroll: usize,
}

/// Replaces the types of arrays by the types of their entries. The first dimension must not be sharded, because every
/// device runs every step.
fn entry_types(function: &str, avals: &mut [Aval]) -> Result<()> {
    for aval in avals {
        if aval.sharding().is_some_and(|typed| typed.dims()[0] != DimSpec::None) {
            return Err(err!(
                Value,
                "0th dimension of all xs should be replicated, and {function} got xs of type {aval}"
            )
            .help("gather it first with `reshard(xs, spec)`, whose first entry is `None`"));
        }
        *aval = aval.without_dim(0);
    }
    Ok(())
}

impl Default for ScanOptions {
    fn default() -> Self {
        ScanOptions { length: None, reverse: false, unroll: 1 }
    }
}

impl ScanOptions {
    /// Returns a forward scan, one step at a time, with the length of the arrays.
    pub fn new() -> Self {
        ScanOptions::default()
    }

    /// Sets the number of steps, for a scan without arrays.
    pub fn length(mut self, length: usize) -> Self {
        self.length = Some(length);
        self
    }

    /// Runs from the last slice to the first. Each output is stored at the position of its slice.
    pub fn reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    /// Runs this many steps in each iteration of the compiled loop, which enlarges the code and reduces overhead.
    pub fn unroll(mut self, steps: usize) -> Self {
        self.unroll = steps;
        self
    }

    pub(super) fn steps_at_once(self) -> usize {
        self.unroll
    }

    /// Loops over the leading axis of `xs` like [`scan`](scan()), with these options.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`scan`](scan()).
    #[track_caller]
    pub fn scan<C, X, Y, R>(self, f: impl Fn(C, X) -> R, init: impl IntoArg<C>, xs: impl IntoArg<X>) -> Result<(C, Y)>
    where
        C: Tree,
        X: Tree,
        Y: Tree,
        R: IntoOutput<Output = (C, Y)>,
    {
        let args = Flat::from_arguments(&(init.into_arg(), xs.into_arg()));
        let body: FlatFn<'_> = &|args| {
            let (carry, x) = args.build::<(C, X)>()?;
            Ok(Flat::of(&f(carry, x).into_output()?))
        };
        self.run("scan", &args, None, body, Location::caller())?.build()
    }

    /// Runs the scan on the flattened pair of carry and arrays. `paths` names the leaves of the carry in errors.
    pub(crate) fn run(
        self,
        function: &str,
        args: &Flat,
        paths: Option<Vec<String>>,
        body: &dyn Fn(&Flat) -> Result<Flat>,
        location: &'static Location<'static>,
    ) -> Result<Flat> {
        self.run_inner(function, args, paths, body, location).map_err(|e| e.at(location))
    }

    fn run_inner(
        self,
        function: &str,
        args: &Flat,
        paths: Option<Vec<String>>,
        body: &dyn Fn(&Flat) -> Result<Flat>,
        location: &'static Location<'static>,
    ) -> Result<Flat> {
        let mut avals = avals_of(args)?;
        let (init, xs) = args.halves()?;
        let count = init.leaves.len();
        let mut carry = Carry::new(function, &init.def);
        carry.paths = paths.unwrap_or(carry.paths);
        let length = self.checked_steps(function, &xs)?;
        entry_types(function, &mut avals[count..])?;

        // Traces the body, and once more if the first trace shows that the carry has to start from other types.
        let step: FlatFn<'_> = &|args| {
            let (mut after, ys) = body(args)?.halves()?;
            carry.returned(&args.leaves[..count], &mut after)?;
            let mut out = Flat::default();
            out.node(crate::core::tree::Node::Tuple(2));
            out.append(&after);
            out.append(&ys);
            Ok(out)
        };
        let (mut traced, mut def) = trace_flat(&args.def, &avals, step)?;
        if let Some(start) = carry.check(&avals[..count], &traced.program.out_avals())? {
            avals[..count].clone_from_slice(&start);
            (traced, def) = trace_flat(&args.def, &avals, step)?;
            carry.check(&avals[..count], &traced.program.out_avals())?;
        }

        // Records the loop on the values that the body captured, the converted carry and the arrays.
        let traced = drop_unused_captures(traced);
        let scan = Scan {
            body: traced.program,
            length,
            reverse: self.reverse,
            num_consts: traced.captures.len(),
            num_carry: count,
            unroll: self.unroll,
        };
        let init = with_source(location, || converted(&init.leaves, &avals));
        let operands = [traced.captures, init, xs.leaves.to_vec()].concat();
        let outs = bind_at(Arc::new(scan), &operands, location);
        outs.iter().try_for_each(check_usable)?;
        Ok(Flat { leaves: outs.into_iter().collect(), def })
    }

    /// Returns the number of steps, after checking that loops can count it.
    fn checked_steps(self, function: &str, xs: &Flat) -> Result<usize> {
        let length = self.steps(xs)?;
        if i32::try_from(length).is_err() {
            return Err(err!(Value, "{function} counts its steps in int32: {length} are too many")
                .help("divide the steps over two nested loops"));
        }
        if self.unroll == 0 {
            return Err(
                err!(Value, "scan unroll must be at least 1, got 0").help("pass 1 to run one step in each iteration")
            );
        }
        Ok(length)
    }

    /// Returns the number of steps: the leading size of the arrays, or the `length` option. If there are both, they must be
    /// equal.
    fn steps(self, xs: &Flat) -> Result<usize> {
        let mut sizes = Vec::new();
        for (leaf, path) in xs.leaves.iter().zip(xs.def.paths()) {
            match leaf.shape().first() {
                Some(size) => sizes.push(*size),
                None => {
                    return Err(err!(
                        Value,
                        "scan got value with no leading axis to scan over: xs{path} has type {}",
                        leaf.type_name()
                    )
                    .help("let the closure capture values that are the same in every step"));
                }
            }
        }
        // Both errors below list the sizes of all arrays, because the wrong one is not known.
        let list = sizes.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(", ");
        if sizes.windows(2).any(|w| w[0] != w[1]) {
            return Err(err!(Value, "scan got values with different leading axis sizes: {list}")
                .help("all arrays must have one entry for each step"));
        }
        match (self.length, sizes.first()) {
            (Some(length), Some(size)) if length != *size => Err(err!(
                Value,
                "scan got `length` argument of {length} which disagrees with leading axis sizes [{list}]"
            )
            .help("leave `length` out: it follows from the arrays")),
            (Some(length), _) => Ok(length),
            (None, Some(size)) => Ok(*size),
            (None, None) => Err(err!(Value, "scan got no values to scan over and `length` not provided")
                .help("call `scan_n(f, init, n)`, or set `ScanOptions::length`")),
        }
    }
}

/// Computes all partial results of an associative operation along an axis, with a logarithmic number of applications.
///
/// Use it instead of [`scan`](scan()) if the operation is associative and the axis is long: it runs in parallel, but needs
/// more operations and memory in total.
///
/// `f` combines two trees of arrays elementwise along the axis (it receives several elements at once), as `a + b` does.
/// The axis is 0 and results accumulate from the start; see [`AssociativeScanOptions`].
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::associative_scan;
/// let products = associative_scan(|a: Array, b: Array| a * b, array([1, 2, 3, 4]))?;
/// assert_eq!(products.to_vec::<i32>()?, [1, 2, 6, 24]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the arrays differ in size along the axis, if `f` fails, or if it changes the structure or a
/// shape.
#[track_caller]
pub fn associative_scan<T, R>(f: impl Fn(T, T) -> R, elems: impl IntoArg<T>) -> Result<T>
where
    T: Tree,
    R: IntoOutput<Output = T>,
{
    AssociativeScanOptions::new().associative_scan(f, elems)
}

/// Options of [`associative_scan`](associative_scan()).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::AssociativeScanOptions;
/// let options = AssociativeScanOptions::new().axis(1).reverse(true);
/// let sums = options.associative_scan(|a: Array, b: Array| a + b, array([[1, 2, 3]]))?;
/// assert_eq!(sums.to_vec::<i32>()?, [6, 5, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssociativeScanOptions {
    reverse: bool,
    axis: i32,
}

impl AssociativeScanOptions {
    /// Returns a forward scan along the first axis.
    pub fn new() -> Self {
        AssociativeScanOptions::default()
    }

    /// Accumulates from the end if true. Default false.
    pub fn reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    /// Sets the scanned axis of every array; negative axes count from the last. Default 0.
    pub fn axis(mut self, axis: impl AxisNumber) -> Self {
        self.axis = axis.axis_number();
        self
    }

    /// Computes all partial results like [`associative_scan`](associative_scan()), with these options.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`associative_scan`](associative_scan()).
    #[track_caller]
    pub fn associative_scan<T, R>(self, f: impl Fn(T, T) -> R, elems: impl IntoArg<T>) -> Result<T>
    where
        T: Tree,
        R: IntoOutput<Output = T>,
    {
        scan_associatively(f, elems.into_arg(), self)
    }
}

#[track_caller]
fn scan_associatively<T, R>(f: impl Fn(T, T) -> R, elems: T, options: AssociativeScanOptions) -> Result<T>
where
    T: Tree,
    R: IntoOutput<Output = T>,
{
    let AssociativeScanOptions { reverse, axis } = options;
    let location = Location::caller();
    let _line = source::enter_at(location);
    let flat = Flat::of(&elems);
    let combine: Combine<'_> = &|a, b| {
        let a = Flat { leaves: a.into(), def: flat.def.clone() }.build()?;
        let b = Flat { leaves: b.into(), def: flat.def.clone() }.build()?;
        Ok(Flat::of(&f(a, b).into_output()?))
    };
    let leaves = scan_leaves(combine, &flat, reverse, axis).map_err(|e| e.at(location))?;
    Flat { leaves: leaves.into(), def: flat.def }.build()
}

/// The combining function of [`associative_scan`](associative_scan()) on the leaves of its operands.
type Combine<'a> = &'a dyn Fn(Vec<Array>, Vec<Array>) -> Result<Flat>;

/// [`associative_scan`](associative_scan()) on a flattened tree. Returns its leaves.
fn scan_leaves(combine: Combine<'_>, elems: &Flat, reverse: bool, axis: i32) -> Result<Vec<Array>> {
    let avals = avals_of(elems)?;
    if avals.is_empty() {
        return Ok(Vec::new());
    }
    let dims: Vec<usize> =
        avals.iter().map(|aval| normalize_axis(axis as isize, aval.rank())).collect::<Result<_>>()?;
    let size = avals[0].shape[dims[0]];
    if avals.iter().zip(&dims).any(|(aval, d)| aval.shape[*d] != size) {
        return Err(err!(
            Value,
            "Array inputs to associative_scan must have the same size along axis {axis}, got {avals:?}"
        )
        .help("pass arrays of the same size along this axis, because all are scanned together"));
    }
    // A scan from the end reverses the elements, scans them from the start, and reverses the results.
    let mut leaves = elems.leaves.to_vec();
    if reverse {
        leaves = reversed(&leaves, &dims);
    }
    leaves = prefixes(&|a, b| combine_leaves(combine, &elems.def, a, b), leaves, &dims, size)?;
    Ok(if reverse { reversed(&leaves, &dims) } else { leaves })
}

/// Combines elements, and checks that the result has the structure and the shapes of the operands.
fn combine_leaves(combine: Combine<'_>, def: &TreeDef, a: Vec<Array>, b: Vec<Array>) -> Result<Vec<Array>> {
    let shapes: Vec<Vec<usize>> = a.iter().map(|x| x.shape().to_vec()).collect();
    let out = combine(a, b)?;
    same_structure(def, &out.def).map_err(|e| e.context("associative_scan function"))?;
    for (shape, result) in shapes.iter().zip(&out.leaves) {
        result.check()?;
        if result.shape() != shape.as_slice() {
            return Err(err!(
                Value,
                "associative_scan function must return arrays of the shape of its operands: \
                 it received {shape:?} and returned {}",
                result.type_name()
            )
            .help("the function combines many elements at once: it must be elementwise along the axis, like `a + b`"));
        }
    }
    Ok(out.leaves.into_vec())
}

fn reversed(leaves: &[Array], dims: &[usize]) -> Vec<Array> {
    leaves.iter().zip(dims).map(|(x, d)| lax::rev(x, &[*d])).collect()
}

/// Combines neighbouring pairs, scans the combined pairs, and fills in the elements between them.
fn prefixes(
    combine: &dyn Fn(Vec<Array>, Vec<Array>) -> Result<Vec<Array>>,
    elems: Vec<Array>,
    dims: &[usize],
    size: usize,
) -> Result<Vec<Array>> {
    if size < 2 {
        return Ok(elems);
    }
    let pairs = combine(parts(&elems, dims, 0, size - 1, 2), parts(&elems, dims, 1, size, 2))?;
    let odd = prefixes(combine, pairs, dims, size / 2)?;
    // An even position continues the prefix before it, except for position 0, which is the element itself.
    let evens = (size - 1) / 2;
    let later_evens = match evens {
        0 => parts(&elems, dims, 0, 0, 1),
        _ => combine(parts(&odd, dims, 0, evens, 1), parts(&elems, dims, 2, size, 2))?,
    };
    let first = parts(&elems, dims, 0, 1, 1);
    Ok((0..elems.len())
        .map(|i| {
            let even = lax::concatenate(&[first[i].clone(), later_evens[i].clone()], dims[i]);
            interleave(&even, &odd[i], dims[i], size)
        })
        .collect())
}

/// Slices each array along its dimension.
fn parts(arrays: &[Array], dims: &[usize], start: usize, limit: usize, stride: usize) -> Vec<Array> {
    arrays.iter().zip(dims).map(|(x, d)| part(x, *d, start, limit, stride)).collect()
}

fn part(x: &Array, dim: usize, start: usize, limit: usize, stride: usize) -> Array {
    let mut starts = vec![0; x.ndim()];
    let mut limits = x.shape().to_vec();
    let mut strides = vec![1; x.ndim()];
    (starts[dim], limits[dim], strides[dim]) = (start, limit, stride);
    lax::slice(x, &starts, &limits, Some(&strides))
}

/// Interleaves `even[0], odd[0], even[1], …` into `size` elements.
fn interleave(even: &Array, odd: &Array, dim: usize, size: usize) -> Array {
    let pairs = size.div_ceil(2);
    // If the last element has no partner, it gets a copy of itself, which is cut off again.
    let odd = if size.is_multiple_of(2) {
        odd.clone()
    } else {
        lax::concatenate(&[odd.clone(), part(even, dim, pairs - 1, pairs, 1)], dim)
    };
    let pair_axis = dim as i32 + 1;
    let paired = lax::concatenate(&[even.expand_dims(pair_axis), odd.expand_dims(pair_axis)], dim + 1);
    let mut shape = even.shape().to_vec();
    shape[dim] = 2 * pairs;
    part(&paired.reshape(shape.as_slice()), dim, 0, size, 1)
}

/// Applies a primitive to the entries of a batch one after another. Operands can be batched or not.
pub(crate) fn each<P: Primitive + Clone + 'static>(
    primitive: P,
    args: &[Array],
    dims: &[Option<usize>],
    size: usize,
) -> Result<Outputs> {
    let batched: Vec<Array> =
        (0..args.len()).filter(|&i| dims[i].is_some()).map(|i| move_batch(&args[i], dims[i], 0, size)).collect();
    let outs: Vec<Array> = map(
        |slices: Vec<Array>| -> Result<Vec<Array>> {
            let mut slices = slices.into_iter();
            let operands =
                args.iter().zip(dims).map(|(arg, dim)| if dim.is_some() { slices.next() } else { Some(arg.clone()) });
            let operands: Vec<Array> = operands.collect::<Option<_>>().unwrap_or_default();
            Ok(bind_checked(primitive.clone(), &operands)?.into_vec())
        },
        batched,
    )?;
    Ok(outs.into())
}
