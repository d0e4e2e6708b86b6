//! Mixtures of experts.

use shardax::nn::{one_hot, sigmoid, softmax};
use shardax::prelude::*;

use shardax::shape::AxisName;
use shardax::sharding::Typed;

use super::stack::has_state;
use super::{Layer, Linear, Stack};
use crate::check::{positive, value_error, within};
use crate::ranks::allow_any_ranks;
use crate::rules::Place;
use crate::{Module, Rngs, Rules};

/// A mixture of experts: a router sends each token to a few of many layers, and weights their outputs.
///
/// Each row of the batch is routed independently, so that routing does not depend on the device of a row. In each row, an
/// expert has a capacity of `capacity_factor * k * tokens / experts` tokens, rounded up. First choices have priority over
/// second choices, and earlier tokens over later ones. Choices beyond the capacity are dropped: they add nothing to the
/// result.
///
/// If the [`Rules`] shard the dimension `expert` over a mesh axis, each device has some of the experts and some rows of
/// the batch. Two `all_to_all` collectives send tokens to the devices of their experts and back.
///
/// Source: [Lepikhin et al. 2020](https://arxiv.org/abs/2006.16668), [Fedus et al. 2021](https://arxiv.org/abs/2101.03961).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let moe = MixtureOfExperts::new(4, 2, 8, &mut rngs, |rngs| Linear::new(8, 8, rngs))?;
/// let routed = moe.forward(random::normal(random::key(1), [2, 16, 8]))?;
/// assert_eq!(routed.y.shape(), [2, 16, 8]);
/// // 1 if the load is balanced.
/// assert!(routed.balance_loss.item::<f32>()? > 0.9);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct MixtureOfExperts<E> {
    /// The linear layer from features to a score of each expert, in float32.
    pub router: Linear,
    /// The experts: the first dimension of each array is the index of the expert.
    pub experts: Stack<E>,
    /// `[experts]`: added to the scores before the experts are chosen. It does not change the weights, so you can use
    /// it to balance the load, as DeepSeek-V3 does. Default none.
    pub correction: Option<Array>,
    k: usize,
    capacity_factor: Option<f64>,
    normalized: bool,
    scale: f64,
    jitter: f64,
    #[tree(static)]
    scores: RouterScores,
    #[tree(static)]
    groups: Option<ExpertGroups>,
    #[tree(static)]
    rules: Rules,
}

/// The scores that a router computes from its logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RouterScores {
    /// The softmax over all experts.
    #[default]
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// The sigmoid of each logit. A [`correction`](MixtureOfExperts::correction) is added to the logits instead of the
    /// sigmoids, as in Kolibri.
    SigmoidOfLogits,
    /// For each choice, the softmax over the experts that are not chosen yet and whose logits are close to the best one, see
    /// [`MixtureOfExperts::jitter`] ([Liu et al. 2024](https://arxiv.org/abs/2409.12136)).
    SparseMixer,
}

/// The groups of experts. The experts of each token come from a few of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// The number of groups, which divides the number of experts.
    pub count: usize,
    /// The number of groups from which the experts of a token come.
    pub kept: usize,
    /// The number of best scores in a group whose sum ranks the group.
    pub ranked_by: usize,
}

/// The experts of tokens.
#[derive(Tree, Clone, Debug)]
pub struct ChosenExperts {
    /// The experts of each token, best first, int32 `[..., tokens, k]`.
    pub experts: Array,
    /// The weights of their outputs, float32 `[..., tokens, k]`.
    pub weights: Array,
    /// The score of each expert, float32 `[..., tokens, experts]`.
    pub scores: Array,
}

/// The logical name of the dimension of experts.
const EXPERT: &str = "expert";

