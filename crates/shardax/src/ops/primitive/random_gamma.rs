//! Accepted candidates of random gamma numbers.

use std::fmt;
use std::hash::{Hash, Hasher};

use smallvec::{SmallVec, smallvec};

use super::elementwise_rules::{self, Accepts};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::{Result, err};

/// `random_gamma_factor(k0, k1, d)` draws candidates with the Threefry key `(k0, k1)` until one is accepted, element by element. The words
/// are uint32, and `d` is floating point. All operands have the same shape or are scalars.
#[derive(Clone, Copy)]
pub(crate) struct RandomGammaFactor {
    /// The samples in terms of simpler operations. The functions that draw random numbers are in a higher layer. There is only one body.
    pub body: fn(&[Array]) -> Result<Array>,
}

impl RandomGammaFactor {
    #[track_caller]
    pub fn apply(self, k0: &Array, k1: &Array, d: &Array) -> Array {
        bind1(self, &[k0.clone(), k1.clone(), d.clone()])
    }
}

impl PartialEq for RandomGammaFactor {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for RandomGammaFactor {}

impl Hash for RandomGammaFactor {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

impl fmt::Debug for RandomGammaFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RandomGammaFactor")
    }
}

impl Primitive for RandomGammaFactor {
    fn name(&self) -> &'static str {
        "random_gamma_factor"
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let [k0, k1, d] = args else {
            return Err(err!(Type, "random_gamma_factor takes 3 operands, got {}", args.len()));
        };
        if k0.dtype != DType::U32 || k1.dtype != DType::U32 {
            return Err(err!(Type, "random_gamma_factor takes two words of uint32, got {k0} and {k1}"));
        }
        Accepts::Float.check(self.name(), d.dtype)?;
        let out = elementwise_rules::shape_of(self.name(), args)?;
        Ok(smallvec![out.strip_weak_type().with_dtype(d.dtype)])
    }

    /// The normal number, the two logarithms, and the sums and products around them.
    fn flops(&self, _args: &[Aval], outs: &[Aval]) -> Flops {
        Flops::from_elements(outs) * 20.0
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.join()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| Ok(vec![(self.body)(args)?]))
    }

    /// The distribution of the samples has a derivative, which `random_gamma_grad` computes. The candidates have none, because a small
    /// change of `d` can reject them.
    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0], &args[1], &args[2])], vec![None]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(&args[0], &args[1], &args[2]))
    }
}
