//! Mixtures of experts without a capacity, so that no token is dropped.

use shardax::error::Result;
use shardax::sharding::{DimSpec, Typed};
use shardax_nn::ChosenExperts;
use shardax_nn::prelude::*;

use super::{DecoderConfig, ExpertsConfig, Mlp, Norm};
use crate::shardings::reshard_like;

/// Creates the experts of a layer. Returns `None` for sizes that [`DecoderConfig::check`] rejects.
#[track_caller]
pub(super) fn build(
    config: &DecoderConfig,
    experts: &ExpertsConfig,
    layer: usize,
    rngs: &mut Rngs,
) -> Option<MixtureOfExperts<Mlp>> {
    let DecoderConfig { features, activation, gated, .. } = *config;
    let bound = experts.bounds.get(layer).copied().flatten();
    let layer = MixtureOfExperts::new(experts.count, experts.per_token, features, rngs, |rngs: &mut Rngs| {
        Mlp::new(features, experts.hidden, activation, gated, experts.biases, rngs).bound(bound)
    })
    .ok()?;
    let mut layer = layer
        .capacity_factor(experts.capacity_factor)
        .normalized(experts.normalized)
        .scale(experts.scale)
        .scores(experts.scores)
        .jitter(experts.jitter)
        .groups(experts.groups);
    let choices = experts.count + experts.identities;
    if experts.identities > 0 {
        layer.router = Linear::builder(features, choices).use_bias(false).dtype(DType::F32).build(rngs);
    }
    layer.correction = experts.correction.then(|| zeros_dtype([choices], DType::F32));
    if experts.biases {
        layer.router.bias = Some(zeros_dtype([choices], rngs.policy().param_dtype));
    }
    Some(layer)
}

/// The norms of experts next to an MLP.
#[derive(Module, Clone, Debug)]
pub struct BesideMlp {
    /// Normalizes the input of the router.
    pub router_norm: Norm,
    /// Normalizes the input of the experts.
    pub experts_norm: Norm,
    /// Normalizes the output of the MLP.
    pub mlp_output_norm: Norm,
    /// Normalizes the output of the experts.
    pub experts_output_norm: Norm,
    /// `[experts]`: the factors of the weights of experts.
    pub expert_scale: Array,
}

impl BesideMlp {
    pub(super) fn new(config: &DecoderConfig, experts: usize, rngs: &mut Rngs) -> BesideMlp {
        let [experts_norm, mlp_output_norm, experts_output_norm, router_norm] =
            [(); 4].map(|()| Norm::new(config.norm, config.features, config.epsilon, rngs));
        let expert_scale = ones_dtype([experts], DType::F32);
        BesideMlp { router_norm, experts_norm, mlp_output_norm, experts_output_norm, expert_scale }
    }

    /// Returns the inputs of the router and of the experts.
    pub(super) fn routed(&self, x: &Array) -> Routed<'_> {
        let features = x.shape().last().copied().unwrap_or(1).max(1);
        Routed {
            router_input: self.router_norm.forward(x) * (features as f64).powf(-0.5),
            x: self.experts_norm.forward(x),
            expert_scale: Some(&self.expert_scale),
        }
    }
}

/// The inputs of experts and of their router.
pub(super) struct Routed<'a> {
    /// The input of the experts, `[..., features]`.
    pub x: Array,
    /// The input of the router, `[..., features]`.
    pub router_input: Array,
    /// `[experts]`: the factors of the weights.
    pub expert_scale: Option<&'a Array>,
}

impl Routed<'_> {
    /// The inputs of experts that have the input of their router.
    pub fn of(x: &Array) -> Routed<'static> {
        Routed { x: x.clone(), router_input: x.clone(), expert_scale: None }
    }

    /// Chooses the experts of each token. The result is sharded as `like`.
    fn choose(&self, moe: &MixtureOfExperts<Mlp>, like: &Array) -> Result<ChosenExperts> {
        let mut chosen = moe.choose(reshard_like(self.router_input.clone(), like))?;
        if let Some(scale) = self.expert_scale {
            // A sum over all experts instead of a gather, whose sharding could not be inferred.
            let is_chosen = one_hot(&chosen.experts, scale.size()).astype(chosen.weights.dtype());
            let scales = (is_chosen * scale.astype(chosen.weights.dtype())).sum(-1);
            chosen.weights = &chosen.weights * scales;
        }
        Ok(chosen)
    }
}

