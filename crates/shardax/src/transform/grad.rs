//! Gradients: reverse-mode differentiation of functions with a scalar result.

use std::marker::PhantomData;

use std::rc::Rc;

use crate::core::argnums::leaves_of;
use crate::core::array::Array;
use crate::core::function::{Arg, Argnums, Function, identity_of};
use crate::core::primitive::Tangents;
use crate::core::program::Aval;
use crate::core::tree::{self, Flat, Tree, TreeDef};
use crate::dependence::{Dependence, depend_on};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::interpret::ad;
use crate::interpret::flat::{FlatFn, avals_of, flat_fn, trace_concrete};
use crate::interpret::higher_order::zeros;
use crate::runtime::concrete_inputs::WholeArrays;
use crate::runtime::device_put::{committed_sharding, return_to};
use crate::runtime::implicit_jit;

/// The dtypes allowed for arguments and results.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Options {
    allow_int: bool,
    holomorphic: bool,
    has_aux: bool,
}

macro_rules! gradient_types {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[must_use = "a transformed function does nothing until it is called"]
        pub struct $name<F, Args, N = Arg<0>> {
            f: F,
            options: Options,
            pub(crate) argnums: N,
            types: PhantomData<fn(Args)>,
        }

        impl<F, Args, N> $name<F, Args, N> {
            /// Takes the gradient with respect to these arguments instead of the first.
            ///
            /// ```
            /// # use shardax::prelude::*;
            /// let product = |x: Array, y: Array| x * y;
            /// assert_eq!(grad(product).argnums(Arg::<1>).call((2.0f32, 3.0f32))?.item::<f32>()?, 2.0);
            /// assert_eq!(grad(product).argnums(1).call((2.0f32, 3.0f32))?.item::<f32>()?, 2.0);
            /// let (dx, dy) = grad(product).argnums((Arg::<0>, Arg::<1>)).call((2.0f32, 3.0f32))?;
            /// assert_eq!((dx.item::<f32>()?, dy.item::<f32>()?), (3.0, 2.0));
            /// # Ok::<(), shardax::Error>(())
            /// ```
            pub fn argnums<M: Argnums<Args>>(self, argnums: M) -> $name<F, Args, M> {
                $name { f: self.f, options: self.options, argnums, types: PhantomData }
            }

            /// Lets the arguments hold integers and booleans, whose gradients are zeros of dtype `float0`.
            pub fn allow_int(mut self) -> Self {
                self.options.allow_int = true;
                self
            }

            /// Declares the function holomorphic: complex arguments, complex result.
            pub fn holomorphic(mut self) -> Self {
                self.options.holomorphic = true;
                self
            }
        }
    )*};
}

gradient_types! {
    /// The gradient of a function; see [`grad`].
    Grad
    /// The gradient and the auxiliary result of a function; see [`Grad::has_aux`].
    GradAux
    /// The value and gradient of a function; see [`value_and_grad`].
    ValueAndGrad
    /// The value, auxiliary result and gradient of a function; see [`ValueAndGrad::has_aux`].
    ValueAndGradAux
}

impl<F, Args, N> Grad<F, Args, N> {
    /// Declares that the function returns `(scalar, aux)`, where `aux` is not differentiated. The result is `(gradient,
    /// aux)`.
    pub fn has_aux(self) -> GradAux<F, Args, N> {
        GradAux {
            f: self.f,
            options: Options { has_aux: true, ..self.options },
            argnums: self.argnums,
            types: PhantomData,
        }
    }
}

impl<F, Args, N> ValueAndGrad<F, Args, N> {
    /// Declares that the function returns `(scalar, aux)`, where `aux` is not differentiated. The result is `((scalar,
    /// aux), gradient)`.
    pub fn has_aux(self) -> ValueAndGradAux<F, Args, N> {
        ValueAndGradAux {
            f: self.f,
            options: Options { has_aux: true, ..self.options },
            argnums: self.argnums,
            types: PhantomData,
        }
    }
}

