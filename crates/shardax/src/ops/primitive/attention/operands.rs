//! The operands of attention, and their slices.

use crate::core::array::Array;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax::dynamic_slice_in_dim;

/// The help for a bias or a mask of a wrong shape.
const BROADCASTS: &str =
    "pass [..., heads, queries, keys], floating point for a bias and booleans for a mask; sizes may be 1";

/// Flags for the optional operands, in the order in which they follow queries, keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PresentOperands {
    pub bias: bool,
    pub mask: bool,
    pub query_lengths: bool,
    pub key_lengths: bool,
    pub segments: bool,
}

impl PresentOperands {
    /// The index of the bias.
    pub(crate) const BIAS: usize = 3;

    /// Returns the number of all operands.
    pub(crate) fn count(self) -> usize {
        let of_one = [self.bias, self.mask, self.query_lengths, self.key_lengths];
        3 + of_one.into_iter().filter(|given| *given).count() + 2 * usize::from(self.segments)
    }

    /// Returns the indices of bias and mask, whose dimensions can be 1.
    pub(crate) fn broadcast(self) -> Vec<usize> {
        (PresentOperands::BIAS..PresentOperands::BIAS + usize::from(self.bias) + usize::from(self.mask)).collect()
    }

    pub(crate) fn print(self) -> String {
        let names = [
            (self.bias, " bias"),
            (self.mask, " mask"),
            (self.query_lengths, " query_seq_lengths"),
            (self.key_lengths, " key_value_seq_lengths"),
            (self.segments, " segment_ids"),
        ];
        names.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect()
    }

    /// Returns an error if an operand does not match the queries and keys, which must already match each other.
    pub(crate) fn check(self, args: &[Aval]) -> Result<()> {
        let (q, k) = (&args[0].shape, &args[1].shape);
        let rank = q.len();
        let (batch, queries, heads, keys) = (&q[..rank - 3], q[rank - 3], q[rank - 2], k[rank - 3]);
        let scores = [batch, &[heads, queries, keys]].concat();
        // Each operand has its own help, so they are checked one after the other.
        let x = Operands::of(self, args);
        if let Some(bias) = &x.bias
            && (!bias.dtype.is_float() || !broadcasts_to(bias, &scores))
        {
            return Err(err!(Type, "the bias {bias} of attention does not broadcast to its scores, {scores:?}")
                .help(BROADCASTS));
        }
        if let Some(mask) = &x.mask
            && (mask.dtype != DType::Bool || !broadcasts_to(mask, &scores))
        {
            return Err(err!(Type, "the mask {mask} of attention does not broadcast to its scores, {scores:?}")
                .help(BROADCASTS));
        }
        for lengths in [&x.query_lengths, &x.key_lengths].into_iter().flatten() {
            if !are_integers(lengths, batch) {
                return Err(err!(Type, "sequence lengths {lengths} do not fit attention of a batch of {batch:?}")
                    .help("pass an integer for each example of the batch"));
            }
        }
        for (segments, n) in x.segments.iter().flatten().zip([queries, keys]) {
            if !are_integers(segments, &[batch, &[n]].concat()) {
                return Err(err!(
                    Type,
                    "segment ids {segments} do not fit attention of a batch of {batch:?} with {n} positions"
                )
                .help("pass an integer for each position of each example"));
            }
        }
        Ok(())
    }
}

/// The operands of attention: arrays, their types, or values of a program.
#[derive(Clone, Debug)]
pub struct Operands<T = Array> {
    /// `[..., queries, heads, depth]`.
    pub q: T,
    /// `[..., keys, key heads, depth]`.
    pub k: T,
    /// `[..., keys, key heads, depth of values]`.
    pub v: T,
    /// A bias that is added to the scores, `[..., heads, queries, keys]`. Its dimensions can be 1.
    pub bias: Option<T>,
    /// A boolean mask of the visible keys, `[..., heads, queries, keys]`. Its dimensions can be 1.
    pub mask: Option<T>,
    /// The number of valid queries of each example.
    pub query_lengths: Option<T>,
    /// The number of valid keys of each example.
    pub key_lengths: Option<T>,
    /// The segments of queries, `[..., queries]`, and of keys, `[..., keys]`.
    pub segments: Option<[T; 2]>,
}

impl<T: Clone> Operands<T> {
    /// Creates operands from queries, keys and values.
    pub fn new(q: &T, k: &T, v: &T) -> Self {
        let [q, k, v] = [q, k, v].map(T::clone);
        Operands { q, k, v, bias: None, mask: None, query_lengths: None, key_lengths: None, segments: None }
    }

