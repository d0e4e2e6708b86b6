//! Random keys of two words, and the words of keys: the only operations that know how a key is stored.
//!
//! An element of dtype `key<fry>` or `key<rbg>` is a uint64 on the device, with the first word in its low half.
//! Therefore an array of keys has the same shape everywhere, operations that move elements need no rule for keys, and
//! its bytes on the host (little-endian) equal the bytes of the uint32 array of words. Shifts extract and join the
//! words: unlike bitcasts, they are elementwise and need no dimension of size two.

use smallvec::{SmallVec, smallvec};

use super::elementwise_rules::{self, Accepts, spread};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::{bind, bind1};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};

/// `random_wrap(first, second)` joins two words into each key. The words are uint32 arrays of one shape, or scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RandomWrap {
    /// The dtype of the keys.
    pub dtype: DType,
}

/// `random_unwrap(keys)` returns the first and the second word of each key, as two uint32 arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RandomUnwrap;

impl RandomWrap {
    #[track_caller]
    pub fn apply(self, first: &Array, second: &Array) -> Array {
        bind1(self, &[first.clone(), second.clone()])
    }
}

impl RandomUnwrap {
    #[track_caller]
    pub fn apply(self, keys: &Array) -> Outputs {
        bind(std::sync::Arc::new(self), std::slice::from_ref(keys))
    }
}

/// Returns the number of bits by which the second word is shifted in a key, as a constant of this type.
fn word_bits(cx: &mut Lowering, wide: &Aval) -> Value {
    cx.constant(Scalar::Int(32), wide)
}

impl Primitive for RandomWrap {
    fn name(&self) -> &'static str {
        "random_wrap"
    }

    fn print_params(&self) -> String {
        match self.dtype {
            DType::Key => String::new(),
            dtype => format!("dtype={dtype}"),
        }
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if elementwise_rules::dtype_of("random_wrap", Accepts::Any, args)? != DType::U32 {
            return Err(err!(Type, "random_wrap takes uint32 words, got {}", args[0])
                .help("pass the words that `random::key_data` returned"));
        }
        Ok(smallvec![elementwise_rules::shape_of("random_wrap", args)?.strip_weak_type().with_dtype(self.dtype)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.join()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let wide = outs[0].with_dtype(DType::U64);
        let words = spread(cx, args, &outs[0].shape);
        let [first, second] = [0, 1].map(|i| cx.op("stablehlo.convert", &[words[i]], "", &wide));
        let bits = word_bits(cx, &wide);
        let high = cx.op("stablehlo.shift_left", &[second, bits], "", &wide);
        Ok(vec![cx.op("stablehlo.or", &[first, high], "", &outs[0])])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(&args[0], &args[1]))
    }
}

impl Primitive for RandomUnwrap {
    fn name(&self) -> &'static str {
        "random_unwrap"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if !args[0].dtype.is_key() {
            return Err(err!(Type, "random_unwrap takes random keys, got {}", args[0])
                .help("create keys with `random::key` or `random::split`"));
        }
        let words = args[0].with_dtype(DType::U32);
        Ok(smallvec![words.clone(), words])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.join()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let wide = outs[0].with_dtype(DType::U64);
        let bits = word_bits(cx, &wide);
        let high = cx.op("stablehlo.shift_right_logical", &[args[0], bits], "", &wide);
        Ok([args[0], high].map(|word| cx.op("stablehlo.convert", &[word], "", &outs[0])).to_vec())
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((self.apply(&args[0]), vec![dims[0]; 2]))
    }
}
