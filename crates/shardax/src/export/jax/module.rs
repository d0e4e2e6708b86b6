//! A portable artifact as text: VHLO operations become StableHLO operations in the generic form.

use super::attribute::{Attribute, Dictionary, quoted, symbol};
use super::bytecode::{Bytecode, Bytes, at};
use super::damaged;
use super::operation::{Named, braces, foreign};
use crate::error::{Result, err};

/// The text of a module, and the signature of its `main`.
pub(super) struct Module {
    pub text: String,
    pub inputs: Vec<String>,
    pub results: Vec<String>,
    /// The axes of its meshes.
    pub meshes: Vec<Vec<(String, usize)>>,
}

/// A value: its name and its type.
#[derive(Clone)]
struct Value {
    name: String,
    of: usize,
}

/// The values of an isolated region and of the regions inside it, numbered after those of the enclosing region.
#[derive(Default)]
struct Scope {
    values: Vec<Option<Value>>,
    next: Vec<usize>,
}

/// An operation without its regions.
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

/// Skips the use-list orders of values, which text does not need.
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
    /// The number of arguments that `main` is called with, and the platform's number if it takes that as an additional
    /// first one.
    inputs: usize,
    platform: usize,
    scopes: Vec<Scope>,
    names: usize,
    made: Module,
}

impl Module {
    /// Converts the bytecode of a module whose `main` takes `inputs` arguments, for the platform of this number.
    pub fn of(code: &Bytecode, inputs: usize, platform: usize) -> Result<Module> {
        let made = Module { text: String::new(), inputs: Vec::new(), results: Vec::new(), meshes: Vec::new() };
        let dictionary = Dictionary::of(code);
        let mut writer = Writer { dictionary, inputs, platform, scopes: vec![Scope::default()], names: 0, made };
        let mut r = code.ir;
        let (count, arguments) = r.flagged()?;
        if count != 1 || arguments {
            return Err(damaged("its program is no module"));
        }
        writer.module(&mut r)?;
        Ok(writer.made)
    }
}

impl<'a> Writer<'a> {
    fn line(&mut self, indent: usize, text: &str) -> Result<()> {
        self.dictionary.spend(1)?;
        self.made.text.extend(std::iter::repeat_n(' ', indent).chain(text.chars()));
        self.made.text.push('\n');
        Ok(())
    }

    fn scope(&mut self) -> Result<&mut Scope> {
        self.scopes.last_mut().ok_or_else(|| damaged("its program has values outside of functions"))
    }

    fn define(&mut self, value: Value) -> Result<()> {
        let scope = self.scope()?;
        let next = scope.next.last_mut().ok_or_else(|| damaged("its program has values outside of functions"))?;
        let place = scope.values.get_mut(*next).ok_or_else(|| damaged("its program has more values than it says"))?;
        *place = Some(value);
        *next += 1;
        Ok(())
    }

    fn value(&mut self, index: usize) -> Result<Value> {
        let found = at(&self.scope()?.values, index)?.clone();
        found.ok_or_else(|| damaged(format!("its program uses value {index} before it is made")))
    }

    fn types(&self, of: impl IntoIterator<Item = usize>) -> Result<Vec<String>> {
        of.into_iter().map(|one| self.dictionary.type_text(one)).collect()
    }

