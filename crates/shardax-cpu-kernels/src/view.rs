//! Row-major arrays, and the error of shapes that do not fit.

use std::fmt;

use crate::Result;

/// A row-major array: its dimensions and its elements.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    shape: &'a [usize],
    data: &'a [T],
}

impl<'a, T> View<'a, T> {
    /// Views a slice as an array of these dimensions.
    ///
    /// # Errors
    /// Returns an error unless the slice has as many elements as the shape.
    pub fn new(shape: &'a [usize], data: &'a [T]) -> std::result::Result<Self, ShapeError> {
        let size = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if size == Some(data.len()) {
            Ok(View { shape, data })
        } else {
            Err(ShapeError(format!("{} elements for the shape {shape:?}", data.len())))
        }
    }

    /// The dimensions.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The elements, the last dimension varying fastest.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// The dimensions of an array of rank `N`.
    pub(crate) fn dims<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        self.shape
            .try_into()
            .map_err(|_| ShapeError(format!("{name} has {} dimensions, not {N}: {:?}", self.shape.len(), self.shape)))
    }
}

/// Operands or results whose shapes do not agree. The message names the dimension with both sizes, so that you can find
/// the operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeError(pub(crate) String);

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ShapeError {}

impl From<ShapeError> for String {
    fn from(error: ShapeError) -> Self {
        error.0
    }
}

impl From<ndarray::ShapeError> for ShapeError {
    fn from(error: ndarray::ShapeError) -> Self {
        ShapeError(error.to_string())
    }
}

/// Checks that two sizes are equal; `what` says of what they are.
pub(crate) fn check(what: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(ShapeError(format!("{what}: {found}, expected {expected}"))) }
}
