//! Jacobians and Hessians of functions of trees, by vectorized forward or reverse mode.

use std::marker::PhantomData;
use std::rc::Rc;

use super::grad::at_positions;
use super::vmap::vmap;
use crate::core::array::Array;
use crate::core::function::{Arg, Argnums, Function, identity_of};
use crate::core::primitive::Tangents;
use crate::core::program::Aval;
use crate::core::program::trace::Traced;
use crate::core::tree::{Compose, Flat, Node, Tree, TreeDef};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::interpret::ad;
use crate::interpret::eval::eval;
use crate::interpret::flat::{FlatFn, avals_of, flat_fn, trace_concrete};
use crate::interpret::higher_order::zeros;
use crate::ops::lax::iota;
use crate::runtime::concrete_inputs::WholeArrays;
use crate::runtime::implicit_jit;
use crate::scope;
use crate::sharding::Typed;

/// Returns the Jacobian of a function by forward mode, one column per input element. It is faster than reverse mode if
/// there are more outputs than inputs.
///
/// For a function from an array to an array, the Jacobian has the shape `f(x).shape + x.shape`. Otherwise it is the
/// tree of the results with a tree of the argument at each leaf; see [`Compose`]. [`argnums`](Jacobian::argnums)
/// chooses the arguments; [`has_aux`](Jacobian::has_aux) is for a function that returns `(result, more)`.
///
/// ```
/// # use shardax::prelude::*;
/// let f = |x: Array, scale: Array| (x.square() * &scale, x.sum(..));
/// let (squares, sum) = jacfwd(f).call((array([1.0f32, 2.0]), 3.0))?;
/// assert_eq!(squares.to_vec::<f32>()?, [6.0, 0.0, 0.0, 12.0]);
/// assert_eq!(sum.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Calling it returns an error for arguments that are not floating point.
pub fn jacfwd<Args: Tree, F: Function<Args>>(f: F) -> Jacobian<F, Args, Forward> {
    Jacobian { f, argnums: Arg, types: PhantomData }
}

/// Returns the Jacobian of a function by reverse mode, one row per output element. It is faster than forward mode if
/// there are more inputs than outputs. It has the options of [`jacfwd`].
///
/// ```
/// # use shardax::prelude::*;
/// let norms = |x: Array| stack(&[x.sum(..), x.square().sum(..)], 0);
/// let jacobian = jacrev(norms).call(array([1.0f32, 2.0, 3.0]))?;
/// assert_eq!(jacobian.get(1).to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Calling it returns an error for arguments and results that are not floating point.
pub fn jacrev<Args: Tree, F: Function<Args>>(f: F) -> Jacobian<F, Args, Reverse> {
    Jacobian { f, argnums: Arg, types: PhantomData }
}

/// Returns all second derivatives of a function: the forward Jacobian of the reverse Jacobian.
///
/// For `n` elements this needs `n` times the time of a gradient and `n²` numbers. If you only need products of the Hessian
/// and a vector, use [`jvp`](crate::jvp) of [`grad`](crate::grad) instead, which costs about as much as two gradients.
///
/// For a scalar function of one array, the Hessian has the shape `x.shape + x.shape`. For a tree, it is this tree with
/// another such tree at each leaf.
///
/// ```
/// # use shardax::prelude::*;
/// let f = |(x, y): (Array, Array)| (x * y).sum(..);
/// let ((xx, xy), _) = hessian(f).call((array([1.0f32, 2.0]), array([3.0f32, 4.0])))?;
/// assert_eq!(xx.to_vec::<f32>()?, [0.0; 4]);
/// assert_eq!(xy.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn hessian<Args: Tree, F: Function<Args>>(f: F) -> Hessian<F, Args> {
    Hessian(Jacobian { f: jacrev(f), argnums: Arg, types: PhantomData })
}

/// Forward mode; see [`jacfwd`].
pub struct Forward;
/// Reverse mode; see [`jacrev`].
pub struct Reverse;
/// The function returns only the result that is differentiated.
pub struct Plain;
/// The function returns a pair, and only the first element is differentiated; see [`Jacobian::has_aux`].
pub struct WithAux;

