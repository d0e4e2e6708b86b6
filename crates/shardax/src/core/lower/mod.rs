//! Lowering: writing a program as StableHLO text with `sdy` shardings.
//!
//! Operations are written in MLIR's generic form, because all operations share its syntax, so that a primitive needs no
//! printer.

mod attr;
mod expand;
mod function;
pub(crate) mod imported;
mod location;
mod materialize;
pub(crate) mod module;
mod pad;
mod platform;
mod rules;

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use smallvec::SmallVec;

pub use attr::{bools, ints};
pub(crate) use attr::{comparison, constant_text, write_type};
use location::Locations;
pub(crate) use location::{source_on, without_locations};
pub(crate) use platform::Platform;
pub(crate) use rules::PlatformRules;

use super::program::{Atom, Aval, Env, Program};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::scope::Part;
use crate::shape::{AxisName, Shape};
use crate::sharding::memory::MemoryKind;
use crate::sharding::{DimSpec, Mesh, NamedSharding, PartitionSpec, Typed, axis_text};
use crate::stack::grow;

/// A value in the text being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(u32);

struct ValueInfo {
    /// `%name`, or `%name#result` for an operation of several results.
    name: u32,
    result: Option<u32>,
    dtype: DType,
    shape: Shape,
    /// The sharding in the type of a variable of the program.
    typed: Option<Arc<Typed>>,
    /// The value that was converted to this one.
    converted_from: Option<Value>,
    /// `true` if the value is the same in all iterations of the loop that is being written.
    invariant: bool,
    /// `true` if all elements are the constant 0.
    zero: bool,
    /// A record of the platform's rules about this value.
    #[allow(dead_code, reason = "only rules of optional kernels use it")]
    origin: Option<Arc<dyn Any + Send + Sync>>,
}

/// Where the result of a transpose is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResultUse {
    /// Only in loops that read it in any order.
    #[default]
    Fused,
    /// In a loop that computes a value in memory from it, element by element. Or the operand is computed element by element.
    Elementwise,
    /// In memory.
    Memory,
}

/// The body of an operation's region, which [`Lowering::region`] writes.
pub struct Region(String);

/// The text being written, to which a primitive's [`lower`](crate::primitive::Primitive::lower) adds its operations.
#[derive(Default)]
pub struct Lowering {
    text: String,
    indent: usize,
    values: Vec<ValueInfo>,
    next_name: u32,
    /// The axes of each mesh.
    meshes: Vec<Vec<(AxisName, usize)>>,
    next_channel: u32,
    /// The enclosing mesh with manual axes.
    pub(crate) manual_mesh: Option<Mesh>,
    pub(crate) manual_axes: Vec<AxisName>,
    /// The target platform.
    pub(crate) platform: Platform,
    /// `true` if the program is for several devices.
    pub(crate) many_devices: bool,
    /// `true` if the text is to be exported.
    pub(crate) portable: bool,
    /// `true` if some values of the program are in memory other than the devices' default memory.
    pub(crate) other_memory: bool,
    /// The mesh that the compiler partitions values over, if arguments or results name one.
    pub(crate) auto_mesh: Option<Mesh>,
    /// The current names and source locations.
    locations: Locations,
    /// The functions next to `main`.
    functions: function::Functions,
    /// The indices of the platform. Conditional branches for other platforms are not written.
    platform_indices: Vec<(Value, usize)>,
    /// The results of the equation that is being written that nothing reads.
    unread: SmallVec<[bool; 4]>,
    /// Where the result of the equation that is being written is read.
    result_use: ResultUse,
}

impl Lowering {
    /// Starts the text of a program of this name, with locations or without.
    pub(crate) fn of(name: &str, locations: bool, platform: Platform) -> Self {
        Lowering { indent: 2, locations: Locations::of(name, locations), platform, ..Lowering::default() }
    }

    /// Returns `true` if the text being written runs on one device without changes, so that the compiler has nothing to
    /// partition.
    pub(crate) fn is_local(&self) -> bool {
        let mesh = self.manual_mesh.as_ref();
        !self.many_devices || mesh.is_some_and(|mesh| mesh.axis_names().all(|name| self.manual_axes.contains(&name)))
    }

