//! Options that are values of an enum or JAX's texts for them, such as `ConvolveMode::Same` or `"same"`.

use super::error::{Result, err};
use super::shape::interned;

/// An enum of options that have names in JAX.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an option with a name",
    label = "not an enum of options",
    note = "pass a value of the option's enum, such as `ConvolveMode::Same`, or its name in JAX, such as `\"same\"`"
)]
pub trait NamedOption: Clone + 'static {
    /// The noun for the option in errors, for example `mode`.
    const KIND: &'static str;
    /// All names with their values. Several names can have one value.
    const NAMES: &'static [(&'static str, Self)];
}

/// An option, or a text that names none. The function that uses it returns an error for such a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice<T> {
    /// An option.
    Value(T),
    /// A text that names no option.
    Unknown(&'static str),
}

impl<T: Default> Default for Choice<T> {
    fn default() -> Self {
        Choice::Value(T::default())
    }
}

impl<T: std::fmt::Debug> Choice<T> {
    /// The name of the option, or the text in quotes.
    pub(crate) fn described(self) -> String {
        match self {
            Choice::Value(value) => format!("{value:?}"),
            Choice::Unknown(text) => format!("{text:?}"),
        }
    }
}

impl<T: NamedOption> Choice<T> {
    /// Returns the option. `function` names the function in errors.
    ///
    /// # Errors
    /// Returns an error that lists all names for a text that is not one of them.
    pub fn value(self, function: &str) -> Result<T> {
        match self {
            Choice::Value(value) => Ok(value),
            Choice::Unknown(text) => {
                let names: Vec<String> = T::NAMES.iter().map(|(name, _)| format!("{name:?}")).collect();
                Err(err!(Value, "{function} got the unknown {} {text:?}", T::KIND)
                    .help(format!("the names are {}", names.join(", "))))
            }
        }
    }
}

/// Types accepted for an option: a value of its enum, or JAX's text for one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `{T}`",
    label = "expected `{T}`, or its name in JAX as text",
    note = "pass a value of the enum, such as `ConvolveMode::Same`, or its name in JAX, such as `\"same\"`"
)]
pub trait IntoChoice<T> {
    /// The option, or the text that names none.
    fn into_choice(self) -> Choice<T>;
}

impl<T: NamedOption> IntoChoice<T> for T {
    fn into_choice(self) -> Choice<T> {
        Choice::Value(self)
    }
}

impl<T> IntoChoice<T> for Choice<T> {
    fn into_choice(self) -> Choice<T> {
        self
    }
}

/// Types accepted for an option that can be absent: a value of its enum, JAX's text for one, or an [`Option`] of a value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `{T}`",
    label = "expected `{T}`, or its name in JAX as text",
    note = "pass a value of the enum, such as `Precision::Highest`, its name in JAX, such as `\"highest\"`, or `None` for the default"
)]
pub trait IntoOptionalChoice<T> {
    /// The option, the text that names none, or `None` if there is no option.
    fn into_optional_choice(self) -> Option<Choice<T>>;
}

impl<T: NamedOption> IntoOptionalChoice<T> for T {
    fn into_optional_choice(self) -> Option<Choice<T>> {
        Some(Choice::Value(self))
    }
}

impl<T> IntoOptionalChoice<T> for Choice<T> {
    fn into_optional_choice(self) -> Option<Choice<T>> {
        Some(self)
    }
}

impl<T: NamedOption> IntoOptionalChoice<T> for Option<T> {
    fn into_optional_choice(self) -> Option<Choice<T>> {
        self.map(Choice::Value)
    }
}

impl<T: NamedOption> IntoOptionalChoice<T> for &str {
    fn into_optional_choice(self) -> Option<Choice<T>> {
        Some(self.into_choice())
    }
}

impl<T: NamedOption> IntoOptionalChoice<T> for &String {
    fn into_optional_choice(self) -> Option<Choice<T>> {
        Some(self.as_str().into_choice())
    }
}

impl<T: NamedOption> IntoOptionalChoice<T> for String {
    fn into_optional_choice(self) -> Option<Choice<T>> {
        Some(self.as_str().into_choice())
    }
}

impl<T: NamedOption> IntoChoice<T> for &str {
    fn into_choice(self) -> Choice<T> {
        match T::NAMES.iter().find(|(name, _)| *name == self) {
            Some((_, value)) => Choice::Value(value.clone()),
            None => Choice::Unknown(interned(self)),
        }
    }
}

impl<T: NamedOption> IntoChoice<T> for &String {
    fn into_choice(self) -> Choice<T> {
        self.as_str().into_choice()
    }
}

impl<T: NamedOption> IntoChoice<T> for String {
    fn into_choice(self) -> Choice<T> {
        self.as_str().into_choice()
    }
}
