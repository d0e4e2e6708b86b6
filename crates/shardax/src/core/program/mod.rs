//! The program IR, JAX's jaxpr: typed inputs, equations and outputs.

pub(crate) mod concretize;
mod flops;
mod print;
pub(crate) mod shared;
pub(crate) mod simplify;
pub(crate) mod trace;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::Arc;

pub use flops::Flops;
use smallvec::SmallVec;

use super::primitive::Primitive;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::scope::Scope;
use crate::shape::{AxisSet, Shape, size};
use crate::sharding::{AbstractMesh, DimSpec, NamedSharding, Sharding, Typed};
use crate::stack::grow;

/// The type of a value: dtype, shape, whether it is weakly typed, and the manual axes over which it varies.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Aval {
    /// The type of its elements.
    pub dtype: DType,
    /// The dimensions.
    pub shape: Shape,
    /// `true` if the value is weakly typed, like plain numbers and 64-bit host data: it adopts the dtype of other
    /// operands.
    pub weak: bool,
    /// The manual mesh axes over which the value can differ between devices.
    pub vma: AxisSet,
    /// The sharding over mesh axes of type `Explicit`; `None` if there are no such axes.
    pub(crate) sharding: Option<Arc<Typed>>,
}

impl Aval {
    /// Returns the type of an array of this dtype and shape that is strongly typed and equal on all devices.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        Aval { dtype, shape: shape.into(), weak: false, vma: AxisSet::default(), sharding: None }
    }

    /// The type of host data whose elements have this dtype. 64-bit floats are weakly typed, because Rust's literals
    /// have that type.
    pub(crate) fn for_host(dtype: DType, shape: impl Into<Shape>) -> Self {
        Aval { weak: dtype.is_wide(), ..Aval::new(dtype, shape) }
    }

    /// Returns the type of a scalar of this dtype.
    pub fn scalar(dtype: DType) -> Self {
        Aval::new(dtype, Shape::new())
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    pub fn size(&self) -> usize {
        size(&self.shape)
    }

    /// Returns the size of all elements in bytes.
    ///
    /// # Errors
    /// Returns an error if the size cannot be addressed.
    pub fn byte_size(&self) -> Result<usize> {
        // A dimension of 0 must not hide other dimensions that are out of range, because strides are products of them.
        let nonzero_dims: Shape = self.shape.iter().map(|&d| d.max(1)).collect();
        if size(&nonzero_dims).saturating_mul(self.dtype.byte_size()) > isize::MAX as usize {
            return Err(err!(Value, "an array {self} is too large: its size in bytes does not fit 63 bits")
                .help("check the shape: sizes are numbers of elements"));
        }
        Ok(self.size() * self.dtype.byte_size())
    }

    /// Replaces the dtype.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Aval { dtype, weak: false, ..self.clone() }
    }

    /// Returns this type with another shape. The sharding is kept only if the shape is equal.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let sharding = self.sharding.clone().filter(|_| shape == self.shape);
        Aval { shape, sharding, ..self.clone() }
    }

    /// Returns the sharding over mesh axes of type [`Explicit`](crate::AxisType::Explicit); `None` if there are no such
    /// axes.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let mesh = make_mesh([("x", 8)])?;
    /// let x = device_put(&arange(0..16), &NamedSharding::new(&mesh, P!["x"]))?;
    /// assert_eq!(x.aval().to_string(), "int32[16@x]");
    /// assert_eq!(x.aval().sharding().map(|s| s.spec()), Some(P!["x"]));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn sharding(&self) -> Option<&Typed> {
        self.sharding.as_deref()
    }

    /// The type without dimension `at`.
    pub(crate) fn without_dim(&self, at: usize) -> Self {
        let mut shape = self.shape.clone();
        shape.remove(at);
        let sharding = self.sharding().map(|typed| Arc::new(typed.removed(at)));
        Aval { shape, sharding, ..self.clone() }
    }

    /// The type with one more dimension at `at`, of this size and split as in `entry`.
    pub(crate) fn with_dim(&self, at: usize, size: usize, entry: DimSpec) -> Self {
        let mut shape = self.shape.clone();
        shape.insert(at, size);
        let sharding = self.sharding().map(|typed| Arc::new(typed.inserted(at, entry)));
        Aval { shape, sharding, ..self.clone() }
    }

    /// Returns this type with the given sharding recorded.
    pub(crate) fn placed_as(mut self, sharding: &Sharding) -> Self {
        let typed = sharding.as_named().and_then(|named| named.typed(self.rank()));
        if self.sharding() != typed.as_ref() {
            self.sharding = typed.map(Arc::new);
        }
        self
    }

    /// Returns this type with another sharding.
    pub(crate) fn with_sharding(&self, sharding: Option<Typed>) -> Self {
        Aval { sharding: sharding.map(Arc::new), ..self.clone() }
    }

    /// The type of a cotangent of a value of this type.
    pub(crate) fn cotangent(&self) -> Self {
        match self.sharding().filter(|typed| typed.is_partial()) {
            Some(typed) => self.with_sharding(Some(typed.cotangent())),
            None => self.clone(),
        }
    }

    /// Returns the type after arithmetic such as a sum or a tangent. Plain numbers become strongly typed, as in JAX;
    /// 64-bit host data stay weakly typed.
    pub fn strip_weak_type(mut self) -> Self {
        self.weak &= self.dtype.is_wide();
        self
    }
}

