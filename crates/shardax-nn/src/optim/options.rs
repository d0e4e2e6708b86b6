//! Methods that set the numbers of optimizers, such as `rmsprop(1e-2).decay(0.95)`. Optimizers are chains, so traits add these
//! methods to chains that begin with a transformation. The methods of Adam are in `adam.rs`.

use shardax::prelude::DType;

use super::*;
use crate::Filter;

/// Writes a trait that sets the fields of a transformation, for the transformation and for the optimizers that begin with it.
macro_rules! options {
    ($(
        $(#[$doc:meta])*
        $options:ident of $transformation:ident by $first:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[diagnostic::on_unimplemented(
            message = "`{Self}` does not begin with the transformation that these options set",
            note = "an optimizer has the options of the transformation that it begins with, such as `rmsprop(1e-2).decay(0.95)`"
        )]
        pub trait $options: Sized {
            /// Returns the transformation that the other methods change.
            fn $first(&mut self) -> &mut $transformation;

            $(
                $(#[$field_doc])*
                fn $field(mut self, $field: $type) -> Self {
                    self.$first().$field = $field.into();
                    self
                }
            )*
        }

        impl $options for $transformation {
            fn $first(&mut self) -> &mut $transformation {
                self
            }
        }

        impl<A> $options for ($transformation, A) {
            fn $first(&mut self) -> &mut $transformation {
                &mut self.0
            }
        }

        impl<A, B> $options for ($transformation, A, B) {
            fn $first(&mut self) -> &mut $transformation {
                &mut self.0
            }
        }
    )*};
}

options! {
    /// Sets the numbers of [`rmsprop`] and [`rmsprop_momentum`].
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let state = TrainState::create(ones([2]), rmsprop(1e-2).decay(0.95).eps(1e-5))?;
    /// assert_eq!(state.tx.0.decay, 0.95);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    RmsPropOptions of ScaleByRms by scale_by_rms {
        /// Sets the decay rate of the mean of squares. Default 0.9.
        decay: f64,
        /// Sets the number that prevents a division by zero. Default 1e-8.
        eps: f64,
        /// Sets the initial mean of squares. Default 0.
        initial_scale: f64,
        /// Sets whether `eps` is added inside of the square root. Default true.
        eps_in_sqrt: bool,
        /// Sets whether the bias of the initial value is corrected. Default false.
        bias_correction: bool,
    }

    /// Sets the numbers of [`rmsprop_centered`].
    ///
    /// ```
    /// use shardax_nn::optim::rmsprop_centered;
    /// use shardax_nn::prelude::*;
    /// // The optimizer of DQN.
    /// let state = TrainState::create(ones([2]), rmsprop_centered(2.5e-4, Some(0.95)).decay(0.95).eps(1e-2))?;
    /// assert_eq!(state.tx.0.eps, 1e-2);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    CenteredRmsPropOptions of ScaleByStddev by scale_by_stddev {
        /// Sets the decay rate of both means. Default 0.9.
        decay: f64,
        /// Sets the number that prevents a division by zero. Default 1e-8.
        eps: f64,
        /// Sets the initial mean of squares. Default 0.
        initial_scale: f64,
        /// Sets whether `eps` is added inside of the square root. Default true.
        eps_in_sqrt: bool,
    }

    /// Sets the numbers of [`adagrad`].
    AdaGradOptions of ScaleByRss by scale_by_rss {
        /// Sets the initial sum of squares. Default 0.1.
        initial_accumulator_value: f64,
        /// Sets the number that is added inside of the square root. Default 1e-7.
        eps: f64,
    }

    /// Sets the numbers of [`lion`].
    LionOptions of ScaleByLion by scale_by_lion {
        /// Sets the decay rate in the direction of an update. Default 0.9.
        b1: f64,
        /// Sets the decay rate of the mean of the gradients. Default 0.99.
        b2: f64,
        /// Sets the dtype of the mean of the gradients. Default: the dtype of the parameters.
        mu_dtype: DType,
    }

    /// Sets the numbers of [`amsgrad`].
    AmsgradOptions of ScaleByAmsgrad by scale_by_amsgrad {
        /// Sets the decay rate of the mean of the gradients. Default 0.9.
        b1: f64,
        /// Sets the decay rate of the mean of their squares. Default 0.999.
        b2: f64,
        /// Sets the number that is added outside of the square root. Default 1e-8.
        eps: f64,
        /// Sets the number that is added inside of the square root. Default 0.
        eps_root: f64,
    }

    /// Sets the numbers of [`adamax`] and [`adamaxw`].
    AdamaxOptions of ScaleByAdamax by scale_by_adamax {
        /// Sets the decay rate of the mean of the gradients. Default 0.9.
        b1: f64,
        /// Sets the decay rate of the largest absolute value. Default 0.999.
        b2: f64,
        /// Sets the number that prevents a division by zero. Default 1e-8.
        eps: f64,
    }

    /// Sets the numbers of [`adabelief`].
    AdaBeliefOptions of ScaleByBelief by scale_by_belief {
        /// Sets the decay rate of the mean of the gradients. Default 0.9.
        b1: f64,
        /// Sets the decay rate of the mean of the squared deviations. Default 0.999.
        b2: f64,
        /// Sets the number that is added outside of the square root. Default 1e-16.
        eps: f64,
        /// Sets the number that is added inside of the square root. Default 1e-16.
        eps_root: f64,
        /// Sets whether Nesterov's momentum is used. Default false.
        nesterov: bool,
    }

    /// Sets the numbers of [`yogi`].
    YogiOptions of ScaleByYogi by scale_by_yogi {
        /// Sets the decay rate of the mean of the gradients. Default 0.9.
        b1: f64,
        /// Sets the decay rate of the mean of their squares. Default 0.999.
        b2: f64,
        /// Sets the number that is added outside of the square root. Default 1e-3.
        eps: f64,
    }

    /// Sets the numbers of [`radam`].
    RadamOptions of ScaleByRadam by scale_by_radam {
        /// Sets the decay rate of the mean of the gradients. Default 0.9.
        b1: f64,
        /// Sets the decay rate of the mean of their squares. Default 0.999.
        b2: f64,
        /// Sets the number that is added outside of the square root. Default 1e-8.
        eps: f64,
        /// Sets the number that is added inside of the square root. Default 0.
        eps_root: f64,
        /// Sets the length of the average from which updates are divided by the mean of squares. Default 5.
        threshold: f64,
        /// Sets whether Nesterov's momentum is used. Default false.
        nesterov: bool,
    }

    /// Sets the numbers of [`adan`].
    AdanOptions of ScaleByAdan by scale_by_adan {
        /// Sets the decay rate of the mean of the gradients. Default 0.98.
        b1: f64,
        /// Sets the decay rate of the mean of the differences of gradients. Default 0.92.
        b2: f64,
        /// Sets the decay rate of the mean of squares. Default 0.99.
        b3: f64,
        /// Sets the number that is added outside of the square root. Default 1e-8.
        eps: f64,
        /// Sets the number that is added inside of the square root. Default 1e-8.
        eps_root: f64,
    }

    /// Sets the numbers of [`novograd`].
    NovogradOptions of ScaleByNovograd by scale_by_novograd {
        /// Sets the decay rate of the mean of the gradients. Default 0.9.
        b1: f64,
        /// Sets the decay rate of the mean of their squared norms. Default 0.25.
        b2: f64,
        /// Sets the number that is added outside of the square root. Default 1e-6.
        eps: f64,
        /// Sets the weight decay. Default 0.
        weight_decay: f64,
    }
}

