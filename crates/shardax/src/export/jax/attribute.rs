//! Attributes and types of a portable artifact: from VHLO (which mirrors StableHLO), from MLIR, and from Shardy.

use std::cell::{Cell, RefCell};
use std::fmt::Write;

use super::bytecode::{Bytecode, Bytes, Entry, at};
use super::damaged;
use crate::error::{Error, Result, err};

/// An attribute. Unsupported attributes are named by number.
#[derive(Clone, Debug)]
pub(super) enum Attribute<'a> {
    Array(Vec<usize>),
    Dictionary(Vec<(usize, usize)>),
    Bool(bool),
    /// A value of an enumeration, such as a comparison direction.
    Choice(&'static Choices, &'static str),
    /// The calling convention of custom calls: a 32-bit number.
    Api(u64),
    /// The type, and the bits.
    Float(usize, u64),
    Int(usize, i64),
    Text(&'a str),
    /// A text that is not UTF-8.
    Bytes(&'a [u8]),
    Symbol(usize),
    Tensor(usize, &'a [u8]),
    Type(usize),
    Unit,
    /// An alias of a result of a custom call to an operand: the index paths in tuples, and the operand.
    Alias(Vec<i64>, i64, Vec<i64>),
    /// Absolute and relative tolerance, units in the last place, and the mode.
    Accuracy([f64; 2], i64, usize),
    /// Shape and values of integers that were computed while reading: from symbolic sizes, or from the axes of a mesh.
    Numbers(Vec<i64>, Vec<i64>),
    /// The groups of a collective, as mesh axes: the mesh and an array of [`Attribute::AxisRef`].
    MeshAxes(usize, usize),
    /// A mesh axis by name, or a part of it.
    AxisRef(usize, Option<usize>),
    /// A part of a mesh axis: the product of the parts before it, and its size.
    SubAxis(i64, i64),
    /// A number of elements, of 64 bits.
    Count(i64),
    /// The name of a function that was written for known sizes.
    Function(String),
    /// An attribute of Shardy: the text in an operation, and the text elsewhere.
    Sharding(&'static str, String),
}

/// The names of an enumeration, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Choices {
    of: &'static str,
    names: &'static [&'static str],
}

const COMPARISON_DIRECTION: Choices =
    Choices { of: "comparison_direction", names: &["EQ", "NE", "GE", "GT", "LE", "LT"] };
const COMPARISON_TYPE: Choices =
    Choices { of: "comparison_type", names: &["NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"] };
const FFT_TYPE: Choices = Choices { of: "fft_type", names: &["FFT", "IFFT", "RFFT", "IRFFT"] };
const PRECISION: Choices = Choices { of: "precision", names: &["DEFAULT", "HIGH", "HIGHEST"] };
const RNG_ALGORITHM: Choices = Choices { of: "rng_algorithm", names: &["DEFAULT", "THREE_FRY", "PHILOX"] };
const RNG_DISTRIBUTION: Choices = Choices { of: "rng_distribution", names: &["", "UNIFORM", "NORMAL"] };
const TRANSPOSE: Choices =
    Choices { of: "transpose", names: &["TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"] };
const ACCURACY: Choices = Choices { of: "result_accuracy_mode", names: &["DEFAULT", "HIGHEST", "TOLERANCE"] };

/// A symbolic size.
pub(super) const DYNAMIC: i64 = i64::MIN;

/// The attributes and types, with a limit on the text written, because a damaged file can refer to itself.
pub(super) struct Dictionary<'a> {
    pub code: &'a Bytecode<'a>,
    fuel: Cell<usize>,
    depth: Cell<usize>,
    /// Shape and element type of tensors whose sizes became known. They are numbered after the program's types.
    refined: RefCell<Vec<(Vec<i64>, usize)>>,
}

fn unknown(what: &str, entry: &Entry, code: u64) -> Error {
    err!(NotImplemented, "the program has {what} {code} of the dialect {}, which is not supported", entry.dialect)
        .help("write the function with `exchange.save` of `tools/export`, which stores its program as text")
}