/// The result of a [`MixtureOfExperts`].
#[derive(Tree, Clone, Debug)]
pub struct Routed {
    /// `[..., tokens, features]`
    pub y: Array,
    /// The load-balancing loss, a float32 scalar: the number of experts times the sum over experts of the share of
    /// choices times the mean probability, averaged over the rows. It is 1 if the load is balanced. You should add it
    /// to the loss with a small factor, such as 0.01, because otherwise the router may send most tokens to a few
    /// experts.
    pub balance_loss: Array,
    /// The share of dropped choices, a float32 scalar. If it stays large, you can increase the capacity.
    pub dropped: Array,
}

/// The routes of tokens to experts.
struct Routes {
    /// 1 if a token is sent to a place of an expert, otherwise 0: `[rows, tokens, experts, places]`.
    dispatch: Array,
    /// The routes back, with the weights of the experts' outputs.
    combine: Array,
    balance_loss: Array,
    dropped: Array,
}

impl<E: Layer> MixtureOfExperts<E> {
    /// Creates `num_experts` experts with top-`k` routing of tokens; the function `expert` creates each of them. The router's
    /// weights are drawn first.
    ///
    /// # Errors
    /// Returns an error if `k` is 0 or exceeds `num_experts`, or if an expert has state, such as a `Dropout` or a
    /// `BatchNorm`, because the state that a call changes would be lost.
    #[track_caller]
    pub fn new(
        num_experts: usize,
        k: usize,
        in_features: usize,
        rngs: &mut Rngs,
        expert: impl Fn(&mut Rngs) -> E,
    ) -> Result<Self> {
        positive("MixtureOfExperts", "k", k)?;
        if k > num_experts {
            return value_error(format!("MixtureOfExperts: k must be at most the {num_experts} experts, got {k}"));
        }
        // The router computes in float32, because the order of nearly equal scores decides where a token goes.
        let router = Linear::builder(in_features, num_experts).use_bias(false).dtype(DType::F32).build(rngs);
        let experts = Stack::new(num_experts, rngs, expert)?.axis_name(EXPERT);
        if has_state(&experts) {
            return value_error(
                "MixtureOfExperts: experts with state, such as a Dropout or a BatchNorm, are not supported, because the state \
                 that a call changes would be lost",
            );
        }
        Ok(MixtureOfExperts {
            router,
            experts,
            correction: None,
            k,
            capacity_factor: Some(1.25),
            normalized: true,
            scale: 1.0,
            jitter: 0.01,
            scores: RouterScores::Softmax,
            groups: None,
            rules: rngs.rules(),
        })
    }

    /// Sets the capacity of each expert as a multiple of a balanced load. You can set `None` if no token must be
    /// dropped. Default 1.25.
    pub fn capacity_factor(mut self, factor: impl Into<Option<f64>>) -> Self {
        self.capacity_factor = factor.into();
        self
    }

    /// Sets whether the weights of a token's experts are normalized to sum to 1. Default true.
    pub fn normalized(mut self, normalized: bool) -> Self {
        self.normalized = normalized;
        self
    }

    /// Sets the factor of the weights. Default 1.
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the scores of the router. Default: the softmax over all experts.
    pub fn scores(mut self, scores: RouterScores) -> Self {
        self.scores = scores;
        self
    }

    /// Sets which logits are close to the best one for [`RouterScores::SparseMixer`]: those whose distance from it is at most
    /// twice this share of the larger absolute value. Default 0.01.
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// Restricts the experts of each token to a few groups, as in DeepSeek-V3. Default none.
    pub fn groups(mut self, groups: impl Into<Option<ExpertGroups>>) -> Self {
        self.groups = groups.into();
        self
    }

    /// Returns the capacity of each expert as a multiple of a balanced load, or `None` if no token is dropped.
    pub fn capacity(&self) -> Option<f64> {
        self.capacity_factor
    }

    /// Returns the mesh and its axis that split the experts, if the rules have one.
    ///
    /// # Errors
    /// Returns an error if the rules split the experts over several mesh axes, or over one that the mesh does not
    /// have.
    pub fn expert_axis(&self) -> Result<Option<(Mesh, AxisName)>> {
        Ok(match self.rules.place(EXPERT)? {
            Place::Auto(mesh, axis) => Some((mesh, axis)),
            Place::Whole | Place::Manual(_) => None,
        })
    }

