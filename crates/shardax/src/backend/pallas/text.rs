//! MLIR text for a dialect of kernels, in the generic form: values, types, and operations that both dialects have.

use std::fmt::Write as _;

use crate::core::lower::constant_text;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::shape::Shape;

/// The dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Triton's, for GPUs.
    Triton,
    /// Mosaic's, for TPUs, in the form that is stable from version to version.
    Mosaic,
}

/// The elements of Triton's largest tensor.
const MAX_ELEMENTS: usize = 1 << 20;

/// A value of the text.
#[derive(Clone, Debug)]
pub(super) struct Val {
    pub name: String,
    pub ty: String,
    pub dtype: DType,
    pub shape: Shape,
}

impl Val {
    /// A value whose type arrays do not have: a pointer, an index.
    pub fn other(name: impl Into<String>, ty: impl Into<String>) -> Val {
        Val { name: name.into(), ty: ty.into(), dtype: DType::I32, shape: Shape::new() }
    }
}

/// The operations so far.
pub(super) struct Text {
    pub dialect: Dialect,
    lines: String,
    next: usize,
}

impl Text {
    pub fn new(dialect: Dialect) -> Text {
        Text { dialect, lines: String::new(), next: 0 }
    }

    pub fn finish(self) -> String {
        self.lines
    }

    /// Returns the type of a scalar, or of a vector or tensor; integers have no sign.
    pub fn ty(&self, dtype: DType, shape: &[usize]) -> Result<String> {
        if matches!(dtype.category(), Category::Complex) {
            return Err(err!(NotImplemented, "{dtype} is not supported"));
        }
        self.type_of(dtype.mlir().trim_start_matches('u'), shape)
    }

    /// Returns the type of a vector or tensor of these elements.
    pub fn type_of(&self, element: &str, shape: &[usize]) -> Result<String> {
        if shape.is_empty() {
            return Ok(element.to_owned());
        }
        // Triton only has sizes that are powers of two, and limits the number of elements.
        let (container, odd) = match self.dialect {
            Dialect::Triton => ("tensor", shape.iter().find(|size| !size.is_power_of_two())),
            Dialect::Mosaic => ("vector", None),
        };
        if let Some(size) = odd {
            return Err(err!(
                NotImplemented,
                "sizes of blocks and values must be powers of two on GPUs, but a value has shape {shape:?} with {size}"
            )
            .help("use larger blocks; elements beyond the end of an array are neither read nor written"));
        }
        let count: f64 = shape.iter().map(|&size| size as f64).product();
        if self.dialect == Dialect::Triton && count > MAX_ELEMENTS as f64 {
            return Err(err!(
                NotImplemented,
                "a value of shape {shape:?} has {count} elements, but at most {MAX_ELEMENTS} are possible on GPUs"
            )
            .help("use smaller blocks and a larger grid"));
        }
        let sizes: String = shape.iter().map(|size| format!("{size}x")).collect();
        Ok(format!("{container}<{sizes}{element}>"))
    }

