//! The equations of a kernel as operations of a dialect.

use super::text::{Dialect, Text, Val};
use crate::core::lower::constant_text;
use crate::core::primitive::Primitive;
use crate::core::program::{Atom, Env, Eqn, Program};
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Error, Result, err};
use crate::ops::pallas::kernel::ProgramId;
use crate::ops::primitive::binary::{Convert, IntegerPow, Select};
use crate::ops::primitive::cond::Cond;
use crate::ops::primitive::cumulative::Cumulative;
use crate::ops::primitive::dot::DotGeneral;
use crate::ops::primitive::reduce::Reduce;
use crate::ops::primitive::scan::Scan;
use crate::ops::primitive::shape_ops::{BroadcastInDim, Iota, Transpose};
use crate::ops::primitive::while_loop::While;
use crate::ops::state::{Access, Get, Swap};
use crate::precision::Precision;
use crate::stack::grow;

/// The memory of a ref.
pub(super) trait Memory {
    /// Loads the part of this access. `place` contains the operands of the place, `masked` the mask and the value to
    /// use elsewhere.
    fn load(&self, text: &mut Text, access: &Access, place: &[Val], masked: Option<(&Val, &Val)>) -> Result<Val>;

    /// Writes `value` to the part of this access.
    fn store(&self, text: &mut Text, access: &Access, value: &Val, place: &[Val], mask: Option<&Val>) -> Result<()>;
}

/// The text that programs are written to.
pub(super) struct Body<'a> {
    pub text: &'a mut Text,
    pub refs: &'a [Box<dyn Memory>],
    /// The position in the grid.
    pub ids: &'a [Val],
}

