//! Thread locals that last to the very end of their thread.
//!
//! A thread local with a destructor is gone while the thread's later destructors run. Accessing it then panics at a
//! point where a panic aborts the process. A user's own thread local may compute when it is dropped, so the thread
//! locals here have no destructor; instead their memory is freed whenever they are empty.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
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

/// Any other thread-wide value. Whoever puts something with heap memory into it must take it out again.
pub(crate) struct Lasting<T>(ManuallyDrop<RefCell<T>>);

impl<T> Lasting<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lasting(ManuallyDrop::new(RefCell::new(value)))
    }
}

impl<T: Default> Default for Lasting<T> {
    fn default() -> Self {
        Lasting::new(T::default())
    }
}

/// Methods like those of a `RefCell`.
pub(crate) trait LastingKey<T: 'static> {
    fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R;
    fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R;
}

impl<T: 'static> LastingKey<T> for LocalKey<Lasting<T>> {
    #[inline]
    fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.with(|value| f(&value.0.borrow()))
    }

    #[inline]
    fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        self.with(|value| f(&mut value.0.borrow_mut()))
    }
}

/// Values that guards set for their thread. The value of the last guard applies, whatever the order in which guards are
/// dropped.
pub(crate) struct Guarded<T> {
    /// The values of the existing guards, with the number of each guard.
    values: Stack<(u64, T)>,
    next: Cell<u64>,
}

impl<T> Guarded<T> {
    pub(crate) const fn new() -> Self {
        Guarded { values: Stack::new(), next: Cell::new(0) }
    }
}

/// Removes its value when dropped.
pub(crate) struct Guard<T: 'static> {
    of: &'static LocalKey<Guarded<T>>,
    number: u64,
    // Guards belong to the thread that created them.
    not_send: PhantomData<*const ()>,
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        self.of.with(|all| {
            let mut values = all.values.0.borrow_mut();
            values.retain(|(number, _)| *number != self.number);
            if values.is_empty() {
                *values = Vec::new();
            }
        });
    }
}

pub(crate) trait GuardedKey<T: 'static> {
    /// Sets the value until the guard is dropped.
    fn guard(&'static self, value: T) -> Guard<T>;

    /// Calls `f` with the current value.
    fn with_last<R>(&'static self, f: impl FnOnce(Option<&T>) -> R) -> R;
}

impl<T> GuardedKey<T> for LocalKey<Guarded<T>> {
    fn guard(&'static self, value: T) -> Guard<T> {
        let number = self.with(|all| {
            let number = all.next.replace(all.next.get() + 1);
            all.values.0.borrow_mut().push((number, value));
            number
        });
        Guard { of: self, number, not_send: PhantomData }
    }

    #[inline]
    fn with_last<R>(&'static self, f: impl FnOnce(Option<&T>) -> R) -> R {
        self.with(|all| f(all.values.0.borrow().last().map(|(_, value)| value)))
    }
}
