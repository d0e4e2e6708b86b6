//! Calls of host functions on the platforms that have handlers for them. In a partitioned program, one device makes a call
//! with side effects, with the entire operands, and sends the results to the other devices.

use super::rules::Lowered;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::core::program::trace::{bind, check_usable, trace};
use crate::dtype::{Category, DType};
use crate::error::{Result, err};
use crate::interpret::higher_order::bind_checked;
use crate::ops::callback::function::HostFunction;
use crate::ops::callback::primitive::HostCall;
use crate::ops::collective::{axis_index, psum};
use crate::ops::lax::bitcast_convert_type;
use crate::ops::shard_map::ShardMap;
use crate::ops::{control_flow, elementwise};
use crate::shape::AxisName;
use crate::sharding::{Mesh, PartitionSpec};

/// Writes a call of this implementation, whose handler must be registered.
pub(super) fn host_call(
    call: &HostCall,
    function: &HostFunction,
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
) -> Lowered {
    call.check_order(cx)?;
    // The partitioner loses the sharding of a custom call with side effects and then rejects the program, so one device
    // makes the call.
    if call.has_effects() && !cx.is_local() && cx.has_quirk("effects-lose-sharding") {
        let mesh = cx.auto_mesh.clone().filter(|_| cx.manual_axes.is_empty());
        let mesh = mesh.ok_or_else(|| {
            err!(NotImplemented, "{} where some mesh axes are left to the compiler is not supported", call.name())
                .help("call it inside a `shard_map` over all axes, where each device calls it with its own shard, or outside of `jit`")
        })?;
        return on_first_device(call, &mesh, cx, args).map(Some);
    }
    call.write(function, cx, args, outs).map(Some)
}

/// Lowers the call so that the first device of the mesh makes it.
fn on_first_device(call: &HostCall, mesh: &Mesh, cx: &mut Lowering, args: &[Value]) -> Result<Vec<Value>> {
    cx.expand(args, |args| {
        let axes: Vec<AxisName> = mesh.axis_names().collect();
        let avals: Vec<Aval> = args.iter().map(Array::aval).collect();
        let body = ShardMap::bind_axes(mesh, &axes, false, || {
            trace(&avals, |args| {
                // The other devices compute zeros, so that a sum sends the results to all devices.
                let types = crate::core::program::trace::infer(call, &avals)?;
                let outs: Vec<Array> = control_flow::cond(
                    axis_index(&axes[..]).equal(0),
                    |args: Vec<Array>| Ok(bind(std::sync::Arc::new(call.clone()), &args).into_vec()),
                    |_: Vec<Array>| -> Result<Vec<Array>> { Ok(types.iter().map(Array::zeros_of).collect()) },
                    args.to_vec(),
                )?;
                outs.iter().try_for_each(check_usable)?;
                Ok(outs.iter().map(|out| sent(out, &axes)).collect())
            })
        })?;
        let map = ShardMap {
            mesh: mesh.clone(),
            manual: axes.clone(),
            in_specs: vec![PartitionSpec::default(); args.len()],
            out_specs: vec![PartitionSpec::default(); body.program.outputs.len()],
            checked: false,
            body: body.program,
        };
        Ok(bind_checked(map, args)?.into_vec())
    })
}

/// Broadcasts the value of one device to the others, which hold zeros. Floating point is summed as bits so that the
/// value is exact.
fn sent(x: &Array, axes: &[AxisName]) -> Array {
    if x.dtype().is_narrow() {
        let wide = if x.dtype().is_float() { DType::F32 } else { DType::I8 };
        return sent(&x.astype(wide), axes).astype(x.dtype());
    }
    let bits = match x.dtype() {
        DType::F64 => DType::U64,
        DType::F32 => DType::U32,
        DType::F16 | DType::Bf16 => DType::U16,
        _ => DType::U8,
    };
    match x.dtype().category() {
        Category::Float => bitcast_convert_type(&psum(bitcast_convert_type(x, bits), axes), x.dtype()),
        Category::Complex => elementwise::complex(sent(&x.real(), axes), sent(&x.imag(), axes)),
        Category::Bool => psum(x.astype(DType::I32), axes).not_equal(0),
        _ => psum(x.clone(), axes),
    }
}