/// The Jacobian of a function; see [`jacfwd`] and [`jacrev`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Jacobian<F, Args, Mode, N = Arg<0>, Returns = Plain> {
    f: F,
    argnums: N,
    types: PhantomData<fn(Args, Mode, Returns)>,
}

impl<F, Args, Mode, N, R> Jacobian<F, Args, Mode, N, R> {
    /// Differentiates with respect to these arguments instead of the first.
    pub fn argnums<M: Argnums<Args>>(self, argnums: M) -> Jacobian<F, Args, Mode, M, R> {
        Jacobian { f: self.f, argnums, types: PhantomData }
    }
}

impl<F, Args, Mode, N> Jacobian<F, Args, Mode, N> {
    /// Declares that the function returns `(result, aux)`, where `aux` is not differentiated. The result is `(Jacobian,
    /// aux)`.
    pub fn has_aux(self) -> Jacobian<F, Args, Mode, N, WithAux> {
        Jacobian { f: self.f, argnums: self.argnums, types: PhantomData }
    }
}

/// The second derivatives of a function; see [`hessian`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Hessian<F, Args, N = Arg<0>, R = Plain>(Twice<F, Args, N, R>);

type Twice<F, Args, N, R> = Jacobian<Jacobian<F, Args, Reverse, N, R>, Args, Forward, N, R>;

impl<F, Args, N, R> Hessian<F, Args, N, R> {
    /// Differentiates with respect to these arguments instead of the first.
    pub fn argnums<M: Argnums<Args>>(self, argnums: M) -> Hessian<F, Args, M, R> {
        Hessian(Jacobian { f: self.0.f.argnums(argnums), argnums, types: PhantomData })
    }
}

impl<F, Args, N> Hessian<F, Args, N> {
    /// Declares that the function returns `(scalar, aux)`, where `aux` is not differentiated. The result is `(Hessian,
    /// aux)`.
    pub fn has_aux(self) -> Hessian<F, Args, N, WithAux> {
        Hessian(Jacobian { f: self.0.f.has_aux(), argnums: self.0.argnums, types: PhantomData })
    }
}

impl<F, Args: Tree, N, R> Function<Args> for Hessian<F, Args, N, R>
where
    Twice<F, Args, N, R>: Function<Args>,
{
    type Output = <Twice<F, Args, N, R> as Function<Args>>::Output;
    fn identity(&self) -> Option<u64> {
        self.0.identity()
    }
    fn apply(&self, args: Args) -> Result<Self::Output> {
        self.0.apply(args)
    }
}

impl<F, Args, M, N> Function<Args> for Jacobian<F, Args, M, N>
where
    F: Function<Args>,
    F::Output: Compose<N::Gradient>,
    Args: Tree,
    M: Mode,
    N: Argnums<Args>,
{
    type Output = <F::Output as Compose<N::Gradient>>::Composed;
    fn identity(&self) -> Option<u64> {
        identity_of::<Self>(self.argnums.positions().ok(), self.f.identity())
    }
    fn apply(&self, args: Args) -> Result<Self::Output> {
        let (out, blocks) = blocks::<F, Args, M, N>(&self.f, args, false, &self.argnums)?;
        blocks.compose(out.build::<F::Output>()?)
    }
}

impl<F, Args, M, N, Out, Aux> Function<Args> for Jacobian<F, Args, M, N, WithAux>
where
    F: Function<Args, Output = (Out, Aux)>,
    Out: Compose<N::Gradient>,
    Aux: Tree,
    Args: Tree,
    M: Mode,
    N: Argnums<Args>,
{
    type Output = (Out::Composed, Aux);
    fn identity(&self) -> Option<u64> {
        identity_of::<Self>(self.argnums.positions().ok(), self.f.identity())
    }
    fn apply(&self, args: Args) -> Result<Self::Output> {
        let (out, blocks) = blocks::<F, Args, M, N>(&self.f, args, true, &self.argnums)?;
        let (out, aux) = out.build::<(Out, Aux)>()?;
        Ok((blocks.compose(out)?, aux))
    }
}

