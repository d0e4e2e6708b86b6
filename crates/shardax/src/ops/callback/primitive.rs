//! `host_call`, the primitive that calls a host function from a program.

use std::any::Any;
use std::sync::Arc;

use smallvec::SmallVec;

use super::function::{HostFunction, TARGET};
use super::ordered::TOKEN;
use crate::choice::{Choice, NamedOption};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind;
use crate::dtype::DType;
use crate::error::{Error, Result, bail, err};
use crate::interpret::batching::move_batch;
use crate::ops::control_flow::each;
use crate::shape::Shape;

/// The kind of a callback, which determines its side effects. The kinds are named after JAX's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// No side effects: a call can be omitted, repeated, or reordered.
    Pure,
    /// Like [`Pure`](Kind::Pure), for a function of another language.
    Ffi,
    /// Like [`Ffi`](Kind::Ffi), with side effects.
    FfiWithEffect,
    /// Side effects of any kind.
    Io,
    /// Prints or records its operands.
    Debug,
}

/// The method with which `vmap` batches a host function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VmapMethod {
    /// One call for each entry of the batch, one after another.
    Sequential,
    /// One call, whose arguments have a leading batch dimension, of size 1 if they are not batched.
    ExpandDims,
    /// One call, whose arguments all have a leading batch dimension.
    BroadcastAll,
}

/// JAX's names.
impl NamedOption for VmapMethod {
    const KIND: &'static str = "vmap method";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("sequential", VmapMethod::Sequential),
        ("expand_dims", VmapMethod::ExpandDims),
        ("broadcast_all", VmapMethod::BroadcastAll),
    ];
}

/// A call of a host function, with results of these types.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostCall {
    pub function: Arc<HostFunction>,
    /// The implementation for GPU programs, on device memory.
    pub cuda: Option<Arc<HostFunction>>,
    pub results: SmallVec<[(DType, Shape); 1]>,
    pub kind: Kind,
    pub vmap: Option<Choice<VmapMethod>>,
    /// `true` if the call waits for the previous ordered call.
    pub ordered: bool,
    /// `true` if the call takes a token before its operands and returns one before its results.
    pub token: bool,
}

impl HostCall {
    #[track_caller]
    pub fn apply(self, args: &[Array]) -> Outputs {
        bind(Arc::new(self), args)
    }

    pub(crate) fn is_ffi(&self) -> bool {
        matches!(self.kind, Kind::Ffi | Kind::FfiWithEffect)
    }

    /// `true` if an operand or result has elements of less than a byte.
    pub(crate) fn has_parts_of_bytes(&self, cx: &Lowering, args: &[Value]) -> bool {
        let operands = args.iter().map(|&arg| cx.dtype(arg));
        operands.chain(self.results.iter().map(|(dtype, _)| *dtype)).any(|dtype| dtype.bits() < 8)
    }

    /// Returns the error for a platform that cannot call the function.
    pub(crate) fn lacks(&self, cx: &Lowering, way_round: &str) -> Error {
        cx.platform.lacks(&format!("{} of {:?}", self.name(), self.function), way_round)
    }

    /// Fails for an ordered call that many devices would make.
    pub(crate) fn check_order(&self, cx: &Lowering) -> Result<()> {
        if !self.ordered || self.kind != Kind::Debug || !cx.many_devices {
            return Ok(());
        }
        Err(err!(
            Value,
            "The following ordered effects are not supported for more than 1 device: {} of {:?}",
            self.name(),
            self.function
        )
        .help("leave the order out, or call an ordered `io_callback`: inside a `shard_map` each device keeps its own order"))
    }

    /// Writes the call of this implementation on each device. Its handler must be registered.
    pub(crate) fn write(
        &self,
        function: &HostFunction,
        cx: &mut Lowering,
        args: &[Value],
        outs: &[Aval],
    ) -> Result<Vec<Value>> {
        let operands = Self::row_major_layouts(args.iter().map(|&v| cx.shape(v).len()));
        let results = Self::row_major_layouts(outs.iter().map(Aval::rank));
        let attrs = format!(
            "call_target_name = \"{TARGET}\", api_version = 4 : i32, has_side_effect = {}, \
             backend_config = {{function = {} : i64, token = {} : i64}}, operand_layouts = {operands}, result_layouts = {results}",
            self.has_effects(),
            function.number,
            i64::from(self.token),
        );
        Ok(cx.op_with("stablehlo.custom_call", args, &attrs, Vec::new(), outs))
    }