impl<'a> Dictionary<'a> {
    pub fn of(code: &'a Bytecode<'a>) -> Self {
        let fuel = code.size.saturating_mul(256).saturating_add(16 << 20);
        Dictionary { code, fuel: Cell::new(fuel), depth: Cell::new(0), refined: RefCell::default() }
    }

    /// Returns the type of a tensor of known sizes.
    pub fn refined(&self, shape: Vec<i64>, element: usize) -> usize {
        let mut refined = self.refined.borrow_mut();
        let position = refined.iter().position(|(sizes, of)| (sizes, *of) == (&shape, element));
        self.code.types.len()
            + position.unwrap_or_else(|| {
                refined.push((shape, element));
                refined.len() - 1
            })
    }

    /// Returns `true` for a tensor with a symbolic size.
    pub fn is_symbolic(&self, of: usize) -> bool {
        self.tensor_type(of).is_ok_and(|(shape, _)| shape.contains(&DYNAMIC))
    }

    /// Returns `true` if any tensor of the program has a symbolic size.
    pub fn has_symbols(&self) -> bool {
        (0..self.code.types.len()).any(|of| self.is_symbolic(of))
    }

    /// Counts written text against the limit.
    pub fn spend(&self, amount: usize) -> Result<()> {
        let remaining = self.fuel.get().checked_sub(amount);
        self.fuel.set(remaining.ok_or_else(|| damaged("its program is longer than its bytes can say"))?);
        Ok(())
    }