/// Returns the gradient function of a scalar function with respect to its first argument, with the type of that
/// argument.
///
/// ```
/// # use shardax::prelude::*;
/// let g = grad(|x: Array| (&x * &x * &x).sum(..));
/// assert_eq!(g.call(array([1.0f32, 2.0]))?.to_vec::<f32>()?, [3.0, 12.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// If you need the value too, use [`value_and_grad`], which computes both at once. For a function with several results,
/// use [`vjp`](crate::vjp) or [`jacrev`](crate::jacrev). Outside of [`jit`](crate::jit()) the gradient is compiled as one
/// program; in a training loop you should still compile the entire step.
///
/// A gradient takes a few times as long as the function, whatever the number of arguments. It stores the intermediate values that
/// the backward pass needs. If they do not fit into memory, you can recompute some of them with [`checkpoint`](crate::checkpoint()).
///
/// For a real function of a complex argument `x + iy` the gradient is `∂f/∂x - i ∂f/∂y`; for a complex function, see
/// [`holomorphic`](Grad::holomorphic).
///
/// # Errors
/// Calling the gradient returns an error unless the function's result is one floating point scalar, and if the argument
/// has leaves that are not floating point (see [`allow_int`](Grad::allow_int)).
pub fn grad<Args: Tree, F: Function<Args>>(f: F) -> Grad<F, Args> {
    Grad { f, options: Options::default(), argnums: Arg, types: PhantomData }
}

/// Returns a function that computes a scalar function's value and its gradient with respect to its first argument. It
/// costs as much as the gradient alone, because the gradient needs the value's intermediate results.
///
/// ```
/// # use shardax::prelude::*;
/// let (y, dx) = value_and_grad(|x: Array| x.square().sum(..)).call(array([1.0f32, 2.0]))?;
/// assert_eq!((y.item::<f32>()?, dx.to_vec::<f32>()?), (5.0, vec![2.0, 4.0]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Calling it returns the errors of [`grad`].
pub fn value_and_grad<Args: Tree, F: Function<Args>>(f: F) -> ValueAndGrad<F, Args> {
    ValueAndGrad { f, options: Options::default(), argnums: Arg, types: PhantomData }
}

impl<F: Function<Args>, Args: Tree, N: Argnums<Args>> Function<Args> for Grad<F, Args, N> {
    type Output = N::Gradient;
    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((self.options, self.argnums.positions().ok()), self.f.identity())
    }
    fn apply(&self, args: Args) -> Result<N::Gradient> {
        Ok(value_and_gradient(&self.f, args, self.options, &self.argnums)?.1)
    }
}

impl<F: Function<Args>, Args: Tree, N: Argnums<Args>> Function<Args> for ValueAndGrad<F, Args, N> {
    type Output = (F::Output, N::Gradient);
    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((self.options, self.argnums.positions().ok()), self.f.identity())
    }
    fn apply(&self, args: Args) -> Result<Self::Output> {
        value_and_gradient(&self.f, args, self.options, &self.argnums)
    }
}

impl<F, Args, N, L, Aux> Function<Args> for GradAux<F, Args, N>
where
    F: Function<Args, Output = (L, Aux)>,
    Args: Tree,
    N: Argnums<Args>,
    L: Tree,
    Aux: Tree,
{
    type Output = (N::Gradient, Aux);
    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((self.options, self.argnums.positions().ok()), self.f.identity())
    }
    fn apply(&self, args: Args) -> Result<Self::Output> {
        let ((_, aux), gradient) = value_and_gradient(&self.f, args, self.options, &self.argnums)?;
        Ok((gradient, aux))
    }
}

impl<F, Args, N, L, Aux> Function<Args> for ValueAndGradAux<F, Args, N>
where
    F: Function<Args, Output = (L, Aux)>,
    Args: Tree,
    N: Argnums<Args>,
    L: Tree,
    Aux: Tree,
{
    type Output = ((L, Aux), N::Gradient);
    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((self.options, self.argnums.positions().ok()), self.f.identity())
    }
    fn apply(&self, args: Args) -> Result<Self::Output> {
        value_and_gradient(&self.f, args, self.options, &self.argnums)
    }
}

