//! The MLPs of a decoder, and an activation function that has parameters.

use shardax_nn::prelude::*;

use super::block::scaled;
use super::{Activation, DecoderConfig};

/// A multilayer perceptron: two linear layers with an activation function between them, or three layers with a gate.
#[derive(Module, Clone, Debug)]
pub struct Mlp {
    /// The gate, if the MLP has one.
    pub gate: Option<Linear>,
    /// The first layer.
    pub up: Linear,
    /// Normalizes the input of the last layer, see [`DecoderConfig::inner_norms`].
    pub norm: Option<RmsNorm>,
    /// The last layer.
    pub down: Linear,
    /// The learned factors of [`Activation::Xielu`].
    pub xielu: Option<Xielu>,
    #[tree(static)]
    activation: Activation,
    gate_scale: Option<f64>,
    output_scale: Option<f64>,
    /// The share of gates that are zero.
    sparsity: Option<f64>,
    /// The bound of activated gates from above, and of their factors from both sides.
    bound: Option<f64>,
}

impl Mlp {
    /// Creates an MLP with `features` inputs and outputs, and `hidden` features between the layers.
    #[track_caller]
    pub fn new(
        features: usize,
        hidden: usize,
        activation: Activation,
        gated: bool,
        use_bias: bool,
        rngs: &mut Rngs,
    ) -> Mlp {
        let input = Linear::builder(features, hidden).use_bias(use_bias).kernel_axes(["embed", "mlp"]);
        let output = Linear::builder(hidden, features).use_bias(use_bias).kernel_axes(["mlp", "embed"]);
        Mlp {
            gate: gated.then(|| input.clone().build(rngs)),
            up: input.build(rngs),
            norm: None,
            down: output.build(rngs),
            xielu: (activation == Activation::Xielu).then(Xielu::default),
            activation,
            gate_scale: None,
            output_scale: None,
            sparsity: None,
            bound: None,
        }
    }

    /// Sets the factors of gates and outputs.
    pub(super) fn scales(mut self, config: &DecoderConfig) -> Mlp {
        (self.gate_scale, self.output_scale) = (config.gate_scale, config.mlp_scale);
        self
    }

    /// Normalizes the input of the last layer.
    pub(super) fn normalized(mut self, hidden: usize, epsilon: f64, rngs: &mut Rngs) -> Mlp {
        self.norm = Some(RmsNorm::builder(hidden).epsilon(epsilon).build(rngs));
        self
    }

    /// Sets the share of gates that are zero.
    pub(super) fn sparsity(mut self, share: Option<f64>) -> Mlp {
        self.sparsity = share;
        self
    }

    /// Sets the bound of gates and of their factors.
    pub(super) fn bound(mut self, bound: Option<f64>) -> Mlp {
        self.bound = bound;
        self
    }

    /// Applies the MLP to `x`, `[..., features]`. `gates` and `up` are added to the results of the first layers.
    #[track_caller]
    pub(super) fn forward_with(&self, x: &Array, gates: Array, up: Array) -> Array {
        let up = self.up.forward(x) + up;
        self.down.forward(match &self.gate {
            Some(gate) => self.activation.gated(gate.forward(x) + gates, up),
            None => self.activation.apply(up),
        })
    }

    /// Applies the MLP to `x`, `[..., features]`. The result has the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        if let Some(xielu) = &self.xielu {
            return self.down.forward(xielu.apply(&self.up.forward(x)));
        }
        let hidden = match &self.gate {
            Some(gate) => {
                let gates = scaled(gate.forward(&x), self.gate_scale);
                let gates = self.sparsity.into_iter().fold(gates, |gates, share| largest_gates(&gates, share));
                match self.bound {
                    Some(bound) => self.activation.apply(gates).minimum(bound) * self.up.forward(x).clip(-bound, bound),
                    None => self.activation.gated(gates, self.up.forward(x)),
                }
            }
            None => self.activation.apply(self.up.forward(x)),
        };
        let hidden = self.norm.iter().fold(hidden, |x, norm| norm.forward(x));
        scaled(self.down.forward(hidden), self.output_scale)
    }
}

impl Layer for Mlp {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        Mlp::forward(self, x)
    }
}

/// Replaces all gates by zero, except the largest ones, from which a bound is subtracted. If gates are normally distributed,
/// this share of them becomes zero.
fn largest_gates(gates: &Array, share: f64) -> Array {
    let deviations = lax::erf_inv(full((), (2.0 * share - 1.0) as f32)) * std::f64::consts::SQRT_2;
    let mean = gates.mean_keepdims(-1);
    let deviation = (gates - &mean).square().mean_keepdims(-1).sqrt();
    relu(gates - (mean + deviation * deviations.astype(gates.dtype())))
}

/// The factors of [`Activation::Xielu`].
#[derive(Module, Clone, Debug)]
pub struct Xielu {
    /// `[1]`: the parabola's factor, before softplus.
    pub alpha_p: Array,
    /// `[1]`: the exponential function's factor, before softplus and without `beta`.
    pub alpha_n: Array,
    /// A scalar: the slope at zero.
    pub beta: Array,
    /// A scalar: the exponential function's argument is at most this number.
    pub eps: Array,
}

/// Returns the number whose softplus is `x`.
fn before_softplus(x: f64) -> Array {
    array([x.exp_m1().ln() as f32])
}

impl Default for Xielu {
    fn default() -> Self {
        // Both factors are 0.8 after softplus and `beta`, as models start.
        Xielu {
            alpha_p: before_softplus(0.8),
            alpha_n: before_softplus(0.3),
            beta: full((), 0.5f32),
            eps: full((), -1e-6f32),
        }
    }
}

impl Xielu {
    /// The function of each element.
    pub(super) fn apply(&self, x: &Array) -> Array {
        let [alpha_p, alpha_n] = [&self.alpha_p, &self.alpha_n].map(|alpha| softplus(alpha.astype(x.dtype())));
        let (beta, eps) = (self.beta.astype(x.dtype()), self.eps.astype(x.dtype()));
        let positive = alpha_p * x.square();
        let negative = (x.minimum(eps).expm1() - x) * (alpha_n + &beta);
        where_(x.greater(0.0), positive, negative) + x * beta
    }
}