/// The derivative of each leaf of the results with respect to each leaf of the arguments, row by row.
struct Blocks {
    leaves: Vec<Array>,
    /// The structure of a row.
    row: TreeDef,
}

impl Blocks {
    fn compose<X: Tree, Out: Compose<X>>(self, out: Out) -> Result<Out::Composed> {
        let mut leaves = self.leaves.into_iter();
        let count = self.row.leaf_count();
        out.compose(&mut || Flat { leaves: leaves.by_ref().take(count).collect(), def: self.row.clone() }.build())
    }
}

/// Returns the function's result and its derivatives.
fn blocks<F: Function<Args>, Args: Tree, M: Mode, N: Argnums<Args>>(
    f: &F,
    args: Args,
    has_aux: bool,
    argnums: &N,
) -> Result<(Flat, Blocks)> {
    let flat = Flat::from_arguments(&args);
    let positions = argnums.positions()?;
    let key = (f.identity(), (&positions, has_aux));
    let f = flat_fn::<Args, F>(f);
    let (wanted, row) = at_positions(&flat.def, &positions);
    let pair = implicit_jit::run_shared(M::NAME, key, &flat, &|flat| {
        Point::new(M::NAME, flat, &wanted, has_aux, &f)?.pair(M::leaves)
    })?;
    let (out, derivatives) = pair.halves()?;
    Ok((out, Blocks { leaves: derivatives.leaves.into_vec(), row }))
}

/// A function traced at a point.
#[doc(hidden)]
pub struct Point<'a> {
    traced: Traced,
    /// The leaves of the arguments to differentiate with respect to, in the order of a row.
    wanted: &'a [usize],
    /// The operands of the program: captured values, then the arguments.
    primals: Vec<Array>,
    outs: Vec<Array>,
    out_def: TreeDef,
    /// The number of leaves that are differentiated.
    rows: usize,
}

/// Forward or reverse.
pub trait Mode {
    #[doc(hidden)]
    const NAME: &'static str;
    #[doc(hidden)]
    fn leaves(at: &Point<'_>) -> Result<Vec<Array>>;
}

impl<'a> Point<'a> {
    fn new(name: &str, flat: &Flat, wanted: &'a [usize], has_aux: bool, f: FlatFn<'_>) -> Result<Self> {
        let avals = avals_of(flat)?;
        wanted.iter().try_for_each(|&i| differentiable(name, "inputs", &avals[i]))?;
        let (mut traced, out_def) = trace_concrete(Rc::new(WholeArrays(flat.leaves.to_vec())), &flat.def, &avals, f)?;
        traced.program = ad::merged_if_nested(traced.program);
        let primals: Vec<Array> = traced.captures.iter().chain(&flat.leaves).cloned().collect();
        let outs = eval(&traced.program, &primals)?;
        let rows = if has_aux {
            out_def.root_children().map_or(0, |c| c.first().map_or(0, |(_, def)| def.leaf_count()))
        } else {
            outs.len()
        };
        Ok(Point { traced, wanted, primals, outs: outs.into_iter().collect(), out_def, rows })
    }

    /// Returns the flattened pair of the result and its derivatives.
    fn pair(self, leaves: impl FnOnce(&Self) -> Result<Vec<Array>>) -> Result<Flat> {
        let derivatives = leaves(&self)?;
        let mut pair = Flat::default();
        pair.node(Node::Tuple(2));
        pair.append(&Flat { leaves: self.outs.into(), def: self.out_def });
        pair.append(&Flat::of(&derivatives));
        Ok(pair)
    }

    /// The operand of the program for a leaf of the arguments.
    fn operand(&self, leaf: usize) -> usize {
        self.traced.captures.len() + leaf
    }
}

impl Mode for Forward {
    const NAME: &'static str = "jacfwd";