    pub(crate) fn present(&self) -> PresentOperands {
        PresentOperands {
            bias: self.bias.is_some(),
            mask: self.mask.is_some(),
            query_lengths: self.query_lengths.is_some(),
            key_lengths: self.key_lengths.is_some(),
            segments: self.segments.is_some(),
        }
    }

    /// Returns the operands in their order.
    pub(crate) fn flat(&self) -> Vec<T> {
        let optional = [&self.bias, &self.mask, &self.query_lengths, &self.key_lengths];
        let segments = self.segments.iter().flatten();
        [&self.q, &self.k, &self.v].into_iter().chain(optional.into_iter().flatten()).chain(segments).cloned().collect()
    }

    /// Reads the operands from the start of a primitive's arguments, whose number the primitive has checked.
    pub(crate) fn of(present: PresentOperands, args: &[T]) -> Self {
        let mut optional = args[PresentOperands::BIAS..].iter().cloned();
        Operands {
            bias: next_if(present.bias, &mut optional),
            mask: next_if(present.mask, &mut optional),
            query_lengths: next_if(present.query_lengths, &mut optional),
            key_lengths: next_if(present.key_lengths, &mut optional),
            segments: next_if(present.segments, &mut optional)
                .zip(next_if(present.segments, &mut optional))
                .map(<[T; 2]>::from),
            ..Operands::new(&args[0], &args[1], &args[2])
        }
    }
}

impl Operands {
    pub(crate) fn queries(&self) -> usize {
        self.q.shape()[self.q.ndim() - 3]
    }

    pub(crate) fn keys(&self) -> usize {
        self.k.shape()[self.k.ndim() - 3]
    }

    pub(crate) fn key_heads(&self) -> usize {
        self.k.shape()[self.k.ndim() - 2]
    }

    /// Slices the operands to these queries.
    pub(crate) fn slice_queries(&self, start: &Array, size: usize) -> Self {
        Operands {
            q: cut(&self.q, start, size, -3),
            bias: self.bias.as_ref().map(|x| cut(x, start, size, -2)),
            mask: self.mask.as_ref().map(|x| cut(x, start, size, -2)),
            segments: self.segments.as_ref().map(|[queries, keys]| [cut(queries, start, size, -1), keys.clone()]),
            ..self.clone()
        }
    }

    /// Slices the operands to these keys.
    pub(crate) fn slice_keys(&self, start: &Array, size: usize) -> Self {
        Operands {
            k: cut(&self.k, start, size, -3),
            v: cut(&self.v, start, size, -3),
            bias: self.bias.as_ref().map(|x| cut(x, start, size, -1)),
            mask: self.mask.as_ref().map(|x| cut(x, start, size, -1)),
            segments: self.segments.as_ref().map(|[queries, keys]| [queries.clone(), cut(keys, start, size, -1)]),
            ..self.clone()
        }
    }

    /// Returns the mask of the lengths, for positions `[queries, 1]` and `[1, keys]`.
    pub(crate) fn length_mask(&self, query: &Array, key: &Array) -> Option<Array> {
        let positions = [(query, &self.query_lengths), (key, &self.key_lengths)].into_iter();
        let masks = positions.filter_map(|(position, lengths)| {
            let lengths = lengths.as_ref()?;
            Some(position.less(lengths.reshape([lengths.shape(), &[1, 1, 1]].concat())))
        });
        masks.reduce(|a, b| a & b)
    }

    /// Combines the explicit mask and the mask of segments.
    pub(crate) fn combined_mask(&self) -> Option<Array> {
        self.mask
            .iter()
            .cloned()
            .chain(
                self.segments
                    .iter()
                    .map(|[queries, keys]| queries.expand_dims(-1).equal(keys.expand_dims(-2)).expand_dims(-3)),
            )
            .reduce(|a, b| a & b)
    }
}

/// Slices this dimension, unless its size is 1 so that it broadcasts.
fn cut(x: &Array, start: &Array, size: usize, axis: i32) -> Array {
    match x.shape()[(x.ndim() as i32 + axis) as usize] {
        1 => x.clone(),
        _ => dynamic_slice_in_dim(x, start, size, axis),
    }
}

fn broadcasts_to(x: &Aval, shape: &[usize]) -> bool {
    x.rank() == shape.len() && x.shape.iter().zip(shape).all(|(m, n)| *m == 1 || m == n)
}

fn are_integers(x: &Aval, shape: &[usize]) -> bool {
    x.dtype.is_integer() && &*x.shape == shape
}

/// Returns the next operand if there is one of this kind.
fn next_if<T>(is_present: bool, operands: &mut impl Iterator<Item = T>) -> Option<T> {
    if is_present { operands.next() } else { None }
}