/// A variable of a [`Program`]: an index into its types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub(crate) u32);

impl Var {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// An operand: a variable, or a literal (always a scalar).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atom {
    /// A value of the program.
    Var(Var),
    /// A number in the program.
    Literal {
        /// The number.
        value: Scalar,
        /// Its dtype.
        dtype: DType,
        /// `true` if it is weakly typed.
        weak: bool,
    },
}

/// One application of a primitive.
#[derive(Clone)]
pub struct Eqn {
    /// The primitive.
    pub primitive: Arc<dyn Primitive>,
    /// Its operands.
    pub inputs: SmallVec<[Atom; 3]>,
    /// The values that it defines.
    pub outputs: SmallVec<[Var; 1]>,
    /// The user's line.
    pub source: &'static Location<'static>,
    /// The named scopes.
    pub(crate) scope: Scope,
    /// The context mesh of the equation, if it differs from the context mesh of the entire program.
    pub(crate) mesh: Option<AbstractMesh>,
}

/// A traced function: inputs, equations in order, and outputs. It is closed, so it refers to nothing outside of itself.
#[derive(Clone, Default)]
pub struct Program {
    pub(crate) avals: Vec<Aval>,
    pub(crate) inputs: Vec<Var>,
    pub(crate) eqns: Vec<Eqn>,
    pub(crate) outputs: Vec<Atom>,
}

impl Drop for Program {
    /// Drops the equations, whose programs can be nested as deep as users nest functions.
    fn drop(&mut self) {
        grow(|| self.eqns.clear());
    }
}

