//! The text of a tree's structure.

use std::fmt;

use super::structure::{Node, Token, TreeDef};

/// Writes the structure with `*` for each leaf, similarly to JAX: `({"b": *, "w": *}, [*, *])`.
///
/// ```
/// # use shardax::prelude::*;
/// let structure = tree::structure(&(ones(2), vec![ones(3), ones(4)], Some(1)));
/// assert_eq!(structure.to_string(), "(*, [*, *], 1)");
/// # Ok::<(), shardax::Error>(())
/// ```
impl fmt::Display for TreeDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The nodes around a token, each with the number of children that are written. Trees can be deeper than the stack.
        let mut around: Vec<(&Node, usize)> = Vec::new();
        for token in self.tokens() {
            if let Some((node, written)) = around.last_mut() {
                if *written > 0 {
                    f.write_str(", ")?;
                }
                match node {
                    Node::Map(keys) => write!(f, "{:?}: ", keys[*written])?,
                    Node::Struct { fields, .. } => write!(f, "{}: ", fields[*written])?,
                    _ => {}
                }
                *written += 1;
            }
            match token {
                Token::Leaf => f.write_str("*")?,
                Token::Number(value, _) => write!(f, "{value:?}")?,
                Token::Static(value) => write!(f, "{value:?}")?,
                Token::Node(node) => {
                    match node {
                        Node::Tuple(_) => f.write_str("(")?,
                        Node::List(_) => f.write_str("[")?,
                        Node::Map(_) => f.write_str("{")?,
                        Node::Struct { name, fields: [] } => f.write_str(name)?,
                        Node::Struct { name, .. } => write!(f, "{name} {{ ")?,
                        Node::None => f.write_str("None")?,
                        Node::Some | Node::Metadata(_) => {}
                    }
                    around.push((node, 0));
                }
            }
            while let Some((node, written)) = around.last()
                && *written == node.arity()
            {
                f.write_str(match node {
                    Node::Tuple(1) => ",)",
                    Node::Tuple(_) => ")",
                    Node::List(_) => "]",
                    Node::Map(_) => "}",
                    Node::Struct { fields: [], .. } | Node::None | Node::Some | Node::Metadata(_) => "",
                    Node::Struct { .. } => " }",
                })?;
                around.pop();
            }
        }
        Ok(())
    }
}
