//! Writes programs with symbolic sizes for known sizes. Types of results follow from the types of operands, operations
//! that take sizes as operands become operations with attributes, and each function is written once for each set of
//! sizes that it is called with. This happens here because the plugin's C API cannot compile symbolic sizes, and has no
//! function to refine them.

use std::rc::Rc;

use super::super::attribute::DYNAMIC;
use super::known::{Known, known};
use super::*;
use crate::stack::grow;

/// The largest depth of nested calls.
const MAX_CALL_DEPTH: usize = 200;

/// The key of a specialization: the name of the function, and the types and concrete values of its arguments.
type Called = (String, Vec<(usize, Option<Rc<[i64]>>)>);

/// The functions of a program, and the specializations that are written.
pub(super) struct Specialized<'a> {
    shapes: Vec<Vec<i64>>,
    functions: HashMap<&'a str, (Rc<Operation<'a>>, Bytes<'a>)>,
    /// The name and the results of each specialization.
    written: HashMap<Called, (String, Vec<Value>)>,
    text: String,
    depth: usize,
}

impl Specialized<'_> {
    /// Starts with a `main` for arrays of these shapes.
    pub fn of(shapes: &[Vec<i64>]) -> Self {
        Specialized {
            shapes: shapes.to_vec(),
            functions: HashMap::new(),
            written: HashMap::new(),
            text: String::new(),
            depth: 0,
        }
    }
}

/// An operation's name without its version.
pub(super) fn called<'a>(op: &Operation<'a>) -> &'a str {
    op.name.rsplit_once("_v").map_or(op.name, |(name, _)| name)
}

pub(super) fn unread(op: &Operation) -> crate::error::Error {
    err!(NotImplemented, "the program has {}.{} of symbolic sizes, which is not read", op.dialect, called(op))
        .help("export the function for the sizes that are called, without `symbolic_shape`")
}

