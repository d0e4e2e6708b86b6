//! Ring attention: attention over a sequence that is sharded over devices.

use shardax::lax::DotOptions;
use shardax::prelude::*;
use shardax::shape::AxisName;

use super::shapes::{Shapes, wide};
use super::{AttentionOptions, same_segment};
use crate::check::value_error;
use crate::layers::promoted;
use crate::ranks::allow_any_ranks;
use crate::rules::{axes_of, varying};
use crate::shardings::reshard_like;

/// [`dot_product_attention`](crate::dot_product_attention) of a sequence that is sharded over a mesh axis, inside a
/// `shard_map`. Each device has its positions of `query`, `key` and `value`, in order, and returns its positions of the
/// result.
///
/// Each device passes its keys and values to the next device of the axis. No device ever stores the scores, keys or values
/// of more than one block. The softmax is accumulated in float32 as blocks arrive. The gradient passes keys and values around
/// again, together with their accumulated gradients. The result is exact. Forward mode (`jvp`) is an error.
///
/// Source: [Liu et al. 2023](https://arxiv.org/abs/2310.01889).
///
/// ```
/// use shardax_nn::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("sequence", 4)])?;
/// let x = random::normal(random::key(0), [2, 16, 4, 8]);
/// let ring = |q: Array, k: Array, v: Array| ring_attention(q, k, v, "sequence");
/// let split = P![None, "sequence"];
/// let ring = jit(shard_map(ring, &mesh).in_specs((&split, &split, &split)).out_specs(&split));
/// assert!(allclose(ring.call((&x, &x, &x))?, dot_product_attention(&x, &x, &x), 1e-5, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ring_attention(
    query: impl ArrayLike,
    key: impl ArrayLike,
    value: impl ArrayLike,
    axis_name: impl Into<AxisName>,
) -> Array {
    AttentionOptions::new().ring_attention(query, key, value, axis_name)
}

impl AttentionOptions {
    /// Computes [`ring_attention`] with these options. Positions count from the start of the entire sequence. Causal
    /// attention skips blocks that no query attends to.
    ///
    /// Pass the [`segment_ids`](AttentionOptions::segment_ids) of the device's queries and keys. The ids of all keys
    /// are gathered, because they are small compared with keys and values.
    ///
    /// # Errors
    /// The result carries an error if there is a bias, a mask, lengths or dropout, because these apply to entire
    /// sequences, and if there is a `rope`: rotate the device's queries and keys by their positions first.
    #[track_caller]
    pub fn ring_attention(
        &self,
        query: impl ArrayLike,
        key: impl ArrayLike,
        value: impl ArrayLike,
        axis_name: impl Into<AxisName>,
    ) -> Array {
        let query = query.into_array();
        match self.ring(&query, key.into_array(), value.into_array(), axis_name.into()) {
            Ok(y) => y,
            Err(error) => Array::from_error(error, &query),
        }
    }

    #[track_caller]
    fn ring(&self, query: &Array, key: Array, value: Array, axis: AxisName) -> Result<Array> {
        let [q, k, v] = promoted([query.clone(), key, value]);
        let unsupported = [
            ("a bias", self.bias.is_some()),
            ("a mask", self.mask.is_some()),
            ("query_seq_lengths", self.query_seq_lengths.is_some()),
            ("key_value_seq_lengths", self.key_value_seq_lengths.is_some()),
            ("dropout", self.drops()),
            ("rope", self.rope.is_some()),
        ];
        if let Some((name, _)) = unsupported.iter().find(|(_, is_set)| *is_set) {
            return value_error(format!(
                "ring_attention: {name} applies to the whole sequence, but a device only has a block of it"
            ));
        }
        self.check("ring_attention", &q, &k, &v)?;
        // The ids are an argument, because a gradient rule only receives arguments.
        let options = AttentionOptions { segment_ids: None, positions: None, ..self.clone() };
        let segments = self.segment_ids.as_ref().map(|(queries, keys)| Segments {
            queries: queries.clone(),
            keys: all_gather_tiled(keys.clone(), axis, -1),
        });
        let ring = Ring { options, axis, size: axis_size(axis)? };
        let (first, forward, backward) = (ring.clone(), ring.clone(), ring);
        type Ids = Option<Segments>;
        custom_vjp(move |q: Array, k: Array, v: Array, ids: Ids| -> Result<Array> {
            Ok(first.forward([q, k, v], ids)?.0)
        })
        .defvjp(
            move |q: Array, k: Array, v: Array, ids: Ids| -> Result<_> {
                let (y, softmax) = forward.forward([q.clone(), k.clone(), v.clone()], ids.clone())?;
                Ok((y.clone(), (q, k, v, ids, y, softmax)))
            },
            move |(q, k, v, ids, y, softmax): (Array, Array, Array, Ids, Array, Softmax), dy: Array| -> Result<_> {
                let (dq, dk, dv) = backward.backward([q, k, v], ids.clone(), y, softmax, dy)?;
                // The cotangents of integers are ignored.
                Ok((dq, dk, dv, ids))
            },
        )
        .call((q, k, v, segments))
    }
}