    /// Records that a value is the index of the platform among the branches of a conditional.
    pub(crate) fn set_platform_index(&mut self, value: Value, index: usize) {
        self.platform_indices.push((value, index));
    }

    /// Returns the index of the platform, if [`set_platform_index`](Self::set_platform_index) recorded one for the value.
    pub(crate) fn platform_index(&self, value: Value) -> Option<usize> {
        self.platform_indices.iter().find(|(known, _)| *known == value).map(|(_, index)| *index)
    }

    /// Returns the value that was converted to this one.
    pub(crate) fn converted_from(&self, value: Value) -> Option<Value> {
        self.values[value.0 as usize].converted_from
    }

    /// Records that these values are the same in all iterations of the loop that is being written.
    pub(crate) fn set_invariant(&mut self, values: &[Value]) {
        values.iter().for_each(|value| self.values[value.0 as usize].invariant = true);
    }

    /// Returns `true` for a value that is the same in all iterations of the loop that is being written, so that the
    /// compiler moves operations on it out of the loop.
    #[allow(dead_code, reason = "only rules of optional kernels use it")]
    pub(crate) fn is_invariant(&self, value: Value) -> bool {
        self.values[value.0 as usize].invariant
    }

    /// Returns `true` if all elements of a value are the constant 0, or copies of one.
    pub(crate) fn is_zero(&self, value: Value) -> bool {
        self.values[value.0 as usize].zero
    }

