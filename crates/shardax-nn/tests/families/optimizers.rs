//! Ten steps of every optimizer, transformation and wrapper, with float32 and with bfloat16 parameters.

use shardax_nn::optim::*;
use shardax_nn::prelude::*;

use crate::golden_support::{Case, Fun, many};

/// The parameters `b` and `w`; Optax orders a dict by key.
type Params = (Array, Array);

/// The settings of a case.
#[derive(Clone, Copy)]
pub struct Run {
    dtype: DType,
    large: bool,
    state: bool,
    nan: bool,
    batch: usize,
    /// The results that Optax has in half precision, as bits: here a state is in float32.
    half: u64,
}

pub fn function(case: &Case) -> Option<Fun> {
    let run = Run::of(case)?;
    let matrices = Filter::predicate(|_, p| p.ndim() > 1);
    // The key paths of a tuple.
    fn is_w(path: &str, _: &Array) -> bool {
        path == "[1]"
    }
    match case.op.as_str() {
        "sgd" => run.ten(sgd(0.1)),
        "sgd_momentum" => run.ten(sgd_momentum(0.1, 0.9, false)),
        "sgd_nesterov" => run.ten(sgd_momentum(0.1, 0.9, true)),
        "adam" => run.ten(adam(0.1)),
        "adam_mu_dtype" => {
            let adam = ScaleByAdam { mu_dtype: Some(DType::Bf16), ..scale_by_adam() };
            run.ten((adam, scale_by_learning_rate(0.1)))
        }
        "nadam" => run.ten((ScaleByAdam { nesterov: true, ..scale_by_adam() }, scale_by_learning_rate(0.1))),
        "adamw" => run.ten(adamw(0.1, 0.1)),
        "adam_schedule" => run.ten(adam(exponential_decay(0.2, 2, 0.5))),
        "adamw_schedule" => {
            let decay = add_decayed_weights(linear_schedule(0.5, 0.0, 5));
            run.ten((scale_by_adam(), decay, scale_by_learning_rate(0.1)))
        }
        "rmsprop" => run.ten(rmsprop(0.1)),
        "rmsprop_centered" => run.ten_with(rmsprop_centered(0.1, None), |mut leaves| {
            // Optax's state has the mean of squares, which is the variance and the square of the mean.
            for parameter in 0..2 {
                leaves[2 + parameter] = &leaves[2 + parameter] + leaves[parameter].square();
            }
            leaves
        }),
        "rmsprop_momentum" => run.ten(rmsprop_momentum(0.1, 0.5, false)),
        "adagrad" => run.ten(adagrad(0.5)),
        "adadelta" => run.ten(adadelta(10.0)),
        "adabelief" => run.ten(adabelief(0.1)),
        "adamax" => run.ten(adamax(0.1)),
        "adamaxw" => run.ten(adamaxw(0.1, 0.1)),
        "adan" => run.ten(adan(0.1, 0.1)),
        "amsgrad" => run.ten(amsgrad(0.1)),
        "lion" => run.ten(lion(0.1)),
        "radam" => run.ten(radam(0.1)),
        "yogi" => run.ten(yogi(0.1)),
        "sign_sgd" => run.ten(sign_sgd(0.1)),
        "signum" => run.ten(signum(0.1, 0.9)),
        "sm3" => run.ten(sm3(0.1)),
        "noisy_sgd" => run.ten(noisy_sgd(0.1, &random::key(7))),
        "lamb" => run.ten(lamb(0.1, 0.01)),
        "lars" => run.ten(lars(10.0, 0.01)),
        "fromage" => run.ten(fromage(0.1)),
        "fromage_schedule" => run.ten(fromage(exponential_decay(0.2, 2, 0.5))),
        "novograd" => run.ten(novograd(10.0)),
        "adafactor" | "adafactor_small" => run.ten(adafactor(Some(0.1))),
        "adafactor_momentum" => {
            let (rms, bound, rate, size, _, _, sign) = adafactor(Some(0.1));
            let momentum = Ema { accumulator_dtype: Some(DType::F32), ..ema(0.9, false) };
            run.ten((rms, bound, rate, size, Some(momentum), Some(add_decayed_weights(0.01)), sign))
        }
        "clip_by_global_norm" => run.ten((clip_by_global_norm(50.0), sgd(0.1))),
        "clip" => run.ten((shardax_nn::optim::clip(0.5), sgd(0.1))),
        "add_noise" => run.ten((add_noise(0.1, 0.55, &random::key(3)), sgd(0.1))),
        "scale_by_trust_ratio" => run.ten((scale_by_trust_ratio(), sgd(0.1))),
        "momentum_in_float32" => {
            let momentum = Trace { accumulator_dtype: Some(DType::F32), ..shardax_nn::optim::trace(0.9, false) };
            run.ten((momentum, scale_by_learning_rate(0.1)))
        }
        "clip_by_block_rms" => run.ten((clip_by_block_rms(0.5), sgd(0.1))),
        "adaptive_grad_clip" => run.ten((adaptive_grad_clip(0.5), sgd(0.1))),
        "scale_by_param_block_norm" => run.ten((scale_by_param_block_norm(), sgd(1e-3))),
        "scale_by_param_block_rms" => run.ten((scale_by_param_block_rms(), sgd(0.1))),
        "normalize_by_update_norm" => run.ten((normalize_by_update_norm(), sgd(10.0))),
        "centralize" => run.ten((centralize(), sgd(0.1))),
        "set_to_zero" => run.ten(set_to_zero()),
        "keep_params_nonnegative" => run.ten((sgd(0.1), keep_params_nonnegative())),
        "zero_nans" => run.ten((zero_nans(), adam(0.1))),
        "apply_if_finite" => run.ten(apply_if_finite(adam(0.1), 5)),
        "ema" => run.ten((ema(0.9, true), sgd(0.1))),
        "apply_every" => run.ten((sgd(0.1), apply_every(4))),
        "multi_steps" => run.ten(multi_steps(sgd_momentum(0.1, 0.9, false), 4)),
        "multi_steps_sum" => run.ten(MultiSteps { use_grad_mean: false, ..multi_steps(sgd(0.1), 3) }),
        "masked" => run.ten((masked(add_decayed_weights(0.5), matrices), sgd(0.1))),
        "freeze" => run.ten((sgd(0.1), freeze("1"))),
        "partition" => {
            let groups = (("fast", adam(0.2)), ("slow", sgd(0.01)));
            run.ten(partition(groups, move |path, p| if is_w(path, p) { "slow" } else { "fast" }))
        }
        "selective_transform" => run.ten(selective_transform(adam(0.1), !Filter::path("1"))),
        "inject_hyperparams" => run.ten(inject_hyperparams([("learning_rate", 0.1)], |h| sgd(&h["learning_rate"]))),
        "inject_hyperparams_schedule" => {
            let rate = linear_schedule(0.2, 0.0, 8);
            run.ten(inject_hyperparams([("learning_rate", rate)], |h| sgd(&h["learning_rate"])))
        }
        "dpsgd" => run.ten(dpsgd(0.1, 3.0, 0.5, 7, None)),
        "schedule_free_sgd" => run.ten(schedule_free_sgd(0.1)),
        "schedule_free_adamw" => run.ten(schedule_free_adamw(warmup_constant_schedule(0.0, 0.1, 3)).weight_decay(0.1)),
        _ => None,
    }
}