/// Sets the weight decay of [`adamw`], [`lamb`], [`lion`], [`adamaxw`] and [`adan`], and the parameters that decay.
///
/// ```
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(ones([1]), lion(0.1).weight_decay(0.5))?;
/// assert_eq!(state.apply_gradients(ones([1]))?.params.to_vec::<f32>()?, [0.85]);
///
/// // Only matrices decay, and biases and scales do not.
/// let model = Linear::builder(2, 3).bias_init(initializers::ones()).build(&mut Rngs::new(0));
/// let optimizer = adamw(1.0, 0.5).mask(Filter::predicate(|_, p| p.ndim() > 1)).b2(0.95);
/// let mut state = TrainState::create(model.clone(), optimizer)?;
/// state = state.apply_gradients(tree::map(|p| zeros_like(&p), model.clone())?)?;
/// assert!(allclose(&state.params.kernel, &model.kernel * 0.5, 1e-6, 0.0)?);
/// assert_eq!(state.params.bias.expect("a bias").to_vec::<f32>()?, [1.0; 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not decay weights in its second transformation",
    note = "`adamw`, `lamb`, `lion`, `adamaxw` and `adan` have the method; add `add_decayed_weights(0.1)` to other chains"
)]
pub trait WeightDecayOptions {
    /// The optimizer in which only the selected parameters decay.
    type Masked;

    /// Sets the factor of the parameters in the updates, a number or a schedule.
    fn weight_decay(self, weight_decay: impl Into<Schedule>) -> Self;

    /// Selects the parameters that decay (Optax's `mask`). Set the other options of the decay first.
    fn mask(self, mask: impl Into<Filter>) -> Self::Masked;
}

impl<A, B> WeightDecayOptions for (A, AddDecayedWeights, B) {
    type Masked = (A, Masked<AddDecayedWeights>, B);

    fn mask(self, mask: impl Into<Filter>) -> Self::Masked {
        (self.0, masked(self.1, mask), self.2)
    }

    fn weight_decay(self, weight_decay: impl Into<Schedule>) -> Self {
        (self.0, add_decayed_weights(weight_decay), self.2)
    }
}

impl<A, B, C> WeightDecayOptions for (A, AddDecayedWeights, B, C) {
    type Masked = (A, Masked<AddDecayedWeights>, B, C);

    fn mask(self, mask: impl Into<Filter>) -> Self::Masked {
        (self.0, masked(self.1, mask), self.2, self.3)
    }

    fn weight_decay(self, weight_decay: impl Into<Schedule>) -> Self {
        (self.0, add_decayed_weights(weight_decay), self.2, self.3)
    }
}