    pub fn line(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "    {line}");
    }

    /// A value with a new name.
    pub fn fresh(&mut self, dtype: DType, shape: &[usize]) -> Result<Val> {
        let ty = self.ty(dtype, shape)?;
        Ok(Val { dtype, shape: shape.into(), ..self.fresh_as(ty) })
    }

    /// A value with a new name, of this type.
    pub fn fresh_as(&mut self, ty: impl Into<String>) -> Val {
        self.next += 1;
        Val::other(format!("%v{}", self.next), ty)
    }

    /// Values with new names and the same types as these.
    pub fn fresh_like(&mut self, values: &[Val]) -> Vec<Val> {
        values.iter().map(|value| Val { name: self.fresh_as("").name, ..value.clone() }).collect()
    }

    /// Writes an operation; its results have the types of `outs`.
    pub fn write(&mut self, name: &str, args: &[&Val], regions: &[String], attrs: &str, outs: &[Val]) -> Vec<Val> {
        let prefix = if self.dialect == Dialect::Mosaic { "stable_mosaic." } else { "" };
        let result_name = self.fresh_as("").name;
        let (assign, result_names) = match outs.len() {
            0 => (String::new(), Vec::new()),
            1 => (format!("{result_name} = "), vec![result_name]),
            n => (format!("{result_name}:{n} = "), (0..n).map(|i| format!("{result_name}#{i}")).collect()),
        };
        let names: Vec<&str> = args.iter().map(|arg| arg.name.as_str()).collect();
        let types: Vec<&str> = args.iter().map(|arg| arg.ty.as_str()).collect();
        let results: Vec<&str> = outs.iter().map(|out| out.ty.as_str()).collect();
        let regions = if regions.is_empty() { String::new() } else { format!(" ({})", regions.join(", ")) };
        let attrs = if attrs.is_empty() { String::new() } else { format!(" {{{attrs}}}") };
        self.line(&format!(
            "{assign}\"{prefix}{name}\"({}){regions}{attrs} : ({}) -> ({})",
            names.join(", "),
            types.join(", "),
            results.join(", ")
        ));
        outs.iter().zip(result_names).map(|(out, name)| Val { name, ..out.clone() }).collect()
    }

    /// An operation with one result.
    pub fn op(&mut self, name: &str, args: &[&Val], attrs: &str, dtype: DType, shape: &[usize]) -> Result<Val> {
        let out = Val { dtype, shape: shape.into(), ..Val::other("", self.ty(dtype, shape)?) };
        Ok(self.write(name, args, &[], attrs, &[out]).swap_remove(0))
    }

    /// An operation on values of one type; the result has the same type.
    pub fn same(&mut self, name: &str, args: &[&Val]) -> Val {
        let is_float = args[0].dtype.is_float();
        let attrs = if is_float && name != "arith.select" { "fastmath = #arith.fastmath<none>" } else { "" };
        self.write(name, args, &[], attrs, &[args[0].clone()]).swap_remove(0)
    }

    /// A region with one block of these arguments; `f` writes its operations and its terminator.
    pub fn region(&mut self, args: &[Val], f: impl FnOnce(&mut Text) -> Result<()>) -> Result<String> {
        let outer = std::mem::take(&mut self.lines);
        let result = f(self);
        let lines = std::mem::replace(&mut self.lines, outer);
        result?;
        let typed: Vec<String> = args.iter().map(|arg| format!("{}: {}", arg.name, arg.ty)).collect();
        let block = if args.is_empty() { String::new() } else { format!("    ^bb0({}):\n", typed.join(", ")) };
        Ok(format!("{{\n{block}{lines}    }}"))
    }

    /// A scalar constant.
    pub fn constant(&mut self, value: Scalar, dtype: DType) -> Result<Val> {
        let text = constant_text(value, dtype);
        let text = if dtype == DType::Bool { text } else { format!("{text} : {}", self.ty(dtype, &[])?) };
        self.op("arith.constant", &[], &format!("value = {text}"), dtype, &[])
    }

    /// An int32 constant.
    pub fn number(&mut self, n: usize) -> Result<Val> {
        self.constant(Scalar::Int(n as i128), DType::I32)
    }

    /// A constant with the type of `x`.
    pub fn full_like(&mut self, x: &Val, value: Scalar) -> Result<Val> {
        let value = self.constant(value.converted(x.dtype), x.dtype)?;
        self.broadcast(&value, &[], &x.shape)
    }

    /// `x` with other dimensions.
    pub fn reshape(&mut self, x: &Val, shape: &[usize]) -> Result<Val> {
        match self.dialect {
            _ if x.shape.as_slice() == shape => Ok(x.clone()),
            _ if x.shape.is_empty() => self.broadcast(x, &[], shape),
            _ if shape.is_empty() => Err(err!(NotImplemented, "a value of shape {:?} cannot become a scalar", x.shape)),
            Dialect::Triton => self.op("tt.reshape", &[x], "", x.dtype, shape),
            Dialect::Mosaic => self.op("vector.shape_cast", &[x], "", x.dtype, shape),
        }
    }

    /// `x` repeated: its dimension `i` is `dims[i]` of the result.
    pub fn broadcast(&mut self, x: &Val, dims: &[usize], shape: &[usize]) -> Result<Val> {
        if x.shape.as_slice() == shape {
            return Ok(x.clone());
        }
        let (splat, repeat) = match self.dialect {
            Dialect::Triton => ("tt.splat", "tt.broadcast"),
            Dialect::Mosaic => ("vector.broadcast", "vector.broadcast"),
        };
        if x.shape.is_empty() {
            return self.op(splat, &[x], "", x.dtype, shape);
        }
        // First give `x` all dimensions of the result, some of size 1, and then repeat it along them.
        let mut sizes = vec![1; shape.len()];
        dims.iter().zip(&x.shape).for_each(|(dim, size)| sizes[*dim] = *size);
        let mut wide = x.clone();
        match self.dialect {
            Dialect::Triton => {
                for axis in (0..shape.len()).filter(|axis| !dims.contains(axis)) {
                    let mut sizes = wide.shape.clone();
                    sizes.insert(axis, 1);
                    wide = self.op("tt.expand_dims", &[&wide], &format!("axis = {axis} : i32"), x.dtype, &sizes)?;
                }
            }
            Dialect::Mosaic => wide = self.reshape(x, &sizes)?,
        }
        if sizes == shape { Ok(wide) } else { self.op(repeat, &[&wide], "", x.dtype, shape) }
    }

    /// `0, 1, …` along a dimension of this shape, in int32.
    pub fn range(&mut self, shape: &[usize], dim: usize) -> Result<Val> {
        let n = shape[dim];
        if self.dialect == Dialect::Mosaic {
            return self.op("tpu.iota", &[], &format!("dimensions = array<i32: {dim}>"), DType::I32, shape);
        }
        let range = match n {
            1 => {
                let zero = self.number(0)?;
                self.broadcast(&zero, &[], &[1])?
            }
            _ => self.op("tt.make_range", &[], &format!("start = 0 : i32, end = {n} : i32"), DType::I32, &[n])?,
        };
        self.broadcast(&range, &[dim], shape)
    }

    /// `x` converted.
    pub fn convert(&mut self, x: &Val, dtype: DType) -> Result<Val> {
        use Category::{Bool, Float, Signed, Unsigned};
        let (from, to) = (x.dtype, dtype);
        if from == to {
            return Ok(x.clone());
        }
        let (narrow, wide) = (to.byte_size() < from.byte_size(), to.byte_size() > from.byte_size());
        let op = match (from.category(), to.category()) {
            (Float, Float) if wide => "arith.extf",
            (Float, Float) if narrow => "arith.truncf",
            // Converts through 32 bits between two kinds of half precision, and from booleans.
            (Float, Float) => return self.convert_by(x, DType::F32, to),
            (Bool, Float) => return self.convert_by(x, DType::I32, to),
            (Float, Signed) => "arith.fptosi",
            (Float, Unsigned) => "arith.fptoui",
            (Signed, Float) => "arith.sitofp",
            (Unsigned, Float) => "arith.uitofp",
            (Signed | Unsigned | Float, Bool) => {
                let zero = self.full_like(x, Scalar::Int(0))?;
                return self.compare("ne", x, &zero);
            }
            (Bool, Signed | Unsigned) => "arith.extui",
            (Signed, Signed | Unsigned) if wide => "arith.extsi",
            (Unsigned, Signed | Unsigned) if wide => "arith.extui",
            (Signed | Unsigned, Signed | Unsigned) if narrow => "arith.trunci",
            (Signed | Unsigned, Signed | Unsigned) => return Ok(Val { dtype, ..x.clone() }),
            _ => return Err(err!(NotImplemented, "a conversion from {from} to {to} is not supported")),
        };
        self.op(op, &[x], "", to, &x.shape)
    }

    fn convert_by(&mut self, x: &Val, by: DType, to: DType) -> Result<Val> {
        let between = self.convert(x, by)?;
        self.convert(&between, to)
    }

    /// `x` and `y` compared: `eq`, `ne`, `lt`, `le`, `gt` or `ge`.
    pub fn compare(&mut self, how: &str, x: &Val, y: &Val) -> Result<Val> {
        // MLIR's numbers of comparisons: ordered comparisons of floats (`ne` is unordered), then of signed and unsigned
        // integers.
        let [float, signed, unsigned] = match how {
            "eq" => [1, 0, 0],
            "ne" => [13, 1, 1],
            "gt" => [2, 4, 8],
            "ge" => [3, 5, 9],
            "lt" => [4, 2, 6],
            "le" => [5, 3, 7],
            _ => return Err(err!(NotImplemented, "the comparison {how} is not supported")),
        };
        let (op, number) = match x.dtype.category() {
            Category::Float => ("arith.cmpf", float),
            Category::Signed => ("arith.cmpi", signed),
            _ => ("arith.cmpi", unsigned),
        };
        self.op(op, &[x, y], &format!("predicate = {number} : i64"), DType::Bool, &x.shape)
    }
}