    /// Enters one level of entries that refer to entries.
    fn deeper<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.spend(1)?;
        if self.depth.get() > 60 {
            return Err(damaged("its attributes refer to themselves"));
        }
        self.depth.set(self.depth.get() + 1);
        let result = f();
        self.depth.set(self.depth.get() - 1);
        result
    }

    fn choice(r: &mut Bytes<'a>, choices: &'static Choices) -> Result<Attribute<'a>> {
        Ok(Attribute::Choice(choices, at(choices.names, r.index()?)?))
    }

    /// Reads a list of attributes as texts.
    fn parts(&self, r: &mut Bytes<'a>) -> Result<Vec<String>> {
        let parts = r.list(|r| r.index())?;
        parts.into_iter().map(|part| self.deeper(|| self.text(part))).collect()
    }

    /// Reads a list of axes as the field `name` of a sharding. An empty list is left out.
    fn axes_field(&self, r: &mut Bytes<'a>, name: &str) -> Result<String> {
        let axes = self.parts(r)?;
        Ok(if axes.is_empty() { String::new() } else { format!(", {name}={{{}}}", axes.join(", ")) })
    }

    /// Decodes the attribute with this index.
    pub fn attribute(&self, index: usize) -> Result<Attribute<'a>> {
        let entry = at(&self.code.attributes, index)?;
        let mut r = Bytes(entry.bytes);
        let r = &mut r;
        if !entry.encoded {
            return Err(unknown("a text for attribute", entry, index as u64));
        }
        self.spend(1 + entry.bytes.len())?;
        let code = r.varint()?;
        // The numbers of VHLO's encoding, and of MLIR's builtin attributes in files that contain both.
        Ok(match (entry.dialect, code) {
            ("builtin", 0) | ("vhlo", 1) => Attribute::Array(r.list(|r| r.index())?),
            ("builtin", 1) | ("vhlo", 6) => Attribute::Dictionary(r.list(|r| Ok((r.index()?, r.index()?)))?),
            ("builtin", 2) | ("vhlo", 14) => {
                let bytes = *at(&self.code.strings, r.index()?)?;
                std::str::from_utf8(bytes).map_or(Attribute::Bytes(bytes), Attribute::Text)
            }
            ("builtin", 4) => Attribute::Symbol(r.index()?),
            ("builtin", 6) | ("vhlo", 17) => Attribute::Type(r.index()?),
            ("builtin", 7) => Attribute::Unit,
            ("builtin", 8) | ("vhlo", 9) => {
                let ty = r.index()?;
                let small = matches!(self.type_text(ty)?.as_str(), "i1" | "i4" | "ui4" | "i8" | "ui8");
                Attribute::Int(ty, if small { i64::from(r.byte()? as i8) } else { r.signed()? })
            }
            ("vhlo", 2) => Attribute::Bool(r.varint()? == 1),
            ("vhlo", 3) => Self::choice(r, &COMPARISON_DIRECTION)?,
            ("vhlo", 4) => Self::choice(r, &COMPARISON_TYPE)?,
            ("vhlo", 5) => Attribute::Api(r.varint()?),
            ("vhlo", 7) => Self::choice(r, &FFT_TYPE)?,
            ("vhlo", 8) => {
                let ty = r.index()?;
                let bits =
                    if self.type_text(ty)?.starts_with("f8") { u64::from(r.byte()?) } else { r.signed()? as u64 };
                Attribute::Float(ty, bits)
            }
            ("vhlo", 10) => Attribute::Alias(r.list(|r| r.signed())?, r.signed()?, r.list(|r| r.signed())?),
            ("vhlo", 11) => Self::choice(r, &PRECISION)?,
            ("vhlo", 12) => Self::choice(r, &RNG_ALGORITHM)?,
            ("vhlo", 13) => Self::choice(r, &RNG_DISTRIBUTION)?,
            ("vhlo", 15) => {
                let ty = r.index()?;
                let size = r.count()?;
                Attribute::Tensor(ty, r.take(size)?)
            }
            ("vhlo", 16) => Self::choice(r, &TRANSPOSE)?,
            ("vhlo", 19) => Self::choice(r, &ACCURACY)?,
            ("vhlo", 20) => {
                let tolerance = [f64::from_bits(r.signed()? as u64), f64::from_bits(r.signed()? as u64)];
                Attribute::Accuracy(tolerance, r.signed()?, r.index()?)
            }
            ("vhlo", 21) => Attribute::SubAxis(r.signed()?, r.signed()?),
            ("vhlo", 22) => {
                let name = r.index()?;
                Attribute::AxisRef(name, if r.varint()? == 1 { Some(r.index()?) } else { None })
            }
            ("vhlo", 23) => Attribute::MeshAxes(r.index()?, r.index()?),
            ("sdy", code) => self.sharding(code, r, entry)?,
            (_, code) => return Err(unknown("attribute", entry, code)),
        })
    }

    /// Attributes of Shardy: meshes, shardings, and their parts.
    fn sharding(&self, code: u64, r: &mut Bytes<'a>, entry: &Entry) -> Result<Attribute<'a>> {
        let (name, text) = match code {
            0 => ("manual_axes", format!("{{{}}}", self.parts(r)?.join(", "))),
            1 => ("", format!("{}={}", quoted(self.code.string(r)?), r.signed()?)),
            // A mesh: its axes, and the order of its devices.
            2 => {
                let axes = self.parts(r)?.join(", ");
                let order = r.list(|r| r.signed())?;
                if !order.iter().enumerate().all(|(i, device)| *device == i as i64) {
                    return Err(err!(NotImplemented, "the program is for devices in the order {order:?}")
                        .help("export it for a mesh of devices in their own order"));
                }
                ("mesh", format!("<[{axes}]>"))
            }
            3 => ("", format!("({}){}", r.signed()?, r.signed()?)),
            // An axis, or a part of it.
            4 => {
                let name = quoted(self.code.string(r)?);
                let (part, split) = r.flagged()?;
                ("", if split { format!("{name}:{}", self.deeper(|| self.text(part))?) } else { name })
            }
            // The sharding of one dimension. `?` marks an open dimension, which the compiler may split further.
            5 => {
                let mut axes = self.parts(r)?;
                if r.byte()? == 0 {
                    axes.push("?".to_owned());
                }
                let (priority, has_priority) = r.flagged()?;
                let suffix = if has_priority { format!("p{priority}") } else { String::new() };
                ("", format!("{{{}}}{suffix}", axes.join(", ")))
            }
            6 | 15 => {
                let mesh = self.deeper(|| self.text(r.index()?))?;
                let (dims, replicated) = (self.parts(r)?.join(", "), self.axes_field(r, "replicated")?);
                let unreduced = if code == 15 { self.axes_field(r, "unreduced")? } else { String::new() };
                ("sharding", format!("<{mesh}, [{dims}]{replicated}{unreduced}>"))
            }
            7 | 16 => {
                let shardings = self.parts(r)?;
                let shardings: Vec<_> = shardings.iter().map(|s| s.trim_start_matches("#sdy.sharding")).collect();
                ("sharding_per_value", format!("[{}]", shardings.join(", ")))
            }
            code => return Err(unknown("attribute", entry, code)),
        };
        Ok(Attribute::Sharding(name, text))
    }

    /// Returns the text of an attribute in StableHLO.
    pub fn text(&self, index: usize) -> Result<String> {
        self.print(&self.attribute(index)?)
    }

    fn inner_text(&self, index: usize) -> Result<String> {
        self.deeper(|| self.text(index))
    }

    /// Prints an attribute in MLIR's syntax.
    ///
    /// The length of the text is limited (`spend`), because a short file can refer to an attribute many times.
    pub fn print(&self, attribute: &Attribute) -> Result<String> {
        Ok(match attribute {
            Attribute::Array(items) => {
                let texts = items.iter().map(|&item| self.inner_text(item)).collect::<Result<Vec<_>>>()?;
                format!("[{}]", texts.join(", "))
            }
            Attribute::Dictionary(entries) => {
                let texts = entries
                    .iter()
                    .map(|&(name, value)| Ok(format!("{} = {}", quoted(self.string(name)?), self.inner_text(value)?)));
                format!("{{{}}}", texts.collect::<Result<Vec<_>>>()?.join(", "))
            }
            Attribute::Bool(value) => value.to_string(),
            Attribute::Choice(of, name) if of.of == ACCURACY.of => format!("#stablehlo.{}<{name}>", of.of),
            Attribute::Choice(of, name) => format!("#stablehlo<{} {name}>", of.of),
            Attribute::Api(version) => format!("{version} : i32"),
            Attribute::Float(of, bits) => self.float(*of, *bits)?,
            Attribute::Int(of, value) => match self.deeper(|| self.type_text(*of))?.as_str() {
                "i1" => (*value != 0).to_string(),
                of => format!("{value} : {of}"),
            },
            Attribute::Text(text) => {
                self.spend(text.len())?;
                quoted(text)
            }
            Attribute::Bytes(bytes) => {
                self.spend(bytes.len())?;
                quoted(bytes)
            }
            Attribute::Numbers(shape, values) => {
                let sizes: String = shape.iter().map(|size| format!("{size}x")).collect();
                let mut text = String::from("dense<");
                nested(&mut text, shape, &mut values.iter(), &|text, value| write!(text, "{value}"));
                format!("{text}> : tensor<{sizes}i64>")
            }
            Attribute::Count(count) => format!("{count} : i64"),
            Attribute::Function(name) => format!("@{name}"),
            Attribute::Symbol(name) => symbol(self.string(*name)?),
            Attribute::Tensor(of, bytes) => self.tensor(*of, bytes)?,
            Attribute::Type(of) => self.type_text(*of)?,
            Attribute::Unit => "unit".to_owned(),
            Attribute::Alias(outs, operand, places) => format!(
                "#stablehlo.output_operand_alias<output_tuple_indices = {outs:?}, operand_index = {operand}, operand_tuple_indices = {places:?}>"
            ),
            Attribute::Accuracy([atol, rtol], ulps, mode) => {
                // MLIR reads a fraction only if there are digits before and after the point.
                format!(
                    "#stablehlo.result_accuracy<atol = {}, rtol = {}, ulps = {ulps}, mode = {}>",
                    decimal(*atol),
                    decimal(*rtol),
                    self.inner_text(*mode)?
                )
            }
            Attribute::MeshAxes(..) | Attribute::AxisRef(..) | Attribute::SubAxis(..) => {
                return Err(damaged("its program has axes of a mesh where there are no groups of devices"));
            }
            Attribute::Sharding(name @ ("sharding" | "mesh"), text) => format!("#sdy.{name}{text}"),
            Attribute::Sharding("sharding_per_value", text) => format!("#sdy.sharding_per_value<{text}>"),
            Attribute::Sharding(_, text) => text.clone(),
        })
    }

    /// A string. Names are strings too.
    pub fn string(&self, index: usize) -> Result<&'a str> {
        match self.attribute(index)? {
            Attribute::Text(text) => Ok(text),
            other => Err(damaged(format!("its program has {other:?} for a text"))),
        }
    }

    fn float(&self, of: usize, bits: u64) -> Result<String> {
        let name = self.type_text(of)?;
        let digits = match name.as_str() {
            "f64" => 16,
            "f32" => 8,
            "f16" | "bf16" => 4,
            _ => 2,
        };
        let bits = bits & (u64::MAX >> (64 - 4 * digits));
        Ok(format!("0x{bits:0digits$X} : {name}"))
    }

    /// Returns the sizes and element type of a tensor.
    pub fn tensor_type(&self, index: usize) -> Result<(Vec<i64>, usize)> {
        if let Some(place) = index.checked_sub(self.code.types.len()) {
            return at(&self.refined.borrow(), place).cloned();
        }
        let entry = at(&self.code.types, index)?;
        let mut r = Bytes(entry.bytes);
        match (entry.dialect, r.varint()?) {
            ("builtin", 13) | ("vhlo", 20) => Ok((r.list(|r| r.signed())?, r.index()?)),
            (_, code) => Err(unknown("for a tensor the type", entry, code)),
        }
    }

    /// Returns the inputs and results of a function type.
    pub fn function_type(&self, index: usize) -> Result<(Vec<usize>, Vec<usize>)> {
        let entry = at(&self.code.types, index)?;
        let mut r = Bytes(entry.bytes);
        match (entry.dialect, r.varint()?) {
            ("builtin", 2) | ("vhlo", 8) => Ok((r.list(|r| r.index())?, r.list(|r| r.index())?)),
            (_, code) => Err(unknown("for a function the type", entry, code)),
        }
    }

    /// Returns the numbers of a tensor of integers. A single number in the file means that all elements are equal.
    pub fn integers(&self, of: usize, bytes: &[u8]) -> Result<Vec<i64>> {
        let (shape, element) = self.tensor_type(of)?;
        let name = self.type_text(element)?;
        let width: usize = match name.as_str() {
            "i1" => return self.bits(&shape, bytes),
            "index" => 8,
            name => name.trim_start_matches(['u', 'i']).parse::<usize>().map_or(0, |bits| bits / 8),
        };
        if width == 0 || width > 8 || !bytes.len().is_multiple_of(width) {
            return Err(damaged(format!("its program has {} bytes for integers of type {name}", bytes.len())));
        }
        let signed = !name.starts_with('u');
        self.filled(&shape, bytes.chunks(width).map(|bytes| extended(bytes, signed)).collect())
    }

    fn filled(&self, shape: &[i64], mut values: Vec<i64>) -> Result<Vec<i64>> {
        let count = self.count(shape)?;
        if let &[one] = values.as_slice() {
            self.spend(count)?;
            values = vec![one; count];
        }
        if values.len() == count {
            Ok(values)
        } else {
            Err(damaged(format!("its program has {} values for the shape {shape:?}", values.len())))
        }
    }

    /// Reads booleans, which are packed, eight to a byte. A single byte of ones means that all elements are true.
    fn bits(&self, shape: &[i64], bytes: &[u8]) -> Result<Vec<i64>> {
        let count = self.count(shape)?;
        match bytes {
            [0xff] => self.filled(shape, vec![1]),
            [0] => self.filled(shape, vec![0]),
            _ if bytes.len() == count.div_ceil(8) => {
                Ok((0..count).map(|i| i64::from(bytes[i / 8] >> (i % 8) & 1)).collect())
            }
            _ => self.filled(shape, bytes.iter().map(|&byte| i64::from(byte != 0)).collect()),
        }
    }

    /// Writes a constant of booleans while reading it, because a byte contains eight of them.
    fn booleans(&self, shape: &[i64], name: &str, bytes: &[u8]) -> Result<String> {
        let count = self.count(shape)?;
        let packed = bytes.len() == count.div_ceil(8);
        let constant = match bytes {
            [] => return Err(damaged(format!("its program has no values for the shape {shape:?}"))),
            [byte] if !packed || matches!(byte, 0 | 0xff) => Some(*byte != 0),
            _ if packed || bytes.len() == count => {
                let first = is_set(bytes, 0, packed);
                (1..count).all(|i| is_set(bytes, i, packed) == first).then_some(first)
            }
            _ => {
                return Err(damaged(format!(
                    "its program has {} bytes of booleans for the shape {shape:?}",
                    bytes.len()
                )));
            }
        };
        let mut text = String::from("dense<");
        match constant {
            Some(constant) => text.push_str(if constant { "true" } else { "false" }),
            None => {
                // The longest form: `false, `.
                self.spend(7 * count)?;
                nested(&mut text, shape, &mut (0..count).map(|i| is_set(bytes, i, packed)), &|text, value| {
                    write!(text, "{value}")
                });
            }
        }
        Ok(format!("{text}> : {name}"))
    }

    fn tensor_text(&self, index: usize) -> Result<String> {
        let (shape, element) = self.tensor_type(index)?;
        if shape.contains(&DYNAMIC) {
            return Err(err!(NotImplemented, "the program has symbolic sizes inside").help(
                "write it with `exchange.save` of `tools/export`, which makes numbers of them, exported for one size",
            ));
        }
        let sizes: String = shape.iter().map(|size| format!("{size}x")).collect();
        Ok(format!("tensor<{sizes}{}>", self.deeper(|| self.type_text(element))?))
    }

    fn count(&self, shape: &[i64]) -> Result<usize> {
        let sizes = shape.iter().map(|&size| usize::try_from(size).ok());
        let count = sizes.into_iter().try_fold(1usize, |all, size| all.checked_mul(size?));
        count.ok_or_else(|| damaged(format!("its program has a constant of shape {shape:?}")))
    }

    fn tensor(&self, of: usize, bytes: &[u8]) -> Result<String> {
        let (shape, element) = self.tensor_type(of)?;
        let (name, element) = (self.type_text(of)?, self.type_text(element)?);
        if shape.contains(&0) {
            return Ok(format!("dense<> : {name}"));
        }
        if element == "i1" {
            return self.booleans(&shape, &name, bytes);
        }
        if element == "index" {
            let values = self.integers(of, bytes)?;
            let mut text = String::from("dense<");
            if values.iter().all(|value| *value == values[0]) {
                text.push_str(&values[0].to_string())
            } else {
                nested(&mut text, &shape, &mut values.iter(), &|text, value| write!(text, "{value}"))
            }
            return Ok(format!("{text}> : {name}"));
        }
        self.spend(2 * bytes.len())?;
        // Large constants are written as hexadecimal bytes, which are short and exact.
        let mut text = String::with_capacity(2 * bytes.len() + name.len() + 16);
        text.push_str("dense<\"0x");
        bytes.iter().try_for_each(|byte| write!(text, "{byte:02X}")).map_err(damaged)?;
        Ok(text + "\"> : " + &name)
    }

    /// Prints the type with this index in MLIR's syntax.
    pub fn type_text(&self, index: usize) -> Result<String> {
        if index >= self.code.types.len() {
            return self.tensor_text(index);
        }
        let entry = at(&self.code.types, index)?;
        let mut r = Bytes(entry.bytes);
        if !entry.encoded {
            return Err(unknown("a text for type", entry, index as u64));
        }
        self.deeper(|| {
            let code = r.varint()?;
            // The numbers of VHLO's types; `builtin` is MLIR's own encoding.
            let name = match (entry.dialect, code) {
                ("builtin", 0) => {
                    let width_and_sign = r.varint()?;
                    let sign = ["", "s", "u", ""][(width_and_sign & 3) as usize];
                    return Ok(format!("{sign}i{}", width_and_sign >> 2));
                }
                ("builtin", 13) | ("vhlo", 20) => return self.tensor_text(index),
                ("builtin", 9) | ("vhlo", 1) => return Ok(format!("complex<{}>", self.type_text(r.index()?)?)),
                ("vhlo", 23) => {
                    let types = r.list(|r| r.index())?.into_iter().map(|ty| self.type_text(ty));
                    return Ok(format!("tuple<{}>", types.collect::<Result<Vec<_>>>()?.join(", ")));
                }
                ("builtin", 1) | ("vhlo", 9) => "index",
                ("builtin", 3) | ("vhlo", 2) => "bf16",
                ("builtin", 4) | ("vhlo", 3) => "f16",
                ("builtin", 5) | ("vhlo", 4) => "f32",
                ("builtin", 6) | ("vhlo", 5) => "f64",
                ("builtin", 12) | ("vhlo", 33) => "none",
                ("vhlo", 0) => "i1",
                ("vhlo", 6) => "f8E4M3FN",
                ("vhlo", 7) => "f8E5M2",
                ("vhlo", 10) => "i4",
                ("vhlo", 11) => "i8",
                ("vhlo", 12) => "i16",
                ("vhlo", 13) => "i32",
                ("vhlo", 14) => "i64",
                ("vhlo", 15) => "ui4",
                ("vhlo", 16) => "ui8",
                ("vhlo", 17) => "ui16",
                ("vhlo", 18) => "ui32",
                ("vhlo", 19) => "ui64",
                ("vhlo", 22) => "!stablehlo.token",
                ("vhlo", 27) => "f8E4M3FNUZ",
                ("vhlo", 28) => "f8E5M2FNUZ",
                ("vhlo", 29) => "f8E4M3B11FNUZ",
                ("vhlo", 31) => "i2",
                ("vhlo", 32) => "ui2",
                ("vhlo", 34) => "tf32",
                ("vhlo", 35) => "f8E4M3",
                ("vhlo", 36) => "f8E3M4",
                ("vhlo", 37) => "f4E2M1FN",
                ("vhlo", 38) => "f6E2M3FN",
                ("vhlo", 39) => "f6E3M2FN",
                ("vhlo", 40) => "f8E8M0FNU",
                ("vhlo", 24 | 30) => {
                    return Err(err!(NotImplemented, "the program has quantized tensors, which are not read")
                        .help("export a function that computes with integers and floats"));
                }
                (_, code) => return Err(unknown("type", entry, code)),
            };
            Ok(name.to_owned())
        })
    }
}