    /// Chooses the experts of tokens, `[..., tokens, features]`.
    ///
    /// # Errors
    /// Returns an error if `x` does not have the features of the router, or if the number of groups does not divide the
    /// number of experts.
    #[track_caller]
    pub fn choose(&self, x: impl ArrayLike) -> Result<ChosenExperts> {
        let logits = self.router.forward(x);
        logits.check()?;
        let scores = match self.scores {
            RouterScores::SparseMixer => return Ok(self.mixed(logits)),
            RouterScores::Softmax => softmax(&logits, -1),
            RouterScores::Sigmoid | RouterScores::SigmoidOfLogits => sigmoid(&logits),
        };
        let corrected = if self.scores == RouterScores::SigmoidOfLogits { &logits } else { &scores };
        let (weights, experts) = match (&self.correction, self.groups) {
            (None, None) => lax::top_k(&scores, self.k),
            (correction, groups) => {
                // The correction and the groups change which experts are chosen, but not their weights.
                let preference = match correction {
                    Some(correction) => {
                        let _ranks = allow_any_ranks();
                        corrected + correction.astype(scores.dtype())
                    }
                    None => corrected.clone(),
                };
                let preference = match groups {
                    Some(groups) => within_groups(preference, groups, self.k)?,
                    None => preference,
                };
                let (_, experts) = lax::top_k(&preference, self.k);
                (scores.take_along_axis(&experts, -1), experts)
            }
        };
        let weights = match (self.scores, self.normalized) {
            // Sigmoids can underflow, so that their sum is 0.
            (RouterScores::Sigmoid, true) => &weights / (weights.sum_keepdims(-1) + 1e-20),
            (_, true) => &weights / weights.sum_keepdims(-1),
            (_, false) => weights,
        };
        let weights = if self.scale == 1.0 { weights } else { weights * self.scale };
        Ok(ChosenExperts { experts, weights, scores })
    }

    /// Chooses the experts with the best logits one after the other, each with its softmax weight among the remaining experts
    /// that are close to it.
    #[track_caller]
    fn mixed(&self, logits: Array) -> ChosenExperts {
        let count = logits.shape().last().copied().unwrap_or(0);
        let (mut remaining, mut experts, mut weights) = (logits.clone(), Vec::new(), Vec::new());
        for _ in 0..self.k {
            let (best, expert) = lax::top_k(&remaining, 1);
            let is_far = ((&best - &logits) / logits.abs().maximum(&best)).greater(2.0 * self.jitter);
            let gates = softmax(where_(is_far, f64::NEG_INFINITY, &remaining), -1);
            weights.push(gates.take_along_axis(&expert, -1));
            let is_chosen = one_hot(expert.squeeze(-1), count).greater(0.5);
            remaining = where_(is_chosen, f64::NEG_INFINITY, remaining);
            experts.push(expert);
        }
        ChosenExperts {
            experts: concatenate(&experts, -1),
            weights: concatenate(&weights, -1) * self.scale,
            scores: softmax(&logits, -1),
        }
    }