    /// The attribute for row-major layouts of arrays of these ranks.
    fn row_major_layouts(ranks: impl Iterator<Item = usize>) -> String {
        let layouts = ranks.map(|rank| {
            let order: Vec<String> = (0..rank).rev().map(|d| d.to_string()).collect();
            format!("dense<[{}]> : tensor<{rank}xindex>", order.join(", "))
        });
        format!("[{}]", layouts.collect::<Vec<_>>().join(", "))
    }
}

impl Primitive for HostCall {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Pure => "pure_callback",
            Kind::Ffi | Kind::FfiWithEffect => "ffi_call",
            Kind::Io => "io_callback",
            Kind::Debug => "debug_callback",
        }
    }

    fn output_count(&self) -> usize {
        self.results.len() + usize::from(self.token)
    }

    fn has_effects(&self) -> bool {
        matches!(self.kind, Kind::FfiWithEffect | Kind::Io | Kind::Debug)
    }

    fn retained(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new((self.function.clone(), self.cuda.clone())))
    }

    fn print_params(&self) -> String {
        format!("function={:?}{}", self.function, if self.ordered { " ordered=true" } else { "" })
    }

    fn infer(&self, _args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let token = self.token.then(|| Aval::scalar(TOKEN));
        let results = self.results.iter().map(|(dtype, shape)| Aval::new(*dtype, shape.clone()));
        Ok(token.into_iter().chain(results).collect())
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.replicated()
    }

    /// Fails, because only a platform whose rules register the handler can lower the call.
    fn lower(&self, cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        let way_round =
            "compute this part of the program on the CPU's devices, or leave the call out on other platforms";
        Err(self.lacks(cx, way_round))
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        match self.kind {
            Kind::Debug => Ok((self.clone().apply(args), vec![None; self.results.len()])),
            Kind::Pure => Err(err!(
                NotImplemented,
                "pure callbacks cannot be differentiated, because shardax does not know the derivative of a host function"
            )
            .help("define the derivative with `custom_jvp` or `custom_vjp` around the callback")),
            Kind::Io => Err(err!(
                NotImplemented,
                "IO callbacks cannot be differentiated, because shardax does not know the derivative of a host function"
            )
            .help("define the derivative with `custom_jvp` or `custom_vjp` around the callback")),
            Kind::Ffi | Kind::FfiWithEffect => Err(err!(
                NotImplemented,
                "the FFI call to {:?} cannot be differentiated, because shardax does not know its derivative",
                self.function
            )
            .help("define the derivative with `custom_jvp` or `custom_vjp` around the call")),
        }
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if self.ordered && self.kind == Kind::Io {
            return Err(err!(Value, "Cannot `vmap` ordered IO callback.")
                .help("leave the order out, or call it in a `scan` over the batch"));
        }
        // Effects happen once for each example. Pure functions can also be called once for the entire batch.
        let method = match (self.kind, self.vmap) {
            (Kind::Io | Kind::Debug, _) => VmapMethod::Sequential,
            (_, Some(method)) => method.value(self.name())?,
            (_, None) => bail!(
                NotImplemented,
                "vmap is only supported for {} with a vmap method: call `.vmap_method(VmapMethod::…)` on it",
                self.name()
            ),
        };
        if method == VmapMethod::Sequential {
            return Ok((each(self.clone(), args, dims, axis.size)?, vec![Some(0); self.results.len()]));
        }
        let args = args.iter().zip(dims).map(|(a, &d)| {
            let size = if d.is_some() || method == VmapMethod::BroadcastAll { axis.size } else { 1 };
            move_batch(a, d, 0, size)
        });
        let args: Vec<Array> = args.collect();
        let mut batched = self.clone();
        batched.results.iter_mut().for_each(|(_, shape)| shape.insert(0, axis.size));
        Ok((batched.apply(&args), vec![Some(0); self.results.len()]))
    }
}