impl Body<'_> {
    /// Writes the equations of `program`, and returns its outputs.
    pub fn program(&mut self, program: &Program, args: &[Val]) -> Result<Vec<Val>> {
        let mut env: Env<Val> = Env::new(program);
        program.inputs.iter().zip(args).for_each(|(var, arg)| env.set(*var, arg.clone()));
        for eqn in &program.eqns {
            let inputs = eqn.inputs.iter().map(|atom| self.atom(&env, atom)).collect::<Result<Vec<_>>>()?;
            let outs = grow(|| self.equation(program, eqn, &inputs)).map_err(|e| e.at(eqn.source))?;
            eqn.outputs.iter().zip(outs).for_each(|(var, out)| env.set(*var, out));
        }
        program.outputs.iter().map(|atom| self.atom(&env, atom)).collect()
    }

    fn atom(&mut self, env: &Env<Val>, atom: &Atom) -> Result<Val> {
        match atom {
            Atom::Var(var) => env
                .get(*var)
                .cloned()
                .ok_or_else(|| err!(Runtime, "internal error: variable {var:?} has no value; please report this")),
            Atom::Literal { value, dtype, .. } => self.text.constant(*value, *dtype),
        }
    }

    fn memory(&self, access: &Access) -> Result<&dyn Memory> {
        let memory = self.refs.get(access.number).map(|memory| &**memory);
        memory.ok_or_else(|| err!(Runtime, "ref {} is not memory of the kernel", access.number))
    }

    fn equation(&mut self, program: &Program, eqn: &Eqn, args: &[Val]) -> Result<Vec<Val>> {
        let primitive = &*eqn.primitive;
        let any = primitive.as_any();
        // Accesses of memory and control flow have rules of their own; other operations are written one by one.
        if let Some(ProgramId { axis }) = any.downcast_ref() {
            let id = self.ids.get(*axis).cloned();
            return Ok(vec![id.ok_or_else(|| err!(Runtime, "the grid has no axis {axis}"))?]);
        }
        let refs = self.refs;
        if let Some(Get { access, .. }) = any.downcast_ref() {
            let (place, other_and_mask) = args.split_at(access.place.operand_count());
            let masked = if let [other, mask] = other_and_mask { Some((other, mask)) } else { None };
            self.memory(access)?;
            return Ok(vec![refs[access.number].load(self.text, access, place, masked)?]);
        }
        if let Some(Swap { access }) = any.downcast_ref() {
            let (place, mask) = args[1..].split_at(access.place.operand_count());
            self.memory(access)?;
            let memory = &refs[access.number];
            // The previous value may be unused; then the compiler drops the load.
            let zero = Scalar::Int(0);
            let old = match mask.first() {
                Some(mask) => {
                    let other = self.text.full_like(&args[0], zero)?;
                    memory.load(self.text, access, place, Some((&other, mask)))?
                }
                None => memory.load(self.text, access, place, None)?,
            };
            memory.store(self.text, access, &args[0], place, mask.first())?;
            return Ok(vec![old]);
        }
        if let Some(scan) = any.downcast_ref::<Scan>() {
            return self.for_loop(scan, args);
        }
        if let Some(this) = any.downcast_ref::<While>() {
            return self.while_loop(this, args);
        }
        if let Some(cond) = any.downcast_ref::<Cond>() {
            return self.conditional(cond, args);
        }
        if matches!(primitive.name(), "jit" | "custom_jvp" | "custom_vjp") && primitive.programs().len() == 1 {
            return self.program(primitive.programs()[0], args);
        }
        let shape = eqn.outputs.first().map(|out| program.aval_of(*out).shape.clone()).unwrap_or_default();
        Ok(vec![operation(self.text, primitive, args, &shape)?])
    }

    /// A loop with a known number of steps.
    fn for_loop(&mut self, scan: &Scan, args: &[Val]) -> Result<Vec<Val>> {
        let (consts, rest) = args.split_at(scan.num_consts);
        if rest.len() > scan.num_carry || scan.body.outputs.len() > scan.num_carry {
            return Err(
                err!(NotImplemented, "a scan over arrays is not supported").help("slice refs in a `fori_loop` instead")
            );
        }
        let [zero, length, one] = [0, scan.length, 1].map(|n| self.text.number(n));
        let (zero, length, one) = (zero?, length?, one?);
        let carry = self.text.fresh_like(rest);
        let step = self.text.fresh(DType::I32, &[])?;
        let inner = [std::slice::from_ref(&step), &carry].concat();
        let body = self.region(&scan.body, &inner, &[consts, &carry].concat())?;
        let operands: Vec<&Val> = [&zero, &length, &one].into_iter().chain(rest).collect();
        Ok(self.text.write("scf.for", &operands, &[body], "", rest))
    }

    fn while_loop(&mut self, this: &While, args: &[Val]) -> Result<Vec<Val>> {
        let (cond_consts, rest) = args.split_at(this.cond_consts);
        let (consts, init) = rest.split_at(this.body_consts);
        let (before, after) = (self.text.fresh_like(init), self.text.fresh_like(init));
        let (refs, ids) = (self.refs, self.ids);
        let condition = self.text.region(&before, |text| {
            let again = Body { text: &mut *text, refs, ids }.program(&this.cond, &[cond_consts, &before].concat())?;
            let operands: Vec<&Val> = again.iter().chain(&before).collect();
            text.write("scf.condition", &operands, &[], "", &[]);
            Ok(())
        })?;
        let body = self.region(&this.body, &after, &[consts, &after].concat())?;
        let operands: Vec<&Val> = init.iter().collect();
        Ok(self.text.write("scf.while", &operands, &[condition, body], "", init))
    }

    fn conditional(&mut self, cond: &Cond, args: &[Val]) -> Result<Vec<Val>> {
        let [no, yes] = &cond.branches[..] else {
            return Err(err!(NotImplemented, "a conditional of {} branches is not supported", cond.branches.len()));
        };
        let which = self.text.convert(&args[0], DType::Bool)?;
        let types = no.out_avals();
        let outs = types.iter().map(|aval| self.text.fresh(aval.dtype, &aval.shape));
        let outs: Vec<Val> = outs.collect::<Result<_>>()?;
        let regions = [yes, no].map(|branch| self.region(branch, &[], &args[1..]));
        let [yes, no] = regions;
        Ok(self.text.write("scf.if", &[&which], &[yes?, no?], "", &outs))
    }

    /// Writes a region with these arguments that returns the outputs of a program.
    fn region(&mut self, program: &Program, inner: &[Val], args: &[Val]) -> Result<String> {
        let (refs, ids) = (self.refs, self.ids);
        self.text.region(inner, |text| {
            let outs = Body { text: &mut *text, refs, ids }.program(program, args)?;
            text.write("scf.yield", &outs.iter().collect::<Vec<_>>(), &[], "", &[]);
            Ok(())
        })
    }
}

fn unsupported(primitive: &dyn Primitive) -> Error {
    err!(NotImplemented, "the operation {} is not supported in kernels for this platform", primitive.name())
}

