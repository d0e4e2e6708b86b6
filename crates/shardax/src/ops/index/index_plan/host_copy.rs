//! Indices of arrays in host memory: a short run of elements is copied, because a program takes twice as long to start.

use super::{Entry, Plan};
use crate::config;
use crate::core::array::{Array, Repr, transfer};
use crate::core::program::trace::runs_now;
use crate::sharding::device::chosen_device;
use crate::sharding::{Sharding, context};

/// The maximum number of bytes to copy. A program copies longer runs on several threads, and the caller does not wait.
const MAX_BYTES: usize = 1 << 16;

impl Plan {
    /// Returns the selected elements of `x`, copied by the host. `None` if they are not consecutive, if there are many,
    /// or if the host cannot read them without waiting.
    pub(super) fn copied_by_host(&self, x: &Array) -> Option<Array> {
        let Repr::Concrete(concrete) = &x.0 else { return None };
        let is_plain = matches!(concrete.sharding, Sharding::Single(_))
            && concrete.sharding.kind().is_none()
            && concrete.aval.sharding.is_none()
            && !context::is_explicit();
        if !is_plain || config::debugs_values().is_some() || chosen_device().is_some() || !runs_now(&[]) {
            return None;
        }
        let (first, shape) = (self.first_of_run(x.shape())?, self.result_shape());
        let width = x.dtype().byte_size();
        let bytes = shape.iter().product::<usize>() * width;
        let buffer = concrete.buffers.first().filter(|_| (1..=MAX_BYTES).contains(&bytes))?;
        // A failed or deleted array is left to the program, which reports the error.
        if !buffer.ready().ok()?.is_ready() {
            return None;
        }
        let view = buffer.view().ok()??;
        let run = view.get(first * width..first * width + bytes)?;
        let aval = concrete.aval.with_shape(shape.as_slice());
        transfer::array_from_host(run, aval, concrete.sharding.clone(), concrete.committed).ok()
    }

    /// Returns the position of the first selected element in row-major order, if the selected elements are consecutive.
    fn first_of_run(&self, shape: &[usize]) -> Option<usize> {
        let mut first = 0;
        // `true` after an axis with several selected entries. The elements are then consecutive only if all entries of the
        // following axes are selected.
        let mut must_be_entire = false;
        for entry in &self.entries {
            let (axis, start, len) = match *entry {
                Entry::Part { axis, part } if part.step == 1 => (axis, part.start, part.len),
                Entry::Fixed { axis, at } => (axis, at, 1),
                Entry::New => continue,
                Entry::Part { .. } | Entry::Places { .. } => return None,
            };
            if must_be_entire && len != shape[axis] {
                return None;
            }
            must_be_entire |= len > 1;
            first += start * shape[axis + 1..].iter().product::<usize>();
        }
        Some(first)
    }
}
