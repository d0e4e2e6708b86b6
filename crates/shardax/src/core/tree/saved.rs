//! Tree structures as JSON, for exported functions.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::structure::{Metadata, Node, StaticValue, Token, TreeDef};
use crate::dtype::Scalar;
use crate::error::{Result, err};

/// Interns a text for the life of the process. It is used for names of types and fields, and a program has only a few of them.
fn intern(text: &str) -> &'static str {
    static INTERNED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    match interned.get(text) {
        Some(known) => known,
        None => {
            let leaked: &'static str = Box::leak(text.to_owned().into_boxed_str());
            interned.insert(leaked);
            leaked
        }
    }
}

fn intern_list(texts: Vec<&'static str>) -> &'static [&'static str] {
    static INTERNED: Mutex<BTreeSet<&'static [&'static str]>> = Mutex::new(BTreeSet::new());
    let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    match interned.get(texts.as_slice()) {
        Some(known) => known,
        None => {
            let leaked: &'static [&'static str] = Box::leak(texts.into_boxed_slice());
            interned.insert(leaked);
            leaked
        }
    }
}

fn number(value: &Scalar) -> Value {
    // A float is written as bits, because JSON has neither infinities nor NaN.
    match *value {
        Scalar::Bool(v) => json!({ "bool": v }),
        Scalar::Int(v) => json!({ "int": v.to_string() }),
        Scalar::Float(bits) => json!({ "float": bits }),
        Scalar::Complex(re, im) => json!({ "complex": [re, im] }),
    }
}

fn scalar(value: &Value) -> Option<Scalar> {
    let (kind, value) = value.as_object()?.iter().next()?;
    match kind.as_str() {
        "bool" => value.as_bool().map(Scalar::Bool),
        "int" => value.as_str()?.parse().ok().map(Scalar::Int),
        "float" => value.as_u64().map(Scalar::Float),
        "complex" => Some(Scalar::Complex(value.get(0)?.as_u64()?, value.get(1)?.as_u64()?)),
        _ => None,
    }
}

fn names(value: &Value) -> Option<Vec<&'static str>> {
    value.as_array()?.iter().map(|name| name.as_str().map(intern)).collect()
}

fn optional_names(value: &Value) -> Option<Vec<Option<&'static str>>> {
    value
        .as_array()?
        .iter()
        .map(|name| if name.is_null() { Some(None) } else { name.as_str().map(|n| Some(intern(n))) })
        .collect()
}

impl Token {
    fn to_json(&self) -> Value {
        match self {
            Token::Leaf => json!("array"),
            Token::Number(value, of) => json!({ "number": number(value), "of": of }),
            Token::Static(value) => json!({ "static": format!("{value:?}") }),
            Token::Node(Node::Tuple(n)) => json!({ "tuple": n }),
            Token::Node(Node::List(n)) => json!({ "list": n }),
            Token::Node(Node::Map(keys)) => json!({ "map": keys.to_vec() }),
            Token::Node(Node::Struct { name, fields }) => json!({ "struct": name, "fields": fields }),
            Token::Node(Node::Some) => json!("some"),
            Token::Node(Node::None) => json!("none"),
            Token::Node(Node::Metadata(Metadata::Kind(kind))) => json!({ "kind": kind }),
            Token::Node(Node::Metadata(Metadata::AxisNames(names))) => json!({ "axis_names": names.to_vec() }),
            Token::Node(Node::Metadata(Metadata::Stacked(name))) => json!({ "stacked": name }),
        }
    }

    /// Returns `None` for JSON that is not a token. A configuration value is looked up among `known` by its printed
    /// text.
    fn from_json(value: &Value, known: &[&StaticValue]) -> Option<Token> {
        if let Some(name) = value.as_str() {
            return match name {
                "array" => Some(Token::Leaf),
                "some" => Some(Token::Node(Node::Some)),
                "none" => Some(Token::Node(Node::None)),
                _ => None,
            };
        }
        let object = value.as_object()?;
        if let Some(name) = object.get("struct") {
            let fields = intern_list(names(object.get("fields")?)?);
            return Some(Token::Node(Node::Struct { name: intern(name.as_str()?), fields }));
        }
        if let Some(type_name) = object.get("of") {
            return Some(Token::Number(scalar(object.get("number")?)?, intern(type_name.as_str()?)));
        }
        let (kind, value) = object.iter().next()?;
        // The other tokens are objects with one entry, whose key is the kind of the token.
        Some(Token::Node(match kind.as_str() {
            "tuple" => Node::Tuple(usize::try_from(value.as_u64()?).ok()?),
            "list" => Node::List(usize::try_from(value.as_u64()?).ok()?),
            "map" => Node::Map(names(value)?.into_iter().map(str::to_owned).collect()),
            "kind" => Node::Metadata(Metadata::Kind(intern(value.as_str()?))),
            "axis_names" => Node::Metadata(Metadata::AxisNames(Arc::from(optional_names(value)?))),
            "stacked" => Node::Metadata(Metadata::Stacked(value.as_str().map(intern))),
            "static" => {
                let value = known.iter().find(|known| Some(format!("{known:?}").as_str()) == value.as_str())?;
                return Some(Token::Static((*value).clone()));
            }
            _ => return None,
        }))
    }
}

impl TreeDef {
    /// The structure as a list of its tokens in pre-order. Configuration values are written as their printed texts.
    pub(crate) fn to_json(&self) -> Value {
        self.tokens().map(Token::to_json).collect()
    }

    /// Reads the structure from such a list. Configuration values cannot be stored in a file, so they are looked up in
    /// `like` by their printed texts.
    pub(crate) fn from_json(value: &Value, like: &TreeDef) -> Result<TreeDef> {
        let static_values: Vec<&StaticValue> =
            like.tokens().filter_map(|t| if let Token::Static(value) = t { Some(value) } else { None }).collect();
        let mut def = TreeDef::default();
        for step in value.as_array().map(Vec::as_slice).unwrap_or_default() {
            def.push(Token::from_json(step, &static_values).ok_or_else(|| {
                match step.get("static") {
                    Some(text) => err!(
                        Type,
                        "the result holds the value {text}, which is not an array, and none of the arguments has it"
                    )
                    .help("return only arrays, or pass the value as an argument too"),
                    None => err!(Value, "{step} is not a step of a tree"),
                }
            })?);
        }
        // A tree is complete when each node has all its children: the count of missing subtrees is 0 only at the end.
        let mut missing = 1usize;
        for token in def.tokens() {
            let children = if let Token::Node(node) = token { node.arity() } else { 0 };
            missing =
                missing.checked_sub(1).ok_or_else(|| err!(Value, "the structure continues after its end"))? + children;
        }
        if missing > 0 {
            return Err(err!(Value, "{missing} steps of the structure are missing"));
        }
        Ok(def)
    }
}
