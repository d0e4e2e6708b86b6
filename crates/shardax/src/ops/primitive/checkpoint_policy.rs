//! Policies of `checkpoint`: JAX's policies and user-defined ones.

use std::any::TypeId;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::attention::Attention;
use super::checkpoint::Name;
use super::conv::ConvGeneralDilated;
use super::dot::DotGeneral;
use crate::core::program::{Aval, Eqn, Program};
use crate::error::{AtCaller, Result, err};
use crate::sharding::memory::MemoryKind;

/// Selects the intermediate values of a [`checkpoint`](crate::checkpoint()) that are saved for its gradient (JAX's
/// `checkpoint_policies`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CheckpointPolicy {
    /// Saves nothing, so that everything is recomputed from the arguments.
    #[default]
    NothingSaveable,
    /// Saves everything that the gradient needs, as without `checkpoint`.
    EverythingSaveable,
    /// Saves results of matrix multiplications, convolutions and attention, so that only cheap operations are
    /// recomputed.
    DotsSaveable,
    /// Saves results of matrix multiplications without batch dimensions.
    DotsWithNoBatchDimsSaveable,
    /// Saves values that have one of these names from [`checkpoint_name`](crate::checkpoint_name).
    SaveOnlyTheseNames(Vec<String>),
    /// Saves values that have any other name from [`checkpoint_name`](crate::checkpoint_name).
    SaveAnyNamesButThese(Vec<String>),
    /// Saves all values that do not have one of these names from [`checkpoint_name`](crate::checkpoint_name).
    SaveAnythingExceptTheseNames(Vec<String>),
    /// Saves values that at least one of the two policies saves.
    SaveFromBothPolicies(Box<CheckpointPolicy>, Box<CheckpointPolicy>),
    /// Saves values with some names and offloads values with other names; see
    /// [`save_and_offload_only_these_names`](CheckpointPolicy::save_and_offload_only_these_names).
    SaveAndOffloadOnlyTheseNames {
        /// Names of values that are saved in place.
        names_which_can_be_saved: Vec<String>,
        /// Names of values that are offloaded.
        names_which_can_be_offloaded: Vec<String>,
        /// The memory kinds.
        offload: Offload,
    },
    /// Offloads results of matrix multiplications without batch dimensions; see
    /// [`offload_dot_with_no_batch_dims`](CheckpointPolicy::offload_dot_with_no_batch_dims).
    OffloadDotWithNoBatchDims(Offload),
    /// A user-defined policy; see [`CheckpointPolicy::save_if`].
    SaveIf(SaveIf),
}

/// The name of values that every policy saves: the residuals of a function's `defremat` rules.
pub(crate) const ALWAYS_SAVED: &str = "residuals of defremat";

fn owned<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