impl<'a> Writer<'a> {
    fn symbolic(&mut self) -> Result<&mut Specialized<'a>> {
        self.symbolic.as_mut().ok_or_else(|| damaged("its program has no symbolic sizes"))
    }

    /// The type of an argument of `main` whose declared type is `of`.
    pub(super) fn main_type(&self, input: usize, of: usize) -> Result<usize> {
        let Some(symbolic) = self.symbolic.as_ref().filter(|_| self.dictionary.is_symbolic(of)) else { return Ok(of) };
        let (said, element) = self.dictionary.tensor_type(of)?;
        let shape = at(&symbolic.shapes, input)?;
        let fits = said.len() == shape.len() && said.iter().zip(shape).all(|(a, b)| a == b || *a == DYNAMIC);
        if fits {
            Ok(self.dictionary.refined(shape.clone(), element))
        } else {
            Err(damaged(format!("its program takes {said:?}, and is called with {shape:?}")))
        }
    }

    /// Stores a function until it is called.
    pub(super) fn remember(&mut self, r: &mut Bytes<'a>, op: Operation<'a>) -> Result<()> {
        let Some((_, Attribute::Text(name))) = op.named.get(3) else {
            return Err(damaged("its program has a function without a type"));
        };
        let (name, body) = (*name, *r);
        if op.isolated && self.dictionary.code.version < SECTIONS {
            return Err(unread(&op));
        }
        if op.isolated {
            r.section(r.0.len())?;
        }
        self.symbolic()?.functions.insert(name, (Rc::new(op), body));
        Ok(())
    }

    /// Writes `main` and the functions that it calls.
    pub(super) fn write_symbolic(&mut self) -> Result<()> {
        if self.symbolic.is_some() {
            self.specialized("main", &[])?;
            let text = take(&mut self.symbolic()?.text);
            self.module.text.push_str(&text);
        }
        Ok(())
    }

    /// Returns the name and the results of the function's specialization for these arguments.
    fn specialized(&mut self, name: &str, args: &[Value]) -> Result<(String, Vec<Value>)> {
        let key = (name.to_owned(), args.iter().map(|value| (value.of, value.known.values.clone())).collect());
        let symbolic = self.symbolic()?;
        if let Some(written) = symbolic.written.get(&key) {
            return Ok(written.clone());
        }
        let function = symbolic.functions.get(name).cloned();
        let (op, mut body) = function.ok_or_else(|| damaged(format!("its program has no function {name}")))?;
        symbolic.depth += 1;
        if symbolic.depth > MAX_CALL_DEPTH {
            return Err(damaged(format!("its functions call each other more than {MAX_CALL_DEPTH} deep")));
        }
        let new = if name == "main" {
            name.to_owned()
        } else {
            format!("{}.{}", symbol(name).trim_start_matches('@'), symbolic.written.len())
        };
        // Reserves the name, so that functions inside this one get other numbers.
        symbolic.written.insert((format!("{new}."), Vec::new()), (String::new(), Vec::new()));
        let args: Vec<Value> = args
            .iter()
            .map(|value| Value { known: Known { sum: None, ..value.known.clone() }, ..value.clone() })
            .collect();
        let (text, names) = (take(&mut self.module.text), self.names);
        grow(|| self.function(&mut body, &op, Some((&new, &args))))?;
        let written = replace(&mut self.module.text, text);
        self.names = names;
        let specialization = (new, take(&mut self.returned));
        let symbolic = self.symbolic()?;
        symbolic.depth -= 1;
        symbolic.text.push_str(&written);
        symbolic.written.insert(key, specialization.clone());
        Ok(specialization)
    }

    /// Replaces symbolic sizes of an operation with known ones, and returns the known values of its results. Returns
    /// `None` if nothing remains to be written.
    pub(super) fn refine(&mut self, op: &mut Operation<'a>, indent: usize) -> Result<Option<Vec<Known>>> {
        // Each operation with shape operands becomes the operation that has attributes instead.
        match called(op) {
            "call" => return self.call(op, "callee").map(Some),
            "composite" => return self.call(op, "decomposition").map(Some),
            "custom_call" => match self.dictionary.attribute_named(&op.named, "call_target_name")? {
                Attribute::Text("shape_assertion") => return self.asserted(op).map(|()| None),
                Attribute::Text("stablehlo.dynamic_reduce_window") => {
                    return self.reduce_window(op, indent).map(|()| None);
                }
                Attribute::Text("stablehlo.dynamic_top_k") => {
                    let k = self.sizes(op, 1)?.first().copied().unwrap_or_default();
                    op.attributes.clear();
                    op.name = "top_k_v1";
                    op.named = vec![("k", Attribute::Count(k))];
                    op.operands.truncate(1);
                    let mut shape = self.shape(op, 0)?;
                    if let Some(last) = shape.last_mut() {
                        *last = k;
                    }
                    self.give(op, vec![shape.clone(), shape])?;
                }
                Attribute::Text("stablehlo.dynamic_rng_bit_generator") => {
                    let algorithm = op.attributes.iter().find(|(name, _)| *name == "rng_algorithm");
                    let (_, algorithm) = algorithm.ok_or_else(|| damaged("its program has random bits of no kind"))?;
                    let shapes = vec![self.shape(op, 0)?, self.sizes(op, 1)?];
                    op.named = vec![("rng_algorithm", self.dictionary.attribute(*algorithm)?)];
                    op.attributes.clear();
                    op.name = "rng_bit_generator_v1";
                    op.operands.truncate(1);
                    self.give(op, shapes)?;
                }
                _ => self.shape_operands(op)?,
            },
            "dynamic_reshape" => self.becomes(op, "reshape_v1", 1, Vec::new())?,
            "dynamic_iota" => {
                let shape = self.sizes(op, 0)?;
                op.operands.clear();
                op.name = "iota_v1";
                self.give(op, vec![shape])?;
            }
            "dynamic_broadcast_in_dim" => {
                let named = op.named.iter().filter(|(name, _)| *name == "broadcast_dimensions").cloned().collect();
                self.becomes(op, "broadcast_in_dim_v1", 1, named)?;
            }
            "dynamic_pad" => {
                let names = ["edge_padding_low", "edge_padding_high", "interior_padding"];
                let named = names.iter().enumerate().map(|(i, name)| Ok((*name, numbers(self.sizes(op, 2 + i)?))));
                op.named = named.collect::<Result<_>>()?;
                op.operands.truncate(2);
                op.name = "pad_v1";
            }
            "real_dynamic_slice" => self.slice(op, indent)?,
            "dynamic_gather" => {
                op.named.push(("slice_sizes", numbers(self.sizes(op, 2)?)));
                op.operands.truncate(2);
                op.name = "gather_v2";
            }
            "dynamic_conv" => {
                let padding = self.sizes(op, 2)?;
                op.named.push(("padding", Attribute::Numbers(vec![(padding.len() / 2) as i64, 2], padding)));
                op.operands.truncate(2);
                op.name = "convolution_v1";
            }
            _ => {}
        }
        if op.results.iter().any(|&of| self.dictionary.is_symbolic(of)) && !matches!(called(op), "case" | "if") {
            let shapes = self.inferred(op)?;
            self.give(op, shapes)?;
        }
        Ok(Some(vec![known(&self.dictionary, op)]))
    }

    pub(super) fn shape(&self, op: &Operation, operand: usize) -> Result<Vec<i64>> {
        Ok(self.dictionary.tensor_type(at(&op.operands, operand)?.of)?.0)
    }

    /// The values of an operand that contains sizes.
    fn sizes(&self, op: &Operation, operand: usize) -> Result<Vec<i64>> {
        let values = at(&op.operands, operand)?.known.values.as_deref().map(<[i64]>::to_vec);
        values.ok_or_else(|| {
            err!(NotImplemented, "the sizes of {} depend on more than the sizes of arguments", called(op))
                .help("export the function for the sizes that are called, without `symbolic_shape`")
        })
    }

    /// The integers of an attribute.
    pub(super) fn numbers(&self, op: &Operation<'a>, name: &str) -> Result<Vec<i64>> {
        match self.dictionary.attribute_named(&op.named, name)? {
            Attribute::Numbers(_, values) => Ok(values.clone()),
            Attribute::Tensor(of, bytes) => self.dictionary.integers(*of, bytes),
            Attribute::Int(_, value) => Ok(vec![*value]),
            other => Err(damaged(format!("its program has {other:?} for {name}"))),
        }
    }

    /// An attribute of dimensions.
    pub(super) fn dims(&self, op: &Operation<'a>, name: &str) -> Result<Vec<usize>> {
        self.numbers(op, name)?.into_iter().map(|dim| usize::try_from(dim).map_err(damaged)).collect()
    }

    pub(super) fn number(&self, op: &Operation<'a>, name: &str) -> Result<usize> {
        Ok(*at(&self.dims(op, name)?, 0)?)
    }

    /// Turns the operation into the operation of this name, without the last operand, which contains the result's
    /// shape.
    fn becomes(&self, op: &mut Operation<'a>, name: &'a str, shape: usize, named: Named<'a>) -> Result<()> {
        let sizes = self.sizes(op, shape)?;
        op.operands.truncate(shape);
        (op.name, op.named) = (name, named);
        self.give(op, vec![sizes])
    }

    /// Sets the shapes of the results.
    fn give(&self, op: &mut Operation<'a>, shapes: Vec<Vec<i64>>) -> Result<()> {
        if shapes.len() != op.results.len() {
            return Err(damaged(format!("its program has {} results of {}", op.results.len(), called(op))));
        }
        for (of, shape) in op.results.iter_mut().zip(shapes) {
            let Ok((expected, element)) = self.dictionary.tensor_type(*of) else { continue };
            let fits =
                expected.len() == shape.len() && expected.iter().zip(&shape).all(|(a, b)| a == b || *a == DYNAMIC);
            if !fits || shape.iter().any(|size| *size < 0) {
                return Err(damaged(format!("its program has {} of shape {shape:?}, for {expected:?}", called(op))));
            }
            *of = self.dictionary.refined(shape, element);
        }
        Ok(())
    }

    fn call(&mut self, op: &mut Operation<'a>, attribute: &str) -> Result<Vec<Known>> {
        let Attribute::Text(name) = self.dictionary.attribute_named(&op.named, attribute)? else {
            return Err(damaged("its program calls what is not a function"));
        };
        let (name, results) = self.specialized(name, &op.operands)?;
        if results.len() != op.results.len() {
            return Err(damaged(format!("its program takes {} results of {name}", op.results.len())));
        }
        op.name = "call_v1";
        op.attributes.clear();
        op.named = vec![("callee", Attribute::Function(name))];
        op.results = results.iter().map(|value| value.of).collect();
        Ok(results.into_iter().map(|value| Known { sum: None, ..value.known }).collect())
    }

    /// Checks the conditions on the sizes, as JAX does when it calls the function.
    fn asserted(&self, op: &Operation) -> Result<()> {
        if self.sizes(op, 0)?.first() != Some(&0) {
            return Ok(());
        }
        let attribute = op.attributes.iter().find(|(name, _)| *name == "error_message");
        let mut message = match attribute.map(|(_, value)| self.dictionary.attribute(*value)).transpose()? {
            Some(Attribute::Text(message)) => message.to_owned(),
            _ => "the sizes of the arguments do not fit".to_owned(),
        };
        for number in 1..op.operands.len() {
            let value = self.sizes(op, number)?.first().map(i64::to_string).unwrap_or_default();
            message = message.replace(&format!("{{{}}}", number - 1), &value);
        }
        let message = message.split(". Please see ").next().unwrap_or_default().trim_end_matches([',', ' ']);
        Err(err!(Value, "{message}").help("call it with arrays of sizes that fit, or export it for others"))
    }

    /// Writes a slice of known size. Its start can be a traced value.
    fn slice(&mut self, op: &mut Operation<'a>, indent: usize) -> Result<()> {
        let strides = self.sizes(op, 3)?;
        let [_, begin, end, _] = op.operands.as_slice() else { return Err(unread(op)) };
        if let (Some(begin), Some(end)) = (begin.known.values.clone(), end.known.values.clone()) {
            op.named = vec![
                ("limit_indices", numbers(end.to_vec())),
                ("start_indices", numbers(begin.to_vec())),
                ("strides", numbers(strides)),
            ];
            op.operands.truncate(1);
            op.name = "slice_v1";
            return Ok(());
        }
        // The end is the start plus a known size, so the slice is a dynamic one with this size.
        let size = match &end.known.sum {
            Some((name, size)) if *name == begin.name && strides.iter().all(|stride| *stride == 1) => size.to_vec(),
            _ => return Err(unread(op)),
        };
        // One number for each dimension.
        let (_, element) = self.dictionary.tensor_type(begin.of)?;
        let (all, name, start) =
            (self.dictionary.type_text(begin.of)?, begin.name.clone(), self.dictionary.refined(Vec::new(), element));
        let element = self.dictionary.type_text(element)?;
        op.operands.truncate(1);
        for dim in 0..size.len() {
            let (part, number) = (self.names, self.names + 1);
            self.names += 2;
            let range = format!(
                "limit_indices = array<i64: {}>, start_indices = array<i64: {dim}>, strides = array<i64: 1>",
                dim + 1
            );
            self.line(
                indent,
                &format!("%{part} = \"stablehlo.slice\"({name}) <{{{range}}}> : ({all}) -> tensor<1x{element}>"),
            )?;
            let types = format!("(tensor<1x{element}>) -> tensor<{element}>");
            self.line(indent, &format!("%{number} = \"stablehlo.reshape\"(%{part}) : {types}"))?;
            op.operands.push(Value::new(format!("%{number}"), start));
        }
        op.name = "dynamic_slice_v1";
        op.named = vec![("slice_sizes", numbers(size.clone()))];
        self.give(op, vec![size])
    }

    /// Refines a custom call whose last operands specify the shapes of its results.
    fn shape_operands(&self, op: &mut Operation<'a>) -> Result<()> {
        let Some(place) = op.attributes.iter().position(|(name, _)| *name == "indices_of_shape_operands") else {
            return Ok(());
        };
        let Attribute::Tensor(of, bytes) = self.dictionary.attribute(op.attributes[place].1)? else {
            return Err(unread(op));
        };
        let indices = self.dictionary.integers(of, bytes)?;
        let first_shape_operand =
            usize::try_from(indices.iter().copied().min().unwrap_or_default()).map_err(damaged)?;
        let shapes = indices.iter().map(|&index| self.sizes(op, usize::try_from(index).map_err(damaged)?));
        let shapes = shapes.collect::<Result<Vec<_>>>()?;
        op.attributes.remove(place);
        op.operands.truncate(first_shape_operand);
        for (name, attribute) in &mut op.named {
            if let ("operand_layouts", Attribute::Array(all)) = (*name, attribute) {
                all.truncate(first_shape_operand);
            }
        }
        self.give(op, shapes)
    }

    /// Writes a window reduction whose window sizes are operands, and whose reducer is another function of the program.
    fn reduce_window(&mut self, op: &mut Operation<'a>, indent: usize) -> Result<()> {
        let Some(inputs) = op.operands.len().checked_sub(5).map(|all| all / 2).filter(|inputs| *inputs > 0) else {
            return Err(unread(op));
        };
        let names = ["window_dimensions", "window_strides", "base_dilations", "window_dilations"];
        let sizes = names.iter().enumerate().map(|(i, name)| Ok((*name, numbers(self.sizes(op, 2 * inputs + i)?))));
        // The operands are the inputs, their initial values, and five shape operands.
        let mut named: Named<'a> = sizes.collect::<Result<_>>()?;
        let padding = self.sizes(op, 2 * inputs + 4)?;
        named.push(("padding", Attribute::Numbers(vec![(padding.len() / 2) as i64, 2], padding)));
        let reducer = match self.dictionary.attribute_named(&op.named, "called_computations")? {
            Attribute::Array(all) if all.len() == 1 => self.dictionary.string(all[0])?,
            _ => return Err(unread(op)),
        };
        op.named = named;
        op.name = "reduce_window_v1";
        op.attributes.clear();
        op.operands.truncate(2 * inputs);
        let shapes = self.inferred(op)?;
        self.give(op, shapes)?;
        // The reducer is a function of the program; the region calls its specialization for scalars.
        let (name, begin) = self.results_name(op);
        let scalars: Vec<usize> = op.operands[inputs..].iter().map(|value| value.of).collect();
        let args: Vec<Value> =
            (0..2 * inputs).map(|i| Value::new(format!("%window{i}"), scalars[i % inputs])).collect();
        let (function, results) = self.specialized(reducer, &args)?;
        let operands: Vec<_> = op.operands.iter().map(|value| value.name.as_str()).collect();
        let attributes = braces("<{", &self.dictionary.attributes(op.name, &op.named)?, "}>");
        self.line(indent, &format!("{begin}\"stablehlo.reduce_window\"({}){attributes} ({{", operands.join(", ")))?;
        let types = self.types(args.iter().map(|value| value.of))?;
        let arguments: Vec<_> = args.iter().zip(&types).map(|(value, of)| format!("{}: {of}", value.name)).collect();
        self.line(indent, &format!("^bb0({}):", arguments.join(", ")))?;
        let call = Operation {
            results: results.iter().map(|value| value.of).collect(),
            operands: Vec::new(),
            named: Vec::new(),
            attributes: Vec::new(),
            ..op.clone()
        };
        let (result, before) = self.results_name(&call);
        let names: Vec<_> = args.iter().map(|value| value.name.as_str()).collect();
        let gives = self.result_types(&call)?;
        let types = types.join(", ");
        self.line(indent + 2, &format!("{before}func.call @{function}({}) : ({types}) -> {gives}", names.join(", ")))?;
        let outs = self.types(call.results.iter().copied())?.join(", ");
        self.line(indent + 2, &format!("\"stablehlo.return\"({}) : ({outs}) -> ()", all_of(&result, results.len())))?;
        let takes = self.types(op.operands.iter().map(|value| value.of))?.join(", ");
        let gives = self.result_types(op)?;
        self.line(indent, &format!("}}) : ({takes}) -> {gives}"))?;
        self.define_results(op, &name, Vec::new())
    }
}

/// Numbers as an attribute.
fn numbers<'a>(values: Vec<i64>) -> Attribute<'a> {
    Attribute::Numbers(vec![values.len() as i64], values)
}

/// The results of an operation, as operands.
fn all_of(name: &str, count: usize) -> String {
    match count {
        1 => name.to_owned(),
        many => (0..many).map(|i| format!("{name}#{i}")).collect::<Vec<_>>().join(", "),
    }
}
