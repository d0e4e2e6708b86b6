//! Which values a `checkpoint` keeps for its gradient: JAX's policies, and a user's own.

use std::any::TypeId;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::checkpoint::Name;
use super::conv::ConvGeneralDilated;
use super::dot::DotGeneral;
use crate::core::program::{Aval, Eqn, Program};

/// Which intermediate values of a [`checkpoint`](crate::checkpoint) are kept for its gradient (JAX's `checkpoint_policies`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CheckpointPolicy {
    /// None: all is computed again from the arguments.
    #[default]
    NothingSaveable,
    /// All that the gradient needs, as without `checkpoint`.
    EverythingSaveable,
    /// Results of matrix products and convolutions; what is cheap is computed again.
    DotsSaveable,
    /// Results of matrix products that have no batch dimensions.
    DotsWithNoBatchDimsSaveable,
    /// Values that [`checkpoint_name`](crate::checkpoint_name) gave one of these names.
    SaveOnlyTheseNames(Vec<String>),
    /// Values that [`checkpoint_name`](crate::checkpoint_name) gave a name that is none of these.
    SaveAnyNamesButThese(Vec<String>),
    /// All but the values that [`checkpoint_name`](crate::checkpoint_name) gave one of these names.
    SaveAnythingExceptTheseNames(Vec<String>),
    /// What either policy keeps.
    SaveFromBothPolicies(Box<CheckpointPolicy>, Box<CheckpointPolicy>),
    /// What a function says; see [`CheckpointPolicy::save_if`].
    SaveIf(SaveIf),
}

fn owned<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

impl CheckpointPolicy {
    /// Keeps the values that [`checkpoint_name`](crate::checkpoint_name) gave one of these names.
    pub fn save_only_these_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        CheckpointPolicy::SaveOnlyTheseNames(owned(names))
    }

    /// Keeps the values that [`checkpoint_name`](crate::checkpoint_name) gave a name that is none of these.
    pub fn save_any_names_but_these<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        CheckpointPolicy::SaveAnyNamesButThese(owned(names))
    }

    /// Keeps all but the values that [`checkpoint_name`](crate::checkpoint_name) gave one of these names.
    pub fn save_anything_except_these_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        CheckpointPolicy::SaveAnythingExceptTheseNames(owned(names))
    }

    /// Keeps what either policy keeps.
    pub fn save_from_both_policies(a: CheckpointPolicy, b: CheckpointPolicy) -> Self {
        CheckpointPolicy::SaveFromBothPolicies(Box::new(a), Box::new(b))
    }

    /// Keeps the results of the operations for which `f` is true: a policy of one's own.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// // Products are kept where they are small.
    /// let small = CheckpointPolicy::save_if(|op| op.name() == "dot_general" && op.outputs()[0].size() <= 1024);
    /// let layer = checkpoint(|w: Array, x: Array| x.matmul(w).tanh().sum(..)).policy(small);
    /// let g = grad(layer).call((eye(2), ones([3, 2])))?;
    /// assert_eq!(g.shape(), [2, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn save_if<F>(f: F) -> Self
    where
        F: Fn(&Operation<'_>) -> bool + Send + Sync + 'static,
    {
        CheckpointPolicy::SaveIf(SaveIf { of: TypeId::of::<F>(), captures: size_of::<F>() != 0, f: Arc::new(f) })
    }

    pub(super) fn saves(&self, program: &Program, eqn: &Eqn) -> bool {
        let primitive = eqn.primitive.as_any();
        let dot = primitive.downcast_ref::<DotGeneral>();
        let name = primitive.downcast_ref::<Name>().map(|value| &value.name);
        match self {
            CheckpointPolicy::NothingSaveable => false,
            CheckpointPolicy::EverythingSaveable => true,
            CheckpointPolicy::DotsSaveable => dot.is_some() || primitive.is::<ConvGeneralDilated>(),
            CheckpointPolicy::DotsWithNoBatchDimsSaveable => dot.is_some_and(|dot| dot.lhs_batch.is_empty()),
            CheckpointPolicy::SaveOnlyTheseNames(names) => name.is_some_and(|name| names.contains(name)),
            CheckpointPolicy::SaveAnyNamesButThese(names) => name.is_some_and(|name| !names.contains(name)),
            CheckpointPolicy::SaveAnythingExceptTheseNames(names) => name.is_none_or(|name| !names.contains(name)),
            CheckpointPolicy::SaveFromBothPolicies(a, b) => a.saves(program, eqn) || b.saves(program, eqn),
            CheckpointPolicy::SaveIf(policy) => (policy.f)(&Operation { program, eqn }),
        }
    }
}

/// A function that says which results are kept.
#[derive(Clone)]
pub struct SaveIf {
    of: TypeId,
    captures: bool,
    f: Arc<dyn Fn(&Operation<'_>) -> bool + Send + Sync>,
}

impl SaveIf {
    /// What tells functions of one type apart: nothing where they capture nothing.
    fn address(&self) -> usize {
        if self.captures { Arc::as_ptr(&self.f).cast::<u8>() as usize } else { 0 }
    }
}

impl PartialEq for SaveIf {
    fn eq(&self, other: &Self) -> bool {
        (self.of, self.address()) == (other.of, other.address())
    }
}

impl Eq for SaveIf {}

impl Hash for SaveIf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.of, self.address()).hash(state);
    }
}

impl fmt::Debug for SaveIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("function")
    }
}

/// An operation of which a policy says whether its results are kept.
pub struct Operation<'a> {
    program: &'a Program,
    eqn: &'a Eqn,
}

impl Operation<'_> {
    /// The primitive's name, as in a printed program: `dot_general`, `sin`, `name`.
    pub fn name(&self) -> &'static str {
        self.eqn.primitive.name()
    }

    /// The primitive's parameters, as in a printed program; of a value with a name `name=…`.
    pub fn params(&self) -> String {
        self.eqn.primitive.print_params()
    }

    /// The types of the operands.
    pub fn inputs(&self) -> Vec<Aval> {
        self.eqn.inputs.iter().map(|input| self.program.atom_aval(input)).collect()
    }

    /// The types of the results.
    pub fn outputs(&self) -> Vec<Aval> {
        self.eqn.outputs.iter().map(|var| self.program.aval_of(*var).clone()).collect()
    }
}
