//! Rust numbers that are arguments themselves, in contrast to numbers in the fields of structs.

use super::TreeDef;
use super::structure::{Node, Token};
use crate::dtype::Scalar;
use crate::error::Result;

impl TreeDef {
    /// Marks each of the [`numbers`](TreeDef::numbers) that is outside of every struct. Numbers in structs are
    /// configuration, such as a learning rate.
    fn marks_of_plain_numbers(&self) -> Vec<bool> {
        let mut marks = Vec::new();
        // Tokens are in pre-order: the subtree of a struct ends when no child of it is missing.
        let mut missing_in_struct = 0;
        for token in self.tokens() {
            let is_inside = missing_in_struct > 0;
            if matches!(token, Token::Number(..)) {
                marks.push(!is_inside);
            }
            if is_inside {
                missing_in_struct = missing_in_struct - 1 + token.arity();
            } else if matches!(token, Token::Node(Node::Struct { .. })) {
                missing_in_struct = token.arity();
            }
        }
        marks
    }

    /// Returns the first number outside of every struct.
    pub(crate) fn plain_number(&self) -> Option<Scalar> {
        if !self.has_numbers() {
            return None;
        }
        let numbers = self.numbers().into_iter().zip(self.marks_of_plain_numbers());
        numbers.filter(|(_, is_plain)| *is_plain).map(|((_, number), _)| number).next()
    }

    /// Replaces the numbers outside of structs.
    ///
    /// # Errors
    /// Returns an error for a number that the type of the old one cannot hold.
    #[track_caller]
    pub(crate) fn map_plain_numbers(&self, f: impl Fn(Scalar) -> Scalar) -> Result<TreeDef> {
        let numbers = self.numbers().into_iter().zip(self.marks_of_plain_numbers());
        self.with_numbers(numbers.map(|((_, number), is_plain)| if is_plain { f(number) } else { number }))
    }
}