/// Ring attention around an axis of `size` devices.
#[derive(Clone)]
struct Ring {
    options: AttentionOptions,
    axis: AxisName,
    size: usize,
}

/// The segments of the local queries, `[..., queries]`, and of the keys of all devices, `[..., keys]`.
#[derive(Tree, Clone)]
struct Segments {
    queries: Array,
    keys: Array,
}

/// The normalizer of each query's softmax, `[..., heads, queries]` in float32.
#[derive(Tree, Clone)]
struct Softmax {
    /// The largest score.
    max: Array,
    /// The sum of the exponentials of the scores minus the largest.
    sum: Array,
}

impl Ring {
    /// Returns the result, and the residuals of the softmax for the gradient.
    fn forward(&self, qkv: [Array; 3], ids: Option<Segments>) -> Result<(Array, Softmax)> {
        let axes = axes_of(&(qkv.clone(), ids.clone()), self.axis);
        let ([q, k, v], ids) = varying((qkv, ids), &axes)?;
        let shapes = Shapes::of(&q, &k);
        let device = axis_index(self.axis);
        let dtype = wide(&q).unwrap_or(q.dtype());
        let rows = shapes.with([shapes.key_heads * shapes.groups, shapes.queries]);
        let softmax = Softmax {
            max: split_like_queries(full_dtype(&rows[..], f64::NEG_INFINITY, dtype), &q),
            sum: split_like_queries(zeros_dtype(&rows[..], dtype), &q),
        };
        let depth = v.shape().last().copied().unwrap_or(0);
        let sums = zeros_dtype(shapes.with([shapes.queries, shapes.key_heads * shapes.groups, depth]), dtype);
        let sums = reshard_like(sums, &q);
        // Adds the block of keys and values that device `source` owns. If the block has a larger score, the sums so far are
        // scaled down, so that no exponential overflows.
        let add = |source: &Array, k: Array, v: Array, state: (Softmax, Array)| {
            self.unless_hidden(&device, source, &shapes, state, |(softmax, sums): (Softmax, Array)| {
                let visible = self.seen(&device, source, &shapes, &ids);
                let scores = self.options.hidden(&self.options.products(&q, &k, &shapes), &visible);
                let max = maximum(&softmax.max, scores.max(-1));
                let decay = (softmax.max - &max).exp();
                let weights = (scores - max.expand_dims(-1)).exp();
                let sum = softmax.sum * &decay + weights.sum(-1);
                let new = shapes.values(&weights.astype(v.dtype()), &v, self.dot(&v));
                (Softmax { max, sum }, sums * to_output_layout(&decay) + new)
            })
        };
        let state = add(&device, k.clone(), v.clone(), varying((softmax, sums), &axes)?)?;
        let ((_, (softmax, sums)), ()) = self.round(
            |((k, v), state): ((Array, Array), (Softmax, Array)), hop: Array| -> Result<_> {
                let (k, v) = pshift((k, v), self.axis, 1);
                let state = add(&self.source(&device, &hop), k.clone(), v.clone(), state)?;
                Ok((((k, v), state), ()))
            },
            ((k, v), state),
        )?;
        let y = (sums / to_output_layout(&softmax.sum)).astype(q.dtype());
        Ok((y, softmax))
    }