    /// Applies the layer. `x` is `[..., tokens, features]`; its first dimension is sharded like the experts.
    ///
    /// # Errors
    /// Returns an error if `x` has too few dimensions, if the devices of the expert axis do not divide the experts,
    /// or if an expert fails.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Result<Routed> {
        let x = x.into_array();
        match self.rules.place(EXPERT)? {
            Place::Whole => {
                self.routed(x, |inputs| self.experts.map(|expert, x: Array| expert.clone().forward(x), inputs))
            }
            Place::Manual(axis) => self.forward_over(x, axis),
            Place::Auto(mesh, axis) => self.spread(x, &mesh, axis),
        }
    }

    /// Applies the layer in a `shard_map` over the axis of the experts and the axes that only split rows. If these axes were
    /// not manual, an exchange would gather the rows.
    #[track_caller]
    fn spread(&self, x: Array, mesh: &Mesh, axis: AxisName) -> Result<Routed> {
        if x.ndim() < 3 {
            let x_type = x.type_name();
            return value_error(format!("MixtureOfExperts: x must be [..., batch, tokens, features], got {x_type}"));
        }
        let mut rows = self.rules.row_axes();
        rows.insert(0, axis);
        let split = P![&rows[..]];
        // If types have shardings, the rows are resharded to these axes, and the results back.
        let typed = x.aval().sharding().cloned();
        let rows_of_device =
            typed.iter().fold(x, |x, typed| reshard(x, Typed::from_spec(typed.mesh(), &split, typed.rank())));
        let routed: Routed = shard_map(
            |router: Linear, correction: Option<Array>, experts: Stack<E>, x: Array| {
                let local = MixtureOfExperts { router, experts, correction, ..self.clone() };
                let Routed { y, balance_loss, dropped } = local.forward_over(x, axis)?;
                let (balance_loss, dropped) = pmean((balance_loss, dropped), &rows[..]);
                Ok(Routed { y, balance_loss, dropped })
            },
            mesh,
        )
        .axis_names(&rows[..])
        .in_specs((P![], P![], P![axis], &split))
        .out_specs((&split, P![], P![]))
        .call((&self.router, &self.correction, &self.experts, rows_of_device))?;
        Ok(Routed { y: typed.iter().fold(routed.y, reshard), ..routed })
    }

    /// Applies the layer inside a `shard_map` over this axis. Each device has its rows of `x`, the entire router, and
    /// its shard of the experts (their first dimension). Two `all_to_all` collectives send tokens to the devices of their
    /// experts and back.
    ///
    /// The losses count only the rows of this device, so you must average them over the devices.
    ///
    /// # Errors
    /// Returns an error if no enclosing `shard_map` has this axis, if its size does not divide the number of experts,
    /// or if an expert fails.
    #[track_caller]
    pub fn forward_over(&self, x: impl ArrayLike, axis_name: impl Into<AxisName>) -> Result<Routed> {
        let axis = axis_name.into();
        let size = axis_size(axis)?;
        self.routed(x.into_array(), |inputs| {
            // The rows stay a dimension of their own, because other axes may split them.
            let &[experts, rows, places, features] = inputs.shape() else { return Ok(inputs) };
            if !experts.is_multiple_of(size) {
                return value_error(format!("MixtureOfExperts: the {size} devices must divide the {experts} experts"));
            }
            let sent = inputs.reshape([size, experts / size, rows, places, features]);
            let received = all_to_all_tiled(sent, axis, 0, 0).swapaxes(0, 1);
            let outputs = self.experts.map(|expert, x: Array| expert.clone().forward(x), received)?;
            Ok(all_to_all_tiled(outputs.swapaxes(0, 1), axis, 0, 0).reshape([experts, rows, places, features]))
        })
    }

    /// Routes tokens to experts, applies `apply_experts` to the inputs `[experts, rows, places, features]`, and combines its
    /// results, which have the same shape.
    #[track_caller]
    fn routed(&self, x: Array, apply_experts: impl FnOnce(Array) -> Result<Array>) -> Result<Routed> {
        x.check()?;
        let rank = x.ndim();
        if rank < 2 {
            return value_error(format!("MixtureOfExperts: x must be [..., tokens, features], got {}", x.type_name()));
        }
        let (batch, last) = x.shape().split_at(rank - 2);
        let rows = x.reshape([&[batch.iter().product()], last].concat());
        let Routes { dispatch, combine, balance_loss, dropped } = self.routes(&rows)?;
        // Tokens beyond an expert's capacity have zeros in both masks, so they add nothing.
        let inputs = einsum("gtec,gtd->egcd", &[&dispatch.astype(x.dtype()), &rows]);
        let outputs = apply_experts(inputs)?;
        let y = einsum("gtec,egcd->gtd", &[&combine.astype(outputs.dtype()), &outputs]);
        y.check()?;
        let y = y.reshape([batch, &y.shape()[1..]].concat());
        Ok(Routed { y, balance_loss, dropped })
    }

    /// Chooses the experts of each token, and their places in the experts' inputs.
    #[track_caller]
    fn routes(&self, rows: &Array) -> Result<Routes> {
        let ChosenExperts { experts: chosen, weights, scores: probabilities } = self.choose(rows)?;
        let &[g, t, experts] = probabilities.shape() else {
            return value_error(format!(
                "MixtureOfExperts: the router returned {}, not [rows, tokens, experts]",
                probabilities.type_name()
            ));
        };
        let (k, places) = (self.k, self.places(t, experts)?);
        // All first choices of a row have priority over all second choices.
        let (weights, chosen) = (weights.swapaxes(1, 2), one_hot(chosen.swapaxes(1, 2), experts));
        let flat = chosen.astype(DType::I32).reshape([g, k * t, experts]);
        // The place of a choice is the number of choices before it that have the same expert.
        let before = flat.cumsum(1) - &flat;
        let place = (before * &flat).sum(-1).reshape([g, k, t]);
        let has_place = place.less(places as i32).astype(DType::F32);
        let place = one_hot(place, places) * has_place.expand_dims(-1);
        let dispatch = einsum("gkte,gktc->gtec", &[&chosen, &place]);
        let combine = einsum("gkte,gktc->gtec", &[&(&chosen * weights.expand_dims(-1)), &place]);
        // The choice of experts has no gradient, but their probabilities have one.
        let shares = chosen.sum([1, 2]) / (k * t.max(1)) as f64;
        let balance_loss = (shares * probabilities.mean(1)).sum(-1).mean(..) * experts as f64;
        Ok(Routes { dispatch, combine, balance_loss, dropped: 1.0 - has_place.mean(..) })
    }

    /// Returns the capacity of an expert: the number of tokens of a row that it accepts.
    #[track_caller]
    fn places(&self, tokens: usize, experts: usize) -> Result<usize> {
        let Some(factor) = self.capacity_factor else { return Ok(tokens) };
        within("MixtureOfExperts", "capacity_factor", factor, f64::MIN_POSITIVE..f64::INFINITY)?;
        let capacity = (factor * (self.k * tokens) as f64 / experts.max(1) as f64).ceil();
        Ok((capacity as usize).clamp(tokens.min(1), tokens))
    }
}