fn operation(text: &mut Text, primitive: &dyn Primitive, args: &[Val], shape: &[usize]) -> Result<Val> {
    let any = primitive.as_any();
    if let Some(BroadcastInDim { dims, .. }) = any.downcast_ref() {
        return if dims.windows(2).any(|pair| pair[0] > pair[1]) {
            Err(unsupported(primitive))
        } else {
            text.broadcast(&args[0], dims, shape)
        };
    }
    if let Some(Convert { dtype, .. }) = any.downcast_ref() {
        return text.convert(&args[0], *dtype);
    }
    if let Some(Iota { dtype, dimension, .. }) = any.downcast_ref() {
        let range = text.range(shape, *dimension)?;
        return text.convert(&range, *dtype);
    }
    if let Some(Transpose { permutation, .. }) = any.downcast_ref() {
        return transposed(text, &args[0], permutation);
    }
    if let Some(IntegerPow(n)) = any.downcast_ref() {
        return power(text, &args[0], *n);
    }
    if let Some(dot) = any.downcast_ref::<DotGeneral>() {
        return product(text, dot, &args[0], &args[1]);
    }
    if let Some(reduce) = any.downcast_ref::<Reduce>() {
        return reduced(text, reduce, &args[0]);
    }
    if let Some(cumulative) = any.downcast_ref::<Cumulative>() {
        return cumulated(text, cumulative, &args[0]);
    }
    match (primitive.name(), args) {
        ("reshape", [x]) => return text.reshape(x, shape),
        ("stop_gradient", [x]) => return Ok(x.clone()),
        _ => {}
    }
    // Scalars are operands of elementwise operations without a broadcast.
    let args = args.iter().map(|arg| text.broadcast(arg, &[], shape)).collect::<Result<Vec<_>>>()?;
    match (primitive.name(), &args[..]) {
        (_, [which, no, yes]) if any.is::<Select>() => text.op("arith.select", &[which, yes, no], "", yes.dtype, shape),
        (_, [x]) => unary(text, primitive, x),
        (how @ ("eq" | "ne" | "lt" | "le" | "gt" | "ge"), [x, y]) => text.compare(how, x, y),
        (_, [x, y]) => match binary(primitive, x.dtype) {
            Some(op) => Ok(text.same(op, &[x, y])),
            None => Err(unsupported(primitive)),
        },
        _ => Err(unsupported(primitive)),
    }
}

/// The operation on two values of a kind: floats, signed integers, unsigned integers, booleans.
fn binary(primitive: &dyn Primitive, dtype: DType) -> Option<&'static str> {
    let [float, signed, unsigned, bool] = match primitive.name() {
        "add" | "reduce_sum" | "cumsum" => ["arith.addf", "arith.addi", "arith.addi", "arith.ori"],
        "sub" => ["arith.subf", "arith.subi", "arith.subi", ""],
        "mul" | "reduce_prod" | "cumprod" => ["arith.mulf", "arith.muli", "arith.muli", "arith.andi"],
        "div" => ["arith.divf", "arith.divsi", "arith.divui", ""],
        "rem" => ["arith.remf", "arith.remsi", "arith.remui", ""],
        "max" | "reduce_max" | "cummax" => ["arith.maximumf", "arith.maxsi", "arith.maxui", "arith.ori"],
        "min" | "reduce_min" | "cummin" => ["arith.minimumf", "arith.minsi", "arith.minui", "arith.andi"],
        "and" | "reduce_and" => ["", "arith.andi", "arith.andi", "arith.andi"],
        "or" | "reduce_or" => ["", "arith.ori", "arith.ori", "arith.ori"],
        "xor" => ["", "arith.xori", "arith.xori", "arith.xori"],
        "shift_left" => ["", "arith.shli", "arith.shli", ""],
        "shift_right_logical" => ["", "arith.shrui", "arith.shrui", ""],
        "shift_right_arithmetic" => ["", "arith.shrsi", "arith.shrsi", ""],
        _ => return None,
    };
    let op = match dtype.category() {
        Category::Float => float,
        Category::Signed => signed,
        Category::Unsigned => unsigned,
        _ => bool,
    };
    Some(op).filter(|op| !op.is_empty())
}

