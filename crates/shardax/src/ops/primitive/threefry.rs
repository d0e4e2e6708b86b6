//! The Threefry-2x32 block cipher, from which all random bits are generated.
//!
//! Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: 20 rounds, as in JAX.

use smallvec::{SmallVec, smallvec};

use super::binary::{ADD, OR, SHIFT_LEFT, SHIFT_RIGHT_LOGICAL, XOR};
use super::elementwise_rules::{self, Accepts};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};

/// `threefry2x32(k0, k1, x0, x1)` encrypts the block `(x0, x1)` with the key `(k0, k1)`, element by element. All
/// operands are uint32 and have the same shape or are scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Threefry2x32;

/// The rotation distances. The two rows alternate, with four rounds each.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
const PARITY: u32 = 0x1BD1_1BDA;

impl Threefry2x32 {
    #[track_caller]
    pub fn apply(self, args: &[Array]) -> Outputs {
        bind(std::sync::Arc::new(self), args)
    }
}

fn number(v: u32) -> Array {
    Array::literal(Scalar::Int(v as i128), DType::U32, false)
}

fn rotate_left(x: &Array, by: u32) -> Array {
    OR.apply(&SHIFT_LEFT.apply(x, &number(by)), &SHIFT_RIGHT_LOGICAL.apply(x, &number(32 - by)))
}

/// Expresses the cipher in simpler operations.
fn encrypt(k0: &Array, k1: &Array, x0: &Array, x1: &Array) -> [Array; 2] {
    let keys = [k0.clone(), k1.clone(), XOR.apply(&XOR.apply(k0, k1), &number(PARITY))];
    let mut x0 = ADD.apply(x0, &keys[0]);
    let mut x1 = ADD.apply(x1, &keys[1]);
    for group in 0..5 {
        for by in ROTATIONS[group % 2] {
            x0 = ADD.apply(&x0, &x1);
            x1 = XOR.apply(&rotate_left(&x1, by), &x0);
        }
        let injected = ADD.apply(&keys[(group + 2) % 3], &number(group as u32 + 1));
        x0 = ADD.apply(&x0, &keys[(group + 1) % 3]);
        x1 = ADD.apply(&x1, &injected);
    }
    [x0, x1]
}

impl Primitive for Threefry2x32 {
    fn name(&self) -> &'static str {
        "threefry2x32"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let dtype = elementwise_rules::dtype_of("threefry2x32", Accepts::Integer, args)?;
        if dtype != DType::U32 || args.len() != 4 {
            return Err(err!(Type, "threefry2x32 takes four uint32 arrays, got {args:?}"));
        }
        let out = elementwise_rules::shape_of("threefry2x32", args)?;
        Ok(smallvec![out.clone().strip_weak_type(), out.strip_weak_type()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.join()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let out = cx.expand(args, |a| Ok(encrypt(&a[0], &a[1], &a[2], &a[3]).to_vec()))?;
        Ok(elementwise_rules::spread(cx, &out, &outs[0].shape).into_vec())
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((self.apply(args), vec![None, None]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let mut second = None;
        let (mut outs, mut out_dims) = elementwise_rules::batch(axis, args, dims, |args| {
            let mut words = self.apply(args);
            second = words.pop();
            words.swap_remove(0)
        })?;
        outs.extend(second);
        out_dims.push(out_dims[0]);
        Ok((outs, out_dims))
    }
}
