//! Checks of results for NaN and infinities, and the search for the operation that produced them.

use std::borrow::Borrow;
use std::sync::Arc;

use super::execute::LoadedProgram;
use super::load::Request;
use crate::core::array::{Array, Buffers, Concrete, transfer};
use crate::core::program::trace::Traced;
use crate::dtype::Scalar;
use crate::error::{Result, err};
use crate::ops::checkify::{Checks, discharge};

/// Runs a program. Fails if a result contains a NaN or an infinity and the checks for them are enabled.
pub(super) fn run<A: Borrow<Concrete>>(
    program: &LoadedProgram,
    args: &[A],
    committed: bool,
    (nans, infs): (bool, bool),
) -> Result<Vec<Array>> {
    // The program consumes donated arguments, so they are copied before.
    // Donated arguments are copied, because the program runs again with checks if a result is invalid.
    let copies = args.iter().enumerate().map(|(i, arg)| {
        let Concrete { aval, sharding, committed, buffers, .. } = arg.borrow();
        let (sharding, buffers) = match program.donated.get(i) {
            Some(true) => {
                let copies = buffers.iter().map(|b| transfer::copy(b, None)).collect::<Result<Buffers>>()?;
                (sharding.in_layout(None), copies)
            }
            _ => (sharding.clone(), buffers.clone()),
        };
        Ok(Arc::new(Concrete::new(aval.clone(), sharding, *committed, buffers)))
    });
    let copies: Vec<Arc<Concrete>> = copies.collect::<Result<_>>()?;
    let outs: Vec<Array> = program.start(args, committed)?;
    for out in outs.iter().filter(|out| out.dtype().is_inexact()) {
        if let Some(value) = find(out, nans, infs)? {
            return Err(explain(program, &copies, committed, value)?);
        }
    }
    Ok(outs)
}

/// Returns the first invalid value of the array, among the kinds that are checked.
fn find(array: &Array, nans: bool, infs: bool) -> Result<Option<&'static str>> {
    let dtype = array.dtype();
    let bytes = array.to_bytes()?;
    let scalars = bytes.chunks_exact(dtype.byte_size().max(1)).map(|b| Scalar::read(dtype, b));
    let parts = scalars.flat_map(|s| [s.to_f64(), s.imag()]);
    let mut bad = parts.filter(|x| !x.is_finite()).map(|x| if x.is_nan() { "nan" } else { "inf" });
    Ok(bad.find(|value| if *value == "nan" { nans } else { infs }))
}

/// Runs the program again and checks each operation. The error names the first operation that produced such a value.
fn explain(
    program: &LoadedProgram,
    args: &[Arc<Concrete>],
    committed: bool,
    value: &str,
) -> Result<crate::error::Error> {
    let checks = if value == "nan" { Checks::DEBUG_NANS } else { Checks::DEBUG_INFS };
    // Runs the program again with a check after each operation; the errors are additional first results.
    if let Some(request) = &program.request {
        let traced = Traced { program: request.program.clone(), captures: Vec::new() };
        if let Some(checked) = discharge(&traced, checks)? {
            let count = checked.errors.count();
            let state = std::iter::repeat_n(None, count);
            let again = Request {
                program: checked.traced.program,
                out_shardings: state.chain(request.out_shardings.iter().cloned()).collect(),
                out_kinds: std::iter::repeat_n(None, count).chain(request.out_kinds.iter().copied()).collect(),
                out_layouts: std::iter::repeat_n(None, count).chain(request.out_layouts.iter().copied()).collect(),
                donated: vec![false; args.len()],
                ..request.clone()
            };
            let outs: Vec<Array> = again.load_cached()?.start(args, committed)?;
            if let Some(failure) = checked.errors.error(&outs[..count]).failures()?.into_iter().next() {
                return Ok(err!(FloatingPoint, "{}", failure.text).at(failure.line));
            }
        }
    }
    Ok(err!(
        FloatingPoint,
        "invalid value ({value}) encountered in a result of {}, but its operations did not produce invalid values when each was checked",
        program.name
    )
    .help("the invalid value is among the arguments, or comes from operations that the compiler fuses"))
}
