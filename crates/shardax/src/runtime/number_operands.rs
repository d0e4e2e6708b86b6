//! Plain numbers as operands of eager operations.
//!
//! `x * 2` sends the number to a device. Programs use the same few numbers again and again, and sending one takes as long
//! as a small operation, so the last array of each number is kept.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::core::array::{Array, Concrete, Literal, Repr};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::fast_hash::FastHasher;
use crate::sharding::Device;
use crate::sharding::device::uncommitted_device;
use crate::transfer_guard::{self, Direction};

/// A number on a device. Scalars are compared by their bits, so -0 is not 0, and a NaN equals itself.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    dtype: DType,
    weak: bool,
    value: Scalar,
    device: Device,
}

/// The number of kept arrays. A number replaces another one with the same position.
const SLOTS: usize = 64;

type Slot = Mutex<Option<(Key, Arc<Concrete>)>>;

// For all threads, because arrays of a thread that ends could outlive the client. Statics are not dropped.
static KEPT: [Slot; SLOTS] = [const { Mutex::new(None) }; SLOTS];

/// Returns the concrete array of an operand that no one deletes or donates. A plain number may share its array with
/// other operations.
pub(super) fn operand(array: &Array) -> Result<Arc<Concrete>> {
    let Repr::Literal(literal) = &array.0 else { return array.concrete() };
    literal.check_fits(literal.dtype)?;
    let Literal { value, dtype, weak } = *literal;
    let key = Key { dtype, weak, value, device: uncommitted_device()? };
    let mut hasher = FastHasher::default();
    key.hash(&mut hasher);
    let slot = &KEPT[hasher.finish() as usize % SLOTS];
    let sent_before = slot.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|(of, number)| {
        // Nobody has the array to delete it, except by the list of all buffers of a client.
        (*of == key && number.check_alive().is_ok()).then(|| number.clone())
    });
    if let Some(number) = sent_before {
        // The guard sees the operation that uses the number, whether or not it was sent before.
        transfer_guard::check(Direction::HostToDevice, false, &number.aval)?;
        return Ok(number);
    }
    let number = array.concrete()?;
    let replaced = slot.lock().unwrap_or_else(PoisonError::into_inner).replace((key, number.clone()));
    // Frees a buffer, so it is dropped after the lock is released.
    drop(replaced);
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(value: f64, dtype: DType, weak: bool) -> Array {
        Array::literal(Scalar::float(value), dtype, weak)
    }

    /// A number is sent once. Numbers that only look equal to it are others.
    #[test]
    fn numbers_are_sent_once() -> Result<()> {
        let x = float(1.625, DType::F32, true);
        let first = operand(&x)?;
        assert!(Arc::ptr_eq(&first, &operand(&float(1.625, DType::F32, true))?));
        for other in [float(1.625, DType::F32, false), float(1.625, DType::F64, true), float(-1.625, DType::F32, true)]
        {
            assert!(!Arc::ptr_eq(&first, &operand(&other)?));
        }
        let zero = operand(&float(0.0, DType::F32, true))?;
        assert!(!Arc::ptr_eq(&zero, &operand(&float(-0.0, DType::F32, true))?));
        let nan = operand(&float(f64::NAN, DType::F32, true))?;
        assert!(Arc::ptr_eq(&nan, &operand(&float(f64::NAN, DType::F32, true))?));
        Ok(())
    }

    #[test]
    fn numbers_that_do_not_fit_are_errors_each_time() {
        let wide = Array::literal(Scalar::Int(300), DType::U8, false);
        let narrow = Array::literal(Scalar::Int(44), DType::U8, false);
        assert!(operand(&wide).is_err() && operand(&narrow).is_ok() && operand(&wide).is_err());
    }

    /// An array whose memory is gone is not used again.
    #[test]
    fn deleted_numbers_are_sent_again() -> Result<()> {
        let x = float(2.718_281_75, DType::F32, true);
        let first = operand(&x)?;
        first.buffers[0].delete()?;
        let second = operand(&x)?;
        assert!(!Arc::ptr_eq(&first, &second) && second.check_alive().is_ok());
        Ok(())
    }
}
