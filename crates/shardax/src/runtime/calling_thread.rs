//! Short programs on the calling thread.
//!
//! A plugin may run every program on another thread, although waking this thread takes longer than the program
//! (`backend/cpu/calling_thread.rs`). A short program that is called often is therefore compiled a second time, in a form that
//! runs on the thread that calls it. The second compilation takes as long as the wake-ups of a thousand calls or more.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use shardax_pjrt as pjrt;

use super::execute::LoadedProgram;
use crate::backend::on_calling_thread;
use crate::error::Result;

/// The number of calls after which a program is measured: until then, its wake-ups took as long as the compilation of a small
/// program, so a program that is soon not called again loses at most that much. It is measured again whenever the number has
/// doubled, each time in [`MEASURED_CALLS`] calls, because other processes may delay some of them.
const MIN_CALLS: u32 = 1024;
const MEASURED_CALLS: u32 = 4;

/// A program that takes longer gains little, and would delay its caller, which could prepare the next call instead.
const MAX_TIME: Duration = Duration::from_micros(100);

/// The plugin runs programs with fewer operations on the calling thread anyway.
const MIN_FLOPS: f64 = 1000.0;

/// The form of a program that runs on the calling thread, and the number of calls before it exists.
#[derive(Default)]
pub(crate) struct CallingThread {
    calls: AtomicU32,
    /// `None` inside if the program keeps its first form.
    executable: OnceLock<Option<pjrt::Executable>>,
}

impl LoadedProgram {
    /// Runs the program on its only device, and passes each result to `take`, with its position.
    pub(super) fn execute_on_one_device(
        &self,
        args: &[&pjrt::Buffer],
        mut take: impl FnMut(usize, pjrt::Buffer),
    ) -> Result<()> {
        let decided = self.calling_thread.executable.get();
        if let Some(executable) = decided {
            let executable = executable.as_ref().unwrap_or(&self.executable);
            return Ok(executable.execute_with(args, |_, i, result| take(i, result))?);
        }
        let calls = self.calling_thread.calls.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let is_measured = calls >= MIN_CALLS && calls - (1 << calls.ilog2()) < MEASURED_CALLS;
        if !is_measured {
            return Ok(self.executable.execute_with(args, |_, i, result| take(i, result))?);
        }
        for (i, result) in self.execute_and_measure(args)?.into_iter().enumerate() {
            take(i, result);
        }
        Ok(())
    }

    /// Runs the program and waits for it. If it is short, compiles the form that runs on the calling thread.
    #[cold]
    fn execute_and_measure(&self, args: &[&pjrt::Buffer]) -> Result<Vec<pjrt::Buffer>> {
        let start = Instant::now();
        let results = first_device(self.executable.execute(args)?)?;
        // A program without results does not report when it ends.
        let Some(result) = results.first().filter(|_| self.may_run_on_calling_thread()) else {
            let _ = self.calling_thread.executable.set(None);
            return Ok(results);
        };
        result.block_until_ready()?;
        if start.elapsed() <= MAX_TIME {
            // A program that cannot be compiled again keeps its first form.
            let _ = self.calling_thread.executable.set(self.compile_for_calling_thread().ok().flatten());
        }
        Ok(results)
    }

    /// Returns `true` unless the program calls host functions, which may wait for the caller, or the plugin runs it on the
    /// calling thread anyway. Debug builds never compile again, because their own work takes longer than a wake-up.
    fn may_run_on_calling_thread(&self) -> bool {
        !cfg!(debug_assertions)
            && self.retained.is_empty()
            && !self.ordered
            && flops(&self.executable).is_some_and(|flops| flops >= MIN_FLOPS)
    }

    /// Compiles the form that runs on the calling thread. `None` if the platform has no such form.
    fn compile_for_calling_thread(&self) -> Result<Option<pjrt::Executable>> {
        let Some(request) = &self.request else { return Ok(None) };
        let client = self.executable.client();
        let text = request.text(false)?;
        let version = client.plugin().api_version();
        let Some(text) = on_calling_thread(request.place.platform(), version, &text) else { return Ok(None) };
        let signature = request.signature(&request.donations())?;
        Ok(Some(client.compile(&text, &request.options_here(&[])?, signature)?))
    }
}

/// The number of operations that the plugin counts in a program.
pub(super) fn flops(executable: &pjrt::Executable) -> Option<f64> {
    match executable.cost_analysis().ok()?.into_iter().find(|(name, _)| name == "flops")? {
        (_, pjrt::Value::Float(flops)) => Some(f64::from(flops)),
        _ => None,
    }
}

fn first_device(results: Vec<Vec<pjrt::Buffer>>) -> Result<Vec<pjrt::Buffer>> {
    Ok(results.into_iter().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::load::{Request, all_alive};
    use super::*;
    use crate::backend::options::Effort;
    use crate::prelude::*;

    /// The plugin counts so few operations in the second form that it runs on the calling thread, and the results are
    /// the same.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn short_programs_run_on_the_calling_thread() -> Result<()> {
        fn short_program(x: Array) -> Array {
            (x * 2 + 1).exp() / 3
        }
        let x = linspace(-3, 3, 5000);
        let expected: Vec<f32> = jit(short_program).call(&x)?.to_vec()?;
        let program = jit(short_program).lower(&x)?.compile()?;
        assert_eq!(program.call(&x)?.to_vec::<f32>()?, expected);
        let loaded = all_alive().into_iter().find(|loaded| loaded.name.contains("short_program"));
        let request = loaded.and_then(|loaded| loaded.request.clone()).expect("the program is loaded");
        let argument = x.concrete()?;
        for effort in [Effort::Full, Effort::Quick] {
            let request = Request { effort, ..request.clone() };
            let loaded = LoadedProgram { request: Some(request.clone()), ..request.compile(&[])? };
            assert!(flops(&loaded.executable).is_some_and(|flops| flops >= MIN_FLOPS));
            let second = loaded.compile_for_calling_thread()?.expect("the CPU plugin needs the form");
            assert!(flops(&second).is_some_and(|flops| flops < MIN_FLOPS));
            let [first, second] = [&loaded.executable, &second].map(|executable| {
                let results = first_device(executable.execute(&[&argument.buffers[0]]).expect("it runs"));
                results.expect("results")[0].with_bytes(<[u8]>::to_vec).expect("bytes")
            });
            assert_eq!(first, second, "{effort:?}");
        }
        Ok(())
    }
}
