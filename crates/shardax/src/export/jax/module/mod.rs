//! A portable artifact as text: VHLO operations become StableHLO operations in the generic form.

mod calls;
mod groups;
mod infer;
mod known;
mod refine;

use std::collections::HashMap;
use std::mem::{replace, take};

use known::Known;
use refine::Specialized;

use super::attribute::{Attribute, Dictionary, quoted, symbol};
use super::bytecode::{Bytecode, Bytes, NO_LOCATIONS, ORDERS, PROPERTIES, SECTIONS, at};
use super::damaged;
use super::operation::{Named, braces, foreign};
use crate::error::{Result, err};

/// The text of a module, and the signature of its `main`.
#[derive(Default)]
pub(super) struct Module {
    pub text: String,
    pub inputs: Vec<String>,
    pub results: Vec<String>,
    pub result_shapes: Vec<Vec<i64>>,
    /// The attributes of the arguments and results of `main`.
    pub takes: Vec<String>,
    pub gives: Vec<String>,
    /// The axes of the module's meshes; meshes without axes are left out.
    pub meshes: Vec<Vec<(String, usize)>>,
}

/// A value: its name and its type.
#[derive(Clone)]
struct Value {
    name: String,
    of: usize,
    known: Known,
}

impl Value {
    fn new(name: String, of: usize) -> Value {
        Value { name, of, known: Known::default() }
    }
}

/// The values of an isolated region and of the regions inside it, numbered after the values of the enclosing region.
#[derive(Default)]
struct Scope {
    values: Vec<Option<Value>>,
    next: Vec<usize>,
}

/// An operation without its regions.
#[derive(Clone)]
struct Operation<'a> {
    dialect: &'a str,
    name: &'a str,
    attributes: Vec<(&'a str, usize)>,
    named: Named<'a>,
    properties: Option<usize>,
    results: Vec<usize>,
    operands: Vec<Value>,
    regions: usize,
    isolated: bool,
}

/// Skips the use-list orders of values, because text does not need them.
fn skip_orders(r: &mut Bytes, values: usize) -> Result<()> {
    let count = if values > 1 { r.count()? } else { 1 };
    for _ in 0..count {
        if values > 1 {
            r.index()?;
        }
        for _ in 0..r.flagged()?.0 {
            r.index()?;
        }
    }
    Ok(())
}

struct Writer<'a> {
    dictionary: Dictionary<'a>,
    /// The number of arguments of `main`, including the platform's number if `main` takes it as an additional first
    /// argument.
    inputs: usize,
    /// Marks the inputs that are cotangents of integers; the caller does not pass them, and they are `false`.
    empty: Vec<bool>,
    platform: usize,
    scopes: Vec<Scope>,
    names: usize,
    module: Module,
    /// The functions of a program with symbolic sizes. They are written for the sizes that they are called with.
    symbolic: Option<Specialized<'a>>,
    /// The functions that replace calls of LAPACK, by call, with the operands that they take; and their text.
    routines: HashMap<String, (String, Vec<usize>)>,
    routine_text: String,
    /// The axes of its meshes by the meshes' names.
    mesh_axes: HashMap<&'a str, Vec<(String, usize)>>,
    /// Prefixes of shardings on meshes without axes, which mean one device.
    axisless: Vec<String>,
    /// The operands of the last `return`.
    returned: Vec<Value>,
}

impl Module {
    /// Returns the module of this bytecode for one platform, specified by number. `main` is called with arrays of these
    /// shapes, except for the `empty` ones, which are cotangents of integers.
    pub fn of(code: &Bytecode, shapes: &[Vec<i64>], empty: Vec<bool>, platform: usize) -> Result<Module> {
        let dictionary = Dictionary::of(code);
        let symbolic = dictionary.has_symbols().then(|| Specialized::of(shapes));
        let mut writer = Writer {
            dictionary,
            inputs: shapes.len(),
            empty,
            platform,
            scopes: vec![Scope::default()],
            names: 0,
            module: Module::default(),
            symbolic,
            routines: HashMap::new(),
            routine_text: String::new(),
            mesh_axes: HashMap::new(),
            axisless: Vec::new(),
            returned: Vec::new(),
        };
        // The outermost block contains only the module, and has no arguments.
        let mut r = code.ir;
        let (count, arguments) = r.flagged()?;
        if count != 1 || arguments {
            return Err(damaged("its program is not a module"));
        }
        writer.write_module(&mut r)?;
        Ok(writer.module)
    }
}