    /// Reads an operation up to its regions.
    fn operation(&mut self, r: &mut Bytes<'a>) -> Result<Operation<'a>> {
        let &(dialect, name) = at(&self.dictionary.code.operations, r.index()?)?;
        let mask = r.byte()?;
        // The location.
        r.index()?;
        if mask & 8 != 0 {
            return Err(err!(NotImplemented, "the program has jumps between blocks, at {dialect}.{name}"));
        }
        let mut attributes = Vec::new();
        if mask & 1 != 0 {
            match self.dictionary.attribute(r.index()?)? {
                Attribute::Dictionary(all) => {
                    for (key, value) in all {
                        attributes.push((self.dictionary.string(key)?, value));
                    }
                }
                _ => return Err(damaged("its program has invalid attributes")),
            }
        }
        let properties = if mask & 0x40 != 0 { Some(r.index()?) } else { None };
        let named = match dialect {
            "builtin" => Vec::new(),
            _ => self.dictionary.named(name, properties)?,
        };
        let results = if mask & 2 != 0 { r.list(|r| r.index())? } else { Vec::new() };
        let operands = if mask & 4 != 0 { r.list(|r| r.index())? } else { Vec::new() };
        let operands = operands.into_iter().map(|index| self.value(index)).collect::<Result<_>>()?;
        if mask & 0x20 != 0 {
            skip_orders(r, results.len())?;
        }
        let (regions, isolated) = if mask & 0x10 != 0 { r.flagged()? } else { (0, false) };
        Ok(Operation { dialect, name, attributes, named, properties, results, operands, regions, isolated })
    }

    /// Reads each region of an operation, of one block: `body` receives its number, the types of its arguments, the
    /// number of its operations and their bytes. The regions of an isolated operation are one section.
    fn regions(
        &mut self,
        r: &mut Bytes<'a>,
        op: &Operation<'a>,
        body: &mut dyn FnMut(&mut Self, usize, Vec<usize>, usize, &mut Bytes<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut section = None;
        if op.isolated {
            section = Some(r.section(r.0.len())?.1);
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
                    let (of, located) = r.flagged()?;
                    if located {
                        r.index()?;
                    }
                    Ok(of)
                })?;
                if inside.byte()? != 0 {
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

    fn module(&mut self, r: &mut Bytes<'a>) -> Result<()> {
        let op = self.operation(r)?;
        if (op.dialect, op.name, op.regions) != ("builtin", "module", 1) {
            return Err(damaged(format!("its program is {}.{}", op.dialect, op.name)));
        }
        let mut name = String::new();
        if let Some(index) = op.properties
            && let (named, true) = Bytes::flagged(&mut { *at(&self.dictionary.code.properties, index)? })?
        {
            name = format!(" @{}", quoted(self.dictionary.string(named)?));
        }
        let kept = op.attributes.iter().filter(|(name, _)| name.starts_with("mhlo."));
        let kept: Vec<_> =
            kept.map(|(name, value)| Ok(foreign(name, &self.dictionary.text(*value)?))).collect::<Result<_>>()?;
        self.line(0, &format!("module{name}{} {{", braces("attributes {", &kept, "}")))?;
        self.regions(r, &op, &mut |me, _, _, count, r| {
            for _ in 0..count {
                let op = me.operation(r)?;
                match (op.dialect, op.name) {
                    ("sdy", "mesh") => me.mesh(&op)?,
                    ("vhlo", "func_v1") => me.function(r, &op)?,
                    (dialect, name) => {
                        return Err(damaged(format!("its program has {dialect}.{name} beside functions")));
                    }
                }
            }
            Ok(())
        })?;
        self.line(0, "}")
    }

    fn mesh(&mut self, op: &Operation<'a>) -> Result<()> {
        let [(_, Attribute::Sharding("mesh", text)), (_, Attribute::Text(name))] = op.named.as_slice() else {
            return Err(damaged("its program refers to an undefined mesh"));
        };
        let inside = text.trim_start_matches("<[").trim_end_matches("]>");
        let axis = |axis: &str| {
            let (name, size) = axis.rsplit_once('=')?;
            Some((name.trim_matches('"').to_owned(), size.parse().ok()?))
        };
        let axes = inside.split(", ").filter(|axis| !axis.is_empty()).map(axis).collect::<Option<_>>();
        self.made.meshes.push(axes.ok_or_else(|| damaged(format!("its program has the mesh {text}")))?);
        self.line(2, &format!("sdy.mesh {} = {text}", symbol(name)?))
    }

    /// The shardings of arguments or results, as written after their types.
    fn shardings(&self, of: &Attribute<'a>, count: usize) -> Result<Vec<String>> {
        let Attribute::Array(all) = of else { return Err(damaged("its program has a function without arguments")) };
        let mut texts = vec![String::new(); count];
        for (text, &one) in texts.iter_mut().zip(all) {
            let Attribute::Dictionary(named) = self.dictionary.attribute(one)? else { continue };
            for (name, value) in named {
                if self.dictionary.string(name)? == "sdy.sharding" {
                    *text = format!(" {{sdy.sharding = {}}}", self.dictionary.text(value)?);
                }
            }
        }
        Ok(texts)
    }

    fn function(&mut self, r: &mut Bytes<'a>, op: &Operation<'a>) -> Result<()> {
        let [(_, arguments), (_, Attribute::Type(of)), (_, outs), (_, Attribute::Text(name)), _] = op.named.as_slice()
        else {
            return Err(damaged("its program refers to an undefined function"));
        };
        let (inputs, results) = self.dictionary.function_type(*of)?;
        let (takes, gives) = (self.shardings(arguments, inputs.len())?, self.shardings(outs, results.len())?);
        let results = self.types(results)?;
        let is_main = *name == "main";
        self.names = 0;
        self.regions(r, op, &mut |me, _, types, count, r| {
            if types != inputs {
                return Err(damaged(format!("its program has a function {name} of other arguments")));
            }
            let mut texts = me.types(types.iter().copied())?;
            let mut taken = Vec::new();
            for (i, (&of, text)) in types.iter().zip(&texts).enumerate() {
                me.define(Value { name: format!("%arg{i}"), of })?;
                taken.push(format!("%arg{i}: {text}{}", takes[i]));
            }
            let numbered = is_main && texts.len() == me.inputs + 1;
            if numbered {
                texts.remove(0);
                taken.remove(0);
            }
            let given: Vec<_> = results.iter().zip(&gives).map(|(of, sharding)| format!("{of}{sharding}")).collect();
            let visibility = if is_main { "public" } else { "private" };
            let signature = format!("({}) -> ({})", taken.join(", "), given.join(", "));
            me.line(2, &format!("func.func {visibility} {}{signature} {{", symbol(name)?))?;
            if numbered {
                let value = format!("<{{value = dense<{}> : tensor<i32>}}>", me.platform);
                me.line(4, &format!("%arg0 = \"stablehlo.constant\"() {value} : () -> tensor<i32>"))?;
            }
            if is_main {
                (me.made.inputs, me.made.results) = (texts, results.clone());
            }
            me.operations(r, count, 4, "func.return")?;
            me.line(2, "}")
        })
    }

    /// Writes the operations of a block, the last of which is named `end`.
    fn operations(&mut self, r: &mut Bytes<'a>, count: usize, indent: usize, end: &str) -> Result<()> {
        for _ in 0..count {
            crate::stack::grow(|| self.inner(r, indent, end))?;
        }
        Ok(())
    }

    /// Defines an operation's results, and returns the text before the operation.
    fn results(&mut self, op: &Operation<'a>) -> Result<String> {
        if op.results.is_empty() {
            return Ok(String::new());
        }
        let name = format!("%{}", self.names);
        self.names += 1;
        match op.results.as_slice() {
            &[of] => {
                self.define(Value { name: name.clone(), of })?;
                Ok(format!("{name} = "))
            }
            many => {
                for (i, &of) in many.iter().enumerate() {
                    self.define(Value { name: format!("{name}#{i}"), of })?;
                }
                Ok(format!("{name}:{} = ", many.len()))
            }
        }
    }

    fn inner(&mut self, r: &mut Bytes<'a>, indent: usize, end: &str) -> Result<()> {
        let op = self.operation(r)?;
        // A cast between VHLO's types and those of other dialects, which have the same text.
        if op.name == "unrealized_conversion_cast" {
            for (value, &of) in op.operands.iter().zip(&op.results) {
                self.define(Value { name: value.name.clone(), of })?;
            }
            return Ok(());
        }
        let results = self.results(&op)?;
        let takes = self.types(op.operands.iter().map(|value| value.of))?.join(", ");
        let gives = self.types(op.results.iter().copied())?;
        let gives = if let [one] = gives.as_slice() { one.clone() } else { format!("({})", gives.join(", ")) };
        let operands = op.operands.iter().map(|value| value.name.as_str()).collect::<Vec<_>>().join(", ");
        let called = op.name.rsplit_once("_v").map_or(op.name, |(name, _)| name);
        match (op.dialect, called) {
            ("sdy", "sharding_constraint") => {
                let [(_, Attribute::Sharding("sharding", sharding))] = op.named.as_slice() else {
                    return Err(damaged("its program has a constraint without a sharding"));
                };
                return self.line(indent, &format!("{results}sdy.sharding_constraint {operands} {sharding} : {gives}"));
            }
            ("sdy", "return") => {
                let types = if takes.is_empty() { String::new() } else { format!(" : {takes}") };
                return self.line(indent, &format!("sdy.return {operands}{types}"));
            }
            ("sdy", "manual_computation") => {
                let begin = format!("{results}sdy.manual_computation({operands})");
                return self.manual(r, &op, indent, &begin, &format!("({takes}) -> {gives}"));
            }
            ("vhlo", _) => {}
            (dialect, name) => {
                return Err(err!(
                    NotImplemented,
                    "the program has the operation {dialect}.{name}, which is not supported"
                )
                .help("write the function with `exchange.save` of `tools/export`, which stores its program as text"));
            }
        }
        let name = match called {
            "return" => end.to_owned(),
            "call" => "func.call".to_owned(),
            name => format!("stablehlo.{name}"),
        };
        let attributes = braces("<{", &self.dictionary.attributes(op.name, &op.named)?, "}>");
        let begin = format!("{results}\"{name}\"({operands}){attributes}");
        let kept = op.attributes.iter().filter(|(name, _)| !name.starts_with("jax.") && *name != "sdy.sharding_rule");
        let kept: Vec<_> =
            kept.map(|(name, value)| Ok(foreign(name, &self.dictionary.text(*value)?))).collect::<Result<_>>()?;
        let behind = format!("{} : ({takes}) -> {gives}", braces("{", &kept, "}"));
        if op.regions == 0 {
            return self.line(indent, &format!("{begin}{behind}"));
        }
        self.line(indent, &format!("{begin} ({{"))?;
        self.regions(r, &op, &mut |me, number, types, count, r| {
            if number > 0 {
                me.line(indent, "}, {")?;
            }
            let arguments = me.arguments(types)?;
            me.line(indent, &format!("^bb0({arguments}):"))?;
            me.operations(r, count, indent + 2, "stablehlo.return")
        })?;
        self.line(indent, &format!("}}){behind}"))
    }

    /// Defines the arguments of a block.
    fn arguments(&mut self, types: Vec<usize>) -> Result<String> {
        let mut all = Vec::new();
        for of in types {
            let name = format!("%{}", self.names);
            self.names += 1;
            all.push(format!("{name}: {}", self.dictionary.type_text(of)?));
            self.define(Value { name, of })?;
        }
        Ok(all.join(", "))
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
