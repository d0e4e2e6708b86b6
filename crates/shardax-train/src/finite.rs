//! Detection of NaN and infinities that does not wait for the devices.

use std::collections::VecDeque;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

/// Checks every array of a training state after each step. The first step with one that is not finite is an error that
/// names the step and the arrays. The result is read when the devices have computed it, a few steps later.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::FiniteCheck;
/// let mut check = FiniteCheck::new();
/// check.step(1, &(ones([2]), array([1, 2])))?;
/// let found = check.step(2, &(array([1.0f32, f32::NAN]), array([1, 2])));
/// let error = found.and_then(|()| check.finish()).unwrap_err();
/// assert!(error.message().contains("after step 2 `[0]` is not finite"));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct FiniteCheck {
    /// Results that were not read yet: for each step, one boolean per array.
    waiting: VecDeque<(u64, Array)>,
    paths: Vec<String>,
}

impl FiniteCheck {
    /// Creates a check.
    pub fn new() -> Self {
        FiniteCheck::default()
    }

    /// Starts the check of a step's state on the devices, and reads the results of earlier steps that are available.
    ///
    /// Fails if the state after one of them was not finite.
    pub fn step<T: Tree>(&mut self, step: u64, state: &T) -> Result<()> {
        let leaves: Vec<(String, Array)> =
            tree::leaves_with_path(state).into_iter().filter(|(_, leaf)| leaf.dtype().is_inexact()).collect();
        if leaves.is_empty() {
            return Ok(());
        }
        let (paths, arrays): (Vec<String>, Vec<Array>) = leaves.into_iter().unzip();
        self.paths = paths;
        let found = jit(all_finite).call(arrays)?;
        self.waiting.push_back((step, found));
        // Bounds the queue, so that the host does not run ahead of the devices without limit.
        while let Some((_, found)) = self.waiting.front() {
            if self.waiting.len() <= MOST && !found.is_ready()? {
                break;
            }
            self.read()?;
        }
        Ok(())
    }

    /// Waits for all remaining results, and fails if one is not finite.
    pub fn finish(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            self.read()?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let Some((step, found)) = self.waiting.pop_front() else { return Ok(()) };
        let finite = found.to_vec::<bool>()?;
        let odd: Vec<String> = self
            .paths
            .iter()
            .zip(&finite)
            .filter(|(_, finite)| !**finite)
            .map(|(path, _)| format!("`{path}`"))
            .collect();
        if odd.is_empty() {
            return Ok(());
        }
        const SOME: usize = 5;
        let rest = odd.len().saturating_sub(SOME);
        let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        let verb = if odd.len() == 1 { "is" } else { "are" };
        let what = format!("after step {step} {}{more} {verb} not finite", odd[..odd.len() - rest].join(", "));
        Err(Error::new(ErrorKind::FloatingPoint, what).help(
            "go back to the last checkpoint with a smaller learning rate or clipped gradients; \
             `config::set_debug_nans(true)` finds the operation",
        ))
    }
}

/// The number of steps that may be checked before the first of them is waited for.
const MOST: usize = 64;

/// Computes whether each of these arrays is finite.
fn all_finite(arrays: Vec<Array>) -> Array {
    let finite: Vec<Array> = arrays.iter().map(|x| x.isfinite().all(..).reshape([1])).collect();
    lax::concatenate(&finite, 0)
}