impl<'a> Writer<'a> {
    fn line(&mut self, indent: usize, text: &str) -> Result<()> {
        self.dictionary.spend(1 + text.len())?;
        self.module.text.extend(std::iter::repeat_n(' ', indent).chain(text.chars()));
        self.module.text.push('\n');
        Ok(())
    }

    fn scope(&mut self) -> Result<&mut Scope> {
        self.scopes.last_mut().ok_or_else(|| damaged("its program has values outside of functions"))
    }

    fn define(&mut self, value: Value) -> Result<()> {
        let scope = self.scope()?;
        let next_index = scope.next.last_mut().ok_or_else(|| damaged("its program has values outside of functions"))?;
        let slot =
            scope.values.get_mut(*next_index).ok_or_else(|| damaged("its program has more values than it says"))?;
        *slot = Some(value);
        *next_index += 1;
        Ok(())
    }

    fn value(&mut self, index: usize) -> Result<Value> {
        let value = at(&self.scope()?.values, index)?.clone();
        value.ok_or_else(|| damaged(format!("its program uses value {index} before it is made")))
    }

    fn types(&self, of: impl IntoIterator<Item = usize>) -> Result<Vec<String>> {
        of.into_iter().map(|one| self.dictionary.type_text(one)).collect()
    }

    /// Reads an operation up to its regions.
    fn operation(&mut self, r: &mut Bytes<'a>) -> Result<Operation<'a>> {
        // `present` has one bit for each part: attributes, results, operands, blocks, regions, orders of uses, properties.
        let &(dialect, name) = at(&self.dictionary.code.operations, r.index()?)?;
        let present = r.byte()?;
        // The location.
        r.index()?;
        if present & 8 != 0 {
            return Err(err!(NotImplemented, "the program has jumps between blocks, at {dialect}.{name}"));
        }
        let mut attributes = Vec::new();
        if present & 1 != 0 {
            match self.dictionary.attribute(r.index()?)? {
                Attribute::Dictionary(all) => {
                    for (key, value) in all {
                        attributes.push((self.dictionary.string(key)?, value));
                    }
                }
                _ => return Err(damaged("its program has invalid attributes")),
            }
        }
        let properties = if present & 0x40 != 0 { Some(r.index()?) } else { None };
        let named = match dialect {
            "builtin" => Vec::new(),
            _ if self.dictionary.code.version < PROPERTIES => self.dictionary.among(name, &mut attributes)?,
            _ => self.dictionary.named_properties(name, properties)?,
        };
        let results = if present & 2 != 0 { r.list(|r| r.index())? } else { Vec::new() };
        let operands = if present & 4 != 0 { r.list(|r| r.index())? } else { Vec::new() };
        let operands = operands.into_iter().map(|index| self.value(index)).collect::<Result<_>>()?;
        if present & 0x20 != 0 {
            skip_orders(r, results.len())?;
        }
        let (regions, isolated) = if present & 0x10 != 0 { r.flagged()? } else { (0, false) };
        Ok(Operation { dialect, name, attributes, named, properties, results, operands, regions, isolated })
    }

    /// Reads each region of an operation; a region has one block. `body` receives the region's number, the types of its
    /// arguments, the number of its operations and their bytes. The regions of an isolated operation are one section.
    fn regions(
        &mut self,
        r: &mut Bytes<'a>,
        op: &Operation<'a>,
        body: &mut dyn FnMut(&mut Self, usize, Vec<usize>, usize, &mut Bytes<'a>) -> Result<()>,
    ) -> Result<()> {
        // Values are numbered within a region and the regions around it, so each region drops its values at its end.
        let mut section = None;
        let version = self.dictionary.code.version;
        if op.isolated {
            if version >= SECTIONS {
                section = Some(r.section(r.0.len())?.1);
            }
            self.scopes.push(Scope::default());
        }
        let inside = section.as_mut().unwrap_or(r);
        for number in 0..op.regions {
            if inside.index()? != 1 {
                return Err(err!(NotImplemented, "the program has a region of no or several blocks at {}", op.name));
            }
            let values = inside.count()?;
            let scope = self.scope()?;
            let before = scope.values.len();
            scope.next.push(before);
            scope.values.resize(before + values, None);
            let (count, arguments) = inside.flagged()?;
            let mut types = Vec::new();
            if arguments {
                types = inside.list(|r| {
                    let (of, located) = if version < NO_LOCATIONS { (r.index()?, true) } else { r.flagged()? };
                    if located {
                        r.index()?;
                    }
                    Ok(of)
                })?;
                if version >= ORDERS && inside.byte()? != 0 {
                    skip_orders(inside, types.len())?;
                }
            }
            body(self, number, types, count, inside)?;
            let scope = self.scope()?;
            scope.values.truncate(before);
            scope.next.pop();
        }
        if op.isolated {
            self.scopes.pop();
        }
        Ok(())
    }

    fn write_module(&mut self, r: &mut Bytes<'a>) -> Result<()> {
        let op = self.operation(r)?;
        if (op.dialect, op.name, op.regions) != ("builtin", "module", 1) {
            return Err(damaged(format!("its program is {}.{}", op.dialect, op.name)));
        }
        // A module's name is optional.
        let mut name = String::new();
        if let Some(index) = op.properties
            && let (named, true) = Bytes::flagged(&mut { *at(&self.dictionary.code.properties, index)? })?
        {
            name = format!(" @{}", quoted(self.dictionary.string(named)?));
        }
        let attributes = op.attributes.iter().filter(|(name, _)| name.starts_with("mhlo."));
        let attributes: Vec<_> =
            attributes.map(|(name, value)| Ok(foreign(name, &self.dictionary.text(*value)?))).collect::<Result<_>>()?;
        self.line(0, &format!("module{name}{} {{", braces("attributes {", &attributes, "}")))?;
        self.regions(r, &op, &mut |me, _, _, count, r| {
            for _ in 0..count {
                let op = me.operation(r)?;
                match (op.dialect, op.name) {
                    ("sdy", "mesh") => me.mesh(&op)?,
                    ("vhlo", "func_v1") if me.symbolic.is_some() => me.remember(r, op)?,
                    ("vhlo", "func_v1") => me.function(r, &op, None)?,
                    (dialect, name) => {
                        return Err(damaged(format!("its program has {dialect}.{name} beside functions")));
                    }
                }
            }
            me.write_symbolic()?;
            let routines = take(&mut me.routine_text);
            me.module.text.push_str(&routines);
            Ok(())
        })?;
        self.line(0, "}")
    }

    fn mesh(&mut self, op: &Operation<'a>) -> Result<()> {
        let [(_, Attribute::Sharding("mesh", text)), (_, Attribute::Text(name))] = op.named.as_slice() else {
            return Err(damaged("its program refers to an undefined mesh"));
        };
        let inside = text.trim_start_matches("<[").trim_end_matches("]>");
        let axes = inside.split(", ").filter(|axis| !axis.is_empty()).map(|axis| {
            let (name, size) = axis.rsplit_once('=')?;
            Some((name.trim_matches('"').to_owned(), size.parse().ok()?))
        });
        let axes =
            axes.collect::<Option<Vec<_>>>().ok_or_else(|| damaged(format!("its program has the mesh {text}")))?;
        if axes.is_empty() {
            self.axisless.push(format!("<{},", symbol(name)));
            return Ok(());
        }
        self.mesh_axes.insert(name, axes.clone());
        self.module.meshes.push(axes);
        self.line(2, &format!("sdy.mesh {} = {text}", symbol(name)))
    }

    /// Returns `true` for a sharding on a mesh without axes.
    fn is_axisless(&self, sharding: usize) -> Result<bool> {
        let text = self.dictionary.text(sharding)?;
        Ok(self.axisless.iter().any(|mesh| text.contains(mesh.as_str())))
    }

    /// The shardings of arguments or results, as text to write after their types.
    fn shardings(&self, of: &Attribute<'a>, count: usize) -> Result<Vec<String>> {
        let Attribute::Array(all) = of else { return Err(damaged("its program has a function without arguments")) };
        let mut texts = vec![String::new(); count];
        for (text, &one) in texts.iter_mut().zip(all) {
            let Attribute::Dictionary(named) = self.dictionary.attribute(one)? else { continue };
            for (name, value) in named {
                if self.dictionary.string(name)? == "sdy.sharding" && !self.is_axisless(value)? {
                    *text = format!(" {{sdy.sharding = {}}}", self.dictionary.text(value)?);
                }
            }
        }
        Ok(texts)
    }

    /// Writes a function. If it has symbolic sizes, it is written for these arguments, under this name.
    fn function(&mut self, r: &mut Bytes<'a>, op: &Operation<'a>, called: Option<(&str, &[Value])>) -> Result<()> {
        let [(_, arguments), (_, Attribute::Type(of)), (_, outs), (_, Attribute::Text(name)), _] = op.named.as_slice()
        else {
            return Err(damaged("its program refers to an undefined function"));
        };
        let (inputs, results) = self.dictionary.function_type(*of)?;
        let (takes, gives) = (self.shardings(arguments, inputs.len())?, self.shardings(outs, results.len())?);
        let is_main = *name == "main";
        self.names = 0;
        self.regions(r, op, &mut |me, _, types, count, r| {
            if types != inputs {
                return Err(damaged(format!("its program has a function {name} of other arguments")));
            }
            let (mut texts, mut parameters, mut constants) = (Vec::new(), Vec::new(), Vec::new());
            // The first argument of `main` is the number of the platform if the file is for several platforms.
            let numbered = is_main && types.len() == me.inputs + 1;
            for (i, (&of, takes)) in types.iter().zip(&takes).enumerate() {
                let mut value = match called {
                    Some((_, args)) if !is_main => args
                        .get(i)
                        .cloned()
                        .ok_or_else(|| damaged(format!("its program calls {name} without argument {i}")))?,
                    _ => Value::new(String::new(), me.main_type(i - usize::from(numbered && i > 0), of)?),
                };
                value.name = format!("%arg{i}");
                let text = me.dictionary.type_text(value.of)?;
                let constant = if is_main { me.constant_argument(&mut value, numbered, i) } else { None };
                if let Some(constant) = constant {
                    let value = format!("<{{value = dense<{constant}> : {text}}}> : () -> {text}");
                    constants.push(format!("%arg{i} = \"stablehlo.constant\"() {value}"));
                } else {
                    parameters.push(format!("%arg{i}: {text}{takes}"));
                    texts.push(text);
                }
                me.define(value)?;
            }
            // The types of the results are known after the body, but the signature comes before it.
            let before = take(&mut me.module.text);
            for constant in constants {
                me.line(4, &constant)?;
            }
            me.operations(r, count, 4, "func.return")?;
            let body = replace(&mut me.module.text, before);
            let results = match called {
                Some(_) => me.returned.iter().map(|value| value.of).collect(),
                None => results.clone(),
            };
            if is_main {
                let shapes = results.iter().map(|&ty| Ok(me.dictionary.tensor_type(ty)?.0));
                me.module.result_shapes = shapes.collect::<Result<_>>()?;
            }
            let results = me.types(results)?;
            let typed_results: Vec<_> =
                results.iter().zip(&gives).map(|(of, sharding)| format!("{of}{sharding}")).collect();
            let visibility = if is_main { "public" } else { "private" };
            let signature = format!("({}) -> ({})", parameters.join(", "), typed_results.join(", "));
            let name = called.map_or_else(|| symbol(name), |(name, _)| format!("@{name}"));
            me.line(2, &format!("func.func {visibility} {name}{signature} {{"))?;
            me.module.text.push_str(&body);
            if is_main {
                (me.module.inputs, me.module.results) = (texts, results);
                (me.module.takes, me.module.gives) =
                    (takes.iter().skip(usize::from(numbered)).cloned().collect(), gives.clone());
            }
            me.line(2, "}")
        })
    }

    /// The value of an argument of `main` that callers do not pass: the number of the platform, and arguments that have
    /// no elements.
    fn constant_argument(&self, value: &mut Value, numbered: bool, i: usize) -> Option<String> {
        if numbered && i == 0 {
            // The number has 64 bits if JAX was set to compute with 64 bits.
            value.known = Known::one(self.platform as i64);
            return Some(self.platform.to_string());
        }
        (self.empty.get(i - usize::from(numbered)) == Some(&true)).then(|| "false".to_owned())
    }

    /// Writes the operations of a block; the last is named `end`.
    fn operations(&mut self, r: &mut Bytes<'a>, count: usize, indent: usize, end: &str) -> Result<()> {
        for _ in 0..count {
            crate::stack::grow(|| self.inner(r, indent, end))?;
        }
        Ok(())
    }

    /// Returns a name for the results of an operation, and the text before the operation.
    fn results_name(&mut self, op: &Operation<'a>) -> (String, String) {
        let name = format!("%{}", self.names);
        self.names += usize::from(!op.results.is_empty());
        let before = match op.results.len() {
            0 => String::new(),
            1 => format!("{name} = "),
            many => format!("{name}:{many} = "),
        };
        (name, before)
    }

    /// Defines the results of an operation under this name.
    fn define_results(&mut self, op: &Operation<'a>, name: &str, known_values: Vec<Known>) -> Result<()> {
        let mut known_values = known_values.into_iter();
        for (i, &of) in op.results.iter().enumerate() {
            let name = if op.results.len() == 1 { name.to_owned() } else { format!("{name}#{i}") };
            self.define(Value { name, of, known: known_values.next().unwrap_or_default() })?;
        }
        Ok(())
    }

    /// Defines the results of an operation that only renames its operands. Returns `false` for other operations.
    fn forwards(&mut self, op: &Operation<'a>) -> Result<bool> {
        // A cast between VHLO's types and types of other dialects, which have the same text.
        if op.name == "unrealized_conversion_cast" {
            for (value, &ty) in op.operands.iter().zip(&op.results) {
                let ty = if self.dictionary.is_symbolic(ty) { value.of } else { ty };
                self.define(Value { of: ty, ..value.clone() })?;
            }
            return Ok(true);
        }
        // A constraint over a mesh without axes.
        if let (("sdy", "sharding_constraint"), [(_, Attribute::Sharding(_, sharding))]) =
            ((op.dialect, op.name), op.named.as_slice())
            && self.axisless.iter().any(|mesh| sharding.starts_with(mesh.as_str()))
            && let [value] = op.operands.as_slice()
        {
            self.define(value.clone())?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Reads an operation inside of a function, and writes it as StableHLO text.
    fn inner(&mut self, r: &mut Bytes<'a>, indent: usize, end: &str) -> Result<()> {
        let mut op = self.operation(r)?;
        if self.forwards(&op)? {
            return Ok(());
        }
        // With symbolic sizes, result types depend on the sizes of this call, and operations that only compute sizes are
        // not written.
        let mut known = Vec::new();
        if self.symbolic.is_some() {
            known = match self.refine(&mut op, indent)? {
                Some(known) => known,
                None => return Ok(()),
            };
        }
        if matches!(op.name, "custom_call_v1" | "custom_call_v2") {
            self.routine(&mut op)?;
        }
        self.flatten_groups(&mut op)?;
        let (name, results) = self.results_name(&op);
        // The results of an operation with regions are defined after its regions, which can determine their types.
        if op.regions == 0 {
            self.define_results(&op, &name, take(&mut known))?;
        }
        let takes = self.types(op.operands.iter().map(|value| value.of))?.join(", ");
        let operands = op.operands.iter().map(|value| value.name.as_str()).collect::<Vec<_>>().join(", ");
        let called = op.name.rsplit_once("_v").map_or(op.name, |(name, _)| name);
        if called == "return" {
            self.returned = op.operands.clone();
        }
        if op.dialect != "vhlo" {
            return self.partitioning(r, &op, indent, [&results, &operands, &takes], (&name, known));
        }
        let operation = match called {
            "return" => end.to_owned(),
            "call" => "func.call".to_owned(),
            name if calls::CHLO.contains(&name) => format!("chlo.{name}"),
            name => format!("stablehlo.{name}"),
        };
        let attributes = braces("<{", &self.dictionary.attributes(op.name, &op.named)?, "}>");
        let begin = format!("{results}\"{operation}\"({operands}){attributes}");
        let behind = format!("{} : ({takes}) -> ", braces("{", &self.foreign_attributes(&op)?, "}"));
        if op.regions == 0 {
            let gives = self.result_types(&op)?;
            return self.line(indent, &format!("{begin}{behind}{gives}"));
        }
        self.line(indent, &format!("{begin} ({{"))?;
        self.regions(r, &op, &mut |me, number, mut types, count, r| {
            if number > 0 {
                me.line(indent, "}, {")?;
            }
            if me.symbolic.is_some() && called == "while" {
                types = op.operands.iter().map(|value| value.of).collect();
            }
            let arguments = me.arguments(types)?;
            me.line(indent, &format!("^bb0({arguments}):"))?;
            me.operations(r, count, indent + 2, "stablehlo.return")
        })?;
        if self.symbolic.is_some() && matches!(called, "case" | "if") {
            op.results = self.returned.iter().map(|value| value.of).collect();
        }
        self.define_results(&op, &name, known)?;
        let gives = self.result_types(&op)?;
        self.line(indent, &format!("}}){behind}{gives}"))
    }

    /// Attributes that VHLO does not define. Attributes of JAX itself, and hints for the partitioner, have no meaning in
    /// another program, so they are left out.
    fn foreign_attributes(&self, op: &Operation<'a>) -> Result<Vec<String>> {
        let mut attributes = Vec::new();
        for (name, value) in &op.attributes {
            let dropped = name.starts_with("jax.") || *name == "sdy.sharding_rule";
            if !(dropped || *name == "sdy.sharding" && self.is_axisless(*value)?) {
                attributes.push(foreign(name, &self.dictionary.text(*value)?));
            }
        }
        Ok(attributes)
    }

    /// Writes an operation of Shardy's dialect, which says how values are partitioned.
    fn partitioning(
        &mut self,
        r: &mut Bytes<'a>,
        op: &Operation<'a>,
        indent: usize,
        [results, operands, takes]: [&str; 3],
        (name, known): (&str, Vec<Known>),
    ) -> Result<()> {
        match (op.dialect, op.name.rsplit_once("_v").map_or(op.name, |(name, _)| name)) {
            ("sdy", "sharding_constraint") => {
                let [(_, Attribute::Sharding("sharding", sharding))] = op.named.as_slice() else {
                    return Err(damaged("its program has a constraint without a sharding"));
                };
                let gives = self.result_types(op)?;
                self.line(indent, &format!("{results}sdy.sharding_constraint {operands} {sharding} : {gives}"))
            }
            // The operation requests the sharding of other values, which XLA determines without it.
            ("sdy", "sharding_group") => Ok(()),
            ("sdy", "return") => {
                let types = if takes.is_empty() { String::new() } else { format!(" : {takes}") };
                self.line(indent, &format!("sdy.return {operands}{types}"))
            }
            ("sdy", "manual_computation") => {
                let begin = format!("{results}sdy.manual_computation({operands})");
                let types = format!("({takes}) -> {}", self.result_types(op)?);
                self.manual(r, op, indent, &begin, &types)?;
                self.define_results(op, name, known)
            }
            (dialect, name) => {
                Err(err!(NotImplemented, "the program has the operation {dialect}.{name}, which is not supported")
                    .help(
                        "write the function with `exchange.save` of `tools/export`, which stores its program as text",
                    ))
            }
        }
    }

    /// The types of an operation's results.
    fn result_types(&self, op: &Operation<'a>) -> Result<String> {
        let gives = self.types(op.results.iter().copied())?;
        Ok(if let [one] = gives.as_slice() { one.clone() } else { format!("({})", gives.join(", ")) })
    }

    /// Defines the arguments of a block.
    fn arguments(&mut self, types: Vec<usize>) -> Result<String> {
        let mut arguments = Vec::new();
        for of in types {
            let name = format!("%{}", self.names);
            self.names += 1;
            arguments.push(format!("{name}: {}", self.dictionary.type_text(of)?));
            self.define(Value::new(name, of))?;
        }
        Ok(arguments.join(", "))
    }

    /// Writes a `manual_computation`.
    fn manual(&mut self, r: &mut Bytes<'a>, op: &Operation<'a>, indent: usize, begin: &str, types: &str) -> Result<()> {
        let [(_, Attribute::Sharding(_, ins)), (_, Attribute::Sharding(_, axes)), (_, Attribute::Sharding(_, outs))] =
            op.named.as_slice()
        else {
            return Err(damaged("its program has a manual computation without shardings"));
        };
        let shardings = format!("in_shardings={ins} out_shardings={outs} manual_axes={axes}");
        self.regions(r, op, &mut |me, _, types, count, r| {
            let arguments = me.arguments(types)?;
            me.line(indent, &format!("{begin} {shardings} ({arguments}) {{"))?;
            me.operations(r, count, indent + 2, "stablehlo.return")
        })?;
        self.line(indent, &format!("}} : {types}"))
    }
}