/// Returns the scores, with zeros in place of the scores outside of the best groups.
#[track_caller]
fn within_groups(scores: Array, groups: ExpertGroups, k: usize) -> Result<Array> {
    let ExpertGroups { count, kept, ranked_by } = groups;
    let experts = scores.shape().last().copied().unwrap_or(0);
    let size = experts.checked_div(count).unwrap_or(0);
    if size * count != experts || !(1..=count).contains(&kept) || !(1..=size).contains(&ranked_by) || k > kept * size {
        return value_error(format!(
            "MixtureOfExperts: {k} of {experts} experts cannot be chosen from {kept} of {count} groups, ranked by {ranked_by}"
        ));
    }
    let rows = &scores.shape()[..scores.ndim() - 1];
    let grouped = scores.reshape([rows, &[count, size]].concat());
    let (best, _) = lax::top_k(&grouped, ranked_by);
    let (_, chosen) = lax::top_k(&best.sum(-1), kept);
    // A comparison with 0.5 instead of 0 is safe from rounding.
    let is_kept = one_hot(chosen, count).sum(-2).expand_dims(-1).greater(0.5);
    // Corrected scores can be negative, so that zeros could be larger than the scores of the kept groups.
    Ok(where_(is_kept, grouped, f64::NEG_INFINITY).reshape(scores.shape()))
}