impl CheckpointPolicy {
    /// Saves the values that have one of these names from [`checkpoint_name`](crate::checkpoint_name).
    pub fn save_only_these_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        CheckpointPolicy::SaveOnlyTheseNames(owned(names))
    }

    /// Saves the values that have any other name from [`checkpoint_name`](crate::checkpoint_name).
    pub fn save_any_names_but_these<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        CheckpointPolicy::SaveAnyNamesButThese(owned(names))
    }

    /// Saves all values that do not have one of these names from [`checkpoint_name`](crate::checkpoint_name).
    pub fn save_anything_except_these_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        CheckpointPolicy::SaveAnythingExceptTheseNames(owned(names))
    }

    /// Saves the values that have one of the first names from [`checkpoint_name`](crate::checkpoint_name), and offloads
    /// the values that have one of the second names to memory of the kind `offload_dst`. The gradient brings them back
    /// to `offload_src`. Programs on CPU have only one memory, so offloaded values are saved in place.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let policy = CheckpointPolicy::save_and_offload_only_these_names([], ["hidden"], "device", "pinned_host")?;
    /// let layer = checkpoint(|x: Array| checkpoint_name(x.sin(), "hidden").sin()).policy(policy);
    /// assert_eq!(grad(layer).call(0.0f32)?.item::<f32>()?, 1.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for a name in both lists.
    #[track_caller]
    pub fn save_and_offload_only_these_names<'a>(
        names_which_can_be_saved: impl IntoIterator<Item = &'a str>,
        names_which_can_be_offloaded: impl IntoIterator<Item = &'a str>,
        offload_src: &str,
        offload_dst: &str,
    ) -> Result<Self> {
        let (saved, offloaded) = (owned(names_which_can_be_saved), owned(names_which_can_be_offloaded));
        let intersection: Vec<&String> = saved.iter().filter(|name| offloaded.contains(name)).collect();
        if !intersection.is_empty() {
            return Err(err!(
                Value,
                "The names should be exclusive and should not intersect in `names_which_can_be_saved` and `names_which_can_be_offloaded`. Got names_which_can_be_saved={saved:?}, names_which_can_be_offloaded={offloaded:?} and the intersection={intersection:?}"
            )
            .help("leave each name in one of the two lists"))
            .at_caller();
        }
        Ok(CheckpointPolicy::SaveAndOffloadOnlyTheseNames {
            names_which_can_be_saved: saved,
            names_which_can_be_offloaded: offloaded,
            offload: Offload::new(offload_src, offload_dst),
        })
    }

    /// Selects the same values as [`DotsWithNoBatchDimsSaveable`](CheckpointPolicy::DotsWithNoBatchDimsSaveable), but
    /// offloads them to memory of the kind `offload_dst` (`"pinned_host"`) instead of saving them in place. The gradient
    /// brings them back to `offload_src` (`"device"`).
    pub fn offload_dot_with_no_batch_dims(offload_src: &str, offload_dst: &str) -> Self {
        CheckpointPolicy::OffloadDotWithNoBatchDims(Offload::new(offload_src, offload_dst))
    }

    /// Saves the values that at least one of the two policies saves. A value is offloaded only if neither policy saves it
    /// in place.
    pub fn save_from_both_policies(a: CheckpointPolicy, b: CheckpointPolicy) -> Self {
        CheckpointPolicy::SaveFromBothPolicies(Box::new(a), Box::new(b))
    }

    /// Saves the results of the operations for which `f` returns `true`: a user-defined policy.
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

    /// Decides about the results of an equation.
    pub(super) fn decide(&self, program: &Program, eqn: &Eqn) -> Decision {
        let primitive = eqn.primitive.as_any();
        let dot = primitive.downcast_ref::<DotGeneral>();
        let name = primitive.downcast_ref::<Name>().map(|value| &value.name);
        // Values that every policy must save have a reserved name.
        if name.is_some_and(|name| name == ALWAYS_SAVED) {
            return Decision::Save;
        }
        let saves = match self {
            CheckpointPolicy::NothingSaveable => false,
            CheckpointPolicy::EverythingSaveable => true,
            CheckpointPolicy::DotsSaveable => {
                dot.is_some() || primitive.is::<ConvGeneralDilated>() || primitive.is::<Attention>()
            }
            CheckpointPolicy::DotsWithNoBatchDimsSaveable => dot.is_some_and(|dot| dot.lhs_batch.is_empty()),
            CheckpointPolicy::SaveOnlyTheseNames(names) => name.is_some_and(|name| names.contains(name)),
            CheckpointPolicy::SaveAnyNamesButThese(names) => name.is_some_and(|name| !names.contains(name)),
            CheckpointPolicy::SaveAnythingExceptTheseNames(names) => name.is_none_or(|name| !names.contains(name)),
            CheckpointPolicy::SaveFromBothPolicies(a, b) => {
                return match (a.decide(program, eqn), b.decide(program, eqn)) {
                    (Decision::Recompute, other) | (other, Decision::Recompute) => other,
                    (Decision::Offload(offload), Decision::Offload(_)) => Decision::Offload(offload),
                    (Decision::Save, _) | (_, Decision::Save) => Decision::Save,
                };
            }
            CheckpointPolicy::SaveAndOffloadOnlyTheseNames {
                names_which_can_be_saved,
                names_which_can_be_offloaded,
                offload,
            } => {
                if name.is_some_and(|name| names_which_can_be_offloaded.contains(name)) {
                    return Decision::Offload(*offload);
                }
                name.is_some_and(|name| names_which_can_be_saved.contains(name))
            }
            CheckpointPolicy::OffloadDotWithNoBatchDims(offload) => {
                return if dot.is_some_and(|dot| dot.lhs_batch.is_empty()) {
                    Decision::Offload(*offload)
                } else {
                    Decision::Recompute
                };
            }
            CheckpointPolicy::SaveIf(policy) => (policy.f)(&Operation { program, eqn }),
        };
        if saves { Decision::Save } else { Decision::Recompute }
    }
}

/// The memory kinds that saved values are moved between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offload {
    pub(super) src: MemoryKind,
    pub(super) dst: MemoryKind,
}

impl Offload {
    fn new(src: &str, dst: &str) -> Offload {
        Offload { src: MemoryKind::new(src), dst: MemoryKind::new(dst) }
    }
}

/// The decision about a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Recompute,
    Save,
    Offload(Offload),
}

/// A predicate on operations.
#[derive(Clone)]
pub struct SaveIf {
    of: TypeId,
    captures: bool,
    f: Arc<dyn Fn(&Operation<'_>) -> bool + Send + Sync>,
}

impl SaveIf {
    /// Distinguishes functions of one type; 0 if they capture nothing.
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

/// An operation, for a policy to decide about its results.
pub struct Operation<'a> {
    program: &'a Program,
    eqn: &'a Eqn,
}

impl Operation<'_> {
    /// Returns the primitive's name, as in a printed program: `dot_general`, `sin`, `name`.
    pub fn name(&self) -> &'static str {
        self.eqn.primitive.name()
    }

    /// Returns the primitive's parameters, as in a printed program; `name=…` for a named value.
    pub fn params(&self) -> String {
        self.eqn.primitive.print_params()
    }

    /// Returns the types of the operands.
    pub fn inputs(&self) -> Vec<Aval> {
        self.eqn.inputs.iter().map(|input| self.program.atom_aval(input)).collect()
    }

    /// Returns the types of the results.
    pub fn outputs(&self) -> Vec<Aval> {
        self.eqn.outputs.iter().map(|var| self.program.aval_of(*var).clone()).collect()
    }
}
