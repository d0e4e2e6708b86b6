//! Detection of NaN and infinities that does not wait for the devices.

use std::collections::VecDeque;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

/// Checks every array of a training state after each step. The first step after which an array is not finite is an
/// error that names the step and the arrays. The host does not wait for a check: it reads the result when the devices
/// have computed it, a few steps later.
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
    /// Results that were not read yet: for each step, a boolean for each array.
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
    /// # Errors
    /// Returns an error if the state after one of them was not finite.
    pub fn step<T: Tree>(&mut self, step: u64, state: &T) -> Result<()> {
        let leaves: Vec<(String, Array)> =
            tree::leaves_with_path(state).into_iter().filter(|(_, leaf)| leaf.dtype().is_inexact()).collect();
        if leaves.is_empty() {
            return Ok(());
        }
        let (paths, arrays): (Vec<String>, Vec<Array>) = leaves.into_iter().unzip();
        self.paths = paths;
        let is_finite = jit(all_finite).call(arrays)?;
        self.waiting.push_back((step, is_finite));
        // Bounds the queue, so that the host does not run ahead of the devices without limit.
        while let Some((_, is_finite)) = self.waiting.front() {
            if self.waiting.len() <= MAX_WAITING && !is_finite.is_ready()? {
                break;
            }
            self.read()?;
        }
        Ok(())
    }

    /// Waits for all remaining results. You should call it after the last step, because otherwise the states of the
    /// last few steps are not checked.
    ///
    /// # Errors
    /// Returns an error if a state was not finite.
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
        const MAX_LISTED: usize = 5;
        let unlisted = odd.len().saturating_sub(MAX_LISTED);
        let more = if unlisted > 0 { format!(" and {unlisted} more") } else { String::new() };
        let verb = if odd.len() == 1 { "is" } else { "are" };
        let message = format!("after step {step} {}{more} {verb} not finite", odd[..odd.len() - unlisted].join(", "));
        Err(Error::new(ErrorKind::FloatingPoint, message).help(
            "go back to the last checkpoint with a smaller learning rate or clipped gradients; \
             `config::set_debug_nans(true)` finds the operation",
        ))
    }
}

/// The maximal number of steps whose results are not read yet.
const MAX_WAITING: usize = 64;

/// Returns a boolean for each of these arrays that is true if the array is finite.
fn all_finite(arrays: Vec<Array>) -> Array {
    let finite: Vec<Array> = arrays.iter().map(|x| x.isfinite().all(..).reshape([1])).collect();
    lax::concatenate(&finite, 0)
}