impl Program {
    /// Returns the types of the inputs.
    pub fn in_avals(&self) -> impl ExactSizeIterator<Item = &Aval> + '_ {
        self.inputs.iter().map(|v| self.aval_of(*v))
    }

    /// Returns the types of the outputs.
    pub fn out_avals(&self) -> Vec<Aval> {
        self.outputs.iter().map(|a| self.atom_aval(a)).collect()
    }

    /// Returns the equations in order.
    pub fn eqns(&self) -> &[Eqn] {
        &self.eqns
    }

    pub(crate) fn aval_of(&self, var: Var) -> &Aval {
        &self.avals[var.index()]
    }

    pub(crate) fn atom_aval(&self, atom: &Atom) -> Aval {
        match atom {
            Atom::Var(v) => self.aval_of(*v).clone(),
            Atom::Literal { dtype, weak, .. } => Aval { weak: *weak, ..Aval::scalar(*dtype) },
        }
    }

    /// The sharding with which each uncommitted input is placed. The first equation that requires a sharding determines
    /// it. `None` means replicated.
    pub(crate) fn in_shardings(&self) -> Vec<Option<Sharding>> {
        let mut is_input = vec![false; self.avals.len()];
        self.inputs.iter().for_each(|input| is_input[input.index()] = true);
        let mut shardings: HashMap<Var, Sharding> = HashMap::new();
        for eqn in &self.eqns {
            let input_operands = eqn.inputs.iter().enumerate().filter_map(|(operand, atom)| match atom {
                Atom::Var(var) if is_input[var.index()] => Some((operand, *var)),
                _ => None,
            });
            for (operand, var) in input_operands {
                if !shardings.contains_key(&var)
                    && let Some(sharding) = grow(|| eqn.primitive.in_sharding(operand, self.aval_of(var)))
                {
                    shardings.insert(var, sharding);
                }
            }
        }
        self.inputs.iter().map(|input| shardings.get(input).cloned()).collect()
    }

    /// The sharding of each output, if it is determined before compilation.
    pub(crate) fn out_shardings(&self) -> Vec<Option<NamedSharding>> {
        let mut is_output = vec![false; self.avals.len()];
        for output in &self.outputs {
            if let Atom::Var(var) = output {
                is_output[var.index()] = true;
            }
        }
        let mut shardings: HashMap<Var, NamedSharding> = HashMap::new();
        for eqn in &self.eqns {
            for (result, var) in eqn.outputs.iter().enumerate().filter(|(_, var)| is_output[var.index()]) {
                if let Some(sharding) = grow(|| eqn.primitive.out_sharding(result, self.aval_of(*var))) {
                    shardings.insert(*var, sharding);
                }
            }
        }
        self.outputs
            .iter()
            .map(|output| match output {
                Atom::Var(var) => shardings.get(var).cloned(),
                Atom::Literal { .. } => None,
            })
            .collect()
    }

    /// Calls `visit` with every equation, including equations of inner programs.
    pub fn for_each_eqn(&self, visit: &mut dyn FnMut(&Eqn)) {
        for eqn in &self.eqns {
            visit(eqn);
            for inner in eqn.primitive.programs() {
                grow(|| inner.for_each_eqn(visit));
            }
        }
    }
}

/// Ignores source lines and names, so that programs that compute the same are equal.
impl PartialEq for Eqn {
    fn eq(&self, other: &Self) -> bool {
        self.inputs == other.inputs && self.outputs == other.outputs && self.primitive.dyn_eq(other.primitive.as_ref())
    }
}

impl Eq for Eqn {}

impl Hash for Eqn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.primitive.dyn_hash(state);
        self.inputs.hash(state);
        self.outputs.hash(state);
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.inputs == other.inputs
            && self.outputs == other.outputs
            && grow(|| self.eqns == other.eqns)
            && self.avals == other.avals
    }
}

impl Eq for Program {}

impl Hash for Program {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.avals.hash(state);
        self.inputs.hash(state);
        grow(|| self.eqns.hash(state));
        self.outputs.hash(state);
    }
}

/// The values of a program's variables while it is being interpreted.
pub(crate) struct Env<T> {
    values: Vec<Option<T>>,
}

impl<T: Clone> Env<T> {
    pub fn new(program: &Program) -> Self {
        Env { values: vec![None; program.avals.len()] }
    }

    pub fn set(&mut self, var: Var, value: T) {
        self.values[var.index()] = Some(value);
    }

    pub fn get(&self, var: Var) -> Option<&T> {
        self.values[var.index()].as_ref()
    }

    pub fn take(&mut self, var: Var) -> Option<T> {
        self.values[var.index()].take()
    }
}