impl Run {
    pub fn of(case: &Case) -> Option<Self> {
        Some(Run {
            dtype: case.dtype("dtype")?,
            large: case.flag("large"),
            state: case.flag("state"),
            nan: case.flag("nan"),
            batch: case.param("batch").as_u64().unwrap_or(0) as usize,
            half: (0..64).fold(0, |half, i| {
                let dtype = case.host(&format!("out/{i}")).map(|host| host.dtype);
                if dtype.is_some_and(|dtype| dtype.is_inexact() && dtype.byte_size() < 4) {
                    half | 1 << i
                } else {
                    half
                }
            }),
        })
    }

    /// Small parameters of this dtype.
    pub fn small(dtype: DType) -> Self {
        Run { dtype, large: false, state: false, nan: false, batch: 0, half: 0 }
    }

    /// The parameters, or the gradients, of a step; see the family's Python file.
    pub fn tree(self, step: &Array, offset: &Array) -> Params {
        let numbers = |shape: &[usize], salt: i32| -> Array {
            let i = arange(0..shape.iter().product::<usize>() as i32);
            let mixed = i * 7919 + step * 10007 + (offset + salt) * 101;
            let centred: Array = remainder(mixed, 251) - 125;
            (centred.astype(DType::F32) / 64).astype(self.dtype).reshape(shape)
        };
        if self.large { (numbers(&[192], 1), numbers(&[256, 160], 0)) } else { (numbers(&[6], 1), numbers(&[8, 6], 0)) }
    }

    pub fn gradients(self, step: &Array, offset: &Array) -> Result<Params> {
        if self.batch > 0 {
            let steps = step + arange(0..self.batch as i32);
            return vmap(|step: Array| self.tree(&step, offset)).call(steps);
        }
        let bad = step.equal(3) | step.equal(4);
        let (b, w) = self.tree(step, offset);
        let spoilt = |g: Array| if self.nan { where_(&bad, f64::NAN, &g).astype(g.dtype()) } else { g };
        Ok((spoilt(b), spoilt(w)))
    }

    /// The parameters of every step, then the leaves of the state after the last.
    pub fn ten<T: GradientTransformation<Params> + 'static>(self, optimizer: T) -> Option<Fun> {
        self.ten_with(optimizer, |leaves| leaves)
    }

    /// Like [`ten`](Self::ten), with the leaves of the state converted to Optax's.
    fn ten_with<T>(self, optimizer: T, convert: fn(Vec<Array>) -> Vec<Array>) -> Option<Fun>
    where
        T: GradientTransformation<Params> + 'static,
    {
        many(move |inputs| {
            let offset = &inputs[0];
            let params = self.tree(&array(100), offset);
            let state = optimizer.init(&params)?;
            // A state whose types changed from step to step would be rejected here.
            let step = |(params, state): (Params, T::State), i: Array| -> Result<((Params, T::State), Params)> {
                let (updates, state) = optimizer.update(self.gradients(&i, offset)?, state, &params)?;
                let params = apply_updates(params, updates)?;
                let observed = (some(&params.0), some(&params.1));
                Ok(((params, state), observed))
            };
            let ((_, state), path) = scan(step, (params, state), arange(0..10))?;
            let leaves = if self.state { convert(tree::leaves(&state)) } else { Vec::new() };
            let results = [path.0, path.1].into_iter().chain(leaves.iter().map(some)).enumerate();
            let is_half = self.dtype.byte_size() < 4;
            let as_optax =
                |(i, x): (usize, Array)| if is_half && self.half >> i & 1 == 1 { x.astype(self.dtype) } else { x };
            Ok(results.map(as_optax).collect())
        })
    }
}

/// Six elements, or all of fewer.
pub fn some(x: &Array) -> Array {
    let n = x.size().min(6);
    x.ravel().take(arange(0..n as i32) * (x.size() / n), 0)
}
