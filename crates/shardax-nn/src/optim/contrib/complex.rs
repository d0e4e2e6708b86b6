//! Complex parameters for optimizers of real ones.

use shardax::error::{Error, ErrorKind};
use shardax::prelude::*;

use super::GradientTransformation;

/// The gradient transformation that [`split_real_and_imaginary`] returns.
#[derive(Tree, Clone, Debug)]
pub struct SplitRealAndImaginary<T> {
    /// The transformation of the real and imaginary parts.
    pub inner: T,
}

/// Applies `inner` to the real and imaginary parts of complex parameters as separate arrays. `inner` receives the arrays of
/// the tree in order, without their names; each complex array is replaced by its real part followed by its imaginary part.
///
/// The gradients of [`grad`] are conjugates of the direction of steepest ascent: conjugate them first.
///
/// ```
/// use shardax_nn::optim::contrib::split_real_and_imaginary;
/// use shardax_nn::optim::sign_sgd;
/// use shardax_nn::prelude::*;
/// let params = lax::complex(array([1.0f32]), array([1.0f32]));
/// let optimizer = split_real_and_imaginary(sign_sgd(0.5));
/// let grads = lax::complex(array([3.0f32]), array([-4.0f32]));
/// let (updates, _) = optimizer.update(grads, optimizer.init(&params)?, &params)?;
/// assert_eq!(updates.real().to_vec::<f32>()?, [-0.5]);
/// assert_eq!(updates.imag().to_vec::<f32>()?, [0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn split_real_and_imaginary<T>(inner: T) -> SplitRealAndImaginary<T> {
    SplitRealAndImaginary { inner }
}

impl<P: Tree, T: GradientTransformation<Vec<Array>>> GradientTransformation<P> for SplitRealAndImaginary<T> {
    type State = T::State;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        self.inner.init(&parts(params))
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let (updates, state) = self.inner.update(parts(&grads), state, &parts(params))?;
        let mut updates = updates.into_iter();
        let mut next =
            || updates.next().ok_or_else(|| Error::new(ErrorKind::Value, "split_real_and_imaginary: too few updates"));
        let mut joined = Vec::new();
        for grad in tree::leaves(&grads) {
            joined.push(if grad.dtype().is_complex() { lax::complex(next()?, next()?) } else { next()? });
        }
        let mut joined = joined.into_iter();
        Ok((tree::map(|g| joined.next().unwrap_or(g), grads)?, state))
    }
}

/// Returns the arrays of a tree, the complex ones as two arrays.
fn parts<P: Tree>(tree: &P) -> Vec<Array> {
    let parts = |x: &Array| if x.dtype().is_complex() { vec![x.real(), x.imag()] } else { vec![x.clone()] };
    tree::leaves(tree).iter().flat_map(parts).collect()
}
