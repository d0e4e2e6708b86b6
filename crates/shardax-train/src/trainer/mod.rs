//! The loop around a step.

mod hooks;
mod timing;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Value, json};
use shardax::error::Result;
use shardax::prelude::*;
use shardax::profiler;

use crate::checkpoint::{CheckpointManager, RestoreOptions, SaveArgs};
use crate::data::Stream;
use crate::finite::FiniteCheck;
use crate::log::Logger;
use crate::metrics::MultiMetric;
use crate::progress::Progress;
use crate::replicas::diverged;

use hooks::{Evaluation, Hook};
use timing::Timing;

/// The numbers of a step, by their names.
pub type Values = BTreeMap<String, f64>;

/// What a hook sees: a step that was made.
#[derive(Debug)]
pub struct Moment<'a, S> {
    /// The step, counted from 1.
    pub step: u64,
    /// The state after it. It may still be computed.
    pub state: &'a S,
    /// The numbers since the last of its kind, where this step is one that is logged.
    pub values: Option<&'a Values>,
}

/// What a hook wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The next step.
    Continue,
    /// No more steps: the run ends well, with a last checkpoint.
    Stop,
}

/// The loop around a step: it takes batches, makes steps, counts metrics and reads them once a window, and does what it is
/// told to do in between. What a step is, and what the state is, it does not know.
///
/// A step is any function of a state and a batch that returns the next state and its metrics, mostly one that [`jit`] or
/// [`pmap`] made. It may donate the state.
///
/// ```
/// use shardax_nn::prelude::*;
/// use shardax_train::data::{Example, HostArray, Source, Stream};
/// use shardax_train::{Average, MultiMetric, Trainer};
///
/// let point = |i: usize| {
///     let x = i as f32 / 100.0;
///     Ok(Example::from([("x".into(), HostArray::of(&[x], &[1])?), ("y".into(), HostArray::of(&[3.0 * x - 1.0], &[1])?)]))
/// };
/// let mut data = (100usize, point).stream().shuffled(0).batch(10).map(|batch| Ok((batch["x"].to_array()?, batch["y"].to_array()?)));
///
/// type State = TrainState<Linear, Adam>;
/// let step = jit(|state: State, (x, y): (Array, Array)| -> Result<(State, MultiMetric)> {
///     let loss = |model: Linear| (model.forward(&x) - &y).square().mean(..);
///     let (loss, grads) = value_and_grad(loss).call(state.params.clone())?;
///     Ok((state.apply_gradients(grads)?, MultiMetric::new().with("loss", Average::of(loss))))
/// });
/// let state = TrainState::create(Linear::new(1, 1, &mut Rngs::new(0)), adam(0.1))?;
///
/// let mut losses = Vec::new();
/// let state = Trainer::new(200)
///     .log_every(50)
///     .quiet()
///     .hook(|at| {
///         losses.extend(at.values.map(|values| values["loss"]));
///         Ok(shardax_train::Control::Continue)
///     })
///     .run(state, &mut data, |state, batch| step.call((state, batch)))?;
/// assert!(losses.len() == 4 && losses[3] < 0.01, "{losses:?}");
/// assert_eq!(state.step.item::<i32>()?, 200);
/// # Ok::<(), shardax::Error>(())
/// ```
pub struct Trainer<'a, S> {
    steps: u64,
    log_every: u64,
    quiet: bool,
    /// What a step takes, by name.
    work: Vec<(&'static str, f64)>,
    flops: Option<(f64, f64)>,
    loggers: Vec<Box<dyn Logger + 'a>>,
    checkpoints: Option<&'a mut CheckpointManager>,
    restore: RestoreOptions,
    evaluations: Vec<Evaluation<'a, S>>,
    hooks: Vec<Hook<'a, S>>,
    profile: Option<(Range<u64>, PathBuf)>,
    finite: bool,
    replicas_every: Option<u64>,
}