fn value_and_gradient<F: Function<Args>, Args: Tree, N: Argnums<Args>>(
    f: &F,
    args: Args,
    options: Options,
    argnums: &N,
) -> Result<(F::Output, N::Gradient)> {
    let flat = Flat::from_arguments(&args);
    let positions = argnums.positions()?;
    let key = (f.identity(), (&positions, options));
    let f = flat_fn::<Args, F>(f);
    let result = implicit_jit::run_shared("grad", key, &flat, &|flat| gradient(flat, &positions, options, &f))?;
    let (value, mut gradient) = result.halves()?;
    let (order, _) = at_positions(&flat.def, &positions);
    for (gradient, leaf) in gradient.leaves.iter_mut().zip(order) {
        return_to(committed_sharding(&flat.leaves[leaf]).as_ref(), gradient)?;
    }
    Ok((value.build()?, gradient.build()?))
}

/// Returns the flattened pair of the function's result and the gradient of its first leaf.
fn gradient(flat: &Flat, positions: &[usize], options: Options, f: FlatFn<'_>) -> Result<Flat> {
    depend_on(Dependence { gradients: true, ..Dependence::default() });
    let avals = avals_of(flat)?;
    let is_requested = leaves_of(&flat.def, positions);
    for (i, (aval, is_requested)) in avals.iter().zip(&is_requested).enumerate() {
        if *is_requested {
            check_input(aval, &|| flat.def.path(i), options)?;
        }
    }
    let (traced, out_def) = trace_concrete(Rc::new(WholeArrays(flat.leaves.to_vec())), &flat.def, &avals, f)?;
    let program = ad::merged_if_nested(traced.program);
    let out_avals = program.out_avals();
    check_scalar(&out_avals, &out_def, options)?;

    let varied: Vec<bool> =
        avals.iter().zip(&is_requested).map(|(aval, is_requested)| *is_requested && aval.dtype.is_inexact()).collect();

    let primals: Vec<Array> = traced.captures.iter().chain(&flat.leaves).cloned().collect();
    let nonzero: Vec<bool> = std::iter::repeat_n(false, traced.captures.len()).chain(varied.iter().copied()).collect();
    // Captured arrays are constants of the derivative.
    let (outs, linear) = ad::linearize(&program, &primals, &nonzero)?;
    // Only the scalar has a cotangent; auxiliary results have none.
    let mut cts: Tangents = vec![None; outs.len()];
    let out = out_avals[0].clone().strip_weak_type();
    let unit = Array::literal(Scalar::Int(1).converted(out.dtype), out.dtype, out.weak);
    cts[0] = Some(unit.varying_as(&out.vma));
    let mut gradients = linear.transpose(&cts)?.into_iter();

    // The gradients in the order of the arguments' leaves; they are regrouped by position afterwards.
    let mut by_leaf: Vec<Option<Array>> = Vec::new();
    for (aval, is_requested) in avals.iter().zip(&is_requested) {
        by_leaf.push(is_requested.then(|| {
            if !aval.dtype.is_inexact() {
                return Array::zeros_of(&aval.with_dtype(DType::Float0).strip_weak_type());
            }
            let ct = gradients.next().flatten();
            ct.unwrap_or_else(|| zeros(&aval.cotangent().strip_weak_type()))
        }));
    }
    let mut pair = Flat::default();
    pair.node(tree::Node::Tuple(2));
    pair.append(&Flat { leaves: outs.into(), def: out_def });
    let (order, def) = at_positions(&flat.def, positions);
    pair.append(&Flat { leaves: order.into_iter().filter_map(|leaf| by_leaf[leaf].clone()).collect(), def });
    Ok(pair)
}

