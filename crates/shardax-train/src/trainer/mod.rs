//! The loop around a step.

mod hooks;
mod numbers;
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

use hooks::{Evaluation, Hook, LogHook};
use numbers::Numbers;
use timing::Timing;

/// The numbers of a step, by their names.
pub type Values = BTreeMap<String, f64>;

/// What a hook sees: a step that was made.
#[derive(Debug)]
pub struct StepContext<'a, S> {
    /// The step, counted from 1.
    pub step: u64,
    /// The state after it. It may still be computed.
    pub state: &'a S,
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
/// The devices do not wait for the host to read: the numbers of a step are read when the next one has been started, or the
/// run ends. They are read at once where it waits for that step anyway, to evaluate it, or saves a checkpoint of it, whose
/// metrics they are. Whoever is told them is told the step, in order.
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
///     .on_log(|_step, values| {
///         losses.push(values["loss"]);
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
    log_hooks: Vec<LogHook<'a>>,
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
            log_hooks: Vec::new(),
            profile: None,
            finite: false,
            replicas_every: None,
        }
    }

    /// Logs the metrics of so many steps (100) together, and those of the last: only then the host waits for the devices,
    /// which have the next step to go on with.
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
    /// front. Waits for them.
    pub fn evaluate_every(
        mut self,
        steps: u64,
        name: impl Into<String>,
        evaluate: impl FnMut(&S) -> Result<MultiMetric> + 'a,
    ) -> Self {
        self.evaluations.push(Evaluation { every: steps.max(1), name: name.into(), evaluate: Box::new(evaluate) });
        self
    }

    /// Calls a function after each step. Where it reads the state it waits for the step, and the devices wait for the next.
    pub fn hook(mut self, hook: impl FnMut(&StepContext<'_, S>) -> Result<Control> + 'a) -> Self {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Calls a function with the numbers of each step that is logged or evaluated, and the step: for a training that ends
    /// early, say. Another step may have been started by then, with which the run ends if the function says so; in all
    /// processes it is the same.
    pub fn on_log(mut self, hook: impl FnMut(u64, &Values) -> Result<Control> + 'a) -> Self {
        self.log_hooks.push(Box::new(hook));
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
        step_of: impl FnMut(S, D::Item) -> Result<(S, MultiMetric)>,
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
        let timing = Timing::new(step, std::mem::take(&mut self.work), self.flops);
        let (loggers, hooks) = (std::mem::take(&mut self.loggers), std::mem::take(&mut self.log_hooks));
        let mut numbers = Numbers::new(loggers, hooks, progress, timing);
        let result = self.make_steps(state, step, data, step_of, &mut numbers);
        // Also where a later step failed, whose error is the one to be told.
        let told = numbers.finish();
        let state = result?;
        told?;
        if let Some(checkpoints) = self.checkpoints {
            checkpoints.wait_until_finished()?;
        }
        Ok(state)
    }

    fn make_steps<D: Stream>(
        &mut self,
        mut state: S,
        mut step: u64,
        data: &mut D,
        mut step_of: impl FnMut(S, D::Item) -> Result<(S, MultiMetric)>,
        numbers: &mut Numbers<'_>,
    ) -> Result<S> {
        let mut finite = FiniteCheck::new();
        let mut profile = None;
        while step < self.steps {
            let at = |error: shardax::Error| error.context(format!("step {}", step + 1));
            if profile.is_none()
                && let Some((steps, folder)) = &self.profile
                && steps.contains(&(step + 1))
            {
                profile = Some(profiler::trace(folder)?);
            }
            let Some(batch) = numbers.timing.input(|| data.next_item()) else { break };
            let batch = batch.map_err(at)?;
            let (next, metrics) = numbers.timing.dispatch(|| step_of(state, batch)).map_err(at)?;
            state = next;
            numbers.add(metrics).map_err(at)?;
            step += 1;
            let at = |error: shardax::Error| error.context(format!("step {step}"));
            let is_last = step == self.steps;
            if step.is_multiple_of(self.log_every) || is_last {
                numbers.close(step);
            }
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
            let saves = is_last || self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.should_save(step));
            let evaluates = self.evaluations.iter().any(|evaluation| evaluation.is_due(step, self.steps));
            numbers.read(if saves || evaluates { step } else { step - 1 })?;
            for evaluation in self.evaluations.iter_mut().filter(|evaluation| evaluation.is_due(step, self.steps)) {
                numbers.evaluate(evaluation, step, &state).map_err(at)?;
            }
            let mut stop = numbers.tell()?;
            if let Some(progress) = &numbers.progress {
                progress.step();
            }
            let moment = StepContext { step, state: &state };
            for hook in &mut self.hooks {
                stop |= hook(&moment).map_err(at)? == Control::Stop;
            }
            if stop {
                numbers.finish()?;
            }
            if let Some(checkpoints) = &mut self.checkpoints {
                let args = SaveArgs::new().metrics(numbers.last.clone()).metadata(beside(data.position()));
                if self.finite && checkpoints.should_save(step) {
                    // What is not finite is no checkpoint to go on from.
                    finite.finish()?;
                }
                checkpoints.save_with(step, &state, &args.force(stop || is_last))?;
            }
            if stop {
                break;
            }
        }
        finite.finish()?;
        if let Some(recording) = profile {
            recording.stop()?;
        }
        Ok(state)
    }
}

/// What is saved beside the state.
fn beside(position: Value) -> Value {
    json!({ "data": position })
}
