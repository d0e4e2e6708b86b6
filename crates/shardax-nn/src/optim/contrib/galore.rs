//! Optimizers of gradients of low rank.

use shardax::prelude::*;

use super::super::tree_utils::cast_like;
use super::super::{ScaleByAdam, scale_by_adam};
use super::{
    AddDecayedWeights, GradientTransformation, ScaleByLearningRate, Schedule, add_decayed_weights, count,
    in_wide_dtypes, safe_increment, scale_by_learning_rate, wide_dtype,
};
use crate::check::{FINITE, positive, within};
use crate::shardings::{replicated, reshard_like};

/// The gradient transformation that [`scale_by_galore`] returns.
#[derive(Tree, Clone, Debug)]
pub struct ScaleByGalore<T> {
    /// The rank of the gradients of matrices. Default 128.
    pub rank: usize,
    /// The number of steps between two computations of the projections. Default 200.
    pub update_proj_gap: usize,
    /// The factor of the updates of matrices. Default 1.
    pub scale: f64,
    /// The transformation of the projected gradients.
    pub inner: T,
}

/// The state of [`ScaleByGalore`].
#[derive(Tree, Clone, Debug)]
pub struct GaloreState<P, S> {
    /// The steps taken, int32.
    pub count: Array,
    /// The state of the inner transformation.
    pub inner: S,
    /// The projections of matrices, `[larger dimension, rank]`. Other arrays have empty ones.
    pub projector: P,
}

/// Applies `inner` to projections of gradients: the gradient of a matrix is projected to the space of its largest singular
/// vectors, on the side of its larger dimension, so that the state of `inner` is smaller. Other arrays are not projected.
///
/// `inner` must not use the parameters, whose shapes the projections do not have. Weight decay belongs after it, as in
/// [`galore`]. With explicit sharding, projections and the state of `inner` are replicated, and updates are split like the gradients.
///
/// Source: [Zhao et al. 2024](https://arxiv.org/abs/2403.03507).
///
/// ```
/// use shardax_nn::optim::contrib::{ScaleByGalore, scale_by_galore};
/// use shardax_nn::prelude::*;
/// let galore = ScaleByGalore { rank: 4, ..scale_by_galore(scale_by_adam()) };
/// let state = galore.init(&zeros([64, 16]))?;
/// assert_eq!((state.projector.shape(), state.inner.mu.shape()), (&[64, 4][..], &[4, 16][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_galore<T>(inner: T) -> ScaleByGalore<T> {
    ScaleByGalore { rank: 128, update_proj_gap: 200, scale: 1.0, inner }
}

/// The optimizer that [`galore`] returns.
pub type Galore = (ScaleByGalore<ScaleByAdam>, AddDecayedWeights, ScaleByLearningRate);

/// Adam on projections of the gradients to a low rank: [`scale_by_galore`] of [`scale_by_adam`], weight decay of 0, and the
/// learning rate, a number or a [`Schedule`].
pub fn galore(learning_rate: impl Into<Schedule>) -> Galore {
    (scale_by_galore(scale_by_adam()), add_decayed_weights(0.0), scale_by_learning_rate(learning_rate))
}

impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for ScaleByGalore<T> {
    type State = GaloreState<P, T::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        let owner = "scale_by_galore";
        positive(owner, "rank", self.rank)?;
        positive(owner, "update_proj_gap", self.update_proj_gap)?;
        within(owner, "scale", self.scale, FINITE)?;
        let projector = tree::map(
            |p: Array| match Side::of(&p) {
                Some(side) => {
                    let zeros = zeros_dtype([side.length(&p), self.rank_of(&p)], wide_dtype(p.dtype()));
                    reshard_like(zeros, &replicated(&p))
                }
                None => zeros_dtype([0, 0], wide_dtype(p.dtype())),
            },
            params.clone(),
        )?;
        let projected = tree::map2(
            |p: Array, projector: Array| match Side::of(&p) {
                Some(side) => side.project(&zeros_like(replicated(&p)), &projector),
                None => p,
            },
            params.clone(),
            projector.clone(),
        )?;
        Ok(GaloreState { count: count(), inner: self.inner.init(&projected)?, projector })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _| {
            let is_due = remainder(&state.count, self.update_proj_gap).equal(0);
            // The singular vectors of a matrix need all of it, so that every device projects entire matrices.
            let split = grads.clone();
            let grads = tree::map(|g: Array| if Side::of(&g).is_some() { replicated(&g) } else { g }, grads)?;
            let projector = tree::map2(
                |g: Array, old: Array| match Side::of(&g) {
                    Some(side) => self.refreshed(side, &is_due, g, old),
                    None => old,
                },
                grads.clone(),
                state.projector,
            )?;
            let projected = tree::map2(
                |g: Array, projector: Array| match Side::of(&g) {
                    Some(side) => side.project(&g, &projector),
                    None => g,
                },
                grads.clone(),
                projector.clone(),
            )?;
            let (updates, inner) = self.inner.update(projected.clone(), state.inner, &projected)?;
            let updates = tree::map3(
                |g: Array, u: Array, projector: Array| match Side::of(&g) {
                    Some(side) => reshard_like(self.scale * side.lift(&u, &projector), &g),
                    None => u,
                },
                split.clone(),
                updates,
                projector.clone(),
            )?;
            let count = safe_increment(&state.count);
            Ok((cast_like(&updates, &split)?, GaloreState { count, inner, projector }))
        })
    }
}

impl<T> ScaleByGalore<T> {
    fn rank_of(&self, matrix: &Array) -> usize {
        matrix.shape().iter().fold(self.rank, |rank, &size| rank.min(size))
    }

    /// Returns the projection of this gradient if it is due, otherwise the old one.
    fn refreshed(&self, side: Side, is_due: &Array, gradient: Array, old: Array) -> Array {
        let rank = self.rank_of(&gradient);
        let dtype = old.dtype();
        let new = |(gradient, _): (Array, Array)| -> Result<Array> {
            let (u, _, vh) = linalg::svd(&gradient);
            let vectors = if side == Side::Rows { u } else { adjoint(&vh) };
            Ok(vectors.get((.., 0..rank)).astype(dtype))
        };
        let like = gradient.clone();
        cond(is_due, new, |(_, old): (Array, Array)| old, (gradient, old))
            .unwrap_or_else(|error| Array::from_error(error, &like))
    }
}

/// The side of a matrix that is projected: its larger dimension.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Rows,
    Columns,
}

impl Side {
    /// Returns `None` for arrays that are not matrices, and for matrices without elements.
    fn of(x: &Array) -> Option<Side> {
        match *x.shape() {
            [rows, columns] if rows > 0 && columns > 0 => {
                Some(if rows >= columns { Side::Rows } else { Side::Columns })
            }
            _ => None,
        }
    }

    fn length(self, matrix: &Array) -> usize {
        matrix.shape()[if self == Side::Rows { 0 } else { 1 }]
    }

    fn project(self, matrix: &Array, projector: &Array) -> Array {
        match self {
            Side::Rows => adjoint(projector).matmul(matrix),
            Side::Columns => matrix.matmul(projector),
        }
    }

    fn lift(self, projected: &Array, projector: &Array) -> Array {
        match self {
            Side::Rows => projector.matmul(projected),
            Side::Columns => projected.matmul(adjoint(projector)),
        }
    }
}

/// Returns the conjugate of the transpose.
fn adjoint(matrix: &Array) -> Array {
    conjugate(matrix.mt())
}