    /// Returns the gradients of queries, keys and values.
    fn backward(
        &self,
        qkv: [Array; 3],
        ids: Option<Segments>,
        y: Array,
        softmax: Softmax,
        dy: Array,
    ) -> Result<(Array, Array, Array)> {
        let arguments = ((qkv, ids, y, softmax), dy);
        let axes = axes_of(&arguments, self.axis);
        let (([q, k, v], ids, y, softmax), dy) = varying(arguments, &axes)?;
        let shapes = Shapes::of(&q, &k);
        let device = axis_index(self.axis);
        let dtype = wide(&q).unwrap_or(q.dtype());
        let scale = self.options.factor(&shapes);
        // The correction term of the softmax gradient of each query.
        let mean = (dy.astype(dtype) * y.astype(dtype)).sum(-1).swapaxes(-1, -2).expand_dims(-1);
        // Adds the gradients from the block of device `source`. The weights are computed again from the softmax's residuals.
        let add = |source: &Array, k: Array, v: Array, state: (Array, Array, Array)| {
            self.unless_hidden(&device, source, &shapes, state, |(dq, dk, dv): (Array, Array, Array)| {
                let products = self.options.products(&q, &k, &shapes);
                let visible = self.seen(&device, source, &shapes, &ids);
                let scores = self.options.hidden(&products, &visible);
                let weights = (scores - softmax.max.expand_dims(-1)).exp() / softmax.sum.expand_dims(-1);
                let mut slope = &weights * (shapes.products(&dy, &v, self.options.dot()) - &mean) * scale;
                if let Some(cap) = self.options.soft_cap {
                    slope = slope * (1.0 - (products / cap).square());
                }
                if let Some(visible) = &visible {
                    slope = where_(visible, slope, 0.0);
                }
                let slope = slope.astype(q.dtype());
                (
                    dq + shapes.values(&slope, &k, self.dot(&k)),
                    dk + shapes.sum_over_queries(&slope, &q, self.options.dot()),
                    dv + shapes.sum_over_queries(&weights.astype(dy.dtype()), &dy, self.options.dot()),
                )
            })
        };
        let [dq, dk, dv] = [&q, &k, &v].map(|x| reshard_like(zeros_dtype(x.shape(), dtype), x));
        let (dq, dk, dv) = add(&device, k.clone(), v.clone(), varying((dq, dk, dv), &axes)?)?;
        let (((_, _, dk, dv), dq), ()) = self.round(
            |(moving, dq): ((Array, Array, Array, Array), Array), hop: Array| -> Result<_> {
                let (k, v, dk, dv) = pshift(moving, self.axis, 1);
                let (dq, dk, dv) = add(&self.source(&device, &hop), k.clone(), v.clone(), (dq, dk, dv))?;
                Ok((((k, v, dk, dv), dq), ()))
            },
            ((k.clone(), v.clone(), dk, dv), dq),
        )?;
        // One more step around the ring returns the gradients to the devices that own the keys and values.
        let (dk, dv) = if self.size > 1 { pshift((dk, dv), self.axis, 1) } else { (dk, dv) };
        Ok((dq.astype(q.dtype()), dk.astype(k.dtype()), dv.astype(v.dtype())))
    }

    /// Returns the options of matmuls that accumulate in float32 at least.
    fn dot(&self, x: &Array) -> DotOptions {
        self.options.dot().preferred_element_type(wide(x))
    }

    /// Runs `step` for each other device; its second argument is the number of hops that the block has made.
    fn round<C: Tree>(&self, step: impl Fn(C, Array) -> Result<(C, ())>, start: C) -> Result<(C, ())> {
        if self.size > 1 { scan(step, start, arange(1..self.size as i32)) } else { Ok((start, ())) }
    }

    /// Returns the index of the device that owns the current block.
    fn source(&self, device: &Array, hop: &Array) -> Array {
        let size = self.size as i32;
        (device - hop + size) % size
    }

    /// Returns the mask between the local queries and the keys of the block that device `source` owns.
    fn seen(&self, device: &Array, source: &Array, shapes: &Shapes, ids: &Option<Segments>) -> Option<Array> {
        let _ranks = allow_any_ranks();
        let query = device * shapes.queries as i32 + arange(0..shapes.queries as i32);
        let key = source * shapes.keys as i32 + arange(0..shapes.keys as i32);
        let segments = ids.as_ref().map(|ids| {
            let length_axis = ids.keys.ndim() as i32 - 1;
            let keys = lax::dynamic_slice_in_dim(&ids.keys, source * shapes.keys as i32, shapes.keys, length_axis);
            same_segment(&ids.queries, &keys)
        });
        self.options.seen_between(&query.expand_dims(1), &key).into_iter().chain(segments).reduce(|a, b| a & b)
    }

    /// Applies `add` to the state, unless causality masks the entire block of device `source`.
    fn unless_hidden<T: Tree>(
        &self,
        device: &Array,
        source: &Array,
        shapes: &Shapes,
        state: T,
        add: impl Fn(T) -> T,
    ) -> Result<T> {
        if !self.options.is_causal || self.options.local_window_size.is_some() {
            return Ok(add(state));
        }
        let (first_key, end) = (source * shapes.keys as i32, (device + 1) * shapes.queries as i32);
        cond(first_key.less(end), add, |state: T| state, state)
    }
}

/// Splits `x`, `[..., heads, queries]`, like the queries, if their type has a sharding: the loop's carry must not change its
/// type.
fn split_like_queries(x: Array, queries: &Array) -> Array {
    match queries.aval().sharding() {
        Some(_) => reshard_like(x, &queries.sum(-1).swapaxes(-1, -2)),
        None => x,
    }
}

/// Reorders `[..., heads, queries]` to `[..., queries, heads, 1]`.
fn to_output_layout(x: &Array) -> Array {
    x.swapaxes(-1, -2).expand_dims(-1)
}