    fn leaves(at: &Point<'_>) -> Result<Vec<Array>> {
        let column = |&leaf: &usize| -> Result<Vec<Array>> {
            let x = &at.primals[at.operand(leaf)];
            let columns = vmap(|t: Array| -> Result<Vec<Array>> {
                let mut tangents: Tangents = vec![None; at.primals.len()];
                tangents[at.operand(leaf)] = Some(in_state_of(t, x.aval().sharding()));
                let (outs, ts) =
                    scope::transform("jvp", || ad::jvp_eval(&at.traced.program, &at.primals, &tangents, false))?;
                Ok(outs.iter().zip(ts).take(at.rows).map(|(out, t)| t.unwrap_or_else(|| zero_tangent(out))).collect())
            })
            .out_axes(-1)
            .call(basis(x))?;
            Ok(columns.iter().zip(&at.outs).map(|(c, out)| c.reshape([out.shape(), x.shape()].concat())).collect())
        };
        let columns: Vec<Vec<Array>> = at.wanted.iter().map(column).collect::<Result<_>>()?;
        Ok((0..at.rows).flat_map(|row| columns.iter().map(move |column| column[row].clone())).collect())
    }
}

impl Mode for Reverse {
    const NAME: &'static str = "jacrev";

    fn leaves(at: &Point<'_>) -> Result<Vec<Array>> {
        let nonzero: Vec<bool> =
            (0..at.primals.len()).map(|i| at.wanted.iter().any(|&leaf| at.operand(leaf) == i)).collect();
        let linear = ad::linearize(&at.traced.program, &at.primals, &nonzero)?.1;
        // `transpose` returns the cotangents in the order of the operands.
        let positions: Vec<usize> =
            at.wanted.iter().map(|&leaf| at.wanted.iter().filter(|&&other| other < leaf).count()).collect();
        let mut blocks = Vec::new();
        for (i, out) in at.outs.iter().enumerate().take(at.rows) {
            differentiable(Self::NAME, "outputs", &out.aval())?;
            let rows = vmap(|ct: Array| -> Result<Vec<Array>> {
                let mut cts: Tangents = vec![None; at.outs.len()];
                cts[i] = Some(in_state_of(ct, out.aval().sharding().map(Typed::cotangent).as_ref()));
                let in_cts = linear.transpose(&cts)?;
                let slopes = at.wanted.iter().zip(&positions).map(|(&leaf, &position)| {
                    let ct = in_cts.get(position).cloned().flatten();
                    ct.unwrap_or_else(|| zeros(&at.primals[at.operand(leaf)].aval()))
                });
                Ok(slopes.collect())
            })
            .call(basis(out))?;
            blocks.extend(
                rows.iter()
                    .zip(at.wanted)
                    .map(|(row, &leaf)| row.reshape([out.shape(), at.primals[at.operand(leaf)].shape()].concat())),
            );
        }
        Ok(blocks)
    }
}

fn differentiable(name: &str, what: &str, aval: &Aval) -> Result<()> {
    if aval.dtype.is_inexact() {
        return Ok(());
    }
    Err(err!(Type, "{name} requires real- or complex-valued {what}, but got {aval}")
        .help("convert it with `astype(DType::F32)`"))
}

/// The tangent of a result that does not depend on the arguments.
fn zero_tangent(out: &Array) -> Array {
    if out.dtype().is_inexact() { zeros(&out.aval()) } else { Array::zeros_of(&out.aval().with_dtype(DType::Float0)) }
}

/// Returns an entry of a basis, unreduced or reduced as this sharding is.
fn in_state_of(entry: Array, sharding: Option<&Typed>) -> Array {
    match sharding.filter(|typed| typed.is_partial()) {
        Some(typed) => entry.sharded(typed),
        None => entry,
    }
}

/// The standard basis: one array like `x` per element of `x`, each with a 1 at that element.
fn basis(x: &Array) -> Array {
    let n = x.size();
    let aval = x.aval().strip_weak_type();
    let ones = crate::ops::numpy::convert(
        &iota(DType::I32, &[n, n], 0).equal(iota(DType::I32, &[n, n], 1)),
        aval.dtype,
        aval.weak,
    );
    ones.reshape([&[n], x.shape()].concat()).varying_as(&aval.vma)
}
