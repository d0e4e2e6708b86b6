//! Thread locals that last to the very end of their thread.
//!
//! A thread local with a destructor is gone while the thread's later destructors run. Accessing it then panics at a
//! point where a panic aborts the process. A user's own thread local can compute when it is dropped, so the thread
//! locals here have no destructor; instead their memory is freed whenever they are empty.

use std::cell::{Cell, RefCell};
use std::fmt;
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

/// Methods of a stack. The first two are like the methods of a `RefCell`.
pub(crate) trait StackKey<T: 'static> {
    fn with_borrow<R>(&'static self, f: impl FnOnce(&Vec<T>) -> R) -> R;
    fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut Vec<T>) -> R) -> R;

    /// Runs `f` with these values on top of the stack. They are removed even if `f` panics.
    fn with_pushed<R>(&'static self, values: impl IntoIterator<Item = T>, f: impl FnOnce() -> R) -> R;
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

    fn with_pushed<R>(&'static self, values: impl IntoIterator<Item = T>, f: impl FnOnce() -> R) -> R {
        /// Truncates the stack to its former length.
        struct Restore<T: 'static>(&'static LocalKey<Stack<T>>, usize);
        impl<T> Drop for Restore<T> {
            fn drop(&mut self) {
                self.0.with_borrow_mut(|stack| stack.truncate(self.1));
            }
        }
        let _restore = self.with_borrow_mut(|stack| {
            let depth = stack.len();
            stack.extend(values);
            Restore(self, depth)
        });
        f()
    }
}

/// Restores the former value of a cell when dropped.
#[must_use = "the value holds only while the guard lives"]
pub(crate) struct Restore<T: Copy + 'static> {
    cell: &'static LocalKey<Cell<T>>,
    before: T,
}

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        self.cell.set(self.before);
    }
}

/// A method of cells whose guards are dropped in the reverse order of their creation. For guards that users can drop in
/// any order, use [`Guarded`].
pub(crate) trait CellKey<T: Copy + 'static> {
    /// Sets the value until the guard is dropped.
    fn guard(&'static self, value: T) -> Restore<T>;
}

impl<T: Copy> CellKey<T> for LocalKey<Cell<T>> {
    #[inline]
    fn guard(&'static self, value: T) -> Restore<T> {
        Restore { cell: self, before: self.replace(value) }
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

/// The methods of a `RefCell`, for thread locals.
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
    key: &'static LocalKey<Guarded<T>>,
    number: u64,
    // Guards belong to the thread that created them.
    not_send: PhantomData<*const ()>,
}

impl<T> fmt::Debug for Guard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        self.key.with(|all| {
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

    /// Returns the first result of `f` for the values of the existing guards, from the last one.
    fn find_last<R>(&'static self, f: impl FnMut(&T) -> Option<R>) -> Option<R>;
}

impl<T> GuardedKey<T> for LocalKey<Guarded<T>> {
    fn guard(&'static self, value: T) -> Guard<T> {
        let number = self.with(|all| {
            let number = all.next.replace(all.next.get() + 1);
            all.values.0.borrow_mut().push((number, value));
            number
        });
        Guard { key: self, number, not_send: PhantomData }
    }

    #[inline]
    fn with_last<R>(&'static self, f: impl FnOnce(Option<&T>) -> R) -> R {
        self.with(|all| f(all.values.0.borrow().last().map(|(_, value)| value)))
    }

    #[inline]
    fn find_last<R>(&'static self, mut f: impl FnMut(&T) -> Option<R>) -> Option<R> {
        self.with(|all| all.values.0.borrow().iter().rev().find_map(|(_, value)| f(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static STACK: Stack<u32> = const { Stack::new() };
        static CELL: Cell<u32> = const { Cell::new(0) };
        static GUARDED: Guarded<u32> = const { Guarded::new() };
    }

    #[test]
    fn guarded_value_of_the_last_guard_applies_in_any_order_of_drops() {
        let (first, second, third) = (GUARDED.guard(1), GUARDED.guard(2), GUARDED.guard(3));
        drop(second);
        assert_eq!(GUARDED.with_last(|value| value.copied()), Some(3));
        drop(third);
        assert_eq!(GUARDED.with_last(|value| value.copied()), Some(1));
        assert_eq!(GUARDED.find_last(|value| (*value > 1).then_some(())), None);
        drop(first);
        assert_eq!(GUARDED.with_last(|value| value.copied()), None);
    }

    #[test]
    fn cells_and_stacks_are_restored_after_panics() {
        let panic = std::panic::catch_unwind(|| {
            let _restore = CELL.guard(7);
            STACK.with_pushed([1, 2], || {
                assert_eq!((CELL.get(), STACK.with_borrow(Vec::clone)), (7, vec![1, 2]));
                std::panic::resume_unwind(Box::new("of the test"))
            })
        });
        assert!(panic.is_err());
        assert_eq!((CELL.get(), STACK.with_borrow(Vec::clone)), (0, vec![]));
    }
}
