//! A call with side effects in a partitioned program. One device makes the call with the entire operands and sends the
//! results to the other devices.

use super::primitive::HostCall;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::core::program::trace::{bind, check_usable, trace};
use crate::dtype::{Category, DType};
use crate::error::Result;
use crate::interpret::higher_order::bind_checked;
use crate::ops::collective::{axis_index, psum};
use crate::ops::lax::bitcast_convert_type;
use crate::ops::shard_map::ShardMap;
use crate::ops::{control_flow, elementwise};
use crate::shape::AxisName;
use crate::sharding::{Mesh, PartitionSpec};

/// Lowers the call so that the first device of the mesh makes it.
pub(super) fn lower(call: &HostCall, mesh: &Mesh, cx: &mut Lowering, args: &[Value]) -> Result<Vec<Value>> {
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
