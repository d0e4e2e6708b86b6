//! Sums over many steps or elements, in every floating point dtype, against float64: optimizers, schedules,
//! normalization, losses and statistics, for constants, zeros, large means and large ranges.

#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;

use quick::{one_of, setup};
use shardax::numpy::full_dtype;
use shardax_alloc as _;
use shardax_nn::optim::contrib::*;
use shardax_nn::optim::*;
use shardax_nn::prelude::*;

const DTYPES: [DType; 4] = [DType::F32, DType::Bf16, DType::F16, DType::F64];

/// The unit in the last place of 1.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-52),
        DType::F32 => 2f64.powi(-23),
        DType::F16 => 2f64.powi(-10),
        _ => 2f64.powi(-7),
    }
}

/// The number of steps: a slice of the sweep unless it is asked for, by a number of steps or as 10,000.
fn steps() -> usize {
    let requested = std::env::var("SHARDAX_TEST_ACCUMULATORS").ok();
    requested.map_or(300, |text| text.parse().unwrap_or(10_000))
}

fn is_whole() -> bool {
    std::env::var_os("SHARDAX_TEST_ACCUMULATORS").is_some()
}

/// Values of these kinds, float64 of `shape`, which all dtypes hold.
fn kinds(shape: &[usize]) -> Vec<(&'static str, Array)> {
    let noise = random::normal_dtype(&random::key(5), shape, DType::F64);
    vec![
        ("constant", full_dtype(shape, 0.5, DType::F64)),
        ("a tenth", full_dtype(shape, 0.1, DType::F64)),
        ("zeros", zeros_dtype(shape, DType::F64)),
        ("noise", noise.clone()),
        ("a large mean", 500.0 + &noise),
        // Up to 200, whose square float16 still has.
        ("a large range", (noise * 2.3).exp().clip(0, 200)),
    ]
}

/// The gradients of all steps, of each kind, and the parameters, which stay.
struct Cases {
    gradients: Vec<Array>,
    params: Array,
}

impl Cases {
    fn astype(&self, dtype: DType) -> Cases {
        let gradients = self.gradients.iter().map(|g| g.astype(dtype)).collect();
        Cases { gradients, params: self.params.astype(dtype) }
    }
}

/// For each kind the last updates, and the largest of all.
fn last<T: GradientTransformation<Array> + 'static>(t: T, cases: &Cases) -> Result<Vec<(Array, Array)>> {
    let state = t.init(&cases.params)?;
    let run = jit(move |state: T::State, params: Array, gradients: Array| {
        let step = |state: T::State, g: Array| -> Result<_> {
            let (updates, state) = t.update(g, state, &params)?;
            Ok((state, updates))
        };
        let updates = scan(step, state, gradients)?.1;
        Ok::<_, shardax::Error>((updates.get(-1), updates.abs().max(..)))
    });
    cases.gradients.iter().map(|gradients| run.call((state.clone(), &cases.params, gradients))).collect()
}