fn unary(text: &mut Text, primitive: &dyn Primitive, x: &Val) -> Result<Val> {
    let op = match (primitive.name(), x.dtype.is_float()) {
        ("neg", true) => return Ok(text.same("arith.negf", &[x])),
        ("abs", true) => return Ok(text.same("math.absf", &[x])),
        ("abs", false) => return Ok(text.same("math.absi", &[x])),
        ("neg", false) => {
            let zero = text.full_like(x, Scalar::Int(0))?;
            return Ok(text.same("arith.subi", &[&zero, x]));
        }
        ("not", false) => {
            let ones = if x.dtype == DType::Bool { Scalar::Bool(true) } else { Scalar::Int(-1) };
            let ones = text.full_like(x, ones)?;
            return Ok(text.same("arith.xori", &[x, &ones]));
        }
        (name @ ("exp" | "log" | "sqrt" | "rsqrt" | "floor" | "ceil" | "tanh" | "log1p" | "erf"), true) => name,
        ("sin", true) => "sin",
        ("cos", true) => "cos",
        ("logistic", true) => "logistic",
        _ => return Err(unsupported(primitive)),
    };
    // Functions of narrow floats are computed in float32.
    let wide = if x.dtype.byte_size() < 4 { text.convert(x, DType::F32)? } else { x.clone() };
    let out = match (op, text.dialect) {
        ("logistic", _) => {
            let (negated, one) = (text.same("arith.negf", &[&wide]), text.full_like(&wide, Scalar::float(1.0))?);
            let power = text.same("math.exp", &[&negated]);
            let sum = text.same("arith.addf", &[&one, &power]);
            text.same("arith.divf", &[&one, &sum])
        }
        ("tanh" | "log1p", Dialect::Triton) => {
            let suffix = if wide.dtype == DType::F64 { "" } else { "f" };
            let attrs = format!("libname = \"\", libpath = \"\", pure = true, symbol = \"__nv_{op}{suffix}\"");
            text.op("tt.extern_elementwise", &[&wide], &attrs, wide.dtype, &wide.shape)?
        }
        _ => text.same(&format!("math.{op}"), &[&wide]),
    };
    text.convert(&out, x.dtype)
}

fn power(text: &mut Text, x: &Val, n: i32) -> Result<Val> {
    let mul = if x.dtype.is_float() { "arith.mulf" } else { "arith.muli" };
    if !(-64..=64).contains(&n) || n == 0 || (n < 0 && !x.dtype.is_float()) {
        return Err(err!(NotImplemented, "the power {n} is not supported in kernels for this platform"));
    }
    let mut out = x.clone();
    for _ in 1..n.unsigned_abs() {
        out = text.same(mul, &[&out, x]);
    }
    if n > 0 {
        return Ok(out);
    }
    let unit = text.full_like(x, Scalar::float(1.0))?;
    Ok(text.same("arith.divf", &[&unit, &out]))
}

fn transposed(text: &mut Text, x: &Val, permutation: &[usize]) -> Result<Val> {
    let shape: Vec<usize> = permutation.iter().map(|&d| x.shape[d]).collect();
    let order = permutation.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match text.dialect {
        Dialect::Triton => text.op("tt.trans", &[x], &format!("order = array<i32: {order}>"), x.dtype, &shape),
        Dialect::Mosaic => {
            text.op("tpu.transpose", &[x], &format!("permutation = array<i64: {order}>"), x.dtype, &shape)
        }
    }
}

fn reduced(text: &mut Text, reduce: &Reduce, x: &Val) -> Result<Val> {
    let op = binary(reduce, x.dtype).ok_or_else(|| unsupported(reduce))?;
    // Mosaic reduces all axes at once, and Triton one axis at a time.
    if text.dialect == Dialect::Mosaic {
        let shape = shape_without(&x.shape, &reduce.axes);
        if shape.is_empty() {
            return Err(err!(NotImplemented, "{} to a scalar is not supported in kernels for TPUs", reduce.name())
                .help("keep a dimension: `sum_keepdims`, `max_keepdims`"));
        }
        let kind = match op.trim_start_matches("arith.") {
            "addf" | "addi" => "add",
            kind if kind.starts_with("max") || kind.starts_with("min") => kind,
            _ => return Err(unsupported(reduce)),
        };
        let axes = reduce.axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let start = constant_text(reduce.reducer.identity(x.dtype), x.dtype);
        let start = format!("value = dense<{start}> : {}", text.ty(x.dtype, &shape)?);
        let start = text.op("arith.constant", &[], &start, x.dtype, &shape)?;
        let attrs = format!("kind = #vector.kind<{kind}>, reduction_dims = array<i64: {axes}>");
        return text.op("vector.multi_reduction", &[x, &start], &attrs, x.dtype, &shape);
    }
    let mut axes = reduce.axes.to_vec();
    axes.sort_unstable();
    let mut out = x.clone();
    for axis in axes.into_iter().rev() {
        let two = [text.fresh(x.dtype, &[])?, text.fresh(x.dtype, &[])?];
        let region = text.region(&two, |text| {
            let combined = text.same(op, &[&two[0], &two[1]]);
            text.write("tt.reduce.return", &[&combined], &[], "", &[]);
            Ok(())
        })?;
        let to = text.fresh(x.dtype, &shape_without(&out.shape, &[axis]))?;
        let attrs = format!("axis = {axis} : i32");
        out = text.write("tt.reduce", &[&out], &[region], &attrs, &[to]).swap_remove(0);
    }
    Ok(out)
}