impl<'a, S: Tree> Trainer<'a, S> {
    /// A training of so many steps, those before a checkpoint included.
    pub fn new(steps: u64) -> Self {
        Trainer {
            steps,
            log_every: 100,
            quiet: false,
            work: Vec::new(),
            flops: None,
            loggers: Vec::new(),
            checkpoints: None,
            restore: RestoreOptions::new(),
            evaluations: Vec::new(),
            hooks: Vec::new(),
            profile: None,
            finite: false,
            replicas_every: None,
        }
    }

    /// Reads the metrics every so many steps (100), and at the last: only then the host waits for the devices.
    pub fn log_every(mut self, steps: u64) -> Self {
        self.log_every = steps.max(1);
        self
    }

    /// Shows nothing on the terminal.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Gives the numbers to a file, too; of several processes the first does.
    pub fn logger(mut self, logger: impl Logger + 'a) -> Self {
        self.loggers.push(Box::new(logger));
        self
    }

    /// How many tokens a step takes on all devices: `tokens_per_second` is one of the numbers then.
    pub fn tokens_per_step(mut self, tokens: f64) -> Self {
        self.work.push(("tokens", tokens));
        self
    }

    /// How many examples a step takes on all devices: `examples_per_second` is one of the numbers then.
    pub fn examples_per_step(mut self, examples: f64) -> Self {
        self.work.push(("examples", examples));
        self
    }

    /// How many operations a step takes on all devices, and how many these could do in a second: `mfu`, their share, is one
    /// of the numbers then.
    pub fn flops(mut self, of_a_step: f64, peak: f64) -> Self {
        self.flops = Some((of_a_step, peak));
        self
    }