/// Formats values in nested brackets, one level for each dimension of the shape.
fn nested<T>(
    out: &mut String,
    shape: &[i64],
    values: &mut impl Iterator<Item = T>,
    say: &impl Fn(&mut String, T) -> std::fmt::Result,
) {
    match shape {
        [] => {
            if let Some(value) = values.next() {
                let _ = say(out, value); // a text takes all that is written
            }
        }
        [size, rest @ ..] => {
            out.push('[');
            for row in 0..*size {
                out.push_str(if row > 0 { ", " } else { "" });
                nested(out, rest, values, say);
            }
            out.push(']');
        }
    }
}

/// An integer of up to eight bytes, in little-endian order.
fn extended(bytes: &[u8], signed: bool) -> i64 {
    let negative = signed && bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut extended = [if negative { 0xff } else { 0 }; 8];
    extended[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(extended)
}

/// Formats a fraction for MLIR, which reads `1.0e-5` but not `1e-5`.
fn decimal(value: f64) -> String {
    match format!("{value:?}") {
        text if text.contains('.') => text,
        text => text.replacen('e', ".0e", 1),
    }
}

/// A text between quotes.
pub(super) fn quoted(text: impl AsRef<[u8]>) -> String {
    let mut out = String::from("\"");
    for &byte in text.as_ref() {
        match byte {
            b'"' => out.push_str("\\22"),
            b'\\' => out.push_str("\\5C"),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:02X}")),
        }
    }
    out + "\""
}

/// The name of a function or a mesh for text: letters, digits and underscores stay; every other character becomes its
/// number between dots, so that different names stay different.
pub(super) fn symbol(name: &str) -> String {
    let mut out = String::from("@");
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        out.push_str("_.");
    }
    for c in name.chars() {
        if c.is_ascii_alphanumeric() || "_.$-".contains(c) {
            out.push(c)
        } else {
            out.push_str(&format!(".{:x}.", u32::from(c)))
        }
    }
    out
}

/// Returns boolean `i` of a constant, with eight booleans in a byte if they are packed.
fn is_set(bytes: &[u8], i: usize, packed: bool) -> bool {
    if packed { bytes[i / 8] >> (i % 8) & 1 != 0 } else { bytes[i] != 0 }
}