fn shape_without(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    (0..shape.len()).filter(|d| !axes.contains(d)).map(|d| shape[d]).collect()
}

fn cumulated(text: &mut Text, cumulative: &Cumulative, x: &Val) -> Result<Val> {
    let op = binary(cumulative, x.dtype).filter(|_| text.dialect == Dialect::Triton);
    let op = op.ok_or_else(|| unsupported(cumulative).help("loop over the axis with `fori_loop`"))?;
    // Sums of half precision are computed in float32, as on CPU.
    let (dtype, is_narrow) = (x.dtype, x.dtype.is_float() && x.dtype.byte_size() < 4);
    let x = &text.convert(x, if is_narrow { DType::F32 } else { dtype })?;
    let two = [text.fresh(x.dtype, &[])?, text.fresh(x.dtype, &[])?];
    let region = text.region(&two, |text| {
        let combined = text.same(op, &[&two[0], &two[1]]);
        text.write("tt.scan.return", &[&combined], &[], "", &[]);
        Ok(())
    })?;
    let attrs = format!("axis = {} : i32, reverse = {}", cumulative.axis, cumulative.reverse);
    let out = text.write("tt.scan", &[x], &[region], &attrs, std::slice::from_ref(x)).swap_remove(0);
    text.convert(&out, dtype)
}

fn product(text: &mut Text, dot: &DotGeneral, x: &Val, y: &Val) -> Result<Val> {
    if !dot.lhs_batch.is_empty() || x.shape.len() != 2 || y.shape.len() != 2 || dot.lhs_contract.len() != 1 {
        return Err(err!(NotImplemented, "only products of two matrices are supported in kernels for this platform"));
    }
    let (l, r) = (dot.lhs_contract[0], dot.rhs_contract[0]);
    // For fewer contracted elements than this, Triton computes wrong sums on a GPU's matrix units (8 elements of
    // bfloat16 on an H100). Such sums are computed in float32 without these units, which is exact for 8-bit integers
    // too.
    let size = x.dtype.byte_size();
    let fits = text.dialect == Dialect::Mosaic || x.shape[l] >= if size == 1 { 32 } else { 16 };
    if !fits && (size == 1 || x.dtype.is_float() && size == 2) {
        let dot = DotGeneral {
            preferred: Some(dot.preferred.unwrap_or(x.dtype)),
            precision: Some(Precision::Highest),
            ..dot.clone()
        };
        let (x, y) = (text.convert(x, DType::F32)?, text.convert(y, DType::F32)?);
        return product(text, &dot, &x, &y);
    }
    let wide = match x.dtype {
        DType::F64 => DType::F64,
        dtype if dtype.is_integer() => DType::I32,
        _ => DType::F32,
    };
    let shape = [x.shape[1 - l], y.shape[1 - r]];
    let exact = x.dtype == DType::F32 && (dot.precision == Some(Precision::Highest) || !fits);
    let zero = text.constant(Scalar::Int(0).converted(wide), wide)?;
    let zero = text.broadcast(&zero, &[], &shape)?;
    let out = match text.dialect {
        Dialect::Triton => {
            let x = if l == 0 { transposed(text, x, &[1, 0])? } else { x.clone() };
            let y = if r == 1 { transposed(text, y, &[1, 0])? } else { y.clone() };
            let precision = match x.dtype {
                DType::F32 => format!(", inputPrecision = {}", if exact { "ieee" } else { "tf32" }),
                _ => String::new(),
            };
            let out = text.fresh(wide, &shape)?;
            text.line(&format!(
                "{} = tt.dot {}, {}, {}{precision} : {} * {} -> {}",
                out.name, x.name, y.name, zero.name, x.ty, y.ty, zero.ty
            ));
            out
        }
        Dialect::Mosaic => {
            let precision = if exact { ", precision = #tpu.contract_precision<fp32>" } else { "" };
            let attrs = format!(
                "dimension_numbers = #tpu.dot_dimension_numbers<[{l}], [{r}], [{}], [{}], [0, {}, 1, {}], [], []>, \
                 transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false{precision}",
                1 - l,
                1 - r,
                1 - l,
                1 - r
            );
            text.op("tpu.matmul", &[x, y, &zero], &attrs, wide, &shape)?
        }
    };
    text.convert(&out, dot.preferred.unwrap_or(x.dtype))
}
