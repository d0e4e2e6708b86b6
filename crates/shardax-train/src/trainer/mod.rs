//! The loop around a step.

mod hooks;
mod numbers;
mod preempted;
mod saves;
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
use preempted::Notices;
pub use preempted::OnPreemption;
use saves::Saves;
use timing::Timing;

/// The numbers of a step by name.
pub type Values = BTreeMap<String, f64>;

/// A completed step, as hooks see it.
#[derive(Debug)]
pub struct StepContext<'a, S> {
    /// The step, counted from 1.
    pub step: u64,
    /// The state after the step. Devices can still be computing it.
    pub state: &'a S,
}

/// A hook's answer: continue or stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Continues with the next step.
    Continue,
    /// Stops the run without an error, with a last checkpoint.
    Stop,
}

/// A training loop: reads batches, runs steps, accumulates metrics and reads them once a window, and calls loggers,
/// hooks, evaluations and checkpoints in between. You can use it with any step and any state.
///
/// The devices do not wait until the host has read numbers, because the loop reads the numbers of a step after it has
/// started the next one, or at the end of the run. It reads them at once if it must wait for that step anyway, to
/// evaluate it or to save a checkpoint with its metrics. Loggers and hooks receive the numbers with their step, in
/// order.
///
/// A step is any function of a state and a batch that returns the next state and its metrics, usually a function
/// compiled by [`jit`](jit()) or [`pmap`](pmap()). It should donate the state, because the devices hold two states at
/// once otherwise.
///
/// ```
/// use shardax_nn::prelude::*;
/// use shardax_train::data::{Example, HostArray, Source, Stream};
/// use shardax_train::{Average, MultiMetric, Trainer};
///
/// let point = |i: usize| {
///     let x = i as f32 / 100.0;
///     Ok(Example::from([("x".into(), HostArray::from_slice(&[x], &[1])?), ("y".into(), HostArray::from_slice(&[3.0 * x - 1.0], &[1])?)]))
/// };
/// let mut data = (100usize, point).stream().shuffled(0).batch(10).map(|batch| Ok((batch["x"].to_array()?,
/// batch["y"].to_array()?)));
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
    /// Amounts of work a step, by name.
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
    on_preemption: Option<OnPreemption>,
}