/// An optimizer: its name, its last updates, and how many units they may be off.
type Row = (&'static str, fn(&Cases) -> Result<Vec<(Array, Array)>>, f64);

const OPTIMIZERS: &[Row] = &[
    ("adam", |c| last(adam(1.0), c), 4.0),
    ("nadam", |c| last(ScaleByAdam { nesterov: true, ..scale_by_adam() }, c), 4.0),
    ("adamw", |c| last(adamw(1.0, 0.1), c), 4.0),
    ("adam_schedule", |c| last(adam(cosine_decay_schedule(1.0, 20_000, 0.1)), c), 8.0),
    ("adabelief", |c| last(scale_by_belief(), c), 4.0),
    ("yogi", |c| last(scale_by_yogi(), c), 4.0),
    ("amsgrad", |c| last(scale_by_amsgrad(), c), 4.0),
    ("adamax", |c| last(scale_by_adamax(), c), 4.0),
    ("adan", |c| last(scale_by_adan(), c), 4.0),
    ("radam", |c| last(scale_by_radam(), c), 64.0),
    ("novograd", |c| last(scale_by_novograd(), c), 4.0),
    ("lion", |c| last(scale_by_lion(0.9, 0.99), c), 4.0),
    ("rmsprop", |c| last(scale_by_rms(0.9, 1e-8), c), 4.0),
    ("rmsprop_corrected", |c| last(ScaleByRms { bias_correction: true, ..scale_by_rms(0.999, 1e-8) }, c), 4.0),
    ("rmsprop_centered", |c| last(scale_by_stddev(), c), 64.0),
    ("adagrad", |c| last(scale_by_rss(0.1, 1e-7), c), 64.0),
    ("adadelta", |c| last(scale_by_adadelta(), c), 512.0),
    ("adafactor", |c| last(scale_by_factored_rms(), c), 16.0),
    ("sm3", |c| last(scale_by_sm3(), c), 64.0),
    ("rprop", |c| last(rprop(0.01), c), 4.0),
    ("signum", |c| last(signum(1.0, 0.9), c), 4.0),
    ("fromage", |c| last(fromage(0.01), c), 8.0),
    ("optimistic_gradient", |c| last(scale_by_optimistic_gradient(), c), 4.0),
    ("optimistic_adam", |c| last(optimistic_adam(1.0), c), 8.0),
    ("momentum", |c| last(shardax_nn::optim::trace(0.9, true), c), 4.0),
    ("ema", |c| last(ema(0.999, true), c), 4.0),
    ("lamb", |c| last(lamb(1.0, 0.01), c), 8.0),
    ("lars", |c| last(lars(1.0, 0.01), c), 8.0),
    ("clip_by_global_norm", |c| last(clip_by_global_norm(1.0), c), 4.0),
    ("clip_to_nothing", |c| last(clip_by_global_norm(0.0), c), 4.0),
    ("adaptive_grad_clip", |c| last(adaptive_grad_clip(0.01), c), 4.0),
    ("centralize", |c| last(centralize(), c), 4.0),
    ("apply_every", |c| last(apply_every(10), c), 4.0),
    ("param_block_norm", |c| last(scale_by_param_block_norm(), c), 4.0),
    ("param_block_rms", |c| last(scale_by_param_block_rms(), c), 4.0),
    ("mechanize", |c| last(mechanize(shardax_nn::optim::scale(-0.1)), c), 64.0),
    ("clip_by_block_rms", |c| last(clip_by_block_rms(1.0), c), 4.0),
    ("normalize", |c| last(normalize(), c), 4.0),
    ("normalize_by_update_norm", |c| last(normalize_by_update_norm(), c), 4.0),
    ("trust_ratio", |c| last(scale_by_trust_ratio(), c), 4.0),
    ("multi_steps", |c| last(multi_steps(shardax_nn::optim::scale(1.0), 10), c), 4.0),
    ("acprop", |c| last(scale_by_acprop(), c), 16.0),
    ("ademamix", |c| last(scale_by_ademamix(), c), 8.0),
    ("simplified_ademamix", |c| last(scale_by_simplified_ademamix(), c), 64.0),
    ("adopt", |c| last(scale_by_adopt(), c), 4.0),
    ("madgrad", |c| last(scale_by_madgrad(), c), 256.0),
    ("prodigy", |c| last(prodigy(1.0), c), 64.0),
    ("dadapt_adamw", |c| last(dadapt_adamw(1.0), c), 64.0),
    ("dog", |c| last(scale_by_dog(), c), 64.0),
    ("dowg", |c| last(scale_by_dowg(), c), 64.0),
    ("cocob", |c| last(scale_by_cocob(), c), 64.0),
    ("schedule_free_sgd", |c| last(schedule_free_sgd(0.1), c), 64.0),
    ("schedule_free_adamw", |c| last(schedule_free_adamw(0.1), c), 64.0),
];

/// The units of float32 that the updates may be off after 10⁴ steps. An average ends where a step changes it by less than half a
/// unit, therefore it is off by up to `1 / (2 - 2 decay)` units: 500 for the decay 0.999, and half of the steps for the mean of all.
fn units_of_float32(name: &str) -> f64 {
    match name {
        "ema" | "dadapt_adamw" | "adadelta" => 512.0,
        "adabelief" | "acprop" | "ademamix" => 1024.0,
        "schedule_free_sgd" | "schedule_free_adamw" => 5000.0,
        _ => 256.0,
    }
}

/// Each optimizer in each dtype takes the updates that it takes in float64 for the same, rounded, gradients.
#[test]
fn optimizers_in_every_dtype_equal_float64() -> Result<()> {
    setup();
    let (mut failures, mut count, mut worst) = (Vec::new(), 0, (0.0, String::new()));
    let (kinds, gradients): (Vec<_>, Vec<_>) = kinds(&[steps(), 6]).into_iter().unzip();
    let cases = Cases { gradients, params: arange(1..7).astype(DType::F64) / 4.0 };
    let dtypes = [DType::F16, DType::Bf16, DType::F32];
    // A slice has every third optimizer in one of the dtypes; the reference cases have all optimizers.
    let every = if is_whole() { 1 } else { one_of(3) };
    for (i, (name, run, units)) in OPTIMIZERS.iter().enumerate().step_by(every) {
        for dtype in
            dtypes.iter().enumerate().filter(|(d, _)| is_whole() || i / every % 3 == *d).map(|(_, dtype)| *dtype)
        {
            let cases = cases.astype(dtype);
            let expected = run(&cases.astype(DType::F64))?;
            for ((kind, (found, _)), (expected, scale)) in kinds.iter().zip(run(&cases)?).zip(expected) {
                count += 1;
                if found.dtype() != dtype {
                    failures.push(format!("{name}, {kind}, {dtype}: updates are {}", found.type_name()));
                }
                // Updates are differences of parameters, which are near 1. Estimates of a learning rate grow for ever
                // where the parameters stay.
                let scale = scale.to_f64()?.max(0.05);
                if scale > 1e30 {
                    continue;
                }
                // Estimates that grow for ever end as infinities, and as NaN where these are subtracted.
                let (found, rounded) = (found.astype(DType::F64), expected.astype(dtype).astype(DType::F64));
                let is_same = found.equal(&rounded) | (isnan(&found) & isnan(&rounded));
                let difference = where_(is_same, 0.0, (&found - &expected).abs()).max(..).to_f64()?;
                let off = difference / scale / unit(dtype);
                if off > worst.0 {
                    worst = (off, format!("{name}, {kind}, {dtype}"));
                }
                let units = if dtype == DType::F32 { units_of_float32(name) } else { *units };
                if off > units || off.is_nan() {
                    failures.push(format!("{name}, {kind}, {dtype}: {off:.3} units: {found} is not {expected}"));
                }
            }
        }
    }
    eprintln!("{count} runs of {} steps, the largest error is {:.1} units: {}", steps(), worst.0, worst.1);
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

/// A schedule of 100,000 steps, and the same in float64.
type TrueSchedule = (Schedule, fn(f64) -> f64);

/// Schedules keep their digits to the last of many steps, whose number is the difference of two counts.
#[test]
fn schedules_of_many_steps_equal_float64() -> Result<()> {
    setup();
    use std::f64::consts::PI;
    let schedules: [TrueSchedule; 8] = [
        (linear_schedule(0.5, 0.0, 100_000), |t| 0.5 * (1.0 - t)),
        (polynomial_schedule(2.0, 0.0, 3.0, 100_000), |t| 2.0 * (1.0 - t).powi(3)),
        (cosine_decay_schedule(0.1, 100_000, 0.0), |t| 0.1 * (PI * (1.0 - t) / 2.0).sin().powi(2)),
        (warmup_cosine_decay_schedule(0.0, 0.1, 50_000, 100_000, 0.0), |t| {
            if t < 0.5 { 0.2 * t } else { 0.1 * (PI * (1.0 - t)).sin().powi(2) }
        }),
        (exponential_decay(0.1, 1000, 0.96).into(), |t| 0.1 * 0.96f64.powf(100.0 * t)),
        (polynomial_schedule(1e-6, 0.5, 2.0, 100_000), |t| 1e-6 * (1.0 - t).powi(2) + 0.5 * t * (2.0 - t)),
        (piecewise_interpolate_schedule("linear", 0.5, [(100_000, 1e-6)]), |t| 0.5 * (1.0 - t) + 5e-7 * t),
        (piecewise_interpolate_schedule(Interpolate::Cosine, 0.5, [(100_000, 1e-6)]), |t| {
            0.5 * (PI * (1.0 - t) / 2.0).sin().powi(2) + 5e-7 * (PI * t / 2.0).sin().powi(2)
        }),
    ];
    for (i, (schedule, expected)) in schedules.iter().enumerate() {
        for step in [0, 1, 7, 1000, 49_999, 50_000, 77_777, 99_990, 99_998, 99_999, 100_000] {
            let expected = expected(f64::from(step) / 1e5);
            let value = schedule.at(step).to_f64()?;
            assert!(
                (value - expected).abs() <= 2e-6 * expected.abs() + 1e-16,
                "schedule {i}, step {step}: {value:e} is not {expected:e}"
            );
        }
    }
    Ok(())
}

#[test]
fn schedules_reject_unknown_interpolations() {
    setup();
    let schedule = piecewise_interpolate_schedule("cubic", 0.5, [(10, 0.1)]);
    let error = schedule.at(3).check().expect_err("a text that names nothing").to_string();
    assert!(error.contains("unknown interpolate_type \"cubic\"") && error.contains("\"cosine\""), "{error}");
}

/// With float64 parameters the corrections of bias are in float64 too.
#[test]
fn updates_of_a_constant_gradient_are_exact_in_float64() -> Result<()> {
    setup();
    fn case(steps: usize) -> Cases {
        Cases { gradients: vec![full_dtype([steps, 2], 0.5, DType::F64)], params: ones_dtype([2], DType::F64) }
    }
    for steps in [3, 1, 2, 10, 300].into_iter().step_by(one_of(2)) {
        fn off(x: Vec<(Array, Array)>, expected: f64) -> Result<f64> {
            Ok((x[0].0.get(0).to_f64()? / expected - 1.0).abs())
        }
        let adam = ScaleByAdam { eps: 0.0, ..scale_by_adam() };
        assert!(off(last(adam, &case(steps))?, 1.0)? < 1e-13, "adam after {steps} steps");
        assert!(off(last(ScaleByAmsgrad { eps: 0.0, ..scale_by_amsgrad() }, &case(steps))?, 1.0)? < 1e-13);
        assert!(off(last(ema(0.999, true), &case(steps))?, 0.5)? < 1e-13);
        assert!(off(last(scale_by_factored_rms(), &case(steps))?, 1.0)? < 1e-13);
        assert!(
            off(last(ScaleByAdemamix { eps: 0.0, alpha: 0.0.into(), ..scale_by_ademamix() }, &case(steps))?, 1.0)?
                < 1e-13
        );
        // The rectification of RAdam, for b2 = 0.999.
        let (t, infinite) = (steps as f64, 2.0 / (1.0 - 0.999) - 1.0);
        let power = 0.999f64.powf(t);
        let ro = infinite - 2.0 * t * power / (1.0 - power);
        let r = ((ro - 4.0) * (ro - 2.0) * infinite / ((infinite - 4.0) * (infinite - 2.0) * ro)).sqrt();
        let expected = if ro >= 5.0 { r } else { 0.5 };
        let radam = ScaleByRadam { eps: 0.0, ..scale_by_radam() };
        assert!(off(last(radam, &case(steps))?, expected)? < 1e-9, "radam after {steps} steps");
        let rate = cosine_decay_schedule(1.0, 1000, 0.1);
        let updates = last(sgd(rate), &case(steps))?;
        let cosine = ((t - 1.0) / 1000.0 * std::f64::consts::PI).cos();
        assert!(off(updates, -0.5 * (0.9 * 0.5 * (1.0 + cosine) + 0.1))? < 1e-13, "cosine after {steps} steps");
    }
    Ok(())
}

/// A line search in float64, and in half precision.
#[test]
fn line_searches_have_the_dtype_of_parameters() -> Result<()> {
    setup();
    let dtypes = [(DType::F64, 1e-13), (DType::F32, 1e-6), (DType::Bf16, 1e-2)];
    for (dtype, tolerance) in dtypes.into_iter().skip(one_of(2) - 1).step_by(one_of(2)) {
        let scales = array([1.0f64, 100.0]).astype(dtype);
        let loss = move |x: Array| (&scales * x.square()).sum(..) + 1006.8325787546107;
        let solver = lbfgs_linesearch();
        let mut params = ones_dtype([2], dtype);
        let mut state = solver.init(&params)?;
        for _ in 0..12 {
            let (value, grad) = value_and_grad_from_state(&loss, params.clone(), &state)?;
            let (updates, next) = solver.update_with(grad, state, &params, value, &loss)?;
            (params, state) = (apply_updates(params, updates)?, next);
        }
        let value = state.1.value.to_f64()?;
        assert!((value / 1006.8325787546107 - 1.0).abs() < tolerance, "{dtype}: {value}");
        assert_eq!(state.1.value.dtype(), if dtype == DType::F64 { DType::F64 } else { DType::F32 });
    }
    Ok(())
}

/// A norm without scale and bias of `[2, n, 4]`, and the axes that it is over.
type Norm = (&'static str, fn(&Array) -> Array, &'static [i32]);

const NORMS: &[Norm] = &[
    ("InstanceNorm", |x| InstanceNorm::builder(4).epsilon(0.0).build(&mut Rngs::new(0)).forward(x), &[1]),
    ("GroupNorm", |x| GroupNorm::builder(4, 4).epsilon(0.0).build(&mut Rngs::new(0)).forward(x), &[1]),
    ("BatchNorm", |x| BatchNorm::builder(4).epsilon(0.0).build(&mut Rngs::new(0)).forward(x), &[0, 1]),
    ("standardize", |x| shardax::nn::standardize(x, 1), &[1]),
];

/// Normalization of numbers whose mean is large.
#[test]
fn norms_of_large_means_equal_float64() -> Result<()> {
    setup();
    for (i, (name, norm, axes)) in NORMS.iter().enumerate() {
        // A slice has each norm in one of the dtypes, and each reduction below.
        for dtype in DTYPES.into_iter().skip(i % one_of(4)).step_by(one_of(4)) {
            let n = if dtype == DType::F64 || dtype == DType::F32 { 512 } else { 64 };
            let noise = random::normal_dtype(&random::key(1), [2, n, 4], DType::F64);
            let kinds = [("noise", noise.clone()), ("a mean of 100", 100.0 + &noise), ("a mean of 10⁴", 1e4 + &noise)];
            for (kind, x) in kinds.into_iter().skip((i + 1) % one_of(3)).step_by(one_of(3)) {
                let x = x.astype(dtype);
                let wide = x.astype(DType::F64);
                let centred = &wide - wide.mean_keepdims(*axes);
                let expected = &centred
                    / (centred.square().mean_keepdims(*axes) + 1e-5 * f64::from(*name == "standardize")).sqrt();
                if !expected.isfinite().all(..).item::<bool>()? {
                    continue;
                }
                let error = (norm(&x).astype(DType::F64) - &expected).abs().max(..).to_f64()?;
                let scale = expected.abs().max(..).to_f64()?;
                // Statistics of float64 are not computed in a wider dtype.
                let tolerance = 2.0 * scale * unit(dtype) * if dtype == DType::F64 { 1e4 } else { 1.0 };
                assert!(
                    error <= tolerance + 8.0 * unit(DType::F32) * f64::from(dtype != DType::F64),
                    "{name}, {kind}, {dtype}: {error:e}"
                );
            }
        }
    }
    // The rows of a layer, after the issue that the variance was the mean of squares less the square of the mean.
    let x = (1000.0 + arange(0..8) * 1e-3).reshape([1, 8]);
    let wide = x.astype(DType::F64);
    let centred = &wide - wide.mean_keepdims(-1);
    let expected = &centred / centred.square().mean_keepdims(-1).sqrt();
    let y = LayerNorm::builder(8).epsilon(0.0).build(&mut Rngs::new(0)).forward(&x);
    assert!((y.astype(DType::F64) - expected).abs().max(..).to_f64()? < 1e-6);
    for x in [full([4], 7.3f32), zeros(4), full([4], 1e4f32)] {
        assert_eq!(shardax::nn::standardize(&x, -1).to_vec::<f32>()?, [0.0; 4]);
    }
    Ok(())
}

/// A reduction of all elements: its name, and how many units it may be off.
type Reduction = (&'static str, fn(&Array) -> Array, f64);

const REDUCTIONS: &[Reduction] = &[
    ("sum", |x| x.sum(..), 2.0),
    ("mean", |x| x.mean(..), 2.0),
    ("var", |x| x.var(..), 4.0),
    ("std", |x| x.std(..), 4.0),
    ("logsumexp", |x| x.logsumexp(..), 4.0),
    ("norm", |x| shardax::linalg::norm(x, 2, ..), 4.0),
    ("global_norm", |x| global_norm(x), 4.0),
    ("cumsum", |x| x.cumsum(0).get(-1), 8.0),
    ("softmax", |x| shardax::nn::softmax(x, -1).max(..), 4.0),
    ("log_softmax", |x| shardax::nn::log_softmax(x, -1).max(..), 4.0),
    ("average", |x| shardax::numpy::average(x, ones_like(x), ..), 8.0),
    ("median", |x| shardax::numpy::median(x, ..), 4.0),
    ("l2_loss", |x| l2_loss(x, zeros_like(x)).mean(..), 8.0),
    ("huber_loss", |x| huber_loss(x, zeros_like(x), 1.0).mean(..), 8.0),
    ("cross_entropy", |x| softmax_cross_entropy_with_integer_labels(x, array(3)), 4.0),
];

/// Reductions and losses of many numbers in each dtype equal the results for the same numbers in float64, rounded.
#[test]
fn reductions_and_losses_in_every_dtype_equal_float64() -> Result<()> {
    setup();
    let (mut failures, mut count) = (Vec::new(), 0);
    for (i, (name, reduce, units)) in REDUCTIONS.iter().enumerate() {
        // More addends than the largest number of float16.
        for (kind, x) in kinds(&[10_000]).into_iter().chain([("many", full([70_000], 1.5))]) {
            for dtype in DTYPES.into_iter().skip(i % one_of(4)).step_by(one_of(4)) {
                let x = x.astype(dtype);
                let expected = reduce(&x.astype(DType::F64)).to_f64()?;
                let largest = if dtype == DType::F16 { 65504.0 } else { f64::INFINITY };
                if expected.abs() > largest || (dtype == DType::F16 && *name == "huber_loss") {
                    continue;
                }
                count += 1;
                let result = reduce(&x).to_f64()?;
                let off = (result - expected).abs() / expected.abs().max(f64::MIN_POSITIVE) / unit(dtype);
                // Sums of float64 and float32 are not computed in a wider dtype.
                let units = if dtype.byte_size() >= 4 { 100.0 * units } else { *units };
                let negligible = 8.0 * unit(dtype) * x.abs().max(..).to_f64()?;
                if !(off <= units) && (result - expected).abs() > negligible {
                    failures.push(format!("{name}, {kind}, {dtype}: {off:.1} units: {result} is not {expected}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

/// The optimizers that receive the loss, its function or hyperparameters compute with float64 parameters in float64, and return updates of the dtypes
/// of the gradients if the dtypes of a tree differ. The expected numbers are computed by hand for `x^2` at 1.
#[test]
fn optimizers_with_further_arguments_keep_float64() -> Result<()> {
    setup();
    let one = |dtype| full_dtype(1, 1.0, dtype);
    let params = one(DType::F64);
    let square = |x: Array| x.square().sum(..);
    // The mean of the first step is the gradient, 2. The model of the loss reaches 0 at a step of 0.97 / 4.
    let optimizer = Momo { weight_decay: 0.1, ..momo(0.3) };
    let (updates, _) =
        optimizer.update_with_value(2 * &params, optimizer.init(&params)?, &params, square(params.clone()))?;
    assert!((updates.get(0).to_f64()? + 0.03 / 1.03 + 0.97 / 2.0).abs() < 1e-15, "momo: {updates}");
    let optimizer = sophia(0.1);
    let (updates, _) =
        optimizer.update_with(2 * &params, optimizer.init(&params, &random::key(0))?, &params, square)?;
    assert!((updates.get(0).to_f64()? + 0.1 * (1.0 + 1e-4)).abs() < 1e-15, "sophia: {updates}");

    // A hyperparameter in the state, a number or a schedule, has the digits of float64 too.
    let number = inject_hyperparams([("learning_rate", 0.1)], |h| sgd(&h["learning_rate"]));
    let falling = inject_hyperparams([("learning_rate", linear_schedule(0.1, 0.0, 10))], |h| sgd(&h["learning_rate"]));
    for optimizer in [number, falling] {
        let (updates, _) = optimizer.update(2 * &params, optimizer.init(&params)?, &params)?;
        assert!((updates.get(0).to_f64()? + 0.2).abs() < 1e-15, "inject_hyperparams: {updates}");
    }

    let mixed = (one(DType::Bf16), one(DType::F32), one(DType::F64));
    let optimizer = MomoAdam { weight_decay: 0.1, ..momo_adam(0.3) };
    let (updates, _) = optimizer.update_with_value(mixed.clone(), optimizer.init(&mixed)?, &mixed, 1.0f32)?;
    assert_eq!([updates.0.dtype(), updates.1.dtype(), updates.2.dtype()], [DType::Bf16, DType::F32, DType::F64]);
    Ok(())
}

/// A full rank loses nothing: the updates are those of the inner transformation, also for complex and half-precision matrices.
#[test]
fn projections_of_full_rank_change_no_gradient() -> Result<()> {
    setup();
    let noise = |shape: [usize; 2], seed| random::normal(random::key(seed), shape);
    for shape in [[5, 3], [3, 5], [0, 3]] {
        let complex = lax::complex(noise(shape, 0), noise(shape, 1));
        for grads in [noise(shape, 2), complex, noise(shape, 3).astype(DType::Bf16)] {
            let optimizer = scale_by_galore(scale(2.0));
            let (updates, _) = optimizer.update(grads.clone(), optimizer.init(&grads)?, &grads)?;
            assert_eq!(updates.dtype(), grads.dtype());
            let tolerance = if grads.dtype() == DType::Bf16 { 1e-2 } else { 1e-5 };
            assert!(allclose(updates, 2 * &grads, tolerance, tolerance)?, "{}", grads.type_name());
        }
    }
    Ok(())
}

/// A loss, or a projection, of vectors `[2, n]`, whose squares or sums leave the range or the digits of half precision.
type VectorFunction = (&'static str, fn(&Array, &Array) -> Array);

const VECTOR_FUNCTIONS: &[VectorFunction] = &[
    ("cosine_similarity", |x, y| cosine_similarity(x, y, 0.0)),
    ("triplet_margin_loss", |x, y| triplet_margin_loss(x, y, -x, 1.0)),
    ("multiclass_sparsemax_loss", |x, _| multiclass_sparsemax_loss(x, array([3, 200]))),
    ("projection_simplex", |x, _| projected(projections::projection_simplex(x, 50.0))),
    ("projection_l1_ball", |x, _| projected(projections::projection_l1_ball(x, 50.0))),
    ("projection_l2_ball", |x, _| projected(projections::projection_l2_ball(x, 900.0))),
    ("projection_vector", |x, y| projected(projections::projection_vector(x, y))),
    ("projection_hyperplane", |x, y| projected(projections::projection_hyperplane(x, y, 1.0))),
    ("projection_halfspace", |x, y| projected(projections::projection_halfspace(&(x + y), y, 1.0))),
];

fn projected(result: Result<Array>) -> Array {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Squares of 100 and more left the range of float16: similarities and projections were 0, distances NaN.
#[test]
fn losses_and_projections_of_large_vectors_equal_float64() -> Result<()> {
    setup();
    let [x, y] = [0, 1].map(|seed| 100 * random::normal_dtype(random::key(seed), [2, 512], DType::F64));
    for (name, f) in VECTOR_FUNCTIONS {
        for dtype in [DType::F16, DType::Bf16] {
            let [x, y] = [&x, &y].map(|x| x.astype(dtype));
            let expected = f(&x.astype(DType::F64), &y.astype(DType::F64));
            let result = f(&x, &y);
            assert_eq!(result.dtype(), dtype, "{name}");
            let error = (result.astype(DType::F64) - &expected).abs().max(..).to_f64()?;
            assert!(error <= 4.0 * unit(dtype) * expected.abs().max(..).to_f64()?, "{name}, {dtype}: {error:e}");
        }
    }
    // A number that is added to all elements does not change a projection onto a simplex, and -inf stays out of it.
    let shifted = projections::projection_simplex(&(array([0.5f32, 1.0, 0.75]) + (1 << 20)), 1.0)?;
    assert!(allclose(&shifted, array([1.0f32 / 12.0, 7.0 / 12.0, 1.0 / 3.0]), 1e-6, 0.0)?, "{shifted}");
    let masked = array([0.5, f32::NEG_INFINITY, 1.0]);
    assert_eq!(projections::projection_simplex(&masked, 1.0)?.to_vec::<f32>()?, [0.25, 0.0, 0.75]);
    assert_eq!(projections::projection_simplex(&zeros(0), 1.0)?.shape(), [0]);
    // Squares of small weights are 0 in float16, as is the number that is added to them.
    let small = Linear::builder(4, 2)
        .param_dtype(DType::F16)
        .kernel_init(shardax::nn::initializers::constant(1e-4))
        .build(&mut Rngs::new(0));
    let direction = WeightNorm::new(small)?.without_scale().normalized()?.kernel;
    assert!(allclose(direction.astype(DType::F32), full([4, 2], 0.5f32), 1e-3, 0.0)?, "{direction}");
    Ok(())
}

/// The value of a loss at a small error, and its first two derivatives, are differences of numbers near 1 in the usual formulas.
#[test]
fn losses_of_small_errors_keep_their_digits() -> Result<()> {
    setup();
    type Loss = fn(Array) -> Array;
    let losses: [Loss; 2] = [|x| huber_loss(&x, zeros_like(&x), 1.0), |x| log_cosh(&x, zeros_like(&x))];
    for loss in losses {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let small = if dtype == DType::F16 { 2f64.powi(-9) } else { 2f64.powi(-20) };
            for error in [small, -small, 0.375, 3.0, -30.0] {
                let at = |dtype| full_dtype((), error, dtype);
                let slope = move |x: Array| grad(loss).call(x);
                for (i, f) in [&(move |x| Ok(loss(x))) as &dyn Fn(Array) -> Result<Array>, &slope].iter().enumerate() {
                    let (found, expected) = (f(at(dtype))?.to_f64()?, f(at(DType::F64))?.to_f64()?);
                    let is_exact = (found - expected).abs() <= 4.0 * unit(dtype) * expected.abs();
                    assert!(is_exact, "derivative {i} of {dtype} at {error:e}: {found:e} is not {expected:e}");
                }
                let curvature = grad(slope).call(at(dtype))?.to_f64()?;
                assert!(curvature == f64::from(error.abs() <= 1.0) || error.abs() >= 0.375, "{dtype}: {curvature}");
            }
        }
    }
    assert!(
        huber_loss(array(f32::NAN), 0.0, 1.0).to_f64()?.is_nan() && log_cosh(array(f32::NAN), 0.0).to_f64()?.is_nan()
    );
    let infinite = grad(|x: Array| huber_loss(&x, 0.0, 1.0) + log_cosh(&x, 0.0)).call(array(f32::INFINITY))?;
    assert_eq!(infinite.to_f64()?, 2.0);
    Ok(())
}

/// The sums over time were float32 whatever the logits and the default dtype were, and the loop refused others.
#[test]
fn ctc_loss_of_float64_has_its_digits() -> Result<()> {
    setup();
    let noise = random::normal_dtype(random::key(0), [2, 6, 4], DType::F64);
    let paddings = array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]);
    let labels = (array([[1, 2, 2], [3, 1, 0]]), array([[0, 0, 0], [0, 0, 1]]));
    let loss = |logits: &Array, paddings: &Array| ctc_loss(logits, paddings, &labels.0, &labels.1, 0, -1e5);
    let wide = loss(&noise, &paddings);
    let narrow = loss(&noise.astype(DType::F32), &paddings);
    assert_eq!((wide.dtype(), narrow.dtype()), (DType::F64, DType::F32));
    assert!(allclose(&wide, narrow, 1e-5, 0.0)?, "{wide}");
    // The probabilities of all sequences of two steps are computed by hand.
    let logits = array([[[0.0f64, 1.0, 2.0], [0.5, 0.25, -1.0]]]);
    let found =
        ctc_loss(&logits, zeros([1, 2]).astype(DType::F64), array([[1]]), zeros([1, 1]), 0, -1e5).get(0).to_f64()?;
    let share = |row: [f64; 3], class: usize| row[class].exp() / row.iter().map(|x| x.exp()).sum::<f64>();
    let (a, b) = ([0.0, 1.0, 2.0], [0.5, 0.25, -1.0]);
    let expected = -(share(a, 1) * share(b, 1) + share(a, 1) * share(b, 0) + share(a, 0) * share(b, 1)).ln();
    assert!((found - expected).abs() < 1e-14, "{found} is not {expected}");
    Ok(())
}
