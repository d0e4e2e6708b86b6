//! Functions for kernels: the position in the grid, conditionals, products.

use smallvec::smallvec;

use crate::core::array::Array;
use crate::core::function::IntoOutput;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, Primitive};
use crate::core::program::Aval;
use crate::core::program::trace::{at_caller, bind1};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::local::{Stack, StackKey};
use crate::ops::control_flow::cond;
use crate::ops::lax::DotOptions;
use crate::ops::operators::ArrayLike;
use crate::source;

thread_local! {
    /// The grids of the kernels that are being traced.
    static GRIDS: Stack<Vec<usize>> = const { Stack::new() };
}

/// Runs `f`, which traces a kernel on this grid.
pub(super) fn on_grid<R>(grid: &[usize], f: impl FnOnce() -> R) -> R {
    GRIDS.with_pushed([grid.to_vec()], f)
}

/// Returns `true` if a kernel is being traced on this thread.
pub(super) fn is_in_kernel() -> bool {
    GRIDS.with_borrow(|grids| !grids.is_empty())
}

/// The size of a dimension of the grid of the kernel that is being traced.
fn size_of(function: &str, axis: usize) -> Result<usize> {
    GRIDS.with_borrow(|grids| {
        let grid = grids.last().ok_or_else(|| {
            err!(Value, "{function}({axis}) was called outside of a kernel")
                .help("call it in a kernel of `pallas_call`")
        })?;
        let size = grid.get(axis).copied();
        size.ok_or_else(|| err!(Value, "{function}({axis}): axis {axis} is out of bounds for the grid {grid:?}"))
    })
}

fn integer(made: Result<Array>) -> Array {
    at_caller(|| Array::from_result(made, &Array::literal(Scalar::Int(0), DType::I32, false)))
}

/// The index of the position in the grid along this axis, an int32 scalar.
///
/// Fails outside of a kernel, and for an axis that the grid does not have.
#[track_caller]
pub fn program_id(axis: usize) -> Array {
    let _line = source::enter();
    integer(size_of("program_id", axis).map(|_| bind1(ProgramId { axis }, &[])))
}

/// The size of the grid along this axis, a number.
///
/// Fails outside of a kernel, and for an axis that the grid does not have.
#[track_caller]
pub fn num_programs(axis: usize) -> Array {
    let _line = source::enter();
    integer(size_of("num_programs", axis).map(ArrayLike::into_array))
}

/// Runs `f` where `condition`, a boolean scalar, is true: `when(k.equal(0), || acc.set(0.0))?`.
#[track_caller]
pub fn when<R: IntoOutput<Output = ()>>(condition: impl ArrayLike, f: impl Fn() -> R) -> Result<()> {
    let _line = source::enter();
    cond(condition, |()| f(), |()| (), ()).at_caller()
}

/// The number of blocks of `block` entries that `size` entries need: the quotient, rounded up.
///
/// ```
/// # use shardax::experimental::pallas::cdiv;
/// assert_eq!(cdiv(1000, 256), 4);
/// ```
pub const fn cdiv(size: usize, block: usize) -> usize {
    if block == 0 { 0 } else { size.div_ceil(block) }
}

/// The product of two matrices, with an accumulator and a result of float32, int32 for integers, float64 for float64.
///
/// For transposed operands use [`DotOptions::dot_general`] with `preferred_element_type`.
#[track_caller]
pub fn dot(a: &Array, b: &Array) -> Array {
    let made = a.check().and_then(|()| b.check()).and_then(|()| match (a.ndim(), b.ndim()) {
        (2, 2) => Ok(()),
        _ => Err(err!(Value, "dot takes two matrices, got {} and {}", a.type_name(), b.type_name())),
    });
    let wide = match (a.dtype(), b.dtype()) {
        (a, b) if a.is_integer() && b.is_integer() => DType::I32,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        _ => DType::F32,
    };
    let options = DotOptions::new().preferred_element_type(wide);
    at_caller(|| Array::from_result(made.map(|()| options.dot_general(a, b, (&[1], &[0]), (&[], &[]))), a))
}

/// The position in the grid along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProgramId {
    pub axis: usize,
}

impl Primitive for ProgramId {
    fn name(&self) -> &'static str {
        "program_id"
    }

    fn print_params(&self) -> String {
        format!("axis={}", self.axis)
    }

    fn infer(&self, _args: &[Aval]) -> Result<Avals> {
        Ok(smallvec![Aval::scalar(DType::I32)])
    }

    fn lower(&self, _cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Err(err!(Value, "program_id({}) is only known inside of a kernel", self.axis))
    }
}
