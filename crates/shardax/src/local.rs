//! Thread locals that last to the very end of their thread.
//!
//! A thread local with a destructor is gone while the thread's later destructors run; accessing it then is a panic at a
//! point where a panic aborts the process. A user's own thread local may compute when it is dropped, so these have no
//! destructor: instead their memory is freed whenever they are empty.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::thread::LocalKey;

/// A stack of thread-wide settings.
pub(crate) struct Stack<T>(ManuallyDrop<RefCell<Vec<T>>>);

impl<T> Stack<T> {
    pub(crate) const fn new() -> Self {
        Stack(ManuallyDrop::new(RefCell::new(Vec::new())))
    }
}

/// Methods like those of a `RefCell`.
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