impl<'a, S: Tree> Trainer<'a, S> {
    /// Creates a training loop of `steps` steps. The steps before a restored checkpoint count, so you can pass the same
    /// number when you resume.
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
            on_preemption: None,
        }
    }

    /// Sets the number of steps whose metrics are logged together (100 by default). The last step is also logged. The
    /// host waits for the devices only then, and they already have the next step to work on.
    pub fn log_every(mut self, steps: u64) -> Self {
        self.log_every = steps.max(1);
        self
    }

    /// Prints nothing on the terminal.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Adds a logger, such as a file. In a multi-process program only the first process writes.
    pub fn logger(mut self, logger: impl Logger + 'a) -> Self {
        self.loggers.push(Box::new(logger));
        self
    }

    /// Sets the number of tokens of a step on all devices, and logs `tokens_per_second`.
    pub fn tokens_per_step(mut self, tokens: f64) -> Self {
        self.work.push(("tokens", tokens));
        self
    }

    /// Sets the number of examples of a step on all devices, and logs `examples_per_second`.
    pub fn examples_per_step(mut self, examples: f64) -> Self {
        self.work.push(("examples", examples));
        self
    }

    /// Sets the operations of a step on all devices and their peak operations per second, and logs `mfu`, the fraction
    /// of the peak that was used.
    pub fn flops(mut self, per_step: f64, peak: f64) -> Self {
        self.flops = Some((per_step, peak));
        self
    }

    /// Saves the state and the position in the data when the manager's options say so, and at the end. Starts from the
    /// latest checkpoint, if there is one.
    ///
    /// A checkpoint that cannot be written, because a disk is full for example, is a warning, and the next step is
    /// saved instead; the fourth such failure in a row, or of the last step, is an error.
    pub fn checkpoints(mut self, checkpoints: &'a mut CheckpointManager) -> Self {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// Sets the options to restore the latest checkpoint with, such as other devices or other plain numbers.
    pub fn restore_options(mut self, options: RestoreOptions) -> Self {
        self.restore = options;
        self
    }

    /// Evaluates the state every `every` steps, and at the end, for example on a test set. The names of the metrics get
    /// the prefix `name/`. Waits for the metrics.
    pub fn evaluate_every(
        mut self,
        steps: u64,
        name: impl Into<String>,
        evaluate: impl FnMut(&S) -> Result<MultiMetric> + 'a,
    ) -> Self {
        self.evaluations.push(Evaluation { every: steps.max(1), name: name.into(), evaluate: Box::new(evaluate) });
        self
    }

    /// Calls a function after each step. It should not read the state in every step, because reading waits for the
    /// step, and the devices are idle meanwhile.
    pub fn hook(mut self, hook: impl FnMut(&StepContext<'_, S>) -> Result<Control> + 'a) -> Self {
        self.hooks.push(Box::new(hook));
        self
    }

    /// Calls a function with each step that is logged or evaluated and its numbers, for example for early stopping.
    /// Another step may have started by then; if the function stops the run, it ends after that step, in all processes
    /// alike.
    pub fn on_log(mut self, hook: impl FnMut(u64, &Values) -> Result<Control> + 'a) -> Self {
        self.log_hooks.push(Box::new(hook));
        self
    }

    /// Records a profile of these steps in a folder with [`profiler::trace`].
    pub fn profile(mut self, steps: Range<u64>, folder: impl Into<PathBuf>) -> Self {
        self.profile = Some((steps, folder.into()));
        self
    }

    /// Stops with an error that names the step and the arrays if the state is not finite ([`FiniteCheck`]). The devices
    /// must read the entire state once more in each step.
    pub fn check_finite(mut self) -> Self {
        self.finite = true;
        self
    }

    /// Stops with an error that names the array if its copies on several devices differ. Checks every `steps` steps.
    /// You should choose a large number, because a check waits for the state and reads all of it.
    pub fn check_replicas_every(mut self, steps: u64) -> Self {
        self.replicas_every = Some(steps.max(1));
        self
    }

    /// Sets what happens after a [notice of preemption](shardax::distributed::preemption): `SIGTERM`, `SIGUSR1`,
    /// `SIGUSR2`, Ctrl-C, or a notice that your program sends itself. By default a run with
    /// [`checkpoints`](Self::checkpoints) ends the process ([`OnPreemption::Exit`]), and one without ignores notices.
    ///
    /// All processes finish the same step, save it, and wait until it is on disk. A run that has done its last step
    /// returns as usual.
    pub fn on_preemption(mut self, what: OnPreemption) -> Self {
        self.on_preemption = Some(what);
        self
    }

    /// Runs the loop: `step` takes the state and a batch of `data`, until all steps are done, the data ends, or a hook
    /// stops it. Returns the last state, which is also evaluated, logged and saved if the data ends early. By default a run with checkpoints does not return after a notice of preemption
    /// ([`on_preemption`](Self::on_preemption)).
    ///
    /// # Errors
    /// Returns the first error of the step, the data, a hook, an evaluation or a save. The message names the step.
    #[track_caller]
    pub fn run<D: Stream>(
        self,
        state: S,
        data: &mut D,
        step: impl FnMut(S, D::Item) -> Result<(S, MultiMetric)>,
    ) -> Result<S> {
        let location = std::panic::Location::caller();
        let reaction = self.on_preemption.unwrap_or(match self.checkpoints {
            Some(_) => OnPreemption::Exit,
            None => OnPreemption::Ignore,
        });
        let folder = self.checkpoints.as_ref().map(|checkpoints| checkpoints.directory().to_owned());
        let mut notices = Notices::new(reaction).map_err(|error| error.at(location))?;
        let state = self.train(state, data, step, &mut notices).map_err(|error| error.at(location))?;
        match notices.stopped {
            Some(step) if reaction == OnPreemption::Exit => preempted::exit(step, folder.as_deref()),
            _ => Ok(state),
        }
    }

    fn train<D: Stream>(
        mut self,
        mut state: S,
        data: &mut D,
        step_of: impl FnMut(S, D::Item) -> Result<(S, MultiMetric)>,
        notices: &mut Notices,
    ) -> Result<S> {
        let mut step = 0;
        if let Some(checkpoints) = &mut self.checkpoints
            && let Some(restored) = checkpoints.restore_latest_with(&state, &self.restore)?
        {
            (state, step) = (restored.tree, restored.step);
            data.seek(&restored.metadata["data"])?;
        }
        // Only one process logs, because all have the same numbers.
        if process_index() > 0 {
            self.loggers.clear();
        }
        for logger in &mut self.loggers {
            logger.begin(step)?;
        }
        let progress =
            (!self.quiet && process_index() == 0).then(|| Progress::from_step(self.steps as usize, step as usize));
        if let Some(progress) = progress.as_ref().filter(|_| step > 0) {
            progress.println(format!("resumes after step {step}"));
        }
        let timing = Timing::new((step, self.steps), std::mem::take(&mut self.work), self.flops);
        let (loggers, hooks) = (std::mem::take(&mut self.loggers), std::mem::take(&mut self.log_hooks));
        let mut numbers = Numbers::new(loggers, hooks, progress, timing);
        let result = self.make_steps((state, step), data, step_of, &mut numbers, notices);
        // The numbers before a failed step are reported as well, but the step's error takes precedence.
        let reported = numbers.finish();
        let state = result?;
        reported?;
        if let Some(checkpoints) = self.checkpoints {
            checkpoints.wait_until_finished()?;
        }
        Ok(state)
    }

    /// Runs the steps after `step`. Each one is, in this order: input, the step, checks, evaluations, reports, hooks,
    /// a checkpoint.
    fn make_steps<D: Stream>(
        &mut self,
        (mut state, mut step): (S, u64),
        data: &mut D,
        mut step_of: impl FnMut(S, D::Item) -> Result<(S, MultiMetric)>,
        numbers: &mut Numbers<'_>,
        notices: &mut Notices,
    ) -> Result<S> {
        let first = step;
        let mut saves = Saves::default();
        let mut profile = None;
        while step < self.steps {
            let in_step = |error: shardax::Error| error.context(format!("step {}", step + 1));
            if profile.is_none() {
                profile = self.start_profile(step + 1)?;
            }
            let _step = tracing::info_span!("step", step = step + 1).entered();
            let item = tracing::debug_span!("input").in_scope(|| numbers.timing.input(|| data.next_item()));
            let Some(batch) = item else {
                if step > first {
                    self.end_with_data(step, &state, data.position(), numbers, &mut saves)?;
                }
                break;
            };
            let batch = batch.map_err(in_step)?;
            let (updated, metrics) = tracing::debug_span!("dispatch")
                .in_scope(|| numbers.timing.dispatch(|| step_of(state, batch)))
                .map_err(in_step)?;
            state = updated;
            numbers.add(metrics).map_err(in_step)?;
            step += 1;
            let in_step = |error: shardax::Error| error.context(format!("step {step}"));
            let is_last = step == self.steps;
            if step.is_multiple_of(self.log_every) || is_last {
                numbers.end_window(step);
            }
            self.check_state(step, &state, &mut saves.finite)?;
            if let Some((steps, _)) = &self.profile
                && step + 1 >= steps.end
                && let Some(recording) = profile.take()
            {
                block_until_ready(&state).map_err(in_step)?;
                recording.stop()?;
            }
            self.evaluate(step, &state, numbers).map_err(in_step)?;
            let mut stop = numbers.report()?;
            if let Some(progress) = &numbers.progress {
                progress.step();
            }
            let moment = StepContext { step, state: &state };
            for hook in &mut self.hooks {
                stop |= hook(&moment).map_err(in_step)? == Control::Stop;
            }
            // A run that is complete has nothing to resume.
            stop |= !is_last && notices.stop_after(step).map_err(in_step)?;
            if stop {
                numbers.finish()?;
            }
            let args = SaveArgs::new().metrics(numbers.of(step)).metadata(json!({ "data": data.position() }));
            self.save(step, &state, &args.force(stop || is_last), &mut saves)?;
            if stop {
                break;
            }
        }
        saves.finite.finish()?;
        if let Some(recording) = profile {
            recording.stop()?;
        }
        Ok(state)
    }

    /// Ends a run whose data ends after `step` as the last step would: with its numbers, evaluations and a checkpoint.
    fn end_with_data(
        &mut self,
        step: u64,
        state: &S,
        position: Value,
        numbers: &mut Numbers<'_>,
        saves: &mut Saves,
    ) -> Result<()> {
        let in_step = |error: shardax::Error| error.context(format!("step {step}"));
        if !step.is_multiple_of(self.log_every) {
            numbers.end_window(step);
        }
        numbers.read(step)?;
        let steps = self.steps;
        for evaluation in self.evaluations.iter_mut().filter(|evaluation| !evaluation.is_due(step, steps)) {
            numbers.evaluate(evaluation, step, state).map_err(in_step)?;
        }
        numbers.finish()?;
        let args = SaveArgs::new().metrics(numbers.of(step)).metadata(json!({ "data": position }));
        self.save(step, state, &args.force(true), saves)
    }
}

impl<S: Tree> Trainer<'_, S> {
    /// Starts recording a profile if `step` is one of the steps to record.
    fn start_profile(&self, step: u64) -> Result<Option<profiler::Profile>> {
        match &self.profile {
            Some((steps, folder)) if steps.contains(&step) => profiler::trace(folder).map(Some),
            _ => Ok(None),
        }
    }

    /// Starts the checks of a step's state that are due.
    fn check_state(&self, step: u64, state: &S, finite: &mut FiniteCheck) -> Result<()> {
        if self.finite {
            finite.step(step, state)?;
        }
        match self.replicas_every {
            Some(every) if step.is_multiple_of(every) => match diverged(state)? {
                Some(path) => Err(hooks::copies_differ(&path, step)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Reads the numbers that are available without waiting for this step, or all if the step is awaited anyway, and
    /// runs the evaluations that are due.
    fn evaluate(&mut self, step: u64, state: &S, numbers: &mut Numbers<'_>) -> Result<()> {
        let is_last = step == self.steps;
        let saves = is_last || self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.should_save(step));
        let evaluates = self.evaluations.iter().any(|evaluation| evaluation.is_due(step, self.steps));
        numbers.read(if saves || evaluates { step } else { step - 1 })?;
        for evaluation in self.evaluations.iter_mut().filter(|evaluation| evaluation.is_due(step, self.steps)) {
            let _span = tracing::info_span!("evaluate", name = evaluation.name).entered();
            numbers.evaluate(evaluation, step, state)?;
        }
        Ok(())
    }

    /// Saves a checkpoint if it is due.
    fn save(&mut self, step: u64, state: &S, args: &SaveArgs, saves: &mut Saves) -> Result<()> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        if !args.is_forced() && !checkpoints.should_save(step) {
            return Ok(());
        }
        if self.finite {
            // A run must not resume from a state that is not finite.
            saves.finite.finish()?;
        }
        let Err(error) = checkpoints.save_with(step, state, args) else {
            saves.failures = 0;
            return Ok(());
        };
        if checkpoints.saves_in_background() {
            // The error is about the previous save, whose thread has failed since. This step is saved now.
            saves.count_failure(error)?;
            checkpoints.save_with(step, state, args).map(drop)
        } else if args.is_forced() {
            // No later step is saved.
            Err(error)
        } else {
            saves.count_failure(error)
        }
    }
}