    /// Saves the state and the position in the data, when the manager's options say so and at the end; and begins with the
    /// last that was saved, if there is one.
    pub fn checkpoints(mut self, checkpoints: &'a mut CheckpointManager) -> Self {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// How the last checkpoint is restored: on other devices, with other plain numbers.
    pub fn restore_options(mut self, options: RestoreOptions) -> Self {
        self.restore = options;
        self
    }

    /// Computes other metrics of the state every so many steps, and at the end: of a test set. Their names get `name/` in
    /// front.
    pub fn evaluate_every(
        mut self,
        steps: u64,
        name: impl Into<String>,
        evaluate: impl FnMut(&S) -> Result<MultiMetric> + 'a,
    ) -> Self {
        self.evaluations.push(Evaluation { every: steps.max(1), name: name.into(), evaluate: Box::new(evaluate) });
        self
    }

    /// Calls a function after each step.
    pub fn hook(mut self, hook: impl FnMut(&Moment<'_, S>) -> Result<Control> + 'a) -> Self {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Records a profile of these steps in a folder: [`profiler::trace`].
    pub fn profile(mut self, steps: Range<u64>, folder: impl Into<PathBuf>) -> Self {
        self.profile = Some((steps, folder.into()));
        self
    }

    /// Stops with an error that names the step and the arrays where the state is not finite ([`FiniteCheck`]). Costs a
    /// pass over the state a step.
    pub fn check_finite(mut self) -> Self {
        self.finite = true;
        self
    }

    /// Stops with an error that names the array where copies on several devices differ, every so many steps. Waits for the
    /// state, and reads all of it.
    pub fn check_replicas_every(mut self, steps: u64) -> Self {
        self.replicas_every = Some(steps.max(1));
        self
    }

    /// Runs it: `step` takes the state and a batch of `data`, until all steps are made, the data ends, or a hook stops it.
    /// Returns the last state.
    ///
    /// Fails with what a step, the data or a hook fails with; the message names the step.
    #[track_caller]
    pub fn run<D: Stream>(
        self,
        state: S,
        data: &mut D,
        step: impl FnMut(S, D::Item) -> Result<(S, MultiMetric)>,
    ) -> Result<S> {
        let location = std::panic::Location::caller();
        self.train(state, data, step).map_err(|error| error.at(location))
    }

    fn train<D: Stream>(
        mut self,
        mut state: S,
        data: &mut D,
        mut step_of: impl FnMut(S, D::Item) -> Result<(S, MultiMetric)>,
    ) -> Result<S> {
        let mut step = 0;
        if let Some(checkpoints) = &mut self.checkpoints
            && let Some(last) = checkpoints.restore_latest_with(&state, &self.restore)?
        {
            (state, step) = (last.tree, last.step);
            data.seek(&last.metadata["data"])?;
        }
        // All processes have the same numbers.
        if process_index() > 0 {
            self.loggers.clear();
        }
        for logger in &mut self.loggers {
            logger.begin(step)?;
        }
        let progress =
            (!self.quiet && process_index() == 0).then(|| Progress::from_step(self.steps as usize, step as usize));
        if let Some(progress) = progress.as_ref().filter(|_| step > 0) {
            progress.println(format!("goes on after step {step}"));
        }
        let merge = jit(|a: MultiMetric, b: MultiMetric| a.merge(&b));
        let (mut window, mut timing, mut finite) = (MultiMetric::new(), Timing::new(), FiniteCheck::new());
        let mut profile = None;
        let mut last_values = Values::new();
        while step < self.steps {
            let at = |error: shardax::Error| error.context(format!("step {}", step + 1));
            if profile.is_none()
                && let Some((steps, folder)) = &self.profile
                && steps.contains(&(step + 1))
            {
                profile = Some(profiler::trace(folder)?);
            }
            let Some(batch) = timing.input(|| data.next_item()) else { break };
            let batch = batch.map_err(at)?;
            let (next, metrics) = timing.dispatch(|| step_of(state, batch)).map_err(at)?;
            state = next;
            window = if window.is_empty() { metrics } else { merge.call((window, metrics)).map_err(at)? };
            step += 1;
            let at = |error: shardax::Error| error.context(format!("step {step}"));
            if self.finite {
                finite.step(step, &state)?;
            }
            if let Some(every) = self.replicas_every
                && step.is_multiple_of(every)
                && let Some(path) = diverged(&state)?
            {
                return Err(hooks::copies_differ(&path, step));
            }
            if let Some((steps, _)) = &self.profile
                && step + 1 >= steps.end
                && let Some(recording) = profile.take()
            {
                block_until_ready(&state).map_err(at)?;
                recording.stop()?;
            }
            let mut values = None;
            if step.is_multiple_of(self.log_every) || step == self.steps {
                let read = timing.device(|| std::mem::take(&mut window).values()).map_err(at)?;
                values = Some(timing.finish(read, &self.work, self.flops));
            }
            for evaluation in &mut self.evaluations {
                if step.is_multiple_of(evaluation.every) || step == self.steps {
                    let found = evaluation.values(&state).map_err(at)?;
                    values.get_or_insert_with(Values::new).extend(found);
                    timing.restart();
                }
            }
            if let Some(values) = &values {
                for logger in &mut self.loggers {
                    logger.log(step, values)?;
                    logger.flush()?;
                }
                if let Some(progress) = &progress {
                    progress.report(step, values);
                }
                last_values.extend(values.clone());
            }
            if let Some(progress) = &progress {
                progress.step();
            }
            let moment = Moment { step, state: &state, values: values.as_ref() };
            let mut stop = false;
            for hook in &mut self.hooks {
                stop |= hook(&moment).map_err(at)? == Control::Stop;
            }
            if let Some(checkpoints) = &mut self.checkpoints {
                let args = SaveArgs::new().metrics(last_values.clone()).metadata(beside(data.position()));
                if self.finite && checkpoints.should_save(step) {
                    // What is not finite is no checkpoint to go on from.
                    finite.finish()?;
                }
                checkpoints.save_with(step, &state, &args.force(stop || step == self.steps))?;
            }
            if stop {
                break;
            }
        }
        finite.finish()?;
        if let Some(recording) = profile {
            recording.stop()?;
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.wait_until_finished()?;
        }
        Ok(state)
    }
}

/// What is saved beside the state.
fn beside(position: Value) -> Value {
    json!({ "data": position })
}
