//! Conversion of panics to errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The message of a caught panic. The payload is dropped here, and a panic of its destructor is caught as well: it
/// would unwind into the plugin, which ends the process.
pub fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref().copied()).unwrap_or("no message").to_owned();
    if let Err(another) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(another); // its destructor may panic as well
    }
    text
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic_any(Bomb);
        }
    }

    /// The text of the panic of `f`.
    fn text(f: fn()) -> Result<(), String> {
        catch_unwind(f).map_err(panic_text)
    }

    #[test]
    fn a_payload_whose_drop_panics_is_caught() {
        assert_eq!(text(|| panic!("{} of {}", 1, 2)), Err("1 of 2".to_owned()));
        assert_eq!(text(|| panic!("one")), Err("one".to_owned()));
        assert_eq!(text(|| panic_any(Bomb)), Err("no message".to_owned()));
    }
}