/// Applies the chosen experts to each token of `x`, `[..., features]`.
///
/// If the rules split the experts over a mesh axis, each device applies its experts to the tokens of its rows that have
/// chosen them, and the results are summed over the axis. With `weighs_inputs`, the weights multiply the inputs of the
/// experts instead of the outputs.
#[track_caller]
pub(super) fn dropless(
    moe: &MixtureOfExperts<Mlp>,
    routed: &Routed<'_>,
    rules: &Rules,
    weighs_inputs: bool,
) -> Result<Array> {
    let x = &routed.x;
    let typed = x.aval().sharding().cloned();
    let Some((mesh, axis)) = moe.expert_axis()? else {
        // The choices of all tokens are sorted together, so the tokens must not be split over a mesh axis.
        let x = typed.iter().fold(x.clone(), |x, typed| reshard(x, Typed::replicated(typed.mesh(), typed.rank())));
        let chosen = routed.choose(moe, &x)?;
        let y = grouped(&moe.experts, &x, (&chosen.weights, weighs_inputs), chosen.experts.clone());
        let y = with_identities(y, &x, &chosen, moe.experts.depth());
        return Ok(typed.iter().fold(y, reshard));
    };
    // The results are summed over the axis of the experts, so all devices along this axis must have the same rows.
    let batch = if x.ndim() > 2 { rules.spec([Some("batch")]) } else { P![] };
    let rows = PartitionSpec::new([batch.axes(0).iter().copied().filter(|other| *other != axis).collect::<DimSpec>()]);
    let x = typed.iter().fold(x.clone(), |x, typed| reshard(x, Typed::from_spec(typed.mesh(), &rows, typed.rank())));
    let chosen = routed.choose(moe, &x)?;
    let mut axes = rows.axes(0).to_vec();
    axes.push(axis);
    let y: Array = shard_map(
        move |experts: Stack<Mlp>, x: Array, weights: Array, chosen: Array| {
            let first_expert = axis_index(axis) * experts.depth() as i32;
            psum(grouped(&experts, &x, (&weights, weighs_inputs), chosen - first_expert), axis)
        },
        &mesh,
    )
    .axis_names(&axes[..])
    .in_specs((P![axis], &rows, &rows, &rows))
    .out_specs(&rows)
    .call((&moe.experts, &x, &chosen.weights, &chosen.experts))?;
    let y = with_identities(y, &x, &chosen, moe.experts.depth());
    Ok(typed.iter().fold(y, reshard))
}

/// Adds the choices beyond the first `count` experts, which return their input `x`, to the sum of the other choices.
fn with_identities(y: Array, x: &Array, chosen: &ChosenExperts, count: usize) -> Array {
    if chosen.scores.shape().last() == Some(&count) {
        return y;
    }
    let is_identity = chosen.experts.greater_equal(count as i32);
    let weight = where_(is_identity, &chosen.weights, 0.0).sum_keepdims(-1);
    y + x * weight.astype(x.dtype())
}

/// The maximal number of tokens in a block that an expert processes at once.
const MAX_BLOCK: usize = 128;

/// Computes the weighted sum of the chosen experts for each token. Choices of other experts contribute nothing.
///
/// The choices are sorted by expert and divided into blocks with a single expert. Therefore the work grows with the number
/// of choices, but not with the number of experts.
fn grouped(experts: &Stack<Mlp>, x: &Array, (weights, weighs_inputs): (&Array, bool), chosen: Array) -> Array {
    let (count, features) = (experts.depth(), x.shape()[x.ndim() - 1]);
    let k = chosen.shape()[chosen.ndim() - 1];
    let tokens = x.reshape([-1, features as i32]);
    let choices = tokens.shape()[0] * k;
    let block = choices.div_ceil(count.max(1)).next_power_of_two().min(MAX_BLOCK);
    let blocks = choices.min(choices / block + count);

    let expert = chosen.reshape([choices]);
    let is_own = expert.greater_equal(0) & expert.less(count as i32);
    let expert = where_(&is_own, expert, count as i32);
    let order = expert.argsort(0);
    let sizes = expert.expand_dims(1).equal(arange(0..count as i32)).astype(DType::I32).sum(0);
    let starts = sizes.cumsum(0) - &sizes;
    let blocks_of = floor_divide(&sizes + (block as i32 - 1), block as i32);
    let ends = blocks_of.cumsum(0);
    let first_blocks = &ends - &blocks_of;

    // The expert of each block, and the sorted choices in it. Unused positions of a block repeat a choice, because every
    // block must have the same size; nothing reads their results.
    let number = arange(0..blocks as i32);
    let expert_of = ends.less_equal(number.expand_dims(1)).astype(DType::I32).sum(1).minimum(count as i32 - 1);
    let block_starts = starts.take(&expert_of, 0) + (number - first_blocks.take(&expert_of, 0)) * block as i32;
    let places = (block_starts.expand_dims(1) + arange(0..block as i32)).clip(0, choices.saturating_sub(1) as i32);
    let sorted = order.take(&places, 0);
    let inputs = floor_divide(&sorted, k as i32);
    let weights = weights.reshape([choices]);
    let factors = if weighs_inputs { weights.take(&sorted, 0) } else { ones_like(&places).astype(weights.dtype()) };
    let scanned = scan(
        |(), (expert, rows, factors): (Array, Array, Array)| -> Result<((), Array)> {
            let mlp = tree::map(|x| x.take(&expert, 0), experts.layers.clone())?;
            let rows = tokens.take(&rows, 0);
            let rows = if weighs_inputs { &rows * factors.astype(rows.dtype()).expand_dims(1) } else { rows };
            Ok(((), mlp.forward(rows)))
        },
        (),
        (expert_of, inputs, factors),
    );
    let outputs = match scanned {
        Ok(((), outputs)) => outputs,
        Err(error) => return Array::from_error(error, x),
    };

    // The position of each choice among the results.
    let rank = order.argsort(0);
    let local_expert = where_(&is_own, expert, 0);
    let slot = first_blocks.take(&local_expert, 0) * block as i32 + rank - starts.take(&local_expert, 0);
    let outputs = outputs.reshape([blocks * block, features]).take(where_(&is_own, slot, 0), 0);
    let weights = if weighs_inputs { ones_like(&weights) } else { weights };
    let weights = where_(&is_own, weights, 0.0).astype(outputs.dtype());
    let summed = (outputs * weights.expand_dims(1)).reshape([-1, k as i32, features as i32]).sum(1);
    summed.reshape(x.shape())
}