    /// Stores what a platform's rules know about a value, for the rules of operations that use it.
    #[allow(dead_code, reason = "only rules of optional kernels use it")]
    pub(crate) fn set_origin<T: Send + Sync + 'static>(&mut self, value: Value, origin: T) {
        self.values[value.0 as usize].origin = Some(Arc::new(origin));
    }

    /// Returns the record of the platform's rules about a value.
    #[allow(dead_code, reason = "only rules of optional kernels use it")]
    pub(crate) fn origin<T: 'static>(&self, value: Value) -> Option<&T> {
        self.values[value.0 as usize].origin.as_ref()?.downcast_ref()
    }

    /// Returns `true` if nothing reads this result of the equation that is being written. It is `false` for operations that a rule
    /// [applies](Self::apply) as parts of the equation.
    #[allow(dead_code, reason = "only rules of optional kernels use it")]
    pub(crate) fn is_unread(&self, result: usize) -> bool {
        self.unread.get(result).copied().unwrap_or(false)
    }

    /// Returns where the result of the equation that is being written is read. It is [`ResultUse::Fused`] for operations that a rule
    /// [applies](Self::apply) as parts of the equation.
    #[allow(dead_code, reason = "only rules of optional kernels use it")]
    pub(crate) fn result_use(&self) -> ResultUse {
        self.result_use
    }

    /// Returns the dtype of a value.
    pub fn dtype(&self, v: Value) -> DType {
        self.values[v.0 as usize].dtype
    }

    /// Returns the shape of a value.
    pub fn shape(&self, v: Value) -> &Shape {
        &self.values[v.0 as usize].shape
    }

    /// Returns the type of a value.
    pub fn aval(&self, v: Value) -> Aval {
        Aval::new(self.dtype(v), self.shape(v).clone())
    }

    /// Defines a value of this type: a result of the next operation, or a block argument.
    fn define(&mut self, name: u32, result: Option<u32>, aval: &Aval) -> Value {
        self.values.push(ValueInfo {
            name,
            result,
            dtype: aval.dtype,
            shape: aval.shape.clone(),
            typed: None,
            converted_from: None,
            invariant: false,
            zero: false,
            origin: None,
        });
        Value(self.values.len() as u32 - 1)
    }

    fn fresh(&mut self) -> u32 {
        self.next_name += 1;
        self.next_name - 1
    }

    fn write_value(&mut self, v: Value) {
        let info = &self.values[v.0 as usize];
        let _ = match info.result {
            Some(r) => write!(self.text, "%{}#{r}", info.name),
            None => write!(self.text, "%{}", info.name),
        };
    }

    fn write_list<T: Copy>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, T)) {
        for (i, &item) in items.iter().enumerate() {
            if i > 0 {
                self.text.push_str(", ");
            }
            write(self, item);
        }
    }

    /// Returns a channel id that no other communication of this program uses.
    pub fn channel(&mut self) -> u32 {
        self.next_channel += 1;
        self.next_channel
    }

    /// Returns the sharding of a value of this rank as an attribute, for example `sharding = …` of
    /// `sdy.sharding_constraint`.
    pub fn sharding(&mut self, sharding: &NamedSharding, rank: usize) -> String {
        let mesh = self.mesh_name(sharding.mesh());
        sharding.sdy(&mesh, rank)
    }

    /// Returns the name of `mesh` in the text.
    pub fn mesh_name(&mut self, mesh: &Mesh) -> String {
        self.mesh_of(mesh.axes())
    }

    fn mesh_of(&mut self, axes: &[(AxisName, usize)]) -> String {
        // The text distinguishes meshes by their axes, because all meshes of a program use the same devices.
        let index = self.meshes.iter().position(|known| known == axes).unwrap_or_else(|| {
            self.meshes.push(axes.to_vec());
            self.meshes.len() - 1
        });
        if index == 0 { "mesh".into() } else { format!("mesh_{index}") }
    }

    /// Writes an operation with one result: `cx.op("stablehlo.add", &[x, y], "", &out)`. `attrs` is the content of its
    /// attribute dictionary, as in MLIR's generic form.
    pub fn op(&mut self, name: &str, args: &[Value], attrs: &str, out: &Aval) -> Value {
        let value = self.op_with(name, args, attrs, Vec::new(), std::slice::from_ref(out))[0];
        match name {
            "stablehlo.convert" => self.addends_like(value, args[0]),
            _ => value,
        }
    }

    /// Keeps the unreduced sharding of a value of half precision when it is widened for a sum. Otherwise the compiler would
    /// reduce the value before the conversion, and then reduce the sum again.
    fn addends_like(&mut self, converted: Value, source: Value) -> Value {
        let result = match self.typed(source).filter(|typed| !typed.unreduced().is_empty()) {
            Some(typed) => self.constrain(converted, &typed),
            None => converted,
        };
        self.values[result.0 as usize].converted_from = Some(source);
        result
    }

    /// Writes an operation with any number of results and regions.
    pub fn op_with(
        &mut self,
        name: &str,
        args: &[Value],
        attrs: &str,
        regions: Vec<Region>,
        outs: &[Aval],
    ) -> Vec<Value> {
        // MLIR's generic form: `%id = "name"(operands) (regions) {attributes} : (operand types) -> result types`.
        self.start_line();
        let id = self.fresh();
        let _ = match outs.len() {
            0 => Ok(()),
            1 => write!(self.text, "%{id} = "),
            n => write!(self.text, "%{id}:{n} = "),
        };
        let _ = write!(self.text, "\"{name}\"(");
        self.write_list(args, |cx, v| cx.write_value(v));
        self.text.push(')');
        if !regions.is_empty() {
            self.write_regions(regions);
        }
        if !attrs.is_empty() {
            let _ = write!(self.text, " {{{attrs}}}");
        }
        self.write_operation_type(args, outs);
        self.locations.mark(&mut self.text);
        self.text.push('\n');
        let has_several_results = outs.len() > 1;
        outs.iter().enumerate().map(|(i, out)| self.define(id, has_several_results.then_some(i as u32), out)).collect()
    }

    fn write_regions(&mut self, regions: Vec<Region>) {
        self.text.push_str(" (");
        for (i, region) in regions.into_iter().enumerate() {
            self.text.push_str(if i > 0 { ", {\n" } else { "{\n" });
            self.text.push_str(&region.0);
            self.start_line();
            self.text.push('}');
        }
        self.text.push(')');
    }

    /// Writes the types of an operation's operands and results. Only a single result has no parentheses.
    fn write_operation_type(&mut self, args: &[Value], outs: &[Aval]) {
        self.text.push_str(" : (");
        self.write_list(args, |cx, v| {
            let info = &cx.values[v.0 as usize];
            attr::write_type(&mut cx.text, info.dtype, &info.shape);
        });
        self.text.push_str(") -> ");
        if outs.len() != 1 {
            self.text.push('(');
        }
        for (i, out) in outs.iter().enumerate() {
            if i > 0 {
                self.text.push_str(", ");
            }
            attr::write_type(&mut self.text, out.dtype, &out.shape);
        }
        if outs.len() != 1 {
            self.text.push(')');
        }
    }

    fn start_line(&mut self) {
        for _ in 0..self.indent {
            self.text.push_str("  ");
        }
    }

    /// Writes a region with one block, whose arguments have these types. `body` returns the results of the block.
    ///
    /// # Errors
    /// Returns an error if `body` fails.
    pub fn region(
        &mut self,
        args: &[Aval],
        body: impl FnOnce(&mut Lowering, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Region> {
        self.region_returning("stablehlo.return", args, body)
    }

    /// Like [`region`](Self::region), for a dialect with another terminator.
    ///
    /// # Errors
    /// Returns an error if `body` fails.
    pub fn region_returning(
        &mut self,
        terminator: &str,
        args: &[Aval],
        body: impl FnOnce(&mut Lowering, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Region> {
        // The region is written to separate text, because the operation that contains it is written later.
        let outer = std::mem::take(&mut self.text);
        self.indent += 1;
        let mut values = Vec::with_capacity(args.len());
        if !args.is_empty() {
            self.start_line();
            self.text.push_str("^bb0(");
            for (i, aval) in args.iter().enumerate() {
                let id = self.fresh();
                let _ = write!(self.text, "{}%{id}: ", if i > 0 { ", " } else { "" });
                attr::write_type(&mut self.text, aval.dtype, &aval.shape);
                values.push(self.define(id, None, aval));
            }
            self.text.push_str("):\n");
        }
        let result = body(self, &values);
        if let Ok(outs) = &result {
            self.op_with(terminator, outs, "", Vec::new(), &[]);
        }
        self.indent -= 1;
        let inner = std::mem::replace(&mut self.text, outer);
        result.map(|_| Region(inner))
    }

    /// Writes a constant with every element equal to `value`.
    pub fn constant(&mut self, value: Scalar, aval: &Aval) -> Value {
        let mut attrs = String::from("value = dense<");
        attrs.push_str(&constant_text(value, aval.dtype));
        attrs.push_str("> : ");
        attr::write_type(&mut attrs, aval.dtype, &aval.shape);
        let constant = self.op("stablehlo.constant", &[], &attrs, aval);
        self.values[constant.0 as usize].zero = value.is_zero();
        constant
    }

    /// Returns `true` if moves between memories are written. None are written if all values are in the devices' default
    /// memory, or if programs of the platform know only one memory.
    pub(crate) fn moves_memory(&self) -> bool {
        self.other_memory && self.platform.has_memories()
    }

    /// Moves `v` to memory of this kind.
    pub(crate) fn in_memory(&mut self, v: Value, kind: MemoryKind) -> Value {
        let attrs = format!(
            "call_target_name = \"annotate_device_placement\", has_side_effect = true, backend_config = \"\", api_version = 1 : i32, mhlo.frontend_attributes = {{_xla_buffer_placement = {:?}}}",
            kind.as_str()
        );
        let aval = self.aval(v);
        self.op("stablehlo.custom_call", &[v], &attrs, &aval)
    }

    /// The mesh over which the compiler partitions values at this position of the text.
    fn split_mesh(&self) -> Option<&Mesh> {
        self.manual_mesh.as_ref().or(self.auto_mesh.as_ref()).filter(|_| !self.is_local())
    }

    /// The number of devices over which the compiler partitions values at this position of the text.
    pub(crate) fn split_size(&self) -> usize {
        self.split_mesh().map_or(1, Mesh::size)
    }

    /// Returns `true` if the compiler can split a dimension of this size into unequal parts and pad the last ones.
    pub(crate) fn may_pad(&self, size: usize) -> bool {
        let Some(mesh) = self.split_mesh() else { return false };
        // The possible numbers of parts are the products of axis sizes. The compiler splits a dimension into more parts than
        // it has elements only if it has one element.
        let mut parts = BTreeSet::from([1]);
        for (_, axis) in mesh.axes() {
            let more: Vec<usize> = parts.iter().map(|n| n * axis).filter(|n| *n <= size).collect();
            parts.extend(more);
        }
        (size == 1 && mesh.size() > 1) || parts.iter().any(|n| !size.is_multiple_of(*n))
    }

    /// Replicates the dimensions of `dims` that the partitioner would otherwise pad, because windows would read the padding
    /// as elements.
    pub(crate) fn without_padding(&mut self, v: Value, dims: impl IntoIterator<Item = usize>) -> Value {
        if !self.has_quirk("padding-in-windows") {
            return v;
        }
        let padded: Vec<usize> = dims.into_iter().filter(|d| self.may_pad(self.shape(v)[*d])).collect();
        if padded.is_empty() { v } else { self.with_replicated_dims(v, &padded) }
    }

    /// The sharding in the type of a variable of the program.
    pub(crate) fn typed(&self, v: Value) -> Option<Arc<Typed>> {
        self.values[v.0 as usize].typed.clone()
    }

    /// Constrains `v` to the sharding of its type.
    pub(crate) fn constrain(&mut self, v: Value, typed: &Typed) -> Value {
        if self.is_local() {
            return v;
        }
        let mesh = self.mesh_of(typed.mesh().axes());
        let attrs = format!("sharding = {}", typed.sdy(&mesh, &|axis| axis_text(typed.mesh().axis_names(), axis)));
        let aval = self.aval(v);
        let value = self.op("sdy.sharding_constraint", &[v], &attrs, &aval);
        self.values[value.0 as usize].typed = Some(Arc::new(typed.clone()));
        value
    }

    /// Prepares the arguments of a loop's block. Addends are constrained to be like the corresponding operands, because
    /// the compiler would otherwise sum them at the beginning of the loop.
    pub(crate) fn with_addends_of(&mut self, operands: &[Value], block: &[Value]) -> Vec<Value> {
        let pairs = operands.iter().zip(block);
        pairs
            .map(|(&operand, &v)| match self.typed(operand).filter(|typed| !typed.unreduced().is_empty()) {
                Some(typed) => self.constrain(v, &typed),
                None => v,
            })
            .collect()
    }

    /// Replicates these dimensions of `v`. The compiler can still split the others.
    pub(crate) fn with_replicated_dims(&mut self, v: Value, dims: &[usize]) -> Value {
        let Some(mesh) = self.split_mesh().cloned() else { return v };
        let rank = self.shape(v).len();
        let spec = (0..rank).map(|d| if dims.contains(&d) { DimSpec::None } else { DimSpec::Unconstrained });
        let mesh_name = self.mesh_name(&mesh);
        let sharding = NamedSharding::new(&mesh, PartitionSpec::new(spec)).sdy(&mesh_name, rank);
        let aval = self.aval(v);
        self.op("sdy.sharding_constraint", &[v], &format!("sharding = {sharding}"), &aval)
    }

    /// Prevents the users of `v` from deciding how the operation that computes it is partitioned, so that only its
    /// operands decide.
    pub(crate) fn split_as_operands(&mut self, v: Value) -> Value {
        if self.split_mesh().is_none_or(|mesh| mesh.axes().iter().filter(|(_, size)| *size > 1).count() < 2) {
            return v;
        }
        const FORWARD: &str = "allowed_direction = 1 : i32";
        let aval = self.aval(v);
        self.op("sdy.propagation_barrier", &[v], FORWARD, &aval)
    }

    /// Compares two values of one type element by element; `direction` is `EQ`, `NE`, `LT`, `LE`, `GT` or `GE`.
    pub(crate) fn compare(&mut self, direction: &str, a: Value, b: Value) -> Value {
        let flags = Aval::new(DType::Bool, self.shape(a).clone());
        self.op("stablehlo.compare", &[a, b], &comparison(direction, self.dtype(a)), &flags)
    }

    /// Broadcasts the value to the type `out`; its dimension `i` becomes `dims[i]`.
    pub fn broadcast_in_dim(&mut self, v: Value, dims: &[usize], out: &Aval) -> Value {
        let value = self.op("stablehlo.broadcast_in_dim", &[v], &format!("broadcast_dimensions = {}", ints(dims)), out);
        self.values[value.0 as usize].zero = self.is_zero(v);
        value
    }

    /// Runs `f` with this part added to the names of the operations that it writes.
    pub(crate) fn named<R>(&mut self, part: Option<Part>, f: impl FnOnce(&mut Self) -> R) -> R {
        let depth = self.locations.push(part);
        let result = f(self);
        self.locations.truncate(depth);
        result
    }

    /// Runs `f`, which writes operations that the compiler moves into a function. The compiler prefixes their names
    /// with the names of the call.
    pub(crate) fn named_in_function<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.locations.replace(Vec::new());
        let result = f(self);
        self.locations.replace(outer);
        result
    }

    /// Writes the equations of `program` and returns its outputs.
    ///
    /// # Errors
    /// Returns the error of the first primitive that cannot be lowered for the platform.
    pub fn program(&mut self, program: &Program, args: &[Value]) -> Result<Vec<Value>> {
        let mut env: Env<Value> = Env::new(program);
        for (var, arg) in program.inputs.iter().zip(args) {
            // An expansion has no types with shardings, so the value keeps its known sharding.
            if let Some(typed) = &program.aval_of(*var).sharding {
                self.values[arg.0 as usize].typed = Some(typed.clone());
            }
            env.set(*var, *arg);
        }
        let materialized = PlatformRules::values_to_materialize(self, program);
        let uses = PlatformRules::uses_of_transposes(self, program);
        // Few programs have operations of several results.
        let used = program.eqns.iter().any(|eqn| eqn.outputs.len() > 1).then(|| program.used());
        let mut inputs = Vec::new();
        let mut outs = Vec::new();
        for eqn in &program.eqns {
            inputs.clear();
            for atom in &eqn.inputs {
                inputs.push(self.atom(&env, atom)?);
            }
            outs.clear();
            outs.extend(eqn.outputs.iter().map(|v| program.aval_of(*v).clone()));
            let outer_location = self.locations.enter(eqn);
            self.unread.clear();
            if let Some(used) = used.as_ref().filter(|_| eqn.outputs.len() > 1) {
                self.unread.extend(eqn.outputs.iter().map(|var| !used[var.index()]));
            }
            let result = eqn.outputs.first().map_or(0, |var| var.index());
            self.result_use = uses.get(result).copied().unwrap_or_default();
            let values = grow(|| PlatformRules::operation(self, &*eqn.primitive, &inputs, &outs));
            let values = values.map_err(|e| e.at(eqn.source));
            self.locations.leave(outer_location);
            let values = values?;
            for ((var, mut value), out) in eqn.outputs.iter().zip(values).zip(&outs) {
                if let Some(typed) = out.sharding() {
                    value = self.constrain_result(value, out, typed);
                }
                if materialized.get(var.index()).copied().unwrap_or(false) && self.is_read(value) {
                    value = self.materialize(value);
                }
                env.set(*var, value);
            }
        }
        program.outputs.iter().map(|a| self.atom(&env, a)).collect()
    }

    /// Constrains the result of an equation to the sharding of its type. A sum of half precision is computed in float32 and
    /// rounded at the end. If its type is unreduced, the float32 sum is constrained before it is rounded, because the compiler
    /// would otherwise reduce it twice, see [`addends_like`](Self::addends_like).
    fn constrain_result(&mut self, value: Value, out: &Aval, typed: &Typed) -> Value {
        let wide =
            self.converted_from(value).filter(|from| !typed.unreduced().is_empty() && self.typed(*from).is_none());
        match wide {
            Some(wide) => {
                let wide = self.constrain(wide, typed);
                self.op("stablehlo.convert", &[wide], "", out)
            }
            None => self.constrain(value, typed),
        }
    }

    fn atom(&mut self, env: &Env<Value>, atom: &Atom) -> Result<Value> {
        match atom {
            Atom::Var(v) => env
                .get(*v)
                .copied()
                .ok_or_else(|| err!(Runtime, "internal error: variable {v:?} has no value; please report this")),
            Atom::Literal { value, dtype, .. } => Ok(self.constant(*value, &Aval::scalar(*dtype))),
        }
    }
}