/// The leaves of the arguments at these positions, in order, and their structure: the structure of the argument if
/// there is only one, otherwise a tuple.
pub(super) fn at_positions(def: &TreeDef, positions: &[usize]) -> (Vec<usize>, TreeDef) {
    let children = def.root_children().unwrap_or_default();
    let (mut order, mut all) = (Vec::new(), Flat::default());
    // The gradient with respect to one argument is not a tuple.
    if let [_, _, ..] = positions {
        all.node(tree::Node::Tuple(positions.len()));
    }
    for &position in positions {
        let start: usize = children[..position].iter().map(|(_, d)| d.leaf_count()).sum();
        let def = &children[position].1;
        order.extend(start..start + def.leaf_count());
        all.append(&Flat { leaves: Default::default(), def: def.clone() });
    }
    (order, all.def)
}

/// Checks a leaf of an argument that is differentiated.
fn check_input(aval: &Aval, path: &dyn Fn() -> String, options: Options) -> Result<()> {
    let dtype = aval.dtype;
    if options.holomorphic && !dtype.is_complex() {
        return Err(err!(
            Type,
            "grad with `.holomorphic()` requires inputs with complex dtype, but got {dtype} for argument{}",
            path()
        )
        .help("make it complex with `complex(x, 0)`, or leave `.holomorphic()` out"));
    }
    if dtype.is_inexact() || options.allow_int {
        return Ok(());
    }
    Err(err!(
        Type,
        "grad requires real- or complex-valued inputs (input dtype that is a sub-dtype of float or complex), but got {dtype} for argument{}. If you want to use Boolean- or integer-valued inputs, use `vjp` or call `.allow_int()`.",
        path()
    )
    .help(if dtype.is_key() {
        "pass the key as another argument; `Optimizer::value_and_grad` and `Optimizer::minimize` of shardax-nn differentiate a module's parameters, and not its keys"
    } else {
        "convert it with `astype(DType::F32)`, or move it out of the differentiated argument"
    }))
}

/// Fails unless the differentiated value is one floating point scalar. With auxiliary data, this value is the first of
/// the pair.
fn check_scalar(outs: &[Aval], def: &TreeDef, options: Options) -> Result<()> {
    let count = if options.has_aux {
        def.root_children().and_then(|c| Some(c.first()?.1.leaf_count())).unwrap_or(0)
    } else {
        outs.len()
    };
    let values = outs.get(..count).unwrap_or(outs);
    // The checks are JAX's, in its order, so that the errors are the same.
    match values {
        [aval] if aval.rank() > 0 => {
            let shape: Vec<_> = aval.shape.iter().map(|d| d.to_string()).collect();
            let shape = format!("({}{})", shape.join(", "), if shape.len() == 1 { "," } else { "" });
            Err(err!(Value, "Gradient only defined for scalar-output functions. Output had shape: {shape}.")
                .help("reduce it with `.sum(..)` or `.mean(..)`, or use `jacrev` or `vjp`"))
        }
        [aval] if aval.dtype.is_complex() && options.holomorphic => Ok(()),
        [aval] if options.holomorphic => Err(err!(
            Type,
            "grad with `.holomorphic()` requires outputs with complex dtype, but got {}",
            aval.dtype
        )
        .help("return a complex value, or leave `.holomorphic()` out if the function is real")),
        [aval] if aval.dtype.is_float() => Ok(()),
        [aval] if aval.dtype.is_complex() => Err(err!(
            Type,
            "grad requires real-valued outputs (output dtype that is a sub-dtype of float), but got {}. For holomorphic differentiation, call `.holomorphic()`.",
            aval.dtype
        )
        .help("differentiate a real function of the result, such as its real part or squared length; if the function is holomorphic, call `.holomorphic()`")),
        [aval] => Err(err!(
            Type,
            "grad requires real- or complex-valued outputs (output dtype that is a sub-dtype of float or complex), but got {}",
            aval.dtype
        )
        .help("convert it with `astype(DType::F32)`: integers have no gradients")),
        many => {
            let types: Vec<String> = many.iter().map(|a| a.to_string()).collect();
            let types = types.join(", ");
            Err(err!(Value, "Gradient only defined for scalar-output functions. Output was a tree of {count} arrays: ({types})")
                .help("return one scalar; for a function that returns `(scalar, more)`, use `.has_aux()`"))
        }
    }
}
