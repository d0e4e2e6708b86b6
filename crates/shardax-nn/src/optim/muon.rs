//! Muon: momentum made orthogonal, for matrices.

use shardax::prelude::*;

use super::tree_utils::{abs_sq, bias_correction, cast, conjugate, update_moment};
use super::{
    AdamW, AddDecayedWeights, GradientTransformation, Partition, ScaleByAdam, ScaleByLearningRate, Schedule,
    add_decayed_weights, count, in_wide_dtypes, partition, safe_increment, scale_by_adam, scale_by_learning_rate,
    zeros_in,
};
use crate::check::{DECAY, FINITE, NOT_NEGATIVE, value_error, within};

/// The gradient transformation that [`scale_by_muon`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByMuon {
    /// The coefficients of the Newton-Schulz iteration. Default (3.4445, -4.775, 2.0315).
    pub ns_coeffs: (f64, f64, f64),
    /// The number of iterations. Default 5.
    pub ns_steps: usize,
    /// The decay rate of the mean of the gradients. Default 0.95.
    pub beta: f64,
    /// Added to the length by which matrices are divided. Default 1e-8.
    pub eps: f64,
    /// Uses Nesterov's momentum. Default true.
    pub nesterov: bool,
    /// The dtype of the mean of the gradients. Default: the dtype of the parameters.
    #[tree(static)]
    pub mu_dtype: Option<DType>,
}

/// The state of [`ScaleByMuon`].
#[derive(Tree, Clone, Debug)]
pub struct MuonState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The mean of the gradients.
    pub mu: P,
}

/// Approximately orthogonalizes the mean of the gradients with the Newton-Schulz iteration. Each gradient must be a matrix.
///
/// Source: [Jordan 2024](https://kellerjordan.github.io/posts/muon/).
pub fn scale_by_muon() -> ScaleByMuon {
    ScaleByMuon {
        ns_coeffs: (3.4445, -4.775, 2.0315),
        ns_steps: 5,
        beta: 0.95,
        eps: 1e-8,
        nesterov: true,
        mu_dtype: None,
    }
}

impl ScaleByMuon {
    /// With explicit sharding, the compiler chooses how the intermediate products are sharded; the result is sharded like `x`.
    #[track_caller]
    fn orthogonal(&self, x: Array) -> Array {
        let Some(typed) = x.aval().sharding().cloned() else { return self.iterated(x) };
        let f = auto_axes(|x: Array| self.iterated(x)).out_sharding(typed);
        Function::<(Array,)>::apply(&f, (x.clone(),)).unwrap_or_else(|error| Array::from_error(error, &x))
    }

    fn iterated(&self, x: Array) -> Array {
        let &[rows, columns] = x.shape() else { return x };
        let (a, b, c) = self.ns_coeffs;
        // The smaller of the two Gram matrices.
        let mut x = if rows > columns { x.t() } else { x };
        x = &x / (abs_sq(&x).sum(..).sqrt() + self.eps);
        for _ in 0..self.ns_steps {
            let square = x.matmul(conjugate(x.t()));
            let polynomial = b * &square + (c * &square).matmul(&square);
            x = a * &x + polynomial.matmul(&x);
        }
        if rows > columns { x.t() } else { x }
    }
}

impl<P: Tree> GradientTransformation<P> for ScaleByMuon {
    type State = MuonState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_muon", "beta", self.beta, DECAY)?;
        within("scale_by_muon", "eps", self.eps, NOT_NEGATIVE)?;
        for coefficient in [self.ns_coeffs.0, self.ns_coeffs.1, self.ns_coeffs.2] {
            within("scale_by_muon", "a coefficient", coefficient, FINITE)?;
        }
        for (path, p) in tree::leaves_with_path(params) {
            if p.ndim() != 2 {
                return value_error(format!("scale_by_muon is for matrices, but `{path}` is {}", p.type_name()));
            }
        }
        Ok(MuonState { count: count(), mu: zeros_in(params, self.mu_dtype)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let mu = update_moment(&grads, &state.mu, self.beta, 1)?;
            let count = safe_increment(&state.count);
            // Nesterov's mean looks one step ahead, so it is corrected for the next count.
            let mean = if self.nesterov {
                let next_mean = bias_correction(&mu, self.beta, &safe_increment(&count))?;
                let grads = bias_correction(&grads, self.beta, &count)?;
                tree::map2(|m, g| self.beta * m + (1.0 - self.beta) * g, next_mean, grads)?
            } else {
                bias_correction(&mu, self.beta, &count)?
            };
            let updates = tree::map(|m| self.orthogonal(m), mean)?;
            Ok((updates, MuonState { count, mu: cast(&mu, self.mu_dtype)? }))
        })
    }
}

/// The gradient transformation that [`scale_by_shape`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByShape {}

/// Multiplies each matrix, `[in, out]`, by `sqrt(max(1, out / in))`, so that the best learning rate
/// does not depend on the width.
///
/// ```
/// use shardax_nn::optim::scale_by_shape;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([1, 4]), scale_by_shape());
/// let (updates, _) = tx.update(ones([1, 4]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [2.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_shape() -> ScaleByShape {
    ScaleByShape {}
}

stateless!(ScaleByShape, |_this| Ok(()), |_this, updates, _params| tree::map(
    |u| match *u.shape() {
        [rows, columns] => u * (columns as f64 / rows.max(1) as f64).max(1.0).sqrt(),
        _ => u,
    },
    updates
));

/// The optimizer that [`muon`] returns.
pub type Muon = Partition<((ScaleByMuon, ScaleByShape, AddDecayedWeights, ScaleByLearningRate), AdamW)>;

/// Muon for matrices, and AdamW with Nesterov's momentum for all other parameters, both at this learning rate and without
/// weight decay.
///
/// Source: [Jordan 2024](https://kellerjordan.github.io/posts/muon/).
///
/// ```
/// use shardax_nn::optim::muon;
/// use shardax_nn::prelude::*;
/// let model = Linear::new(4, 4, &mut Rngs::new(0));
/// let state = TrainState::create(model.clone(), muon(0.1))?;
/// let state = state.apply_gradients(model.clone())?;
/// assert_eq!(state.params.kernel.shape(), [4, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn muon(learning_rate: impl Into<Schedule>) -> Muon {
    let rate = learning_rate.into();
    let adam = ScaleByAdam { nesterov: true, ..scale_by_adam() };
    let matrices = (scale_by_muon(), scale_by_shape(), add_decayed_weights(0.0), scale_by_learning_rate(rate.clone()));
    let adam = (adam, add_decayed_weights(0.0), scale_by_learning_rate(rate));
    partition((("muon", matrices), ("adam", adam)), |_, p: &Array| if p.ndim() == 2 { "muon" } else { "adam" })
}
