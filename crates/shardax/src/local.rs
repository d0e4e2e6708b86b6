//! Thread locals that last as long as their thread.
//!
//! A local with a destructor is gone while the thread's later destructors run, and to touch it then is a panic in a place
//! where a panic ends the process. A user's own local may compute when it is dropped, so these have no destructor: instead
//! their memory is given back whenever they are empty.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::thread::LocalKey;

/// A stack of what is in effect on this thread.
pub(crate) struct Stack<T>(ManuallyDrop<RefCell<Vec<T>>>);

impl<T> Stack<T> {
    pub(crate) const fn new() -> Self {
        Stack(ManuallyDrop::new(RefCell::new(Vec::new())))
    }
}

/// As of a `RefCell`.
pub(crate) trait StackKey<T: 'static> {
    fn with_borrow<R>(&'static self, f: impl FnOnce(&Vec<T>) -> R) -> R;
    fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut Vec<T>) -> R) -> R;
}

impl<T: 'static> StackKey<T> for LocalKey<Stack<T>> {
    #[inline]
    fn with_borrow<R>(&'static self, f: impl FnOnce(&Vec<T>) -> R) -> R {
        self.with(|stack| f(&stack.0.borrow()))
    }

    #[inline]
    fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut Vec<T>) -> R) -> R {
        self.with(|stack| {
            let mut stack = stack.0.borrow_mut();
            let result = f(&mut stack);
            if stack.is_empty() {
                *stack = Vec::new();
            }
            result
        })
    }
}
